"""The contract between the network and handlers: a request in its context, an answer, an API."""

from __future__ import annotations

import logging
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from diamant.broker.config.listeners import PLAINTEXT
from diamant.broker.network.response_writer import Buffer, Part
from diamant.broker.security.authorization.access import OPEN, Access
from diamant.broker.security.identity.principal import ANONYMOUS, Principal
from diamant.protocol.errors import CorruptBatch, ErrorCode, KafkaError
from diamant.protocol.wire import apis
from diamant.protocol.wire.connection import Request
from diamant.storage.errors import CorruptLog, StorageError

if TYPE_CHECKING:
    from diamant.broker.security.sasl.session import SaslSession

logger = logging.getLogger(__name__)


SAME_FAILURE_S = 60.0
"""A failing disk is reported this often, not once per request."""


MAX_REMEMBERED_FAILURES = 1000


REQUEST_ERRORS = (KafkaError, CorruptBatch, CorruptLog, StorageError, OSError)
"""Errors of a request that are not bugs of ours; `error_of` turns them into a response code."""


class RequestContext(NamedTuple):
    """The facts about a request besides its body."""

    api_version: int
    client_id: str | None
    connection: ConnectionInfo
    access: Access = OPEN
    """What the client may; a handler asks it for nothing that its row in `api_needs.py` does not declare."""


Decode: TypeAlias = Callable[[int, memoryview], Any]


Handle: TypeAlias = Callable[..., "Answer"]
"""`handle(*needs, context, request)`: what it needs stands in the table of APIs."""


class Api(NamedTuple):
    """One row of the handler table. `decode(version, body)` raises ProtocolError."""

    key: int
    decode: Decode
    handle: Handle


_HEADER_0 = struct.Struct(">ii")
_HEADER_1 = struct.Struct(">iib")


def frame_header(api_key: int, api_version: int, correlation_id: int, body_size: int) -> bytes:
    """The bytes before a response body: its size and response header v0 or, with an empty tag section, v1."""
    if apis.response_header_version(api_key, api_version) == 0:
        return _HEADER_0.pack(body_size + 4, correlation_id)
    return _HEADER_1.pack(body_size + 5, correlation_id, 0)


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


Answer: TypeAlias = Buffer | Sequence[Part] | Awaitable["Buffer | Sequence[Part] | None"] | None


class CloseConnection(Exception):
    """A request that can only be answered by closing the connection: Produce with acks=0 that failed, an API we do
    not serve. `last_bytes`, if there are any, are still sent: the beginning of an answer that is cut off on purpose.
    """

    def __init__(self, reason: str, last_bytes: bytes = b"") -> None:
        super().__init__(reason)
        self.last_bytes = last_bytes


class ConnectionInfo(NamedTuple):
    """The facts about a connection that handlers may use."""

    listener_name: str
    peer: str
    """Address and port."""
    host: str
    """The address alone: what ACLs and quotas know."""
    advertised_host: str
    advertised_port: int
    security_protocol: str = PLAINTEXT
    principal: Principal = ANONYMOUS
    sasl: SaslSession | None = None
    """The authentication in progress or done, on listeners with SASL."""


Dispatch: TypeAlias = Callable[[ConnectionInfo, Request], Answer]


FrameHeader: TypeAlias = Callable[[int, int, int, int], bytes]
