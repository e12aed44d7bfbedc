"""`diamant log dump`, `stats` and `find`: their output and exit codes; they leave all files unchanged."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from diamant.broker.broker import Broker
from diamant.broker.cli import main
from diamant.broker.commands.terminal.files import bytes_json, bytes_text, time_text
from diamant.protocol.batches.header import Header, Record
from diamant.storage.checkpoints.checkpoints import write_offset_checkpoint
from diamant.storage.env.env import RealEnv
from diamant.words import size_text
from tests.broker.commands.log.metadata import write_metadata
from tests.builder import TIMESTAMP, make_batch
from tests.cleaner.log_history import History
from tests.cleaner.values.framed import CUSTOMER, confluent, customer, registered

T0 = f"t-0/{0:020d}.log"
COORDINATOR_RECORDS = Path(__file__).parents[3] / "golden" / "coordinator-records"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log directory with two partitions of one topic, never changed."""
    env = RealEnv()
    path = tmp_path / "data"
    first = History()
    first.batch("user-1=alice", "user-2=bob", "user-1=", codec=4)
    first.batch("user-2=eve", producer_id=9)
    first.marker(9, is_commit=False)
    first.roll()
    first.batch(Record(first.offset, TIMESTAMP, b"\xff", b"\0", (Header("h", b"alice"), Header("n", None))))
    first.write(env, str(path))
    second = History(partition=1)
    second.batch("user-2=carol", "no key")
    second.write(env, str(path))
    write_offset_checkpoint(env, str(path / "cleaner-offset-checkpoint"), {("t", 0): 5})
    (path / ".lock").touch()
    return path


