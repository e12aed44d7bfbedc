"""Transaction markers and the types of control records."""

from __future__ import annotations

import pytest

from diamant.protocol.batches.batch import crc_is_valid
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.batches.control import (
    ABORT,
    COMMIT,
    ControlType,
    EndTxnMarker,
    control_key,
    parse_control_type,
    parse_marker,
)
from diamant.protocol.batches.header import parse_header
from diamant.protocol.errors import CorruptBatch
from tests.builder import TIMESTAMP, make_marker

GOLDEN_COMMIT = bytes.fromhex(
    "0000000000000007000000420000000902c068e9930030000000000000018bcfe568090000018bcfe5680900000000000003e80003ffffffff"
    "000000012000000008000000010c00000000000c00"
)


def test_a_commit_marker() -> None:
    """A commit marker is Kafka's, byte for byte: a transactional control batch of one record that says COMMIT, epoch 12."""
    fields = {"producer_epoch": 3, "coordinator_epoch": 12, "base_offset": 7, "leader_epoch": 9}
    assert make_marker(1000, is_commit=True, timestamp=TIMESTAMP + 9, **fields) == GOLDEN_COMMIT
    header = parse_header(GOLDEN_COMMIT)
    assert header.is_control
    assert header.is_transactional
    assert crc_is_valid(GOLDEN_COMMIT, 0, header.size)
    assert (header.size, header.base_sequence, header.record_count) == (78, -1, 1)
    (record,) = iter_records(GOLDEN_COMMIT)
    assert parse_control_type(record.key) is COMMIT
    assert parse_marker(record.value) == EndTxnMarker(12)
    assert (record.offset, record.timestamp) == (7, TIMESTAMP + 9)


def test_an_abort_marker() -> None:
    """An abort marker differs in its type alone."""
    (record,) = iter_records(make_marker(1, is_commit=False, coordinator_epoch=-1))
    assert parse_control_type(record.key) is ABORT
    assert parse_marker(record.value) == EndTxnMarker(-1)


@pytest.mark.parametrize("control_type", [kind for kind in ControlType if kind >= 0])
def test_types_round_trip(control_type: ControlType) -> None:
    """Every known type is parsed from its key."""
    assert parse_control_type(control_key(control_type)) is control_type


@pytest.mark.parametrize("key", ["00000007", "0000ffff", "00007fff"])
def test_unknown_types_are_distinguished(key: str) -> None:
    """Unknown types are UNKNOWN, not an error."""
    assert parse_control_type(bytes.fromhex(key)) is ControlType.UNKNOWN


def test_higher_versions_are_read_as_version_0() -> None:
    """A higher version and further bytes are tolerated in keys and values."""
    assert parse_control_type(bytes.fromhex("0009000177")) is COMMIT
    assert parse_marker(bytes.fromhex("00090000000cffff")) == EndTxnMarker(12)


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\1"])
def test_bad_keys_are_corrupt(key: bytes | None) -> None:
    """A missing, short or negative-version key is corrupt."""
    with pytest.raises(CorruptBatch):
        parse_control_type(key)


@pytest.mark.parametrize("value", [None, b"", b"\0\0\0\0\0", b"\xff\xff\0\0\0\1"])
def test_bad_values_are_corrupt(value: bytes | None) -> None:
    """A missing, short or negative-version marker value is corrupt."""
    with pytest.raises(CorruptBatch):
        parse_marker(value)
