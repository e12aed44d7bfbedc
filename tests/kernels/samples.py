"""Random records for tests of kernels."""

from __future__ import annotations

from hypothesis import strategies as st

from diamant.protocol.batches.header import HEADER_SIZE, Header, Record
from diamant.protocol.batches.records import build_batch

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
