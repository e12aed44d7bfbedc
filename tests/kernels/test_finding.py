"""The search for batch headers at any byte: the kernel equals its plain twin."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.cleaner.evidence.search import batch_finder
from diamant.kernels.constants.finding import PAD_BYTES
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import ATTRIBUTES, HEADER_SIZE, Record
from tests.effort import examples

FRAMES = (b"", b"\x1f\x8b\x08", b"\x82SNAPPY", b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd", b"\x5a\x2a\x4d\x18")
BATCH = bytes(build_batch([Record(0, 0, b"key", b"value")]))


def batch(codec: int, frame: bytes, at: int, value: int, cut: int) -> bytes:
    """Return a batch with any codec and frame, one byte changed, and perhaps cut off."""
    found = bytearray(BATCH[:HEADER_SIZE] + frame + BATCH[HEADER_SIZE:])
    found[ATTRIBUTES + 1] = codec
    found[at] = value
    return bytes(found[: len(found) - cut])


def old_entry(magic: int, attributes: int, key_size: int, value: bytes) -> bytes:
    """Return an entry of an old format, or nearly one."""
    key = bytes(max(0, min(key_size, 20)))
    body = b"\1\2\3\4" + bytes((magic, attributes)) + bytes(8 * magic)
    body += key_size.to_bytes(4, "big", signed=True) + key + len(value).to_bytes(4, "big") + value
    return bytes(8) + len(body).to_bytes(4, "big") + body


pieces = st.one_of(
    st.binary(max_size=80),
    st.integers(0, 90).map(bytes),
    st.builds(
        batch, st.integers(0, 7), st.sampled_from(FRAMES), st.integers(0, 66), st.integers(0, 255), st.integers(0, 20)
    ),
    st.builds(old_entry, st.integers(0, 1), st.integers(0, 12), st.integers(-2, 70_000), st.binary(max_size=9)),
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(pieces, max_size=5), st.integers(0, 400), st.sampled_from([0, 1000]))
def test_both_find_the_same(parts: list[bytes], stop: int, more: int) -> None:
    """Both find the same headers in noise, zeros, and batches that are whole, cut off or slightly damaged."""
    data = b"".join(parts)
    octets = data + bytes(PAD_BYTES)
    found = [*batch_finder._compiled(octets, stop, len(data) + more)]
    assert found == [*batch_finder._plain(octets, stop, len(data) + more)]
