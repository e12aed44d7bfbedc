"""Connections: requests from any sequence of reads, refusal of hostile frames, framing of responses."""

import random
from types import SimpleNamespace

import pytest

from diamant.protocol.errors import ProtocolError
from diamant.protocol.wire.server_connection import (
    MIN_FRAME_BYTES,
    SCRATCH_BYTES,
    Request,
    ServerConnection,
    count_bytes,
)

PRODUCE, FETCH, METADATA, SASL_HANDSHAKE, API_VERSIONS = 0, 1, 3, 17, 18
MEBIBYTE = 1 << 20


def _frame(api_key: int, version: int, correlation_id: int, client_id: bytes | None, rest: bytes) -> bytes:
    header = api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + correlation_id.to_bytes(4, "big", signed=True)
    header += b"\xff\xff" if client_id is None else len(client_id).to_bytes(2, "big") + client_id
    return (len(header) + len(rest)).to_bytes(4, "big") + header + rest


# (frame, the request in it)
ROWS = {
    "classic": (_frame(METADATA, 1, 7, b"app", b"\x00\x00\x00\x00"), (METADATA, 1, 7, "app", b"\x00\x00\x00\x00")),
    "flexible": (_frame(METADATA, 12, 8, b"app", b"\x00\x01\x00\x00"), (METADATA, 12, 8, "app", b"\x01\x00\x00")),
    "header tags": (_frame(METADATA, 9, 9, b"", b"\x01\x07\x02xybody"), (METADATA, 9, 9, "", b"body")),
    "no client id": (_frame(SASL_HANDSHAKE, 1, -1, None, b"\x00\x05PLAIN"), (17, 1, -1, None, b"\x00\x05PLAIN")),
    "empty body": (_frame(API_VERSIONS, 0, 1 << 30, "grüße".encode(), b""), (18, 0, 1 << 30, "grüße", b"")),
    "bad client id": (_frame(API_VERSIONS, 0, 3, b"\xff", b""), (18, 0, 3, "\N{REPLACEMENT CHARACTER}", b"")),
    "future ApiVersions": (_frame(API_VERSIONS, 99, 3, b"x", b"\x00zzz"), (18, 99, 3, "x", b"zzz")),
    "unknown key": (_frame(999, 0, 3, b"x", b"\x00zzz"), (999, 0, 3, "x", b"\x00zzz")),
    "a page": (_frame(FETCH, 4, 4, b"x", bytes(5000)), (FETCH, 4, 4, "x", bytes(5000))),
    "beyond scratch": (_frame(PRODUCE, 7, 5, b"x", bytes(range(250)) * 999), (0, 7, 5, "x", bytes(range(250)) * 999)),
}


def _values(requests: list[Request]) -> list[tuple[object, ...]]:
    return [(*request[:4], bytes(request.body)) for request in requests]


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
@pytest.mark.parametrize("step", [1, 3, 4, 5, 1000, SCRATCH_BYTES, 10 * MEBIBYTE])
def test_a_request_in_pieces(row: tuple[bytes, tuple[object, ...]], step: int) -> None:
    """For reads of any size, the request is returned once and complete, with its last byte."""
    frame, expected = row
    if step < 5 and len(frame) > 10_000:
        step += 100  # the same path, but not a quarter of a million times
    server = ServerConnection(max_frame_bytes=MEBIBYTE)
    for start in range(0, len(frame), step):
        requests = server.receive(frame[start : start + step])
        if start + step < len(frame):
            assert requests == []
            assert server.pending_bytes == start + step
    assert _values(requests) == [expected]
    assert server.pending_bytes == 0


@pytest.mark.parametrize("seed", range(10))
def test_pipelined_requests_in_random_pieces(seed: int) -> None:
    """Many requests, split at random positions, are returned in order, without loss or duplicates."""
    rng = random.Random(seed)
    rows = [rng.choice(list(ROWS.values())) for _ in range(40)]
    stream = b"".join(frame for frame, _ in rows)
    server = ServerConnection(max_frame_bytes=MEBIBYTE)
    requests = []
    position = 0
    while position < len(stream):
        count = rng.choice((1, 2, 7, 50, 4000, 70_000))
        requests += server.receive(stream[position : position + count])
        position += count
    assert _values(requests) == [expected for _, expected in rows]


