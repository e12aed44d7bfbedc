"""The dispatcher: it checks the versions of requests, decodes them, and passes them to their handlers.

A handler is a function of dependencies, context and request; `api_table.py` names its module and dependencies, and encodes the
fields that it returns. The dispatcher gets the response body (bytes, or buffers and file slices in order), an awaitable of it,
or None for no answer (Produce with acks=0). A PendingAnswer or an asyncio Future is cancelled when the connection closes; a
coroutine runs to completion.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeAlias

from diamant.broker.network.api import (
    Answer,
    CloseConnection,
    ConnectionInfo,
    Decode,
    RequestContext,
)
from diamant.broker.network.pending_answer import PendingAnswer
from diamant.broker.node.flusher import Flusher, after_flush
from diamant.broker.security.authorization.access import OPEN
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire import apis
from diamant.protocol.wire.server_connection import Request

Handler: TypeAlias = Callable[[RequestContext, Any], Answer]
"""A handler with its dependencies bound."""

API_VERSIONS_KEY = 18

LARGE_BODY_BYTES = 128 * 1024
"""Decoding a larger request may take ten milliseconds or more of processor time."""

_QUICK_TO_DECODE = (apis.PRODUCE, apis.FETCH, 78)  # and ShareFetch
"""APIs whose decoders copy no records. Also, a pending fetch has to end with its connection, which a coroutine would not."""

_new = tuple.__new__  # as in `protocol/messages/fetch.py`


class Dispatcher:
    """The handlers of all APIs, as a single function that the server calls.

    It serves the versions that `protocol/wire/apis.py` lists for these APIs.
    """

    def __init__(self, flusher: Flusher, keys: Collection[int], load: Callable[[int], tuple[Decode, Handler]]) -> None:
        """`load(key)` returns the decoder and the handler of one of `keys`; it is called at the first request for the API."""
        self._flusher = flusher
        self._keys = keys
        self._load = load
        self._rows: dict[int, tuple[Decode, Handler, int, int]] = {}

    def __call__(self, connection: ConnectionInfo, request: Request) -> Answer:
        """Answer one request. Raises CloseConnection or ProtocolError if the connection must be closed."""
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
        context = _new(RequestContext, (version, request.client_id, connection, OPEN))
        if len(request.body) > LARGE_BODY_BYTES and key not in _QUICK_TO_DECODE:
            return self._handle_large(decode, handle, context, request.body)
        flusher = self._flusher
        if flusher.owed:
            flusher.owed = set()  # left over from appends by timers, on which no answer depends
        answer = handle(context, decode(version, request.body))
        if not flusher.owed:
            return answer
        if isinstance(answer, asyncio.Future | PendingAnswer):
            flusher.owed = set()  # a pending request, whose answer will wait for its own flush
            return answer
        return after_flush(flusher, answer)

    async def _handle_large(self, decode: Decode, handle: Handler, context: RequestContext, body: memoryview) -> Any:
        """Answer a large request. A thread decodes it, so that other requests do not have to wait."""
        decoded = await asyncio.get_running_loop().run_in_executor(None, decode, context.api_version, body)
        self._flusher.owed = set()
        answer = handle(context, decoded)
        if self._flusher.owed and not isinstance(answer, asyncio.Future | PendingAnswer):
            answer = after_flush(self._flusher, answer)
        return await answer if isinstance(answer, Awaitable) else answer

    def _first_use(self, key: int) -> tuple[Decode, Handler, int, int]:
        if key not in self._keys:
            raise CloseConnection(f"API key {key} ({apis.API_NAMES.get(key, 'unknown')}) is not served")
        row = self._rows[key] = (*self._load(key), *apis.SERVED[key])
        return row


def unsupported_api_versions(min_version: int, max_version: int) -> bytes:
    """Return the answer to an unknown version of ApiVersions: version 0 with error 35 and the entry of ApiVersions (KIP-511)."""
    return struct.pack(">hihhh", ErrorCode.UNSUPPORTED_VERSION, 1, API_VERSIONS_KEY, min_version, max_version)
