"""From a request to its handler: version check, decoding, one place for errors.

A handler is a function `handle(broker, context, request)`; `handlers/__init__.py` lists their modules. It returns the response
body (bytes, or buffers and file slices in order), an awaitable of it, or None for "no answer" (Produce with acks=0).
An asyncio Future is cancelled when the connection goes; a coroutine runs to its end.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from diamant.broker.network.server import Answer, CloseConnection, ConnectionInfo
from diamant.broker.node.flusher import Flusher
from diamant.protocol.errors import CorruptBatch, ErrorCode, KafkaError
from diamant.protocol.wire import apis
from diamant.protocol.wire.connection import Request
from diamant.storage.errors import CorruptLog, StorageError
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.broker import Broker

logger = logging.getLogger(__name__)

API_VERSIONS_KEY = 18

SAME_FAILURE_S = 60.0
"""A failing disk is reported this often, not once per request."""

MAX_REMEMBERED_FAILURES = 1000

REQUEST_ERRORS = (KafkaError, CorruptBatch, CorruptLog, StorageError, OSError)
"""What may go wrong with a request without being our bug; `error_of` turns it into a response code."""


class RequestContext(NamedTuple):
    """What a handler knows about a request beside its body."""

    api_version: int
    client_id: str | None
    connection: ConnectionInfo


Decode: TypeAlias = Callable[[int, memoryview], Any]
Handle: TypeAlias = "Callable[[Broker, RequestContext, Any], Answer]"


class Api(NamedTuple):
    """One row of the handler table. `decode(version, body)` raises ProtocolError."""

    key: int
    decode: Decode
    handle: Handle


class Dispatcher:
    """The handler table, ready for use by the server.

    Served versions are the intersection of what the table has and what `protocol.apis` serves.
    """

    def __init__(self, broker: Broker, keys: Collection[int], load: Callable[[int], Api]) -> None:
        """`load(key)` gives the row of one of `keys`; called when the first request for it comes."""
        self._broker = broker
        self._keys = keys
        self._load = load
        self._rows: dict[int, tuple[Decode, Handle, int, int]] = {}

    def __call__(self, connection: ConnectionInfo, request: Request) -> Answer:
        """Answer one request; raises CloseConnection or ProtocolError if its connection must be closed."""
        key, version = request.api_key, request.api_version
        row = self._rows.get(key)
        if row is None:
            row = self._first_use(key)
        decode, handle, min_version, max_version = row
        if not min_version <= version <= max_version:
            if key == API_VERSIONS_KEY:
                return unsupported_api_versions(min_version, max_version)
            raise CloseConnection(
                f"{apis.API_NAMES[key]} v{version} is not served, v{min_version} to v{max_version} are"
            )
        context = RequestContext(version, request.client_id, connection)
        flusher = self._broker.flusher
        if flusher.owed:
            flusher.owed = set()  # of what timers have appended nobody is told
        answer = handle(self._broker, context, decode(version, request.body))
        if not flusher.owed:
            return answer
        if isinstance(answer, asyncio.Future):
            flusher.owed = set()  # a request that waits for others: what it is answered then sees to its own flush
            return answer
        return after_flush(flusher, answer)

    def _first_use(self, key: int) -> tuple[Decode, Handle, int, int]:
        if key not in self._keys:
            raise CloseConnection(f"API key {key} ({apis.API_NAMES.get(key, 'unknown')}) is not served")
        api = self._load(key)
        row = self._rows[key] = (api.decode, api.handle, *apis.SERVED[key])
        return row


def after_flush(flusher: Flusher, answer: Answer) -> Coroutine[Any, Any, Any]:
    """The answer of a coordinator, once what it has appended in this turn of the loop is on disk (`flush.messages`).

    Awaiting it raises CloseConnection if that cannot be synced: nobody may believe that it is safe.
    """
    logs, flusher.owed = flusher.owed, set()
    return _when_synced(flusher, answer, logs)


async def _when_synced(flusher: Flusher, answer: Answer, logs: Collection[Log]) -> Any:
    body = await answer if asyncio.iscoroutine(answer) else answer
    await flusher.flushed(logs)
    check_synced(logs)
    return body


def check_synced(logs: Collection[Log]) -> None:
    """CloseConnection if a flush of one of these has failed."""
    failed = [f"{log.topic}-{log.partition}" for log in logs if log.write_failure is not None]
    if failed:
        raise CloseConnection(f"what was to be answered could not be synced to disk: {', '.join(failed)}")


def unsupported_api_versions(min_version: int, max_version: int) -> bytes:
    """The answer to an ApiVersions request of the future: version 0, error 35 and the one entry the client needs
    (KIP-511).
    """
    return struct.pack(">hihhh", ErrorCode.UNSUPPORTED_VERSION, 1, API_VERSIONS_KEY, min_version, max_version)


def frame_header(api_key: int, api_version: int, correlation_id: int, body_size: int) -> bytes:
    """What precedes a response body: its size and response header v0 or, with an empty tag section, v1."""
    if apis.response_header_version(api_key, api_version) == 0:
        return struct.pack(">ii", body_size + 4, correlation_id)
    return struct.pack(">iib", body_size + 5, correlation_id, 0)


def error_of(error: BaseException) -> tuple[int, str | None]:
    """The protocol's code and message for an error of `REQUEST_ERRORS`. Messages name no paths: what the disk did is said
    in full in the broker's own log.
    """
    if isinstance(error, KafkaError):
        if not isinstance(error.__cause__, OSError):
            return int(error.code), error.detail or None
        logger.error("%s", error.detail)
        return int(error.code), f"the log directory failed ({error.__cause__.strerror}), see the broker's log"
    if isinstance(error, CorruptBatch):
        return int(ErrorCode.CORRUPT_MESSAGE), error.reason
    logger.error("%s", error)
    return int(ErrorCode.KAFKA_STORAGE_ERROR), "the log directory failed, see the broker's log"


class SeldomFilter(logging.Filter):
    """Drops a message that was let through less than SAME_FAILURE_S ago."""

    def __init__(self) -> None:
        super().__init__()
        self._last_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if record.created - self._last_s.get(message, -SAME_FAILURE_S) < SAME_FAILURE_S:
            return False
        if len(self._last_s) >= MAX_REMEMBERED_FAILURES:
            self._last_s.clear()
        self._last_s[message] = record.created
        return True


logger.addFilter(SeldomFilter())
