"""stats, find and audit on Spark: against the local tools and a naive count, and the commands that print them."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from diamant.broker.cli import main
from diamant.broker.commands.spark.running import no_traces
from diamant.cleaner.offline.find_records import Query, find_records
from diamant.cleaner.offline.partition_stats import read_stats as read_local_stats
from diamant.cleaner.rules.record_kinds import COUNTS
from diamant.cleaner.segments.tolerant_reader import open_log_directory
from diamant.cleaner.spark.analyses.find_matches import find
from diamant.cleaner.spark.analyses.overdue_values import read_audit
from diamant.cleaner.spark.analyses.stats_rows import read_stats
from diamant.cleaner.spark.environment.spark_errors import SparkError
from diamant.protocol.batches.header import Record
from diamant.protocol.kraft.records import TOPIC_RESOURCE, ConfigRecord, Endpoint, TopicRecord
from diamant.storage.checkpoints.checkpoints import write_offset_checkpoint
from diamant.storage.env.env import RealEnv
from diamant.storage.kraft.opening import open_metadata_log
from diamant.storage.uuid_text import random_id
from tests.builder import TIMESTAMP, make_batch
from tests.cleaner.log_history import History

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory with records of every status, on two partitions of one topic and one of another."""
    root = tmp_path_factory.mktemp("logs")
    env = RealEnv()
    starts = {}
    for partition in range(2):
        history = History("orders", partition, log_start_offset=2 * partition)
        history.batch("customer-42=v1", "b=1", "c=")
        history.batch("b=2", "plain text without a key", codec=4)
        history.roll()
        history.batch("customer-42=v2", "x=1", producer_id=7, codec=3)
        history.marker(7, is_commit=False)
        history.gap(5)
        history.batch("d=mentions customer-42", "c=3", producer_id=7)
        history.marker(7, is_commit=True)
        history.message(1, b"old", b"format")
        history.roll()
        history.batch(Record(history.offset, TIMESTAMP, b"e", b"1", (("who", b"customer-42"), ("n", None))))  # type: ignore[arg-type]
        history.batch("customer-42=v3" if partition else "customer-42=")
        history.batch("f=1", producer_id=8)
        history.write(env, str(root))
        if history.log_start_offset:
            starts["orders", partition] = history.log_start_offset
    other = History("other")
    other.batch("é=1", b"\xff\x00customer")
    other.write(env, str(root))
    (root / "empty-0").mkdir()
    (root / "empty-0" / f"{0:020d}.log").write_bytes(b"")
    write_offset_checkpoint(env, f"{root}/log-start-offset-checkpoint", starts)
    write_offset_checkpoint(env, f"{root}/cleaner-offset-checkpoint", {("orders", 0): 5})
    return root


@pytest.mark.slow
def test_stats_are_those_of_the_local_tool(spark: SparkSession, directory: Path) -> None:
    """Each count of every partition of the directory is the same."""
    found = {(row.topic, row.partition): row for row in read_stats(spark, [str(directory)]).collect()}
    with open_log_directory(RealEnv(), str(directory)) as opened:
        expected = [one for topic in read_local_stats(RealEnv(), opened) for one in topic.partitions]
    assert len(found) == len(expected) == 4
    names = ("segments", "bytes", "log_start_offset", "first_dirty_offset", "dirty_ratio")
    for one in expected:
        row = found[one.topic, one.partition]
        assert {name: row[name] for name in names} == {name: getattr(one, name) for name in names}
        assert {name: row[name] for name in COUNTS} == {name: getattr(one.kinds, name) for name in COUNTS}
    assert sum(row.superseded for row in found.values()) > 0 < sum(row.undecided for row in found.values())


def local_matches(directory: Path, query: Query) -> list[dict[str, Any]]:
    """Return the results of `diamant log find`, in the order of the job."""
    with open_log_directory(RealEnv(), str(directory)) as opened:
        matches = [
            match for one in opened.partitions for match in find_records(RealEnv(), one, query, lambda problem: None)
        ]
    return [
        {
            "topic": match.topic,
            "partition": match.partition,
            "offset": match.offset,
            "key": match.key,
            "places": list(match.places),
            "status": match.status,
            "segment": match.segment,
            "position": match.position,
        }
        for match in matches
    ]


def job_matches(spark: SparkSession, directory: Path, **query: Any) -> list[dict[str, Any]]:
    """Return the results of the job, without the time."""
    rows = [row.asDict() for row in find(spark, [str(directory)], **query).collect()]
    for row in rows:
        del row["timestamp"]
        row["key"] = None if row["key"] is None else bytes(row["key"])
    return rows


