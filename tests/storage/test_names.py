"""File and directory names, as Kafka gives and parses them (LocalLogTest)."""

from __future__ import annotations

import pytest

from diamant.storage import names
from diamant.storage.names import SegmentFileName


def test_file_names_have_twenty_digits() -> None:
    """A segment's files and snapshots are named after an offset of twenty digits, or more if it needs more."""
    assert names.log_file("d/t-0", 42) == "d/t-0/00000000000000000042.log"
    assert names.index_file("d", 0) == "d/00000000000000000000.index"
    assert names.time_index_file("d", 1) == "d/00000000000000000001.timeindex"
    assert names.txn_index_file("d", 2) == "d/00000000000000000002.txnindex"
    assert names.snapshot_file("d", 2**63 - 1) == "d/09223372036854775807.snapshot"
    assert names.metadata_snapshot_file("d", 7, 3) == "d/00000000000000000007-0000000003.checkpoint"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("00000000000000000042.log", SegmentFileName(42, ".log", "")),
        ("00000000000000000042.index.deleted", SegmentFileName(42, ".index", ".deleted")),
        ("00000000000000000042.timeindex.cleaned", SegmentFileName(42, ".timeindex", ".cleaned")),
        ("00000000000000000042.log.swap", SegmentFileName(42, ".log", ".swap")),
        ("00000000000000000005.snapshot", SegmentFileName(5, ".snapshot", "")),
        ("7.txnindex", SegmentFileName(7, ".txnindex", "")),
        ("leader-epoch-checkpoint", None),
        ("partition.metadata", None),
        ("00000000000000000042.log.tmp", None),
        ("00000000000000000042", None),
        ("x.log", None),
        ("00000000000000000007-0000000003.checkpoint", None),
    ],
)
def test_parse_segment_file(name: str, expected: SegmentFileName | None) -> None:
    """Names of segment files are parsed into offset, suffix and stage; all others return None."""
    assert names.parse_segment_file(name) == expected
    assert names.is_segment_file(name) == (expected is not None and not expected.stage)


def test_offset_of_is_the_text_before_the_first_dot() -> None:
    """The offset of a file is the text before the first dot, whatever follows."""
    assert names.offset_of("00000000000000000042.log.deleted") == 42
    with pytest.raises(ValueError):
        names.offset_of("leader-epoch-checkpoint")


def test_parse_metadata_snapshot() -> None:
    """A finished metadata snapshot is recognised, one that is being written or deleted is not."""
    assert names.parse_metadata_snapshot("00000000000000000007-0000000003.checkpoint") == (7, 3)
    assert names.parse_metadata_snapshot("00000000000000000007-0000000003.checkpoint.part") is None
    assert names.parse_metadata_snapshot("bootstrap.checkpoint") is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("my-topic-3", ("my-topic", 3)),
        ("a.b_c-0", ("a.b_c", 0)),
        ("__consumer_offsets-49", ("__consumer_offsets", 49)),
        ("foo-bar-0.0123456789abcdef0123456789abcdef-delete", ("foo-bar", 0)),
        ("a.b-12.0123456789abcdef0123456789abcdef-future", ("a.b", 12)),
        ("t-1.0123456789abcdef0123456789abcdef-stray", ("t", 1)),
    ],
)
def test_parse_partition_dir(name: str, expected: tuple[str, int]) -> None:
    """Directories in use and set aside give topic and partition, with dots and dashes in the topic."""
    assert names.parse_partition_dir(name) == expected


@pytest.mark.parametrize(
    "name",
    ["", "topic", "topic-", "-1", "topic-x", "topic-1x", "-", "t-0-delete", "t-1.-delete", "t-²", "t-9999999999"],
)
def test_parse_partition_dir_refuses(name: str) -> None:
    """A name without topic or partition, or not in a set-aside directory's form, is an error, as it is for Kafka."""
    with pytest.raises(ValueError, match="directory"):
        names.parse_partition_dir(name)


def test_set_aside_names_fit_and_parse() -> None:
    """Names for deletion and stray are unique, at most 255 long, and still parse; a long topic is cut."""
    for make, suffix in ((names.delete_dir_name, "-delete"), (names.stray_dir_name, "-stray")):
        long = make("t" * 249, 123)
        assert len(long) == 255
        assert names.parse_partition_dir(long)[1] == 123
        short = make("my.topic", 0)
        assert names.parse_partition_dir(short) == ("my.topic", 0)
        assert names.set_aside_suffix(short) == suffix
        assert short != make("my.topic", 0)
    assert names.set_aside_suffix("my-topic-0") == ""