def test_bodies_stay_as_they_are() -> None:
    """A body keeps its bytes when the scratch buffer is reused, and writes to it do not affect others."""
    server = ServerConnection(max_frame_bytes=MEBIBYTE)
    (first,) = server.receive(_frame(METADATA, 1, 1, b"a", b"first"))
    (second, third) = server.receive(_frame(METADATA, 1, 2, b"a", b"2nd") + _frame(METADATA, 1, 3, b"a", b"3rd"))
    second.body[:] = b"xxx"
    server.receive(_frame(METADATA, 1, 4, b"a", bytes(100)))
    assert bytes(first.body) == b"first"
    assert bytes(second.body) == b"xxx"
    assert bytes(third.body) == b"3rd"


def test_connections_can_share_scratch() -> None:
    """Connections with a shared scratch buffer do not mix, even with interleaved reads."""
    scratch = bytearray(SCRATCH_BYTES)
    servers = [ServerConnection(max_frame_bytes=MEBIBYTE, scratch=scratch) for _ in range(3)]
    frames = [_frame(METADATA, 1, n, b"app", bytes([n]) * 50) * 3 for n in range(3)]
    requests: list[list[Request]] = [[], [], []]
    for start in range(0, len(frames[0]), 3):
        for n, server in enumerate(servers):
            requests[n] += server.receive(frames[n][start : start + 3])
    for n in range(3):
        assert _values(requests[n]) == [(METADATA, 1, n, "app", bytes([n]) * 50)] * 3


def test_scratch_must_hold_something() -> None:
    """A scratch buffer too small to make progress is refused."""
    with pytest.raises(ValueError, match="scratch of 3 bytes"):
        ServerConnection(max_frame_bytes=100, scratch=bytearray(3))


def test_a_large_frame_is_received_in_place() -> None:
    """Once the size is known, the transport writes into the frame's own buffer, which becomes the body."""
    server = ServerConnection(max_frame_bytes=MEBIBYTE)
    frame = _frame(PRODUCE, 7, 1, b"x", bytes(200_000))
    assert server.receive(frame[:60_000]) == []
    buffer = server.get_buffer()
    assert len(buffer) == len(frame) - 60_000
    buffer[-1] = 77
    (request,) = server.received(len(buffer))
    assert request.body[-1] == 77
    buffer[-1] = 78
    assert request.body[-1] == 78


@pytest.mark.slow
@pytest.mark.parametrize("hold", [False, True], ids=["views released", "transport holds a part of the view"])
def test_memory_follows_the_bytes_of_a_huge_frame(hold: bool) -> None:
    """An announced frame of 90 MiB costs 16 KiB until more bytes arrive; then the buffer doubles, and the body is complete."""
    size = 90 * MEBIBYTE
    body = random.Random(1).randbytes(MEBIBYTE)
    frame = _frame(PRODUCE, 7, 1, b"x", b"")
    frame = (len(frame) - 4 + size).to_bytes(4, "big") + frame[4:]
    server = ServerConnection(max_frame_bytes=100 * MEBIBYTE)
    server.receive(frame)
    received = 0
    held = []
    requests = []
    while received < size:
        buffer = server.get_buffer()
        assert len(buffer) <= max(MIN_FRAME_BYTES, received + len(frame))
        count = min(len(buffer), MEBIBYTE - received % MEBIBYTE)
        buffer[:count] = body[received % MEBIBYTE :][:count]
        if hold:
            held = [buffer[1:]]
        received += count
        requests = server.received(count)
    assert held or not hold
    assert len(requests[0].body) == size
    for start in range(0, size, MEBIBYTE):
        assert requests[0].body[start : start + MEBIBYTE] == body