@pytest.fixture(autouse=True)
def _files_stay(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that a test leaves every byte and modification time of `data` unchanged."""
    if "data" not in request.fixturenames:
        yield
        return
    path: Path = request.getfixturevalue("data")
    before = content(path)
    yield
    assert content(path) == before


def content(path: Path) -> dict[str, tuple[int, bytes]]:
    """Return modification times and bytes of everything below a directory."""
    found = {str(path): (path.stat().st_mtime_ns, b"")}
    for one in path.rglob("*"):
        found[str(one)] = (one.lstat().st_mtime_ns, one.read_bytes() if one.is_file() else b"")
    return found


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, ["log", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


def json_lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


# -- dump --------------------------------------------------------------------------------------------------------------


def test_dump_prints_batches_and_records(data: Path) -> None:
    """Each segment, batch and record is a line; markers have names."""
    result = run("dump", data / "t-0", "--records")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == f"{data / T0}: base offset 0, " + (
        f"{(data / T0).stat().st_size} bytes, 0 index entries, 0 time index entries, 1 transaction index entry"
    )
    assert lines[1].startswith("  at 0: offsets 0 to 2, 3 records in ")
    assert "zstd, CreateTime up to 2023-11-14T22:13:20.002Z, leader epoch 0, CRC" in lines[1]
    assert lines[2] == '    0 2023-11-14T22:13:20.000Z "user-1" = "alice"'
    assert lines[4] == '    2 2023-11-14T22:13:20.002Z "user-1" = null'
    assert "producer 9 epoch 0 sequence 0 to 0, transactional, CRC" in lines[5]
    assert "transactional, control, CRC" in lines[7]
    assert lines[8] == "    4 1970-01-01T00:00:00.001Z ABORT coordinator epoch 3"
    assert lines[11] == '    5 2023-11-14T22:13:20.000Z 0xff = 0x00 ["h": "alice", "n": null]'
    assert "records" not in run("dump", data / "t-1").stdout.splitlines()[0]


def test_dump_decodes_by_the_schemas_of_the_directory(tmp_path: Path) -> None:
    """Schemas are taken from the topic `_schemas` beside the partition, or in the log directory; values of other schemas are
    shown as bytes.
    """
    key, value = registered(7, CUSTOMER)
    schemas = History("_schemas")
    schemas.batch(Record(0, TIMESTAMP, key, value))
    schemas.write(RealEnv(), str(tmp_path))
    customers = History("customers")
    customers.batch(Record(0, TIMESTAMP, confluent(7, customer(2, None)), confluent(7, customer(1, "ada@example.com"))))
    customers.batch(Record(1, TIMESTAMP, b"k", confluent(8, customer(1, None))))
    customers.write(RealEnv(), str(tmp_path))
    for path in (tmp_path / "customers-0", tmp_path / "customers-0" / f"{0:020d}.log"):
        lines = [one for one in json_lines(run("dump", path, "--records", "--json")) if one["type"] == "record"]
        decoded = [(one.get("key_json", {}).get("id"), one.get("value_json", {}).get("email")) for one in lines]
        assert decoded == [(2, "ada@example.com"), (None, None)]
    text = run("dump", tmp_path, "--records").stdout
    assert '= {"id": 1, "email": "ada@example.com", "level": "BASIC", "tags": {}}' in text
    assert '"k" = 0x0000000008' in text


def test_dump_as_json(data: Path) -> None:
    """Each line is an object with its type; bytes that are not text are base64."""
    lines = json_lines(run("dump", data / "t-0", "--records", "--json"))
    assert [line["type"] for line in lines] == [
        "segment", "batch", "record", "record", "record", "batch", "record", "batch", "record", "segment", "batch", "record"
    ]  # fmt: skip
    assert lines[1]["codec"] == "zstd"
    assert lines[1]["crc_is_valid"] is True
    assert lines[8]["decoded"] == {"name": "ABORT", "coordinator_epoch": 3}
    record = lines[11]
    assert (record["offset"], record["key"], record["value"]) == (5, {"base64": "/w=="}, {"base64": "AA=="})
    assert record["headers"] == [{"key": "h", "value": "alice"}, {"key": "n", "value": None}]


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state", "__share_group_state"])
def test_dump_decodes_records_of_internal_topics_as_kafka(topic: str) -> None:
    """Keys and values of every type and version are Kafka's JSON; what Kafka cannot decode stays hexadecimal, with a reason."""
    printed = gzip.decompress((COORDINATOR_RECORDS / f"{topic}.txt.gz").read_bytes()).decode().splitlines()
    directory = COORDINATOR_RECORDS / f"{topic}-0"
    records = [line for line in json_lines(run("dump", directory, "--records", "--json")) if line["type"] == "record"]
    text = [line for line in run("dump", directory, "--records").stdout.splitlines() if line.startswith("    ")]
    assert len(text) == len(records) > len(printed) > 10
    for expected, record, line in zip(printed, records, text, strict=False):
        decoded = record["decoded"]
        if " payload: " in expected:
            key, value = expected.partition(" key: ")[2].split(" payload: ")
            assert decoded["key"] == json.loads(key)
            assert list(decoded["key"]["data"]) == list(json.loads(key)["data"])
            assert decoded["value"] == (None if value == "<DELETE>" else json.loads(value))
            assert f" {decoded['name']} key {json.dumps(decoded['key'])}, value {json.dumps(decoded['value'])}" in line
        else:
            assert decoded["name"] == "cannot be decoded"
            assert decoded["reason"].startswith(("key: ", "value: "))
            assert decoded["value"] is None or bytes.fromhex(decoded["value"])
    assert {record["decoded"]["name"] for record in records[len(printed) :]} == {"cannot be decoded"}


def test_dump_decodes_by_the_topic_of_the_directory(tmp_path: Path) -> None:
    """One set aside by a broker too, but no other topic whose name begins like an internal one."""
    segment = COORDINATOR_RECORDS / "__share_group_state-0" / f"{0:020d}.log"
    for name, is_decoded in (
        (f"__share_group_state-3.{'a' * 32}-delete", True),
        ("__share_group_state-copy-0", False),
        ("anywhere", False),
    ):
        copy = tmp_path / name / segment.name
        copy.parent.mkdir()
        shutil.copy(segment, copy)
        assert ("SHARE_SNAPSHOT" in run("dump", copy, "--records").stdout) == is_decoded


def test_dump_of_one_file(data: Path) -> None:
    """An index and a checkpoint are dumped; an unknown kind of file is one line."""
    assert "producer id 9, first offset 3, last offset 4" in run("dump", data / T0.replace(".log", ".txnindex")).stdout
    checkpoint = run("dump", data / "cleaner-offset-checkpoint", "--json")
    assert json_lines(checkpoint)[0]["offset"] == 5
    other = run("dump", data / ".lock")
    assert (other.exit_code, len(other.stderr.splitlines())) == (1, 1)
    assert "expected a partition's directory, a file in such a directory" in other.stderr


def test_dump_shows_damage_and_exits_with_1(data: Path, tmp_path: Path) -> None:
    """The line has place and reason, and the dump continues."""
    damaged = tmp_path / "t-0"
    damaged.mkdir()
    (damaged / f"{0:020d}.log").write_bytes((data / T0).read_bytes()[:-1])
    (damaged / f"{5:020d}.log").write_bytes((data / "t-0" / f"{5:020d}.log").read_bytes())
    result = run("dump", damaged)
    assert result.exit_code == 1
    [line] = [line for line in result.stdout.splitlines() if line.startswith("DAMAGED")]
    assert f"{damaged}/{0:020d}.log at " in line
    assert "offsets 5 to 5" in result.stdout.splitlines()[-1]
    problem = next(line for line in json_lines(run("dump", damaged, "--json")) if line["type"] == "problem")
    assert problem["file"] == f"{damaged}/{0:020d}.log"


# -- stats -------------------------------------------------------------------------------------------------------------


def test_stats_as_a_table(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each partition is a row; columns of zeros are omitted; keys in several partitions are reported."""
    monkeypatch.setenv("COLUMNS", "200")
    result = run("stats", data)
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines() if line.strip().startswith(("t-", "partition"))]
    assert " ".join(rows[0]).startswith(
        "partition segments size records distinct keys live superseded tombstones aborted keyless markers dirty"
    )
    assert " ".join(rows[0]).endswith("dirty clean to checkpoint written")
    assert rows[1][0] == "t-0"
    assert rows[1][4:11] == ["5", "3", "2", "1", "1", "1", "0"]
    assert rows[2][0] == "t-1"
    assert "t: 1 of 3 keys are live on several partitions" in result.stdout
    assert "undecided" not in result.stdout


def test_stats_as_json(data: Path) -> None:
    """One document with all counts."""
    document = json.loads(run("stats", data, "--json", "--memory", "1").stdout)
    [topic] = document["topics"]
    assert (topic["topic"], topic["distinct_keys"], topic["shared_keys"]) == ("t", 3, 1)
    first, second = topic["partitions"]
    expected = {
        "partition": 0, "segments": 2, "batches": 4, "records": 5, "live": 2, "tombstones": 1, "superseded": 1, "aborted": 1,
        "undecided": 0, "keyless": 0, "below_log_start": 0, "markers": 1, "log_end_offset": 6, "distinct_keys": 3,
        "first_dirty_offset": 5, "dirty_ratio": 0.0, "problems": [],
    }  # fmt: skip
    assert {name: first[name] for name in expected} == expected
    assert first["last_cleaned_ms"] == (data / "cleaner-offset-checkpoint").stat().st_mtime_ns // 1_000_000
    assert (second["live"], second["keyless"], second["first_dirty_offset"]) == (1, 1, None)


def test_problems_exit_with_1(tmp_path: Path) -> None:
    """Problems are on standard error, one per line, with exit code 1; readable records are printed."""
    history = History()
    history.batch("k=1")
    history.segments[0] += b"torn"
    history.write(RealEnv(), str(tmp_path))
    for words, shown in (("stats",), "t-0"), (("find", "--key", "k"), "t-0 offset 0 live"):
        result = run(words[0], tmp_path, *words[1:])
        assert (result.exit_code, shown in result.stdout) == (1, True)
        assert result.stderr == f"diamant: {tmp_path}/{T0} at 70: the last 4 bytes are not a whole batch\n"


def test_stats_after_a_broker_that_was_killed(tmp_path: Path) -> None:
    """Missing indexes are one line after a crash; after a clean shutdown each is a problem."""
    env = RealEnv()
    for partition in range(2):
        history = History(partition=partition)
        history.batch("k=1")
        directory = history.write(env, str(tmp_path))
        for suffix in ("index", "timeindex"):
            (Path(directory) / f"{0:020d}.{suffix}").unlink(missing_ok=True)
    result = run("stats", tmp_path)
    assert (result.exit_code, result.stderr) == (0, "")
    line = "the broker did not shut down cleanly; 4 indexes are missing; the next start rebuilds them"
    assert line in result.stdout.splitlines()
    (tmp_path / ".kafka_cleanshutdown").touch()
    result = run("stats", tmp_path)
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 4)


def test_stats_fold_empty_partitions_of_internal_topics(tmp_path: Path) -> None:
    """Empty partitions of internal topics are one line, unless --all is given or one is named."""
    env = RealEnv()
    history = History()
    history.batch("k=1")
    history.write(env, str(tmp_path))
    for partition in range(3):
        directory = tmp_path / f"__consumer_offsets-{partition}"
        directory.mkdir()
        (directory / f"{0:020d}.log").touch()
    result = run("stats", tmp_path)
    assert "and 3 empty partitions of internal topics (--all lists them)" in result.stdout.splitlines()
    assert "__consumer_offsets-1" not in result.stdout
    for arguments in ((tmp_path, "--all"), (tmp_path / "__consumer_offsets-1",)):
        assert "__consumer_offsets-1" in run("stats", *arguments).stdout


def test_stats_knows_policies_from_the_metadata_log(tmp_path: Path) -> None:
    """A topic that is not compacted and was never cleaned has no dirty ratio."""
    topics: dict[str, dict[str, str]] = {"compacted": {"cleanup_policy": "compact,delete"}, "plain": {}}
    write_metadata(tmp_path, topics)
    for topic in topics:
        history = History(topic=topic)
        history.batch("k=1")
        history.roll()
        history.write(RealEnv(), str(tmp_path))
    found = json.loads(run("stats", tmp_path, "--json").stdout)["topics"]
    assert [(one["cleanup_policy"], one["partitions"][0]["dirty_ratio"]) for one in found] == [
        ("compact,delete", 1.0),
        (None, None),
    ]


# -- find --------------------------------------------------------------------------------------------------------------


def test_find_a_key(data: Path) -> None:
    """Each record is printed with its status, on every partition."""
    result = run("find", data, "--key", "user-2")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f't-0 offset 1 live, 2023-11-14T22:13:20.001Z, key "user-2", found in key: {data / T0} at 0',
        f't-0 offset 3 aborted, 2023-11-14T22:13:20.000Z, key "user-2", found in key: {data / T0} at '
        f"{json_lines(run('dump', data / 't-0', '--json'))[2]['position']}",
        f't-1 offset 0 live, 2023-11-14T22:13:20.000Z, key "user-2", found in key: {data / T0.replace("t-0", "t-1")} at 0',
    ]


def test_find_a_key_in_hexadecimal(data: Path, tmp_path: Path) -> None:
    """Hexadecimal with and without 0x, base64, and a file work; JSON has base64 for bytes that are not text."""
    (tmp_path / "key").write_bytes(b"\xff")
    given = [
        ("--key-hex", "ff"),
        ("--key-hex", "0xFF"),
        ("--key-base64", "/w=="),
        ("--key-file", str(tmp_path / "key")),
    ]
    for key in given:
        [match] = json_lines(run("find", data, *key, "--json"))
        assert (match["offset"], match["key"], match["status"]) == (5, {"base64": "/w=="}, "live")


def test_find_a_pattern(data: Path) -> None:
    """The pattern matches keys, values and headers, also of superseded records."""
    matches = json_lines(run("find", data, "--pattern", "^alice|^user-1", "--json"))
    assert [(match["offset"], match["status"], match["places"]) for match in matches] == [
        (0, "superseded", ["key", "value"]),
        (2, "tombstone", ["key"]),
        (5, "live", ["header h"]),
    ]


def test_finding_nothing_has_an_exit_code(data: Path) -> None:
    """The message is on standard error; standard output is empty."""
    result = run("find", data, "--key", "nobody")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "nothing was found" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected either a key"),
        (("--key", "a", "--pattern", "b"), "expected either a key"),
        (("--pattern", "(",), "not a regular expression"),
        (("--key-hex", "xyz"), "not hexadecimal"),
        (("--key", "a", "--key-hex", "61"), "expected only one of --key, --key-hex"),
        (("--key", ""), "--key is empty"),
    ],
)  # fmt: skip
def test_a_wrong_question_is_a_usage_error(data: Path, arguments: tuple[str, ...], message: str) -> None:
    """The exit code is 2, and the message shows the expected form."""
    result = run("find", data, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


# -- all of them -------------------------------------------------------------------------------------------------------


def test_the_keys_with_the_most_bytes(data: Path) -> None:
    """--top lists the given number of keys, as text and in JSON."""
    found = run("stats", data, "--top", "2")
    assert "t: keys with the most bytes" in found.stdout
    assert '"user-2"' in found.stdout
    [topic] = json.loads(run("stats", data, "--top", "2", "--json").stdout)["topics"]
    assert [(one["key"], one["records"], one["bytes"]) for one in topic["top_keys"]] == [
        ("user-2", 3, 29),
        ("user-1", 2, 17),
    ]
    assert topic["top_keys_missed_bytes"] == 0
    [topic] = json.loads(run("stats", data, "--json").stdout)["topics"]
    assert topic["top_keys"] == []


def test_a_long_key_widens_no_other_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long key ends its line, for the terminal to wrap; all keys are in one table."""
    monkeypatch.setenv("COLUMNS", "80")
    log = tmp_path / "t-0" / f"{0:020d}.log"
    log.parent.mkdir()
    log.write_bytes(make_batch("short=1", "k" * 100 + "=1", "\x1b[2J" * 40 + "=1"))
    lines = run("stats", tmp_path, "--top", "3").stdout.splitlines()
    shown = lines[lines.index("records   size  key") + 1 :]
    assert [len(line) <= 80 for line in shown] == [False, False, True]
    assert shown[-1] == '      1    6 B  "short"'
    assert shown[0].split()[-1] == "0x" + (b"\x1b[2J" * 32).hex() + "..."


COMMANDS = (("dump",), ("stats",), ("find", "--key", "k"), ("whatif",))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_directory_of_a_running_broker_is_refused(command: tuple[str, ...], tmp_path: Path) -> None:
    """The error is one line with the remedy; the broker keeps its lock, and after its stop the command works."""
    with Broker(data_dir=tmp_path):
        for _ in range(2):
            result = run(command[0], tmp_path, *command[1:])
            assert result.exit_code == 1
            assert "in use" in result.stderr
            assert "stop the broker" in result.stderr
            assert len(result.stderr.splitlines()) == 1
    assert run(command[0], tmp_path, *command[1:]).exit_code == (3 if command[0] == "find" else 0)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_directory_that_is_not_there_is_a_usage_error(command: tuple[str, ...], tmp_path: Path) -> None:
    """The exit code is 2, as for a directory without partitions."""
    assert run(command[0], tmp_path / "nowhere", *command[1:]).exit_code == 2
    result = run(command[0], tmp_path, *command[1:])
    assert result.exit_code == 2
    assert "found no partition" in result.stderr


def test_a_file_that_cannot_be_read_is_one_line(data: Path, tmp_path: Path) -> None:
    """The operating system's error is printed with the file."""
    checkpoint = Path(shutil.copytree(data, tmp_path / "copy")) / "log-start-offset-checkpoint"
    checkpoint.mkdir()
    result = run("find", checkpoint.parent, "--key", "k")
    assert (result.exit_code, result.stderr) == (1, f"diamant: {checkpoint}: it is a directory, expected a file\n")


@pytest.mark.parametrize(
    ("data_", "text", "json_value"),
    [
        (None, "null", None),
        (b"", '""', ""),
        ("grüß\n".encode(), '"grüß\\n"', "grüß\n"),
        (b"\x1b[31m", "0x1b5b33316d", {"base64": "G1szMW0="}),
        (b"\xff", "0xff", {"base64": "/w=="}),
        ("\u2028".encode(), "0xe280a8", {"base64": "4oCo"}),
    ],
)
def test_bytes_as_text(data_: bytes | None, text: str, json_value: object) -> None:
    """Only printable bytes are text, so a terminal gets no control characters."""
    assert bytes_text(data_) == text
    assert bytes_json(data_) == json_value


def test_times_and_sizes_as_text() -> None:
    """Times are UTC with milliseconds; a time beyond the calendar stays a number."""
    assert time_text(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert time_text(-1) == time_text(None) == "-"
    assert time_text(1 << 62) == str(1 << 62)
    assert [size_text(size) for size in (0, 1023, 1024, 1536, 5 << 20, 3 << 30, 7 << 50)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 MiB", "3.0 GiB", "7.0 PiB"
    ]  # fmt: skip
