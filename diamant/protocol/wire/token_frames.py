"""Frames of SASL tokens without a request header, as clients send them after SaslHandshake version 0 (KIP-43).

    frame = int32 size, token

Takes the place of a `ServerConnection` until the client has authenticated; the same calls, for the same transport.
"""

from __future__ import annotations

from struct import Struct

from diamant.protocol.errors import ProtocolError
from diamant.protocol.wire.connection import Request

_SIZE = Struct(">i")
_SASL_AUTHENTICATE = 36
_READ_BYTES = 4096

BARE_TOKEN = -1
"""The version of a request that stands for such a frame; its key is that of SaslAuthenticate."""


class TokenFrames:
    """Cuts bytes into tokens. Memory: `max_frame_bytes`, and one read."""

    def __init__(self, *, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._received = bytearray()
        self._buffer = memoryview(bytearray(_READ_BYTES))

    @property
    def announced_bytes(self) -> int:
        """0: a frame that is being received is small."""
        return 0

    @property
    def pending_bytes(self) -> int:
        """Bytes received that are not part of a returned token yet."""
        return len(self._received)

    def get_buffer(self) -> memoryview:
        """Return where the next bytes are to go."""
        return self._buffer

    def received(self, count: int) -> list[Request]:
        """Take `count` bytes; return the tokens that are complete. ProtocolError for a size that is not allowed."""
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
