"""Dumps of log files: they equal the output of a naive parser, and damage is shown in its place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.cleaner.offline.dump import BatchItem, EntryItem, Item, RecordItem, SegmentItem, dump_directory, dump_file
from diamant.cleaner.offline.find_records import Query, find_records
from diamant.cleaner.offline.partition_stats import read_stats
from diamant.cleaner.segments.tolerant_reader import Problem, open_log_directory
from diamant.protocol.batches.control import control_key
from diamant.protocol.batches.header import HEADER_SIZE, Record
from diamant.storage.checkpoints.checkpoints import LeaderEpochs, write_offset_checkpoint, write_partition_metadata
from diamant.storage.checkpoints.producer_snapshot import ProducerEntry, write_snapshot
from diamant.storage.env.env import Env, RealEnv
from diamant.storage.errors import StorageError
from diamant.storage.kraft.format import format_directory
from diamant.storage.segments.txn_index import AbortedTxn
from diamant.storage.uuid_text import METADATA_TOPIC_ID
from tests import naive
from tests.builder import TIMESTAMP, make_batch, with_header, with_payload
from tests.cleaner.log_history import History, damage, histories, write_file
from tests.effort import examples
from tests.memory_env import MemoryEnv

LOG = f"/data/t-0/{0:020d}.log"
KAFKA_METADATA = Path(__file__).resolve().parents[2] / "golden" / "metadata-kafka-4.3.1"


def dump(env: Env, path: str, *, with_records: bool = True) -> list[Item]:
    with open_log_directory(env, path) as directory:
        return list(dump_directory(env, directory, with_records=with_records))


def dump_bytes(data: bytes, *, with_records: bool = True) -> list[Item]:
    """Return the items of a segment with these bytes."""
    env = MemoryEnv()
    env.make_dirs("/data/t-0")
    write_file(env, LOG, data)
    return list(dump_file(env, LOG, with_records=with_records))


def of_type(items: Sequence[Item], kind: type) -> list[Item]:
    return [item for item in items if isinstance(item, kind)]


@settings(max_examples=examples(100), deadline=None)
@given(histories())
def test_a_dump_holds_what_was_written(history: History) -> None:
    """Strategy: any partition. Invariant: all segments, records and markers, in order; batches follow each other."""
    env = MemoryEnv()
    history.write(env, "/data")
    items = dump(env, "/data")
    segments = [item for item in items if isinstance(item, SegmentItem)]
    assert {item.base_offset: item.size for item in segments} == {
        base: len(data) for base, data in history.segments.items()
    }
    assert {item.base_offset: item.txn_index_entries for item in segments} == {
        base: len(history.aborted[base]) if base in history.aborted else None for base in history.segments
    }
    records = [item for item in items if isinstance(item, RecordItem) and item.decoded is None]
    assert [(item.offset, item.timestamp, item.key, item.value) for item in records] == [
        record[:4] for record, _ in history.records
    ]
    markers = [item for item in items if isinstance(item, RecordItem) and item.decoded is not None]
    assert [(item.offset, item.decoded) for item in markers] == [
        (offset, ("COMMIT" if is_commit else "ABORT", {"coordinator_epoch": 3}))
        for offset, _, is_commit in history.markers
    ]
    positions: dict[str, int] = {}
    for item in items:
        if isinstance(item, BatchItem):
            assert item.position == positions.get(item.file, 0)
            positions[item.file] = item.position + item.size
    assert of_type(items, Problem) == []


@settings(max_examples=examples(60), deadline=None)
@given(histories())
def test_a_batch_is_as_a_naive_parser_reads_it(history: History) -> None:
    """Strategy: any partition. Invariant: the fields of every batch of magic 2."""
    env = MemoryEnv()
    history.write(env, "/data")
    batches = [item for item in dump(env, "/data", with_records=False) if isinstance(item, BatchItem)]
    entries = [entry for _, data in sorted(history.segments.items()) for entry in naive.iter_entries(bytes(data))]
    assert len(batches) == len(entries)
    for item, entry in zip(batches, entries, strict=True):
        assert item.magic == entry[16]
        if item.magic == 2:
            parsed = naive.parse_batch(entry)
            assert (item.base_offset, item.leader_epoch, item.crc, item.record_count) == (
                parsed.base_offset, parsed.leader_epoch, parsed.crc, parsed.count
            )  # fmt: skip
            assert (item.producer_id, item.producer_epoch, item.base_sequence) == (
                parsed.producer_id, parsed.producer_epoch, parsed.base_sequence
            )  # fmt: skip
            assert item.last_offset == parsed.base_offset + parsed.last_offset_delta
            assert (item.max_timestamp, item.base_timestamp) == (parsed.max_timestamp, parsed.base_timestamp)
            assert item.codec == ("none", "gzip", "snappy", "lz4", "zstd")[parsed.attributes & 7]
            assert item.crc_is_valid


def test_a_delete_horizon_is_distinguished_from_the_base_timestamp() -> None:
    """The two fields share their bytes, and a dump shows which one they hold."""
    [batch, record] = dump_bytes(make_batch("k=", delete_horizon_ms=TIMESTAMP + 5))
    assert isinstance(batch, BatchItem)
    assert isinstance(record, RecordItem)
    assert (batch.delete_horizon_ms, batch.base_timestamp) == (TIMESTAMP + 5, None)
    assert record.timestamp == TIMESTAMP


def test_other_control_records_are_decoded() -> None:
    """Control records of the metadata log's leader, and unknown types of later versions, are decoded."""
    leader_change = bytes.fromhex("0000 00000001 0200000001 00 0200000001 00 00".replace(" ", ""))
    for control_type, value, name in ((2, leader_change, "LEADER_CHANGE"), (99, b"", "cannot be decoded")):
        batch = make_batch(Record(0, 1, control_key(control_type), value), is_control=True)
        record = dump_bytes(batch)[1]
        assert isinstance(record, RecordItem)
        assert record.decoded is not None
        assert record.decoded[0] == name


