"""`diamant log explain`: explains files by the broker's rules, without changing them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diamant.broker.cli import main
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import write_offset_checkpoint
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import RealEnv
from tests.broker.commands.log.metadata import write_metadata
from tests.broker.commands.log.test_log_commands import content
from tests.storage.conftest import START_MS
from tests.storage.logs import batch, make_log

HOUR_MS = 3_600_000


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """A compacted partition with a key's records: one in each of two closed segments, two in the active one."""
    log = make_log(RealEnv(SettableClock(START_MS)), tmp_path, cleanup_policy=frozenset({"compact"}))
    for number in range(9):
        if number in (3, 6):
            log.roll()
        log.append_as_leader(batch(b"%d" % number, key=b"customer-42" if number % 3 == 0 else b"%d" % number))
    log.append_as_leader(batch(None, key=b"customer-42"))
    log.close()
    (tmp_path / names.CLEAN_SHUTDOWN).touch()
    return Path(log.path)


def run(*arguments: str | Path) -> Result:
    """Run the command an hour after the last record was written."""
    now = str(START_MS + HOUR_MS)
    result = CliRunner().invoke(main, ["log", "explain", *map(str, arguments), "--now", now])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


@pytest.mark.parametrize("is_whole", [False, True])
def test_records_of_a_key(partition: Path, is_whole: bool) -> None:
    """A due round is the reason in closed segments, the active segment for the others, with its end."""
    before = content(partition)
    place = partition.parent if is_whole else partition
    found = run(place, "-k", "customer-42", "--json", "-s", "segment.ms=7200000", "--mode", "prompt")
    assert found.exit_code == 0
    (told,) = json.loads(found.stdout)["partitions"]
    records = {one["offset"]: one for one in told["records"]}
    assert {offset: one["status"] for offset, one in records.items()} == {
        0: "superseded", 3: "superseded", 6: "superseded", 9: "tombstone"
    }  # fmt: skip
    assert records[0]["superseded_by"] == 3
    assert records[0]["goes_ms"] == START_MS + HOUR_MS
    assert [gate["kind"] for gate in records[6]["gates"]] == ["active-segment"]
    assert records[6]["goes_ms"] == START_MS + 2 * HOUR_MS + 1
    assert all(one["change"] is None for one in (told, *told["records"]))
    assert content(partition) == before


def test_a_partition_as_a_whole(partition: Path) -> None:
    """The reasons apply the given settings; no command for a broker is printed."""
    found = run(partition, "--set", "min.compaction.lag.ms=7200000")
    assert found.exit_code == 0
    assert "min.compaction.lag.ms=7200000" in " ".join(found.stdout.split())
    assert "by the clock of this machine" in found.stdout
    assert "diamant compact" not in found.stdout


@pytest.mark.parametrize("mode", ["prompt", "kafka"])
def test_a_record_that_expires_in_the_clean_part_has_its_round(tmp_path: Path, mode: str) -> None:
    """Mode prompt plans a round at the horizon; no facts of segments are written for it."""
    log = make_log(RealEnv(SettableClock(START_MS)), tmp_path, cleanup_policy=frozenset({"compact"}))
    horizon_ms = START_MS + 2 * HOUR_MS
    log.append_internal(build_batch([Record(0, START_MS, b"gone", None)], delete_horizon_ms=horizon_ms))
    log.roll()
    log.close()
    (tmp_path / names.CLEAN_SHUTDOWN).touch()
    write_offset_checkpoint(RealEnv(), str(tmp_path / names.CLEANER_CHECKPOINT), {(log.topic, log.partition): 1})
    before = content(Path(log.path))
    document = json.loads(run(log.path, "-k", "gone", "--json", "--mode", mode).stdout)
    assert (document["mode"], document["kafka_version"]) == (mode, "4.4" if mode == "kafka" else None)
    (told,) = document["partitions"]
    expected = horizon_ms if mode == "prompt" else None
    assert told["records"][0]["goes_ms"] == expected
    assert ("delete-horizon" in [gate["kind"] for gate in told["gates"]]) == (mode == "prompt")
    assert content(Path(log.path)) == before


def test_the_record_at_an_offset(partition: Path) -> None:
    """The record and all others with its key are explained."""
    found = run(partition, "--offset", "3", "--json")
    (told,) = json.loads(found.stdout)["partitions"]
    assert [one["offset"] for one in told["records"]] == [0, 3, 6, 9]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["-k", "nobody"], 3, "nothing was found"),
        (["-o", "5000"], 3, "nothing was found"),
        (["-k", "a", "-o", "1"], 2, "exclude each other"),
        (["-k", ""], 2, "--key is empty"),
        (["--set", "segment.ms=1h"], 2, "1h is 3600000"),
    ],
)
def test_missing_and_impossible_subjects_have_different_exit_codes(
    partition: Path, options: list[str], code: int, words: str
) -> None:
    """The exit code tells the cases apart, and a usage error has the expected form."""
    found = run(partition, *options)
    assert (found.exit_code, words in found.stderr) == (code, True)


def test_a_copy_of_a_running_broker(partition: Path) -> None:
    """A torn tail is reported on standard error, as at a start, and stays in the file."""
    (partition.parent / names.CLEAN_SHUTDOWN).unlink()
    last = max(partition.glob("*.log"))
    last.write_bytes(last.read_bytes()[:-5])
    before = content(partition)
    found = run(partition, "-k", "customer-42")
    assert found.exit_code == 0
    assert f"a broker would report when it starts: {last}" in found.stderr
    assert "offset 6: live" in found.stdout
    assert content(partition) == before


