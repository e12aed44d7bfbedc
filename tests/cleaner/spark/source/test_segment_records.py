"""Reading log files for the data source, in this process: every record of every kind of batch, and how transactions ended."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from pyspark.sql.datasource import GreaterThan

from diamant.cleaner.segments.tolerant_reader import PartitionFiles
from diamant.cleaner.spark.environment.spark_errors import SegmentChanged, SparkError
from diamant.cleaner.spark.source import stable_offset
from diamant.cleaner.spark.source.options import SourceOptions
from diamant.cleaner.spark.source.range_reader import Counters
from diamant.cleaner.spark.source.read_task import read_task
from diamant.cleaner.spark.source.source_columns import COLUMNS
from diamant.cleaner.spark.source.stable_offset import Decided
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.compression import CODEC_NAMES
from diamant.protocol.batches.header import CURRENT_MAGIC, NO_SEQUENCE, BatchHeader, Record
from diamant.storage.checkpoints.checkpoints import write_offset_checkpoint
from diamant.storage.checkpoints.producer_snapshot import write_snapshot
from diamant.storage.env.env import RealEnv
from diamant.storage.errors import CorruptLog
from tests.builder import TIMESTAMP, make_batch
from tests.cleaner.golden_pass import GOLDEN, read_cases
from tests.cleaner.log_history import History, histories
from tests.cleaner.spark.source.reading import plain_records, read
from tests.effort import examples

OUTCOMES = {"aborted": "aborted", "undecided": "open"}


def write(history: History, root: Path) -> Path:
    """Write a history's files; return the partition's directory."""
    directory = Path(history.write(RealEnv(), str(root)))
    if history.log_start_offset:
        starts = {(history.topic, history.partition): history.log_start_offset}
        write_offset_checkpoint(RealEnv(), f"{root}/log-start-offset-checkpoint", starts)
    return directory


def put(root: Path, base_offset: int, data: bytes | bytearray) -> Path:
    """Write a segment of partition t-0; return its path."""
    path = root / "t-0" / f"{base_offset:020d}.log"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def row_of(record: Record, header: BatchHeader) -> dict[str, Any]:
    """Return the expected columns that depend on the record and its batch alone."""

    def nullable(number: int) -> int | None:
        return None if number == -1 else number

    kind = "LogAppendTime" if header.is_log_append_time else "CreateTime"
    return {
        "offset": record.offset,
        "timestamp_ms": nullable(record.timestamp),
        "timestamp_type": None if header.magic == 0 else kind,
        "key": record.key,
        "value": record.value,
        "value_size": None if record.value is None else len(record.value),
        "headers": [{"key": name, "value": value} for name, value in record.headers],
        "producer_id": nullable(header.producer_id),
        "epoch": nullable(header.producer_epoch),
        "sequence": None if record.sequence == NO_SEQUENCE else record.sequence,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "leader_epoch": nullable(header.partition_leader_epoch) if header.magic == CURRENT_MAGIC else None,
        "codec": CODEC_NAMES[header.codec],
    }


@pytest.mark.parametrize("archive", sorted(GOLDEN.glob("*.tar.gz")), ids=lambda path: path.name.partition(".")[0])
def test_directories_of_kafka_are_read_as_the_plain_reader_does(archive: Path, tmp_path: Path) -> None:
    """Every directory of Kafka's golden cases, before and after its passes: every record, every column."""
    for case in read_cases(archive).values():
        for step in case.steps:
            for top in {step["input"], step["output"]}:
                root = tmp_path / case.name / top
                for path, content in case.directory(top).items():
                    (root / path).parent.mkdir(parents=True, exist_ok=True)
                    (root / path).write_bytes(content)
                expected = [row_of(*pair) for pair in plain_records(root / "cases-0")]
                found = read(root, include_control=True, include_below_log_start=True)
                assert [{name: row[name] for name in expected[0]} for row in found.rows] == expected
                assert {row["topic"] for row in found.rows} == {"cases"}
                assert {row["partition"] for row in found.rows} == {0}


@settings(max_examples=examples(100), deadline=None)
@given(histories())
def test_any_history_is_read_with_its_outcomes(history: History) -> None:
    """Strategy: any partition. Invariant: each record has the outcome of the naive method; read_committed returns the
    committed ones below the first open transaction, and latest_per_key the live ones and tombstones of these.
    """
    with tempfile.TemporaryDirectory() as root:
        write(history, Path(root))
        statuses = history.statuses()
        everything = read(root, columns="offset,outcome,is_control", include_below_log_start=True)
        assert everything.column("offset") == sorted(statuses)
        assert {row["offset"]: row["outcome"] for row in everything.rows} == {
            record.offset: outcome_of(history, record.offset) for record, _ in history.records
        }
        ends = [offset for offset in statuses if outcome_of(history, offset) == "open"]
        stable = min(ends, default=history.offset)
        committed = [
            offset
            for offset in sorted(statuses)
            if history.log_start_offset <= offset < stable and outcome_of(history, offset) == "committed"
        ]
        assert read(root, columns="offset", isolation="read_committed").column("offset") == committed
        keys = {record.offset: record.key for record, _ in history.records}
        latest = {keys[offset]: offset for offset in committed if keys[offset] is not None}
        assert read(root, columns="offset", latest_per_key=True).column("offset") == sorted(latest.values())