def test_a_wrong_checksum_is_shown_before_its_batch() -> None:
    """The fields of that batch, and the batches after it, are still dumped."""
    data = make_batch("a=1") + make_batch("b=1", base_offset=1) + make_batch("c=1", base_offset=2)
    data[70 + 30] ^= 1
    first, problem, *rest = dump_bytes(bytes(data), with_records=False)
    assert isinstance(problem, Problem)
    assert (problem.path, problem.position) == (LOG, 70)
    batches = [item for item in (first, *rest) if isinstance(item, BatchItem)]
    assert [(batch.position, batch.crc_is_valid) for batch in batches] == [(0, True), (70, False), (140, True)]


def test_damage_ends_a_segment_and_the_next_one_is_dumped() -> None:
    """The problem names file and position, and the next segment is dumped."""
    history = History()
    history.batch("a=1")
    size = len(history.segments[0])
    history.batch("b=1")
    history.segments[0][size + 8 : size + 12] = b"\x7f\xff\xff\xff"
    history.add("roll | c=1")
    env = MemoryEnv()
    history.write(env, "/data")
    items = dump(env, "/data")
    [problem] = of_type(items, Problem)
    assert isinstance(problem, Problem)
    assert (problem.path, problem.position) == (LOG, size)
    assert "only" in problem.reason
    assert [item.key for item in items if isinstance(item, RecordItem)] == [b"a", b"c"]


def test_records_that_do_not_parse_are_a_problem_of_their_batch() -> None:
    """Garbage with a right checksum, and an unknown codec, are problems of their batch."""
    good = make_batch("a=1")
    for bad in (with_payload(good, b"\xff\xff"), with_header(good, attributes=5)):
        items = dump_bytes(bad)
        [problem] = of_type(items, Problem)
        assert isinstance(problem, Problem)
        assert problem.position == 0
        assert "records of the batch" in problem.reason
        assert len(of_type(items, BatchItem)) == 1


@settings(max_examples=examples(200), deadline=None)
@given(histories(), st.data())
def test_no_damage_ends_a_tool(history: History, data: st.DataObject) -> None:
    """Strategy: overwrite bytes of any file, with the checksums of batches made right again or not; ask all three tools.

    Invariant: each tool ends, and every record it shows has a place in the log.
    """
    env = MemoryEnv()
    directory = history.write(env, "/data")
    write_file(env, f"{directory}/{0:020d}.snapshot", write_snapshot([ProducerEntry(7, 1, 2, 3, 0, 4, 5, -1)]))
    name = data.draw(st.sampled_from(env.list_dir(directory)))
    damage(env, f"{directory}/{name}", data)
    positions = {(item.file, item.position) for item in dump(env, "/data") if isinstance(item, BatchItem)}
    problems: list[Problem] = []
    with open_log_directory(env, "/data") as opened:
        for match in find_records(env, opened.partitions[0], Query(pattern=re.compile(b"")), problems.append):
            assert (match.segment, match.position) in positions
        [topic] = read_stats(env, opened)
        assert topic.partitions[0].kinds.records >= 0


def test_an_index_that_leads_astray_is_a_problem() -> None:
    """An index entry must point to the start of a batch, at an offset that is not below it."""
    history = History()
    for key in "abc":
        history.batch(f"{key}=1")
    env = MemoryEnv()
    history.write(env, "/data")
    index = f"/data/t-0/{0:020d}.index"
    for entries, reason in (
        ([(1, 70)], None),
        ([(0, 70)], "begins with offset 1, not 0"),
        ([(1, 71)], "where no batch begins"),
        ([(1, 70), (1, 140)], "to ascend"),
    ):
        write_file(env, index, b"".join(o.to_bytes(4, "big") + p.to_bytes(4, "big") for o, p in entries))
        problems = of_type(dump(env, "/data"), Problem)
        assert any(reason in str(problem) for problem in problems) if reason else problems == []