@pytest.mark.slow
def test_a_key_is_found_with_the_status_of_the_local_tool(spark: SparkSession, directory: Path) -> None:
    """A record is live, superseded, aborted, a tombstone or below the log start, as the local tool says."""
    found = job_matches(spark, directory, key=b"customer-42")
    assert found == local_matches(directory, Query(key=b"customer-42"))
    assert {row["status"] for row in found} == {"superseded", "aborted", "tombstone", "live", "below log start"}


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["customer-42", "[a-c]=?$|^é|\\xff", "nothing of the kind"])
def test_a_pattern_is_found_where_the_local_tool_finds_it(spark: SparkSession, directory: Path, pattern: str) -> None:
    """In keys, values, header names and header values, plain text or a regular expression, over bytes."""
    query = Query(pattern=re.compile(pattern.encode()))
    assert job_matches(spark, directory, pattern=pattern) == local_matches(directory, query)


@pytest.mark.slow
def test_a_pattern_that_is_none_is_refused(spark: SparkSession, directory: Path) -> None:
    """Before anything is read, with Java's reason."""
    with pytest.raises(SparkError, match="the pattern is not a regular expression: Unclosed group"):
        find(spark, [str(directory)], pattern="(")
    with pytest.raises(SparkError, match="expected either a key or a pattern"):
        find(spark, [str(directory)])


def write_records(directory: Path, *records: Record) -> None:
    """Write a partition of one segment, a batch for each record."""
    directory.mkdir(parents=True)
    batches = [make_batch(record, base_offset=record.offset) for record in records]
    (directory / f"{0:020d}.log").write_bytes(b"".join(batches))


@pytest.fixture
def overdue(tmp_path: Path) -> Path:
    """A key superseded two hours ago, one by a tombstone an hour ago, one only now, and one that moved to another partition."""
    now = TIMESTAMP
    write_records(
        tmp_path / "late-0",
        Record(0, now - 9 * HOUR_MS, b"a", b"1"),
        Record(1, now - 8 * HOUR_MS, b"b", b"1"),
        Record(2, now - 7 * HOUR_MS, b"moved", b"old"),
        Record(3, now - 2 * HOUR_MS, b"a", b"2"),
        Record(4, now - HOUR_MS, b"b", None),
        Record(5, now - 2, b"a", b"3"),
    )
    write_records(tmp_path / "late-1", Record(0, now - 3 * HOUR_MS, b"moved", b"new"))
    write_records(tmp_path / "fine-0", Record(0, now - 9 * HOUR_MS, b"a", b"1"))
    return tmp_path