def outcome_of(history: History, offset: int) -> str:
    """Return the outcome of a record's transaction, regardless of the log start."""
    [pair] = [pair for pair in history.records if pair[0].offset == offset]
    start, history.log_start_offset = history.log_start_offset, 0
    try:
        return OUTCOMES.get(history._outcome(*pair), "committed")
    finally:
        history.log_start_offset = start


def test_outcomes_do_not_need_indexes_or_snapshots(tmp_path: Path) -> None:
    """With trust_indexes=false the headers of all batches give them, even without an index of aborted transactions."""
    history = History().add("t1: a=1 | abort 1 | a=2")
    directory = write(history, tmp_path)
    (directory / f"{0:020d}.txnindex").unlink()
    found = read(tmp_path, columns="offset", isolation="read_committed", trust_indexes=False)
    assert found.column("offset") == [2]


def test_every_column_is_reported(tmp_path: Path) -> None:
    """The columns that are no field of a record are its position, its topic, and its timestamp in Spark's type."""
    (tmp_path / "shop-7").mkdir()
    path = tmp_path / "shop-7" / f"{5:020d}.log"
    first = make_batch("a=1", base_offset=5)
    path.write_bytes(first + make_batch("b=2", base_offset=6, timestamp=TIMESTAMP + 1))
    row = read(tmp_path).rows[1]
    assert list(row) == [column.name for column in COLUMNS]
    assert (row["topic"], row["partition"], row["segment"], row["position"]) == ("shop", 7, str(path), len(first))
    assert row["timestamp"].timestamp() * 1000 == TIMESTAMP + 1
    assert row["outcome"] == "committed"


def test_times_that_spark_cannot_hold_are_null_and_still_reported_in_ms(tmp_path: Path) -> None:
    """If a producer writes nanoseconds instead of ms, Spark's timestamp is NULL, and timestamp_ms is kept."""
    put(tmp_path, 0, make_batch("a=1", timestamp=1_700_000_000_000_000_000))
    [row] = read(tmp_path, columns="timestamp,timestamp_ms").rows
    assert row == {"timestamp": None, "timestamp_ms": 1_700_000_000_000_000_000}


def test_header_names_that_are_no_utf8_are_shown_nevertheless(tmp_path: Path) -> None:
    """Kafka stores any bytes there; Spark has text."""
    record = Record(0, 1, b"k", b"v", (("\udcff-name", b"1"), ("plain", None)))  # type: ignore[arg-type]
    put(tmp_path, 0, make_batch(record))
    [row] = read(tmp_path, columns="headers").rows
    assert row["headers"] == [{"key": "\N{REPLACEMENT CHARACTER}-name", "value": b"1"}, {"key": "plain", "value": None}]


# -- damage and changes ------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Path, int]:
    """Three batches, the second with a wrong byte in its records, and an active segment; where the second begins."""
    first, second, third = (bytearray(make_batch(f"k{i}=v", base_offset=i)) for i in range(3))
    second[-1] ^= 1
    put(tmp_path, 0, first + second + third)
    put(tmp_path, 3, make_batch("k3=v", base_offset=3))
    return tmp_path, len(first)


def test_a_corrupt_batch_fails_with_file_and_position_or_becomes_a_row(damaged: tuple[Path, int]) -> None:
    """The error has none of the batch's content. In mode PERMISSIVE all other batches are read, and the row has the position of
    the bytes.
    """
    root, position = damaged
    reason = f"{0:020d}.log at {position}: the batch's CRC is wrong"
    with pytest.raises(CorruptLog, match=reason):
        read(root)
    found = read(root, columns="topic,offset,position,_corrupt", mode="PERMISSIVE")
    assert [row["offset"] for row in found.rows if row["_corrupt"] is None] == [0, 2, 3]
    [bad] = [row for row in found.rows if row["_corrupt"] is not None]
    assert (bad["topic"], bad["offset"], bad["position"]) == ("t", None, position)
    assert bad["_corrupt"].endswith(reason)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_bytes_that_are_no_batch_end_a_segment_in_mode_permissive(tmp_path: Path, isolation: str) -> None:
    """The row says where, and how much was not read; the next segment is. Planning, which reads headers for the outcomes of
    transactions, leaves unreadable ones to the task, which reports them.
    """
    whole = bytes(make_batch("a=1"))
    put(tmp_path, 0, whole + b"\xff" * 100)
    put(tmp_path, 3, make_batch("b=1", base_offset=3))
    with pytest.raises(CorruptLog, match=f"at {len(whole)}: expected a batch"):
        read(tmp_path, isolation=isolation)
    for columns in ("offset,outcome,_corrupt", "offset,_corrupt"):
        found = read(tmp_path, columns=columns, mode="PERMISSIVE", isolation=isolation)
        assert sorted(row["offset"] for row in found.rows if row["_corrupt"] is None) == [0, 3]
        [reason] = [row["_corrupt"] for row in found.rows if row["_corrupt"]]
        assert f"{0:020d}.log at {len(whole)}: " in reason
        assert reason.endswith(f"nothing was read from there to byte {len(whole) + 100}")