def test_files_are_dumped_by_their_names() -> None:
    """Entries of indexes, snapshots, epochs, checkpoints and topic id have their fields; zero padding is no entry."""
    env = MemoryEnv()
    env.make_dirs("/data/t-0")
    write_file(env, "/data/t-0/00000000000000000100.index", b"\0\0\0\7\0\0\1\0" + bytes(80))
    write_file(env, "/data/t-0/00000000000000000100.timeindex.deleted", bytes(7) + b"\5\0\0\0\7")
    write_file(env, "/data/t-0/00000000000000000100.txnindex", AbortedTxn(1, 100, 105, 106).to_bytes())
    producer = ProducerEntry(7, 1, 2, 3, 0, 4, 5, -1)
    write_file(env, "/data/t-0/00000000000000000100.snapshot", write_snapshot([producer]))
    epochs = LeaderEpochs.load(env, "/data/t-0")
    epochs.assign(3, 100)
    epochs.sync()
    write_partition_metadata(env, "/data/t-0", METADATA_TOPIC_ID)
    write_offset_checkpoint(env, "/data/cleaner-offset-checkpoint", {("t", 0): 9})
    found = {}
    for path in (
        "t-0/00000000000000000100.index",
        "t-0/00000000000000000100.timeindex.deleted",
        "t-0/00000000000000000100.txnindex",
        "t-0/00000000000000000100.snapshot",
        "t-0/leader-epoch-checkpoint",
        "t-0/partition.metadata",
        "cleaner-offset-checkpoint",
    ):
        [item] = dump_file(env, f"/data/{path}")
        assert isinstance(item, EntryItem)
        found[item.kind] = item.values
    assert found == {
        "offset index": {"offset": 107, "position": 256},
        "time index": {"timestamp": 5, "offset": 107},
        "aborted transaction": {"producer_id": 1, "first_offset": 100, "last_offset": 105, "last_stable_offset": 106},
        "producer": producer._asdict(),
        "leader epoch": {"epoch": 3, "start_offset": 100},
        "partition": {"topic_id": "AAAAAAAAAAAAAAAAAAAAAQ"},
        "checkpoint": {"topic": "t", "partition": 0, "offset": 9},
    }


def test_a_partition_is_dumped_with_its_other_files() -> None:
    """Snapshots, epochs and topic id follow the segments; damage in them is a problem."""
    history = History()
    history.batch("a=1")
    env = MemoryEnv()
    directory = history.write(env, "/data")
    write_file(env, f"{directory}/{0:020d}.snapshot", b"bad")
    write_file(env, f"{directory}/{0:020d}.log.cleaned", b"")
    write_partition_metadata(env, directory, METADATA_TOPIC_ID)
    items = dump(env, "/data/t-0")
    assert [item.kind for item in items if isinstance(item, EntryItem)] == ["partition"]
    assert {str(item).rpartition("/")[2][:22] for item in of_type(items, Problem)} == {
        "0" * 20 + ".s", "0" * 20 + ".l"
    }  # fmt: skip


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    """The error lists the kinds of files."""
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(StorageError, match=r"expected a partition's directory"):
        list(dump_file(RealEnv(), str(tmp_path / "notes.txt")))


def test_a_file_whose_broker_runs_is_refused() -> None:
    """The files of a partition and of the log directory are refused while a broker runs."""
    env = MemoryEnv()
    History().write(env, "/data")
    write_offset_checkpoint(env, "/data/cleaner-offset-checkpoint", {})
    env.lock("/data/.lock")
    for path in (LOG, "/data/cleaner-offset-checkpoint"):
        with pytest.raises(StorageError, match="stop the broker"):
            list(dump_file(env, path))


def test_records_of_the_metadata_log_are_decoded(tmp_path: Path) -> None:
    """Records are decoded in the snapshot of a new directory, whose batches count from 0."""
    env = RealEnv()
    format_directory(env, str(tmp_path))
    items = list(dump_file(env, str(tmp_path / "bootstrap.checkpoint"), with_records=True))
    names = [item.decoded[0] for item in items if isinstance(item, RecordItem) and item.decoded]
    assert names[0] == "SNAPSHOT_HEADER"
    assert names[-1] == "SNAPSHOT_FOOTER"
    assert "FeatureLevelRecord" in names
    assert of_type(items, Problem) == []
    assert min(item.size for item in items if isinstance(item, BatchItem)) > HEADER_SIZE


def test_a_metadata_log_of_kafka_is_decoded() -> None:
    """Every record of a metadata log that Kafka 4.3.1 wrote is decoded, given its directory."""
    items = dump(RealEnv(), str(KAFKA_METADATA / "__cluster_metadata-0"))
    names = {item.decoded[0] for item in items if isinstance(item, RecordItem) and item.decoded}
    assert {"LEADER_CHANGE", "RegisterBrokerRecord", "TopicRecord", "PartitionRecord", "ConfigRecord"} <= names
    assert "cannot be decoded" not in names
    assert of_type(items, Problem) == []
