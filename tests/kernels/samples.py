"""Random records for tests of kernels."""

from __future__ import annotations

from hypothesis import strategies as st

from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import HEADER_SIZE, Header, Record

record = st.builds(
    Record,
    offset=st.just(0),
    timestamp=st.integers(-(2**50), 2**50),
    key=st.none() | st.binary(max_size=200),
    value=st.none() | st.binary(max_size=200),
    headers=st.lists(st.builds(Header, st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3).map(tuple),
)


def payload_of(records: list[Record]) -> bytes:
    """Return the records of a batch, uncompressed, with offset deltas from 0 on."""
    numbered = [item._replace(offset=index) for index, item in enumerate(records)]
    return bytes(build_batch(numbered)[HEADER_SIZE:])


def damaged(data: st.DataObject, content: bytes | bytearray, start: int = 0, *, least: int = 1) -> bytearray:
    """Return a copy with up to three bytes from `start` on overwritten by values at the edges of what integers hold."""
    out = bytearray(content)
    for _ in range(data.draw(st.integers(least, 3))):
        out[data.draw(st.integers(start, len(out) - 1))] = data.draw(st.sampled_from([0, 1, 2, 127, 128, 254, 255]))
    return out
