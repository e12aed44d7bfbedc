"""The server's side of a connection, without sockets or event loop: it turns bytes into requests.

    request  = int32 size, int16 api key, int16 api version, int32 correlation id, nullable string client id,
               [tagged fields: if the version is flexible], body
The size does not count itself. The client id is a plain string, never a compact one, even in the flexible header.

A transport reads the next bytes into the buffer from `get_buffer` and passes their number to `received`. Small frames are read
into a scratch buffer and copied out of it. If only the first part of a frame has arrived, a buffer is allocated for this frame,
and the rest is received directly into it, so that the body of a large Produce is not copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

from diamant.protocol.errors import ProtocolError
from diamant.protocol.primitives import skip_tags
from diamant.protocol.wire.apis import is_flexible

SCRATCH_BYTES = 64 * 1024
"""Size of the buffer for small frames."""

MIN_FRAME_BYTES = 16 * 1024
"""The whole buffer of a frame up to this size is allocated immediately. For a larger frame, the buffer begins with four times the
bytes received so far, and doubles whenever it is full.

So a first frame that a client announces but does not send takes at most 16 KiB, whatever `max_frame_bytes` is, and a partly
received one takes at most four times its received bytes. For later frames see `MAX_USUAL_BYTES`.
"""

MAX_USUAL_BYTES = 256 * 1024
"""The buffer of a frame begins at the size of the connection's last such frame, up to this maximum, because each growth costs
another read. So a connection takes that much memory only after it has sent as many bytes in one frame.
"""

_new = tuple.__new__  # makes a named tuple in two thirds of the time that calling its class takes

_SIZE = Struct(">i")
_HEADER = Struct(">hhih")


class Request(NamedTuple):
    """One received request.

    `body` is what follows the request header. It is writable, belongs only to this request, and is valid while referenced.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: memoryview