def test_a_forecast_for_a_torn_copy(partition: Path) -> None:
    """`whatif` also accepts a torn tail after a crash; after a clean shutdown it is damage."""
    last = max(partition.glob("*.log"))
    last.write_bytes(last.read_bytes()[:-5])
    for code in (1, 0):
        found = CliRunner().invoke(main, ["log", "whatif", str(partition)])
        assert found.exit_code == code, found.output
        assert ("9 records" in found.stdout) == (not code)
        (partition.parent / names.CLEAN_SHUTDOWN).unlink(missing_ok=True)


@pytest.mark.parametrize("mode", ["prompt", "kafka"])
@pytest.mark.parametrize("is_cut", [True, False])
@pytest.mark.parametrize("options", [[], ["-k", "customer-42"], ["-o", "9"]])
def test_damage_is_named_as_a_broker_would_after_its_round(
    partition: Path, mode: str, is_cut: bool, options: list[str]
) -> None:
    """A cut file or a flipped byte: mode prompt leaves the segment out, mode kafka the partition; the exit code is 1."""
    first = min(partition.glob("*.log"))
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(data[:-5] if is_cut else data)
    found = run(partition, *options, "--mode", mode)
    assert (found.exit_code, found.stderr.count(str(first))) == (1, 1)
    assert "could not be read" not in found.stdout
    fields = json.loads(run(partition, *options, "--mode", mode, "--json").stdout)["partitions"][0]
    kind = "quarantined" if mode == "prompt" else "uncleanable"
    (gate,) = (one for one in fields["gates"] if one["kind"] == kind)
    assert len(fields["problems"]) == 1
    reason = fields["problems"][0].rpartition(": ")[2]
    expected = "the segment at 0 cannot be read" if mode == "prompt" else "a round fails"
    assert gate["text"].startswith(expected)
    assert reason in gate["text"]
    if not options:
        assert expected in found.stdout


def test_damage_in_the_active_segment_is_named(partition: Path) -> None:
    """No round reads it, so it keeps nothing."""
    last = max(partition.glob("*.log"))
    data = bytearray(last.read_bytes())
    data[-1] ^= 1
    last.write_bytes(data)
    found = run(partition)
    assert (found.exit_code, found.stderr.count(str(last))) == (1, 1)
    assert "a round fails" not in found.stdout


@pytest.mark.parametrize(
    ("topics", "options", "assumed"),
    [
        (None, (), "all topics: {} (no metadata log can be read in {})"),
        ({"other": {"cleanup_policy": "delete"}}, (), "t: {} (not in the metadata log)"),
        (None, ("--set", "cleanup.policy=compact"), None),
        ({"t": {"cleanup_policy": "compact"}}, (), None),
    ],
)
def test_an_assumed_policy_is_told_first(
    partition: Path, topics: dict[str, dict[str, str]] | None, options: tuple[str, ...], assumed: str | None
) -> None:
    """The policy is told in the first line, unless it is known or given."""
    if topics is not None:
        write_metadata(partition.parent, topics)
    line = run(partition, "--mode", "kafka", *options).stdout.splitlines()[0]
    if assumed is None:
        assert "Assumed" not in line
    else:
        what = "cleanup.policy=compact and Kafka's defaults"
        assert line == f"Assumed for {assumed.format(what, partition.parent)}."


def test_a_damage_that_a_start_refuses(partition: Path) -> None:
    """The other partitions are explained, and the exit code reports the gap."""
    first = min(partition.glob("*.log"))
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(data)
    first.with_suffix(".index").unlink()
    found = run(partition, "-k", "customer-42")
    assert found.exit_code == 1
    assert "CRC mismatch" in found.stderr


def test_empty_partitions_of_internal_topics_are_counted_only(partition: Path) -> None:
    """The 50 partitions of a group's topic are counted; --all and JSON list each."""
    for number in range(3):
        empty = partition.parent / f"__consumer_offsets-{number}"
        empty.mkdir()
        (empty / f"{0:020d}.log").touch()
    found = run(partition.parent)
    assert "and 3 empty partitions of internal topics (--all shows them)" in found.stdout.splitlines()
    assert "__consumer_offsets" not in found.stdout
    assert "__consumer_offsets-2:" in run(partition.parent, "--all").stdout
    topics = [json.loads(line) for line in run(partition.parent, "--json").stdout.splitlines()]
    assert [(one["topic"], len(one["partitions"])) for one in topics] == [("__consumer_offsets", 3), ("t", 1)]


def test_without_topics_that_can_be_read_defaults_count(partition: Path) -> None:
    """An unreadable metadata log is reported, with its exit code; partitions are explained by the defaults."""
    write_metadata(partition.parent, {"t": {"cleanup_policy": "compact"}})
    (path,) = (partition.parent / "__cluster_metadata-0").glob("*.log")
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    found = run(partition, "-k", "customer-42")
    assert (found.exit_code, "offset 9: tombstone" in found.stdout) == (1, True)
    assert str(path) in found.stderr


def test_a_topic_that_the_metadata_log_does_not_have(partition: Path) -> None:
    """A topic that is not in the metadata log counts as compacted, as for `log clean` and `log whatif`, even beside others that
    are.
    """
    write_metadata(partition.parent, {"other": {"cleanup_policy": "delete"}})
    found = run(partition, "-k", "customer-42", "--json")
    (told,) = json.loads(found.stdout)["partitions"]
    assert [one["status"] for one in told["records"]] == ["superseded", "superseded", "superseded", "tombstone"]
    forecast = CliRunner().invoke(main, ["log", "whatif", str(partition), "--now", str(START_MS + HOUR_MS), "--json"])
    assert forecast.exit_code == 0
    (forecasts,) = json.loads(forecast.stdout)["partitions"]
    assert [event["kind"] for event in forecasts["forecasts"][0]["events"]] == ["clean", "roll"]
