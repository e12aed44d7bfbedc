"""The contract between the network and handlers: request context, decoder, handler, answer."""

from __future__ import annotations

import logging
import struct
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from diamant.broker.config.listeners import PLAINTEXT
from diamant.broker.network.response_writer import Buffer, Part
from diamant.broker.security.authorization.access import OPEN, Access
from diamant.broker.security.identity.principal import ANONYMOUS, Principal
from diamant.protocol.errors import CorruptBatch, ErrorCode, KafkaError, OversizedRecord
from diamant.protocol.wire import apis
from diamant.protocol.wire.server_connection import Request
from diamant.storage.errors import CorruptLog, StorageError

if TYPE_CHECKING:
    from diamant.broker.security.sasl.session import SaslSession

logger = logging.getLogger(__name__)


SAME_FAILURE_S = 60.0
"""The minimum interval between log lines about the same disk failure."""


MAX_REMEMBERED_FAILURES = 1000


REQUEST_ERRORS = (KafkaError, CorruptBatch, CorruptLog, StorageError, OSError)
"""Errors of a request that are not bugs in the broker; `error_of` turns them into an error code."""


class RequestContext(NamedTuple):
    """The context of a request: everything but its body."""

    api_version: int
    client_id: str | None
    connection: ConnectionInfo
    access: Access = OPEN
    """The permissions of the client. A handler may check only those that its API declares in `dispatch/api_table.py`."""


Decode: TypeAlias = Callable[[int, memoryview], Any]
"""Called as `decode(version, body)`, returns the decoded request. Raises ProtocolError."""


Handle: TypeAlias = Callable[..., "Answer"]
"""Called as `handle(*dependencies, context, request)`. The dependencies are parts of the broker, declared in the API table."""


ResponseFields: TypeAlias = Mapping[str, object]
"""The fields of a response, as `schemas.encode_response_fields` takes them."""


Response: TypeAlias = ResponseFields | Coroutine[Any, Any, ResponseFields]


_HEADER_0 = struct.Struct(">ii")
_HEADER_1 = struct.Struct(">iib")


def frame_header(api_key: int, api_version: int, correlation_id: int, body_size: int) -> bytes:
    """Return the bytes before a response body: the size, and response header v0 or v1 (with an empty tag section)."""
    if apis.response_header_version(api_key, api_version) == 0:
        return _HEADER_0.pack(body_size + 4, correlation_id)
    return _HEADER_1.pack(body_size + 5, correlation_id, 0)


def error_of(error: BaseException) -> tuple[int, str | None]:
    """Return the error code and message for one of `REQUEST_ERRORS`. Messages contain no paths; the details of disk errors are in
    the broker's log.
    """
    if isinstance(error, KafkaError):
        if not isinstance(error.__cause__, OSError):
            return int(error.code), error.detail or None
        logger.error("%s", error.detail)
        return int(error.code), f"the log directory failed ({error.__cause__.strerror}), see the broker's log"
    if isinstance(error, OversizedRecord):
        return int(ErrorCode.INVALID_RECORD), error.reason
    if isinstance(error, CorruptBatch):
        return int(ErrorCode.CORRUPT_MESSAGE), error.reason
    logger.error("%s", error)
    return int(ErrorCode.KAFKA_STORAGE_ERROR), "the log directory failed, see the broker's log"


def error_fields(error: BaseException) -> dict[str, object]:
    """Return the fields with which a response, or one of its elements, reports one of `REQUEST_ERRORS`; see `error_of`."""
    code, message = error_of(error)
    return {"error_code": code, "error_message": message}


class SeldomFilter(logging.Filter):
    """Drops repetitions of a message within SAME_FAILURE_S."""

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


Answer: TypeAlias = Buffer | Sequence[Part] | Awaitable["Buffer | Sequence[Part] | None"] | None


class CloseConnection(Exception):
    """Raised to close the connection instead of answering, for example after a failed Produce with acks=0 or for an unknown API.
    `last_bytes` are sent first: an error response, or the start of a response that a fault cuts off.
    """

    def __init__(self, reason: str, last_bytes: bytes = b"") -> None:
        super().__init__(reason)
        self.last_bytes = last_bytes


class BrokerAddress(NamedTuple):
    """A broker as clients see it."""

    broker_id: int
    host: str
    port: int
    rack: str | None


class ConnectionInfo(NamedTuple):
    """The information about a connection that handlers may use."""

    listener_name: str
    peer: str
    """The address and port of the client."""
    host: str
    """The address without the port, as used by ACLs and quotas."""
    advertised_host: str
    advertised_port: int
    security_protocol: str = PLAINTEXT
    principal: Principal = ANONYMOUS
    sasl: SaslSession | None = None
    """The SASL session; None on listeners without SASL."""
    broker_id: int = 1
    """The broker of this process that the client has connected to."""


def client_host(context: RequestContext) -> str:
    """Return a client's address with a leading slash, as Kafka shows hosts (Java's `InetAddress.toString`)."""
    return "/" + context.connection.host


Dispatch: TypeAlias = Callable[[ConnectionInfo, Request], Answer]


FrameHeader: TypeAlias = Callable[[int, int, int, int], bytes]