class ServerConnection:
    """Splits the bytes of one connection into requests.

    `max_frame_bytes` (socket.request.max.bytes) is the maximum size of a request, without its size field; it may change at any
    time, for instance after authentication. `scratch` is the buffer for small frames. It contains no data between `received` and
    the next `get_buffer`, so connections can share it if nothing else runs between `get_buffer` and `received`. That is the case
    in asyncio's selector and TLS transports.

    After a ProtocolError the connection must be closed; no more requests can be read from it.
    """

    __slots__ = ("_filled", "_frame", "_frame_size", "_handed_out", "_head", "_scratch", "_usual_bytes",
                 "max_frame_bytes")  # fmt: skip

    def __init__(self, *, max_frame_bytes: int, scratch: bytearray | None = None) -> None:
        self.max_frame_bytes = max_frame_bytes
        if scratch is not None and len(scratch) < 64:
            raise ValueError(f"scratch of {len(scratch)} bytes, expected at least 64")
        self._scratch = memoryview(bytearray(SCRATCH_BYTES) if scratch is None else scratch)
        self._head = b""  # 0..3 bytes of a size field
        self._frame: bytearray | None = None  # the frame being received; its first _filled bytes have arrived
        self._frame_size = 0
        self._filled = 0
        self._usual_bytes = MIN_FRAME_BYTES
        self._handed_out = memoryview(b"")  # the transport's latest view of _frame

    @property
    def announced_bytes(self) -> int:
        """Size of the frame being received in its own buffer; 0 between frames."""
        return self._frame_size if self._frame is not None else 0

    @property
    def pending_bytes(self) -> int:
        """Number of received bytes that are not yet part of a returned request."""
        return len(self._head) if self._frame is None else _SIZE.size + self._filled

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next bytes. It is never empty, and is valid until the next call of `received`."""
        frame = self._frame
        if frame is not None:
            if self._filled == len(frame):
                frame = self._grow_frame(frame)
            self._handed_out = memoryview(frame)[self._filled :]
            return self._handed_out
        head = self._head
        if not head:
            return self._scratch
        self._scratch[: len(head)] = head
        return self._scratch[len(head) :]

    def received(self, count: int) -> list[Request]:
        """Process `count` bytes in the latest buffer; return the requests that they complete, in order.

        Raises ProtocolError if a size is negative, too small for a header or above `max_frame_bytes`, or if a header does not fit
        its frame.
        """
        frame = self._frame
        if frame is not None:
            self._filled += count
            if self._filled < self._frame_size:
                return []
            self._frame = None
            self._usual_bytes = min(self._frame_size, MAX_USUAL_BYTES)
            return [_parse_request(memoryview(frame))]

        scratch = self._scratch
        end = count + len(self._head) if self._head else count
        requests: list[Request] = []
        position = 0
        while end - position >= 4:
            (size,) = _SIZE.unpack_from(scratch, position)
            if size < _HEADER.size or size > self.max_frame_bytes:
                expected = f"{_HEADER.size} to {self.max_frame_bytes}"
                raise ProtocolError(f"frame of {size} bytes, expected {expected}{_mistake(size)}")
            position += 4
            stop = position + size
            if stop > end:
                self._begin_frame(size, scratch[position:end])
                self._head = b""
                return requests
            requests.append(_parse_request(memoryview(bytearray(scratch[position:stop]))))
            position = stop
        self._head = bytes(scratch[position:end]) if position < end else b""
        return requests

    def receive(self, data: bytes) -> list[Request]:
        """Process `data`; return the requests that it completes, in order."""
        requests: list[Request] = []
        view = memoryview(data)
        while len(view):
            buffer = self.get_buffer()
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            requests += self.received(count)
            view = view[count:]
        return requests

    def _begin_frame(self, size: int, first: memoryview) -> None:
        frame = bytearray(min(size, max(MIN_FRAME_BYTES, 4 * len(first), self._usual_bytes)))
        frame[: len(first)] = first
        self._frame = frame
        self._frame_size = size
        self._filled = len(first)

    def _grow_frame(self, frame: bytearray) -> bytearray:
        self._handed_out.release()
        missing = self._frame_size - len(frame)
        # The added bytes may have any values. Repeating the frame's own bytes saves a copy, but must not exceed the frame's size.
        try:
            if missing >= len(frame):
                frame *= 2
            else:
                frame += frame[:missing]
        except BufferError:  # the transport still holds part of the view
            frame = frame + frame[:missing]
        self._frame = frame
        return frame


def _mistake(size: int) -> str:
    """Return a hint for a size that is the start of another protocol."""
    start = _SIZE.pack(size)
    if start[:2] == b"\x16\x03":
        return ". It looks like TLS, which this listener does not use: check the client's security.protocol and port"
    if start in (b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE"):
        return ". It looks like an HTTP request; HTTP has a separate port"
    return ""


def _parse_request(frame: memoryview) -> Request:
    try:
        api_key, api_version, correlation_id, length = _HEADER.unpack_from(frame)
        position = _HEADER.size
        client_id = None
        if length >= 0:
            position += length
            if position > len(frame):
                raise ProtocolError(f"client id of {length} bytes in a frame of {len(frame)} bytes")
            # Like Kafka, replace bytes that are not UTF-8; nothing depends on the client id.
            client_id = str(frame[_HEADER.size : position], "utf-8", "replace")
        elif length != -1:
            raise ProtocolError(f"client id of {length} bytes, expected -1 (null) or more")
        if is_flexible(api_key, api_version):
            position = position + 1 if frame[position] == 0 else skip_tags(frame, position, len(frame))
    except (IndexError, StructError) as error:
        raise ProtocolError(f"frame of {len(frame)} bytes ends within the request header") from error
    return _new(Request, (api_key, api_version, correlation_id, client_id, frame[position:]))


def count_bytes(chunks: Iterable[Any]) -> int:
    """Return the total size of a response's chunks in bytes."""
    total = 0
    for chunk in chunks:
        if isinstance(chunk, (bytes, bytearray)):
            total += len(chunk)
        elif isinstance(chunk, memoryview):
            total += chunk.nbytes
        else:
            total += chunk.size
    return total