@pytest.mark.parametrize("cut", [1, 30, 60])
def test_a_batch_that_is_still_being_written_is_not_there_yet(tmp_path: Path, cut: int) -> None:
    """In the last segment of a live log a torn batch is not damage."""
    whole = bytes(make_batch("a=1"))
    put(tmp_path, 0, whole + bytes(make_batch("b=1", base_offset=1))[:cut])
    assert read(tmp_path, columns="offset").column("offset") == [0]


def test_records_that_do_not_fill_their_batch_are_refused(tmp_path: Path) -> None:
    """A count that is too small is damage, as for every other reader."""
    from tests.builder import with_header

    batch = with_header(make_batch("a=1", "b=1"), record_count=1)
    put(tmp_path, 0, batch)
    with pytest.raises(CorruptLog, match=r"at 0: .* are left after the 1 declared records"):
        read(tmp_path)


def planned(root: Path) -> tuple[SourceOptions, Any]:
    """Return the options and the first task for a directory."""
    options = SourceOptions.parse({"path": str(root), "columns": "offset"})
    from diamant.cleaner.spark.source.filter_bounds import FilterBounds
    from diamant.cleaner.spark.source.read_plan import plan_tasks

    tasks = plan_tasks(options, FilterBounds())
    return options, min(tasks, key=lambda task: str(task.ranges[0].location))


def test_a_segment_that_was_cleaned_meanwhile_is_read_as_it_was(damaged: tuple[Path, int]) -> None:
    """A broker keeps it for a minute under another name."""
    root, _ = damaged
    path = root / "t-0" / f"{0:020d}.log"
    path.write_bytes(make_batch("k0=v"))
    options, task = planned(root)
    path.rename(f"{path}.deleted")
    path.write_bytes(b"")
    [batch] = read_task(task, options, ("offset",), Counters())
    assert batch.to_pylist() == [{"offset": 0}]


def test_a_segment_that_is_gone_is_reported(damaged: tuple[Path, int]) -> None:
    """Other bytes are never read in place of the planned ones."""
    root, _ = damaged
    options, task = planned(root)
    (root / "t-0" / f"{0:020d}.log").write_bytes(make_batch("other=1"))
    with pytest.raises(SegmentChanged, match="has since been cleaned, deleted or truncated: run the query again"):
        list(read_task(task, options, ("offset",), Counters()))


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"isolation": "serializable"}, "option isolation: expected read_uncommitted or read_committed"),
        ({"columns": "offset,nothing"}, "there is no column 'nothing'"),
        ({"columns": "_corrupt"}, "it needs mode=PERMISSIVE"),
        ({"columns": "offset,offset"}, "expected each column once"),
        ({"latest": "true"}, "there is no option 'latest'; expected columns, containing"),
        ({"split_bytes": "much"}, "option split_bytes: expected a number of bytes"),
        ({"include_control": "yes"}, "option include_control: expected true or false"),
        ({"latest_per_key": "true", "isolation": "read_uncommitted"}, "latest_per_key reads committed records only"),
        ({"latest_per_key": "true", "mode": "PERMISSIVE"}, "latest_per_key cannot be combined with include_control"),
        ({"topics": "nowhere"}, "there is no topic 'nowhere' in"),
        ({"paths": "not json"}, "option paths: expected a JSON list"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    damaged: tuple[Path, int], options: dict[str, str], message: str
) -> None:
    """The error has the name of the option and what is expected."""
    with pytest.raises(SparkError, match=message):
        read(damaged[0], **options)


def test_a_path_with_nothing_in_it_is_refused(tmp_path: Path) -> None:
    """An empty result would hide what is mostly a mistake."""
    with pytest.raises(SparkError, match="found no partition"):
        read(tmp_path)
    with pytest.raises(SparkError, match="found nothing"):
        read(tmp_path / "nowhere")


