"""Fuzz: every request type that is served, decoded from bytes that are nearly right.

Strategy
    For each (API, version): make a random valid request with kio's writer, then damage it by one to three of: flip a
    bit, set a byte to an edge value, cut the end, insert or remove bytes, repeat a slice, overwrite with a hostile
    length. Every damaged body goes through `decode_request`; `messages/test_requests.py` does the same with own decoders.
    Some damage affects values only, so some bodies stay valid: both outcomes occur.
    A second pass does the same to whole frames, fed to a `ServerConnection` in random pieces.

Invariants
    1. Decoding returns a request or raises ProtocolError, nothing else.
    2. A decoded request survives encoding and decoding: no value comes from bytes outside the body.
    3. The process survives, within bounded memory (`test_guard` runs the worst cases in a separate process).

Bounded: a fixed number of bodies per (API, version). The seed of a failure is in the assertion's message. Longer, by hand, and
with other bodies:

    DIAMANT_FUZZ_BODIES=5000 DIAMANT_FUZZ_SEED=1 pytest -n auto tests/protocol/wire/test_fuzz_requests.py
"""

import os
import random
from typing import Any

import pytest

from diamant.protocol.errors import ProtocolError
from diamant.protocol.wire.apis import API_NAMES, SERVED, is_flexible
from diamant.protocol.wire.schemas import decode_request, request_class
from diamant.protocol.wire.server_connection import ServerConnection
from tests.effort import examples
from tests.protocol.random_messages import entity, kio_bytes, random_fields

BODIES_PER_VERSION = int(os.environ.get("DIAMANT_FUZZ_BODIES") or examples(150))
FIRST_SEED = int(os.environ.get("DIAMANT_FUZZ_SEED") or 0) * 100_000
HOSTILE_LENGTHS = [
    b"\xff\xff\xff\xff\x7f",
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x80\x80",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xfe",
    b"\x80\x00\x00\x00",
    b"\x00",
    b"\x01",
]


def damage(rng: random.Random, body: bytes) -> bytes:
    """Return `body` with one to three random faults."""
    damaged = bytearray(body)
    for _ in range(rng.randint(1, 3)):
        position = rng.randrange(len(damaged) + 1)
        match rng.randrange(7):
            case 0 if position < len(damaged):
                damaged[position] ^= 1 << rng.randrange(8)
            case 1 if position < len(damaged):
                damaged[position] = rng.choice((0x00, 0x01, 0x02, 0x7F, 0x80, 0xFF))
            case 2:
                del damaged[position:]
            case 3:
                damaged[position:position] = rng.randbytes(rng.randint(1, 4))
            case 4:
                del damaged[position : position + rng.randint(1, 8)]
            case 5:
                damaged[position:position] = damaged[position : position + rng.randint(1, 30)]
            case _:
                length = rng.choice(HOSTILE_LENGTHS)
                damaged[position : position + rng.choice((1, len(length)))] = length
    return bytes(damaged)


@pytest.mark.parametrize("api_key", SERVED, ids=API_NAMES.get)
def test_damaged_bodies(api_key: int) -> None:
    """A damaged body of any served API is refused, or decoded to values that it contains."""
    served = SERVED[api_key]
    for version in range(served.min, served.max + 1):
        seed = FIRST_SEED + api_key * 100 + version
        rng = random.Random(seed)
        struct = request_class(api_key, version)
        for number in range(BODIES_PER_VERSION):
            body = damage(rng, kio_bytes(entity(struct, random_fields(rng, struct))))
            context = f"seed {seed}, body {number}: API {api_key} v{version} {body.hex()}"
            request = _decode_or_refuse(lambda: decode_request(api_key, version, body), context)  # noqa: B023
            if request is not None and not _has_float(api_key):
                again = decode_request(api_key, version, kio_bytes(request))
                assert again == request, context


def _decode_or_refuse(decode: Any, context: str) -> Any:
    try:
        return decode()
    except ProtocolError:
        return None
    except BaseException as error:
        raise AssertionError(context) from error


def _has_float(api_key: int) -> bool:
    """Return True for AlterClientQuotas: its doubles may be NaN, which equals nothing."""
    return api_key == 49


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 40))
def test_damaged_streams(seed: int) -> None:
    """A damaged stream of frames yields requests until it is refused; it raises nothing else, and never hangs."""
    rng = random.Random(seed)
    stream = bytearray()
    for _ in range(20):
        api_key = rng.choice(list(SERVED))
        version = rng.randint(SERVED[api_key].min, SERVED[api_key].max)
        struct = request_class(api_key, version)
        frame = api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\x00\x00\x00\x07\x00\x03app"
        frame += b"\x00" if is_flexible(api_key, version) else b""
        frame += kio_bytes(entity(struct, random_fields(rng, struct)))
        stream += len(frame).to_bytes(4, "big") + frame
    data = damage(rng, bytes(stream))
    server = ServerConnection(max_frame_bytes=1 << 20)
    position = 0
    try:
        while position < len(data):
            count = rng.randint(1, 500)
            for request in server.receive(data[position : position + count]):
                assert len(request.body) <= 1 << 20
                _decode_or_refuse(
                    lambda: decode_request(request.api_key, request.api_version, request.body),  # noqa: B023
                    f"seed {seed}",
                )
            position += count
    except ProtocolError:
        return
    assert server.pending_bytes < 1 << 20
