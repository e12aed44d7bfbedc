"""Errors of the operations, with a code for each possible reaction of the caller: the same in Python, over HTTP and in commands.

`code` is for programs; `KINDS` has its HTTP status, its exit code and its meaning. The text says what failed, where,
what was expected and what to do next. It never contains a record's key or value.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.names import GROUP_OFFSETS_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC

EXIT_DONE, EXIT_FAILED, EXIT_REFUSED, EXIT_NOT_SO, EXIT_NOTHING = 0, 1, 2, 3, 4
"""Exit codes of the commands. `EXIT_REFUSED`: the same command would be refused again. `EXIT_FAILED`: it may succeed later."""
EXIT_INTERRUPTED = 130
"""The exit code after Ctrl-C, by the convention of shells: 128 plus the number of SIGINT."""


class ErrorKind(NamedTuple):
    """The errors with one code. `status` is 0 if no HTTP response has the code."""

    status: int
    exit_code: int
    meaning: str


KINDS = {
    "bad-argument": ErrorKind(400, EXIT_REFUSED, "an option, argument or field is unknown, missing or invalid"),
    "unauthorized": ErrorKind(401, EXIT_REFUSED, "the token, the user or the password is missing or wrong"),
    "not-allowed": ErrorKind(
        403,
        EXIT_REFUSED,
        "not allowed for this caller, or on a broker with these settings (no manual clock, no token file)",
    ),
    "not-found": ErrorKind(404, EXIT_REFUSED, "no such topic, partition, group, job, certificate or path"),
    "deleted": ErrorKind(404, EXIT_REFUSED, "the topic was deleted during the operation"),
    "bad-method": ErrorKind(405, EXIT_REFUSED, "the path has other methods, which `Allow` lists"),
    "not-possible": ErrorKind(409, EXIT_REFUSED, "the present state rules the operation out"),
    "not-compacted": ErrorKind(409, EXIT_REFUSED, "the topic has ceased to be compacted"),
    "unconfirmed": ErrorKind(
        409, EXIT_REFUSED, "identifiers may belong to several people, and the caller has not confirmed them"
    ),
    "everything-matches": ErrorKind(409, EXIT_REFUSED, "every record of the topic would be redacted"),
    "not-genuine": ErrorKind(409, EXIT_NOT_SO, "this is no certificate, or it has changed since it was signed"),
    "gone": ErrorKind(410, EXIT_FAILED, "the job is done, but its result is no longer kept"),
    "too-large": ErrorKind(413, EXIT_REFUSED, "the body is larger than the path accepts"),
    "too-many": ErrorKind(429, EXIT_FAILED, "a limit on simultaneous work or on results is reached"),
    "failed": ErrorKind(500, EXIT_FAILED, "an error in the broker or with a file"),
    "internal": ErrorKind(500, EXIT_FAILED, "an unexpected error, which is in the broker's log"),
    "uncleanable": ErrorKind(500, EXIT_FAILED, "the cleaner skips the partition since it failed there"),
    "quarantined": ErrorKind(500, EXIT_FAILED, "the cleaner works around a damaged segment of the partition"),
    "kernels-missing": ErrorKind(501, EXIT_FAILED, "this installation has no compiled kernels"),
    "stopping": ErrorKind(503, EXIT_FAILED, "the broker stops"),
    "timed-out": ErrorKind(504, EXIT_FAILED, "not done in time; work that has started may continue"),
    "no-answer": ErrorKind(0, EXIT_FAILED, "no broker answers"),
    "no-http": ErrorKind(0, EXIT_FAILED, "the broker has no HTTP port"),
    "went-away": ErrorKind(0, EXIT_FAILED, "the broker ended before it answered"),
    "damaged": ErrorKind(0, EXIT_FAILED, "a file is damaged"),
    "not-so": ErrorKind(0, EXIT_NOT_SO, "the requested state is not reached, or nothing was found"),
    "interrupted": ErrorKind(0, EXIT_INTERRUPTED, "Ctrl-C"),
}
"""All codes, by HTTP status."""


def kind_of(code: str) -> ErrorKind:
    """Return the kind of a code. A code from a broker of another version may be unknown: it counts as `failed`."""
    return KINDS.get(code, KINDS["failed"])


class OperationError(Exception):
    """An operation failed. The base class of these errors."""

    code = "failed"

    @property
    def status(self) -> int:
        """The HTTP status."""
        return kind_of(self.code).status


class BadArgument(OperationError):
    """The request is invalid."""

    code = "bad-argument"


class NotAllowed(OperationError):
    """The operation is not allowed for this caller, or on a broker with these settings."""

    code = "not-allowed"


class NotFound(OperationError):
    """The topic, partition, job or certificate does not exist."""

    code = "not-found"


class NotPossible(OperationError):
    """The target exists, but its state rules out the operation: the topic is not compacted, or another call is in progress."""

    code = "not-possible"


class Unconfirmed(NotPossible):
    """The identifiers of a person may belong to several people; the caller may confirm them."""

    code = "unconfirmed"


class BrokerStopping(NotPossible):
    """The broker is stopping. The call can be repeated after the broker's next start."""

    code = "stopping"