def test_paths_may_be_partitions_globs_and_uris(tmp_path: Path) -> None:
    """All give the same files; a file given by two of them is read once."""
    for name in ("a-0", "a-1", "b-0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{0:020d}.log").write_bytes(make_batch(f"{name}=1"))

    def keys(path: Any, **options: Any) -> list[bytes]:
        return read(path, columns="key", **options).column("key")

    assert keys(tmp_path) == [b"a-0", b"a-1", b"b-0"]
    assert keys(tmp_path / "a-1") == [b"a-1"]
    assert keys(f"{tmp_path}/a-*") == [b"a-0", b"a-1"]
    assert keys(f"{tmp_path}/[b]-?") == [b"b-0"]
    assert keys(tmp_path.as_uri()) == [b"a-0", b"a-1", b"b-0"]
    assert keys(tmp_path, paths=f'["{tmp_path}/a-0"]') == [b"a-0", b"a-1", b"b-0"]
    assert keys(tmp_path, topics="b") == [b"b-0"]


def test_a_partition_that_is_cleaned_while_a_query_is_planned_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the index of aborted transactions and the records would be from different times."""
    history = History().add("t1: a=1 | abort 1 | roll | a=2")
    directory = write(history, tmp_path)
    real, calls = stable_offset._read, []

    def cleaned_meanwhile(log: PartitionFiles, trust_indexes: bool, damage: list[CorruptLog] | None) -> Decided:
        calls.append(log.size)
        if len(calls) == 1:
            # As a round does: what was aborted is gone, and so is its entry.
            (directory / f"{0:020d}.txnindex").unlink()
            (directory / f"{0:020d}.log").write_bytes(b"")
        return real(log, trust_indexes, damage)

    monkeypatch.setattr(stable_offset, "_read", cleaned_meanwhile)
    assert read(tmp_path, columns="offset", isolation="read_committed").column("offset") == [2]
    assert len(calls) == 2


def test_an_index_that_grew_since_the_listing_is_no_damage(tmp_path: Path) -> None:
    """In a live log the index is read after the segment's size."""
    from diamant.cleaner.spark.environment.locations import Location
    from diamant.cleaner.spark.source.segment_indexes import read_offset_index

    path = tmp_path / "0.index"
    path.write_bytes(b"".join(n.to_bytes(4, "big") for n in (10, 100, 20, 200, 30, 300)))
    location = Location.parse(str(path))
    assert read_offset_index(location, 5, 250, is_growing=True).tolist() == [[15, 25], [100, 200]]
    with pytest.raises(CorruptLog, match=r"0\.index at 0: .* within a segment of 250 bytes; trust_indexes=false reads"):
        read_offset_index(location, 5, 250)


def test_an_index_that_passes_over_a_transaction_is_not_believed(tmp_path: Path) -> None:
    """After a producer snapshot headers are read from a position in the offset index: a wrong one would miss transactions."""
    history = History()
    for _ in range(3):
        history.batch("a=1")
    history.add("t1: a=open | a=after")
    directory = write(history, tmp_path)
    (directory / f"{3:020d}.snapshot").write_bytes(write_snapshot([]))
    log = (directory / f"{0:020d}.log").read_bytes()
    positions = {header.last_offset: position for position, header in iter_headers(log)}
    for position in (positions[2], positions[4], positions[2] + 7, len(log) - 1):
        entry = (2).to_bytes(4, "big") + position.to_bytes(4, "big")
        (directory / f"{0:020d}.index").write_bytes(entry)
        assert read(tmp_path, columns="offset", isolation="read_committed").column("offset") == [0, 1, 2]


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_a_damaged_index_becomes_a_row_in_mode_permissive(tmp_path: Path, suffix: str) -> None:
    """It is reported once, with its name, and everything is read without it."""
    value = "v" * 2000
    batches = [bytes(make_batch(f"k{number}={value}", base_offset=number)) for number in range(40)]
    put(tmp_path, 0, b"".join(batches))
    put(tmp_path, 40, make_batch("last=1", base_offset=40))
    (tmp_path / "t-0" / f"{0:020d}{suffix}").write_bytes(b"\xff\x01" * 12 * 34)
    filters = [GreaterThan(("offset",), 20), GreaterThan(("timestamp_ms",), 5)]
    with pytest.raises(CorruptLog, match=f"{suffix} at 0: .*trust_indexes=false reads without it"):
        read(tmp_path, *filters, isolation="read_committed")
    found = read(
        tmp_path, *filters, columns="offset,timestamp_ms,outcome,_corrupt", mode="PERMISSIVE", split_bytes=20_000
    )
    offsets = {row["offset"] for row in found.rows if row["_corrupt"] is None}
    assert set(range(21, 41)) <= offsets
    [reason] = [row["_corrupt"] for row in found.rows if row["_corrupt"]]
    assert f"{0:020d}{suffix} at 0: " in reason
    assert pickle.loads(pickle.dumps(found.tasks[0])).damage == found.tasks[0].damage
