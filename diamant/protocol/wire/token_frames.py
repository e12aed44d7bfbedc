"""Frames of SASL tokens without a request header, which clients send after SaslHandshake version 0 (KIP-43).

    frame = int32 size, token

`TokenFrames` replaces a `ServerConnection` until the client is authenticated, and has the same methods for the transport.
"""

from __future__ import annotations

from struct import Struct

from diamant.protocol.errors import ProtocolError
from diamant.protocol.wire.server_connection import Request

_SIZE = Struct(">i")
_SASL_AUTHENTICATE = 36
_READ_BYTES = 4096

BARE_TOKEN = -1
"""The version in requests that represent such frames; their API key is that of SaslAuthenticate."""


class TokenFrames:
    """Splits bytes into tokens. Holds at most `max_frame_bytes` and the bytes of one read in memory."""

    def __init__(self, *, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._received = bytearray()
        self._buffer = memoryview(bytearray(_READ_BYTES))

    @property
    def announced_bytes(self) -> int:
        """Always 0, since these frames are small."""
        return 0

    @property
    def pending_bytes(self) -> int:
        """Number of received bytes that are not yet part of a returned token."""
        return len(self._received)

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next bytes."""
        return self._buffer

    def received(self, count: int) -> list[Request]:
        """Process `count` bytes; return the completed tokens. Raises ProtocolError for an invalid size."""
        data = self._received
        data += self._buffer[:count]
        requests = []
        while len(data) >= _SIZE.size:
            (size,) = _SIZE.unpack_from(data)
            if not 0 <= size <= self.max_frame_bytes:
                raise ProtocolError(f"SASL token of {size} bytes, expected 0 to {self.max_frame_bytes}")
            end = _SIZE.size + size
            if len(data) < end:
                break
            body = memoryview(bytearray(data[_SIZE.size : end]))
            requests.append(Request(_SASL_AUTHENTICATE, BARE_TOKEN, 0, None, body))
            del data[:end]
        return requests