@pytest.mark.slow
def test_an_audit_names_what_is_late_and_what_is_stranded(spark: SparkSession, overdue: Path) -> None:
    """An audit has the delays and the erased values, and no finding for a topic that keeps its promise."""
    rows = {
        row.topic: row.asDict()
        for row in read_audit(spark, [str(overdue)], now_ms=TIMESTAMP, deadline_ms=HOUR_MS // 2).collect()
    }
    late = rows["late"]
    assert (late["records"], late["superseded"], late["stranded"], late["partitions"]) == (7, 3, 1, 2)
    assert late["oldest_superseded_ms"] == TIMESTAMP - 9 * HOUR_MS
    assert (late["overdue"], late["erased_overdue"], late["overdue_ms"]) == (2, 1, 3 * HOUR_MS // 2)
    assert late["is_broken"]
    fine = rows["fine"]
    assert (fine["superseded"], fine["overdue"], fine["overdue_ms"], fine["is_broken"]) == (0, 0, None, False)


@pytest.mark.slow
def test_without_a_deadline_nothing_is_late(spark: SparkSession, overdue: Path) -> None:
    """A topic without max.compaction.lag.ms promises nothing; stranded keys are reported nevertheless."""
    rows = {row.topic: row for row in read_audit(spark, [str(overdue)], now_ms=TIMESTAMP).collect()}
    assert (rows["late"].overdue, rows["late"].deadline_ms, rows["late"].stranded) == (0, None, 1)


def write_metadata(directory: Path, **topics: dict[str, str]) -> None:
    """Give a log directory a metadata log with these topics and their configurations."""
    env = RealEnv()
    metadata = open_metadata_log(env, str(directory), node_id=1, endpoints=[Endpoint("PLAINTEXT", "127.0.0.1", 1, 0)])
    for topic, configs in topics.items():
        values = [
            ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=topic, name=name, value=value)
            for name, value in configs.items()
        ]
        metadata.append([TopicRecord(name=topic, topic_id=random_id()), *values])
    metadata.close()


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    """An overdue compacted topic, a topic that is not compacted and fails when read, and one missing from the metadata log."""
    now = TIMESTAMP
    write_metadata(tmp_path, late={"cleanup.policy": "compact", "max.compaction.lag.ms": str(HOUR_MS)}, plain={})
    for topic in ("late", "unknown"):
        write_records(
            tmp_path / f"{topic}-0",
            Record(0, now - 9 * HOUR_MS, b"a", b"1"),
            Record(1, now - 3 * HOUR_MS, b"a", b"2"),
        )
    write_records(tmp_path / "plain-0", Record(0, now, b"a", b"1"))
    [segment] = (tmp_path / "plain-0").iterdir()
    segment.write_bytes(segment.read_bytes()[:-1] + b"x")
    return tmp_path


@pytest.mark.slow
def test_an_audit_opens_no_topic_that_is_not_compacted(spark: SparkSession, configured: Path) -> None:
    """The metadata log decides; a topic without a policy has delete. Topics missing from it are read."""
    rows = {row.topic: row for row in read_audit(spark, [str(configured)], now_ms=TIMESTAMP).collect()}
    assert {topic: (row.policy, row.overdue, row.deadline_ms) for topic, row in rows.items()} == {
        "late": ("compact", 1, HOUR_MS),
        "unknown": (None, 0, None),
    }
    assert rows["late"].overdue_ms == 2 * HOUR_MS
    assert read_audit(spark, [str(configured)], ["plain"], now_ms=TIMESTAMP).collect() == []
    with pytest.raises(Exception, match="CRC"):
        read_audit(spark, [str(configured)], is_all=True, now_ms=TIMESTAMP).collect()


@pytest.mark.slow
def test_stats_know_policies_from_the_metadata_log(spark: SparkSession, tmp_path: Path) -> None:
    """A topic that is not compacted, and never was, has no dirty ratio."""
    write_metadata(tmp_path, compacted={"cleanup.policy": "compact,delete"}, plain={})
    for topic in ("compacted", "plain"):
        history = History(topic).add("k=1 | roll")
        history.write(RealEnv(), str(tmp_path))
    rows = read_stats(spark, [str(tmp_path)]).collect()
    assert [(row.topic, row.cleanup_policy, row.dirty_ratio) for row in rows] == [
        ("compacted", "compact,delete", 1.0),
        ("plain", "delete", None),
    ]


@pytest.mark.slow
def test_an_audit_of_nothing_says_so(spark: SparkSession, configured: Path) -> None:
    """If no requested topic is compacted, this is not an error, but may be a mistake."""
    result = run("audit", str(configured), "--topic", "plain", "--now", str(TIMESTAMP))
    assert result.stderr.splitlines() == ["diamant: none of these topics is compacted; --all audits them anyway"]


# -- commands ----------------------------------------------------------------------------------------------------------


def run(*arguments: str, code: int = 0) -> Any:
    """Return the result of a command, on the session of the tests."""
    result = CliRunner().invoke(main, ["spark", *arguments, "--master", "local[2]"], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


@pytest.mark.slow
def test_the_commands_print_tables(spark: SparkSession, directory: Path, overdue: Path) -> None:
    """The tables have a row for each partition, match or topic; an audit that finds something exits with 3."""
    lines = run("stats", str(directory)).stdout.splitlines()
    [orders] = [line for line in lines if "orders-0" in line]
    assert orders.split()[:2] == ["orders-0", "3"]
    result = run("find", str(directory), "--key", "customer-42", "--topic", "orders")
    assert result.stdout.splitlines()[0].startswith("orders-0 offset 0 superseded, 2023-11-14T22:13:20.000Z, key ")
    assert "records in 2 partitions found" in result.stderr
    result = run("audit", str(overdue), "--now", str(TIMESTAMP), "--deadline-days", "0.02", code=3)
    [late] = [line for line in result.stdout.splitlines() if line.split()[:1] == ["late"]]
    assert late.split()[:4] == ["late", "7", "3", "2023-11-14T13:13:20"]


@pytest.mark.slow
def test_the_commands_print_json(spark: SparkSession, directory: Path, overdue: Path) -> None:
    """Each row is an object on a line, with bytes and times as in the other commands; the exit code stays the same."""
    rows = [json.loads(line) for line in run("stats", str(directory), "--json").stdout.splitlines()]
    assert {row["topic"] for row in rows} == {"orders", "other", "empty"}
    [row, *_] = map(json.loads, run("find", str(directory), "--key-hex", "c3a9", "--json").stdout.splitlines())
    assert (row["key"], row["timestamp"], row["status"]) == ("é", "2023-11-14T22:13:20.000Z", "live")
    output = run("audit", str(overdue), "--now", str(TIMESTAMP), "--json", code=3).stdout
    assert [json.loads(line)["stranded"] for line in output.splitlines()] == [0, 1]


@pytest.mark.slow
def test_the_commands_write_parquet(spark: SparkSession, directory: Path, tmp_path: Path) -> None:
    """Into a new directory, which Spark can read; an existing one is not touched."""
    run("stats", str(directory), "--parquet", str(tmp_path / "stats"))
    assert spark.read.parquet(str(tmp_path / "stats")).count() == 4
    result = run("stats", str(directory), "--parquet", str(tmp_path / "stats"), code=2)
    assert "already exists" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("form", [[], ["--json"], ["--parquet", "{new}"]])
def test_nothing_found_is_reported_by_the_exit_code(
    spark: SparkSession, directory: Path, tmp_path: Path, form: list[str]
) -> None:
    """The exit code is 3, as from `diamant log find`, for every output format; the tests above show 0 for two of them."""
    where = [one.format(new=tmp_path / "none") for one in form]
    result = run("find", str(directory), "--key", "nobody", *where, code=3)
    assert result.stdout == ""
    said = "nothing was found"
    in_json = json.dumps({"error": said, "code": "not-so", "exit_code": 3})
    assert result.stderr.splitlines()[-1] == (in_json if form == ["--json"] else f"diamant: {said}")
    if "--parquet" in form:
        run("find", str(directory), "--key", "customer-42", "--parquet", str(tmp_path / "some"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stats", "{directory}/nowhere"], "not a log directory"),
        (["find", "{directory}", "--pattern", "("], "the pattern is not a regular expression"),
        (["stats", "{directory}", "--topic", "absent"], "there is no topic 'absent'"),
        (["stats", "http://somewhere/logs"], "expected a path, file: or s3:, got the scheme http:"),
    ],
)
def test_mistakes_are_one_line(spark: SparkSession, directory: Path, arguments: list[str], message: str) -> None:
    """A mistake gives one line and exit code 2, without a traceback; before it, at most that these few bytes need no Spark."""
    result = run(*(one.format(directory=directory) for one in arguments), code=2)
    *notes, error = result.stderr.splitlines()
    assert message in error
    assert [note for note in notes if "without Spark" not in note] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stats", "{here}/nowhere"], "not a log directory"),
        (["audit", "{here}"], "found no partition"),
        (["find", "{here}/t-0", "--key", "k", "--topic", "absent"], "there is no topic 'absent'"),
        (["stats", "{here}/t-0", "--parquet", "{here}"], "already exists: expected a new directory"),
        (
            ["stats", "{here}/t-0", "--parquet", "file://{here}"],
            "already exists: expected a new directory",
        ),
    ],
)
@pytest.mark.usefixtures("no_spark")
def test_mistakes_in_paths_are_reported_before_spark_is_started(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    """The start takes ten seconds, and a query may take hours."""
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020d}.log").touch()
    (tmp_path / "empty").mkdir()
    here = str(tmp_path / "empty" if arguments[0] == "audit" else tmp_path)
    result = run(*(one.format(here=here) for one in arguments), code=2)
    assert message in result.stderr


def test_traces_of_what_is_raised_are_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    """Py4J logs an interrupt on the root logger and raises it; other messages are shown."""
    with no_traces():
        logging.getLogger("diamant.other").warning("shown")
        logging.error("KeyboardInterrupt while sending command.")
    assert [record.getMessage() for record in caplog.records] == ["shown"]
    logging.getLogger().warning("shown again")
    assert len(caplog.records) == 2


def test_settings_need_a_name_and_a_value() -> None:
    """A usage error, before Spark is started."""
    result = CliRunner().invoke(main, ["spark", "stats", "/", "--conf", "spark.ui.enabled"])
    assert result.exit_code == 2
    assert "'spark.ui.enabled': expected NAME=VALUE" in result.stderr