def test_a_frame_gets_as_much_memory_at_once_as_the_last_one_filled() -> None:
    """After a frame of 100 kB the next has room for as much, after one of 2 MiB for 256 KiB."""
    server = ServerConnection(max_frame_bytes=4 * MEBIBYTE)
    frames = [_frame(PRODUCE, 7, 1, b"x", bytes(size)) for size in (100_000, 2 * MEBIBYTE)]
    for frame, room in ((frames[0], MIN_FRAME_BYTES), (frames[1], len(frames[0]) - 4), (frames[0], len(frames[0]) - 4)):
        server.receive(frame[:1000])
        assert len(server.get_buffer()) == room - 996
        server.receive(frame[1000:])
        assert server.announced_bytes == 0
    server.receive(frames[1] + frames[1][:1000])
    assert len(server.get_buffer()) == 256 * 1024 - 996


@pytest.mark.parametrize("size", [-1, 0, 9, MEBIBYTE + 1, 0x7FFFFFFF])
@pytest.mark.parametrize("step", [1, 100])
def test_hostile_sizes_are_refused(size: int, step: int) -> None:
    """A size below a header's or above the limit is a ProtocolError as soon as its 4 bytes have arrived."""
    server = ServerConnection(max_frame_bytes=MEBIBYTE)
    data = size.to_bytes(4, "big", signed=True)
    for start in range(0, 4 - step, step):
        server.receive(data[start : start + step])
    with pytest.raises(ProtocolError, match=f"frame of {size} bytes"):
        server.receive(data[4 - step if step < 4 else 0 :])


def test_the_limit_can_change() -> None:
    """A new limit on the frame size applies from the next frame on, as after authentication."""
    frame = _frame(METADATA, 1, 1, b"a", bytes(200))
    server = ServerConnection(max_frame_bytes=100)
    server.max_frame_bytes = 1000
    assert len(server.receive(frame)) == 1
    server.max_frame_bytes = 100
    with pytest.raises(ProtocolError):
        server.receive(frame)


@pytest.mark.parametrize(
    "rest",
    [
        b"\x00\x03\x00\x01\x00\x00\x00\x01\x00\x05abcd",
        b"\x00\x03\x00\x01\x00\x00\x00\x01\xff\xfe",
        b"\x00\x03\x00\x0c\x00\x00\x00\x01\xff\xff",
        b"\x00\x03\x00\x0c\x00\x00\x00\x01\xff\xff\x01\x00\x05abcd",
        b"\x00\x03\x00\x0c\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x00\x03\x00\x0c\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\x0f",
    ],
    ids=["client id too long", "client id -2", "no tags", "tag too long", "endless varint", "2^32-1 tags"],
)
def test_headers_that_do_not_fit_their_frame_are_refused(rest: bytes) -> None:
    """A header that extends beyond its frame, or ends within a field, is a ProtocolError."""
    with pytest.raises(ProtocolError):
        ServerConnection(max_frame_bytes=MEBIBYTE).receive(len(rest).to_bytes(4, "big") + rest)


def test_chunks_are_counted() -> None:
    """Any bytes-like chunk counts its bytes, any other its size."""
    large = memoryview(bytes(300))
    words = memoryview(bytes(8)).cast("i")
    file_range = SimpleNamespace(size=1000)
    assert count_bytes([bytearray(b"head"), file_range, large, words, b"tail"]) == 4 + 1000 + 300 + 8 + 4
    assert count_bytes([]) == 0


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"\x16\x03\x01\x02\0", "It looks like TLS, which this listener does not use"),
        (b"GET / HTTP/1.1", "It looks like an HTTP request; HTTP has a separate port"),
    ],
)
def test_another_protocol_is_named(start: bytes, said: str) -> None:
    """For an impossible size the error suggests TLS or HTTP if it looks like their first bytes."""
    with pytest.raises(ProtocolError, match=said):
        ServerConnection(max_frame_bytes=100).receive(start)