class NotGenuine(NotPossible):
    """A certificate in the data directory has changed since it was signed."""

    code = "not-genuine"


class TimedOut(OperationError):
    """The call timed out. Work that it started may continue."""

    code = "timed-out"


class TooMany(OperationError):
    """A limit on simultaneous work is reached. The call may succeed later."""

    code = "too-many"


# -- errors of the system as operation errors ---------------------------------------------------------------------------------


def may_pass(error: Exception) -> bool:
    """Return whether the system refused a file, a thread or, for lack of descriptors, a module."""
    if isinstance(error, ImportError):
        return os.strerror(errno.EMFILE) in str(error)
    return isinstance(error, OSError) or (isinstance(error, RuntimeError) and "can't start new thread" in str(error))


@contextmanager
def as_operation_error() -> Iterator[None]:
    """Turn an error of the system into an OperationError. The import of an operation at its first call may fail, too."""
    try:
        yield
    except Exception as error:
        # A ConnectionError is of a peer, a TimeoutError of the caller's own limit.
        if isinstance(error, ConnectionError | TimeoutError) or not may_pass(error):
            raise
        raise OperationError(f"the operation failed: {error}. Try again once the cause is gone") from error


# -- Kafka's errors as operation errors ---------------------------------------------------------------------------------------


_CODES_OF_KAFKA = {
    "not-found": {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.LOG_DIR_NOT_FOUND,
        ErrorCode.DELEGATION_TOKEN_NOT_FOUND,
    },
    "unauthorized": {
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        ErrorCode.ILLEGAL_SASL_STATE,
    },
    "not-allowed": {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.SECURITY_DISABLED,
    },
    "not-possible": {
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.TOPIC_DELETION_DISABLED,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.UNSUPPORTED_VERSION,
    },
    "timed-out": {ErrorCode.REQUEST_TIMED_OUT},
    "too-many": {ErrorCode.THROTTLING_QUOTA_EXCEEDED},
    "failed": {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    },
}
_BY_NUMBER: dict[int, str] = {number: code for code, numbers in _CODES_OF_KAFKA.items() for number in numbers}


def code_of_kafka_error(number: int) -> str:
    """Return our code for a Kafka error code. A code that names no state and does not pass by itself blames an argument."""
    return _BY_NUMBER.get(number, "bad-argument")


def refused_by_kafka(error: KafkaError) -> OperationError:
    """Return the operation error for an error of Kafka's protocol, with that error's text."""
    code = code_of_kafka_error(error.code)
    kinds = (BadArgument, NotAllowed, NotFound, NotPossible, TimedOut, TooMany)
    found = next((kind for kind in kinds if kind.code == code), OperationError)(error.detail or str(error))
    found.code = code
    return found


# -- texts that several interfaces share -------------------------------------------------------------------------------


_MADE_WITH = {
    GROUP_OFFSETS_TOPIC: "group",
    TRANSACTION_STATE_TOPIC: "transaction",
    SHARE_GROUP_STATE_TOPIC: "share group",
}


def no_topic(name: str) -> str:
    """Return the text for a topic that does not exist."""
    shown = repr(name[:249])
    if name in _MADE_WITH:
        return f"there is no topic {shown} yet: the broker makes it with the first {_MADE_WITH[name]}"
    return f"there is no topic {shown}: `diamant topic list` lists those that exist, `diamant topic create` makes one"


def no_partition(topic: str, partition: int, count: int) -> str:
    """Return the text for a partition that does not exist. `count`: the number of partitions that the topic has."""
    present = {0: "none", 1: "only partition 0"}.get(count, f"partitions 0 to {count - 1}")
    return f"topic {topic!r} has no partition {partition}: it has {present}"


def no_group(name: str) -> str:
    """Return the text for a consumer group that does not exist."""
    return f"there is no group {name[:249]!r}: `diamant group list` lists those that exist"
