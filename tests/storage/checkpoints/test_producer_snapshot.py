"""Producer snapshot files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diamant.storage.checkpoints.producer_snapshot import ProducerEntry, read_snapshot, write_snapshot
from diamant.storage.errors import CorruptLog

ENTRY = ProducerEntry(1000, 3, 43, 6, 1, 1_700_000_000_007, 12, -1)
DATA = bytes.fromhex(
    "00011af008820000000100000000000003e800030000002b0000000000000006000000010000018bcfe568070000000cffffffffffffffff"
)
# Written by Kafka 4.3.1 for one producer (id 0, epoch 0) with 300 records.
KAFKAS = bytes.fromhex(
    "0001fff143e500000001000000000000000000000000012b000000000000012b0000012b000001a1fc967353ffffffffffffffffffffffff"
)


def test_golden_bytes() -> None:
    """One entry, and none, have the bytes that Kafka writes."""
    assert write_snapshot([ENTRY]) == DATA
    assert read_snapshot(DATA) == [ENTRY]
    assert write_snapshot([]) == bytes.fromhex("000148674bc700000000")
    assert read_snapshot(write_snapshot([])) == []


def test_a_snapshot_of_kafkas() -> None:
    """A file of a real broker is read and written back byte for byte."""
    assert read_snapshot(KAFKAS) == [ProducerEntry(0, 0, 299, 299, 299, 0x1A1FC967353, -1, -1)]
    assert write_snapshot(read_snapshot(KAFKAS)) == KAFKAS


int64 = st.integers(-1, 2**63 - 1)
int32 = st.integers(-1, 2**31 - 1)
entries = st.builds(ProducerEntry, int64, st.integers(-1, 32767), int32, int64, int32, int64, int32, int64)


@given(st.lists(entries, max_size=20))
def test_round_trip(some: list[ProducerEntry]) -> None:
    """Any entries survive encoding in order, with 46 bytes each."""
    data = write_snapshot(some)
    assert len(data) == 10 + 46 * len(some)
    assert read_snapshot(data) == some


def test_every_flipped_byte_is_noticed() -> None:
    """The checksum covers all that follows it; version and checksum itself are checked too."""
    for position in range(len(DATA)):
        broken = bytearray(DATA)
        broken[position] ^= 0x40
        with pytest.raises(CorruptLog, match="snapshot at"):
            read_snapshot(bytes(broken), "p.snapshot")


@pytest.mark.parametrize("data", [b"", DATA[:9], DATA[:-1], DATA + b"\0", DATA[:10]])
def test_wrong_lengths(data: bytes) -> None:
    """A file that is too short or has extra bytes is corrupt."""
    with pytest.raises(CorruptLog):
        read_snapshot(data)
