"""`diamant log whatif`: combinations, output and refusals; it leaves all files unchanged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from diamant.broker.cli import main
from diamant.broker.commands.log.whatif import WAITING, after_text, combine
from diamant.cleaner.forecast import forecast
from diamant.protocol.batches.header import Record
from diamant.storage.config_key import ConfigError
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import RealEnv
from tests.broker.commands.log.metadata import write_metadata
from tests.broker.commands.log.test_log_commands import content
from tests.builder import TIMESTAMP
from tests.cleaner.log_history import History

DAY_MS = 86_400_000
NOW_MS = TIMESTAMP + DAY_MS
NOW = ("--now", str(NOW_MS))


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A log directory with two partitions, never changed."""
    env = RealEnv()
    path = tmp_path / "data"
    for partition in range(2):
        history = History(partition=partition)
        for _ in range(3):
            history.batch("a=1", "b=1", "a=2", "c=")
            history.roll()
        history.batch("a=3")
        directory = history.write(env, str(path))
        for name in env.list_dir(directory):
            env.set_mtime_ms(f"{directory}/{name}", TIMESTAMP + 1000)
    (path / ".lock").touch()
    before = content(path)
    yield path
    if not (path / "__cluster_metadata-0").exists():
        assert content(path) == before


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, ["log", "whatif", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


def forecasts(*arguments: str | Path) -> list[dict[str, Any]]:
    """Return the forecasts for the first partition."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["partitions"][0]["forecasts"]
    return found


def test_every_combination_is_tried(data: Path) -> None:
    """Combinations follow the given order; the last setting varies fastest."""
    found = forecasts(data, *NOW, "--set", "min.cleanable.dirty.ratio=0.1,1", "-s", "delete.retention.ms=0,1000")
    assert [one["settings"] for one in found] == [
        {"min.cleanable.dirty.ratio": ratio, "delete.retention.ms": retention}
        for ratio in ("0.1", "1")
        for retention in ("0", "1000")
    ]
    assert [one["cleaned_ms"] for one in found][:2] == [NOW_MS, NOW_MS]


def test_the_json_has_every_field_of_each_partition(data: Path) -> None:
    """The document has both partitions and all fields of a forecast."""
    result = run(data, *NOW, "--mode", "kafka", "--json")
    document = json.loads(result.stdout)
    assert (document["log_directory"], document["now_ms"], document["mode"]) == (str(data), NOW_MS, "kafka")
    assert document["kafka_version"] == "4.4"
    assert [(one["topic"], one["partition"]) for one in document["partitions"]] == [("t", 0), ("t", 1)]
    (one,) = document["partitions"][0]["forecasts"]
    assert (one["before"]["records"], one["before"]["superseded"]) == (13, 10)
    assert (one["after"]["records"], one["after"]["superseded"], one["after"]["tombstones"]) == (4, 1, 1)
    (event,) = one["events"]
    assert (event["kind"], event["at_ms"], event["removed"]) == ("clean", NOW_MS, {"superseded": 9})
    assert one["tombstones_expire_ms"] == NOW_MS + DAY_MS
    assert one["waits_for"] == ["append", "round"]


def test_versions_of_kafka_are_compared(tmp_path: Path) -> None:
    """Until 4.3 a batch stays empty at the end of the round; the document names the version of mode kafka, if it is one."""
    history = History().add("a=1")
    history.batch(Record(1, TIMESTAMP, None, b"1"))
    history.roll()
    history.add("b=1").write(RealEnv(SettableClock(TIMESTAMP)), str(tmp_path))
    for mode, versions, told, batches in (
        ("kafka", ("4.3", "4.4"), None, [3, 2]),
        ("kafka", ("4.3",), "4.3", [3]),
        ("prompt", ("4.3",), None, [2]),
    ):
        options = ("--mode", mode, "--set", f"diamant.cleaner.kafka.version={','.join(versions)}")
        document = json.loads(run(tmp_path / "t-0", *NOW, *options, "--json").stdout)
        assert document["kafka_version"] == told
        assert [one["after"]["batches"] for one in document["partitions"][0]["forecasts"]] == batches


def test_a_single_combination_is_printed_with_its_events(data: Path) -> None:
    """One combination is printed with all its events; times are relative to now."""
    result = run(data / "t-0", *NOW, "--mode", "kafka", "--set", "min.compaction.lag.ms=259200000")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("t-0 at 2023-11-15T22:13:20.000Z: 4 segments, ")
    assert "13 records (2 live, 10 superseded, 1 tombstone)" in lines[0]
    assert "min.compaction.lag.ms" in lines[2]
    # Without a time in the indexes the files' count: a second later.
    assert any(line.strip().startswith("+2d 1s: cleaned up to offset 12, due by min.cleanable") for line in lines)
    assert f"  waits for append: {WAITING['append']}" in lines


def test_the_counts_add_up(tmp_path: Path) -> None:
    """Rare kinds have a name and a column where there are some; the last column but one is any tombstone's horizon."""
    history = History().add("t1: a=1 a=2")
    history.batch("b=1", Record(3, TIMESTAMP, None, b"1"))
    history.write(RealEnv(SettableClock(TIMESTAMP)), str(tmp_path))
    lines = run(tmp_path / "t-0", *NOW, "--mode", "kafka").stdout.splitlines()
    told = next(line for line in lines if line.startswith("t-0 at "))
    assert told.endswith("4 records (1 live, 0 superseded, 0 tombstones, 2 undecided, 1 keyless)")
    heads = next(line for line in lines if "segments" in line and "waits for" in line)
    columns = "segments size records live superseded tombstones undecided keyless last horizon waits for"
    assert " ".join(heads.split()).endswith(columns)
    cells = lines[lines.index(heads) + 2].split()
    assert cells[-9:-3] == ["4", "1", "0", "0", "2", "1"]


def test_freed_bytes_are_summed_over_partitions(data: Path) -> None:
    """The freed bytes of each combination over all partitions, in a table and in JSON; one partition has no total."""
    settings = (*NOW, "--set", "min.cleanable.dirty.ratio=0.1,1", "--mode", "kafka", "--set", "delete.retention.ms=0")
    found = json.loads(run(data, *settings, "--json").stdout)
    sums = [
        {
            side: sum(one["forecasts"][index][side]["bytes"] for one in found["partitions"])
            for side in ("before", "after")
        }
        for index in range(2)
    ]
    assert [(one["bytes_before"], one["bytes_after"], one["failed"]) for one in found["totals"]] == [
        (one["before"], one["after"], 0) for one in sums
    ]
    assert sums[0]["before"] > sums[0]["after"]
    lines = run(data, *settings).stdout.splitlines()
    head = next(index for index, line in enumerate(lines) if line.split()[:2] == ["total", "of"])
    assert lines[head].split()[2:] == ["min.cleanable.dirty.ratio", "delete.retention.ms", "size", "left", "freed"]
    for line, ratio, one in zip(lines[head + 2 :], ("0.1", "1"), sums, strict=False):
        freed = one["before"] - one["after"]
        cells = ["2", "partitions", ratio, "0", f"{one['before']}", "B", f"{one['after']}", "B", f"{freed}", "B"]
        assert line.split() == [*cells, f"{100 * freed / one['before']:.0f}", "%"]
    assert "total of" not in run(data / "t-0", *settings).stdout


def test_empty_partitions_of_internal_topics_are_not_told_of(data: Path, tmp_path: Path) -> None:
    """Empty partitions of internal topics are counted, and listed only with --all; those with records are listed."""
    data = Path(shutil.copytree(data, tmp_path / "copy"))
    directories = [data / f"__transaction_state-{index}" for index in range(3)]
    for index, directory in enumerate(directories):
        directory.mkdir()
        source = (data / "t-0" / f"{0:020d}.log").read_bytes() if index == 2 else b""
        (directory / f"{0:020d}.log").write_bytes(source)
    told = run(data, *NOW).stdout
    everything = run(data, *NOW, "--all").stdout
    for text, named in ((told, ["__transaction_state-2"]), (everything, [one.name for one in directories])):
        assert [line.split()[0] for line in text.splitlines() if line.startswith("__transaction_state")] == named
        assert "5 partitions" in text
    assert "and 2 empty partitions of internal topics (--all shows them)" in told
    assert "empty partition" not in everything


def test_settings_of_the_topic_count(data: Path) -> None:
    """The metadata log applies, with --set overriding it; a topic without a policy has Kafka's default."""
    configs = {"min_cleanable_dirty_ratio": "1.0", "cleanup_policy": "compact", "segment_bytes": "2000000"}
    write_metadata(data, {"t": configs})
    assert forecasts(data, *NOW, "--mode", "kafka")[0]["waits_for"] == ["ratio", "append"]
    assert forecasts(data, *NOW, "--set", "min.cleanable.dirty.ratio=0")[0]["cleaned_ms"] == NOW_MS
    cut = forecasts(data, *NOW, "--mode", "kafka", "--set", "segment.bytes=150", "--set", "cleanup.policy=delete")
    assert cut[0]["before"]["segments"] == 4
    assert forecasts(data, *NOW, "--set", "segment.bytes=2000000")[0]["before"]["segments"] == 1


def test_a_topic_without_a_policy_is_not_compacted(data: Path) -> None:
    """A topic without a policy is not compacted if the metadata log has the topic."""
    write_metadata(data, {"t": {}})
    assert forecasts(data, *NOW, "--set", "retention.ms=-1")[0]["waits_for"] == ["policy"]


@pytest.mark.parametrize(
    ("harm", "said", "is_forecast"),
    [
        (lambda log: log.write_bytes(log.read_bytes()[:70] + b"\xff" + log.read_bytes()[71:]), " at 0", True),
        (lambda log: (log.unlink(), os.mkfifo(log)), ": cannot be read: it is a pipe, expected a file", False),
        (lambda log: (log.unlink(), log.symlink_to("nowhere")), ": cannot be read: No such file or directory", False),
    ],
)
def test_an_unreadable_partition_is_reported_beside_the_others(
    data: Path, tmp_path: Path, harm: Callable[[Path], object], said: str, is_forecast: bool
) -> None:
    """The exit code is 1, and the error names the file; the other partition still has its forecast, in both formats."""
    broken = Path(shutil.copytree(data, tmp_path / "broken"))
    log = broken / "t-0" / f"{0:020d}.log"
    harm(log)
    result = run(broken, *NOW)
    assert (result.exit_code, "t-1 at" in result.stdout, "FAILED" in result.stdout) == (1, True, is_forecast)
    assert result.stderr.startswith(f"diamant: {log}{said}")
    if not is_forecast:
        document = json.loads(run(broken, *NOW, "--json").stdout)
        assert [(one["topic"], one["partition"]) for one in document["partitions"]] == [("t", 1)]
        assert [one["file"] for one in document["problems"]] == [str(log)]


def test_only_some_topics(data: Path, tmp_path: Path) -> None:
    """`--topic` may be repeated; a topic without a partition is an error."""
    for source, topic in (("t-0", "u-3"), ("t-1", "v-0")):
        shutil.copytree(data / source, tmp_path / "more" / topic)
    shutil.copytree(data / "t-0", tmp_path / "more" / "t-0")
    result = run(tmp_path / "more", *NOW, "--json", "--topic", "u", "--topic", "v")
    found = [(one["topic"], one["partition"]) for one in json.loads(result.stdout)["partitions"]]
    assert (found, result.exit_code) == ([("u", 3), ("v", 0)], 0)
    result = run(tmp_path / "more", *NOW, "--topic", "absent")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"diamant: there is no topic 'absent' in {tmp_path}/more\n"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], [{}]),
        (["a=1,2"], [{"a": "1"}, {"a": "2"}]),
        (["a=1", "a=2,1"], [{"a": "1"}, {"a": "2"}]),
        (["a=x,[y,z]", "b="], [{"a": "x", "b": ""}, {"a": "y,z", "b": ""}]),
    ],
)
def test_commas_separate_alternatives(settings: list[str], expected: list[dict[str, str]]) -> None:
    """Commas separate alternatives, except in brackets, as in Kafka's own tools."""
    assert combine(settings) == expected


@pytest.mark.parametrize("settings", [["a"], ["=1"], ["a=[1,2"]])
def test_settings_that_are_none(settings: list[str]) -> None:
    """Unknown settings and invalid values have different errors."""
    with pytest.raises(ConfigError, match="--set"):
        combine(settings)


def test_too_many_combinations(data: Path) -> None:
    """The error has the limit, and nothing runs."""
    numbers = ",".join(map(str, range(9)))
    result = run(data, "--set", f"segment.ms={numbers}", "--set", f"delete.retention.ms={numbers}")
    assert result.exit_code == 2
    assert "9 x 9 values make 81 combinations, expected at most 64" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "no.such.setting=1"], "no.such.setting"),
        (["--set", "segment.ms=1,soon"], "soon"),
        (["--set", "min.cleanable.dirty.ratio=2"], "min.cleanable.dirty.ratio"),
    ],
)
def test_wrong_settings_are_named(data: Path, arguments: list[str], message: str) -> None:
    """One line with their names."""
    result = run(data, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("after_ms", "expected"),
    [
        (None, "-"),
        (0, "now"),
        (90, "+90ms"),
        (-2000, "-2s"),
        (61_000, "+1m 1s"),
        (7_500_000, "+2h 5m"),
        (90_000_000, "+1d 1h"),
    ],
)
def test_times_for_people(after_ms: int | None, expected: str) -> None:
    """Times are printed in their two largest units."""
    assert after_text(None if after_ms is None else NOW_MS + after_ms, NOW_MS) == expected


def test_every_reason_is_explained() -> None:
    """Each reason of a forecast has a text."""
    assert set(WAITING) == {value for name, value in vars(forecast).items() if name.startswith("WAITS_FOR_")}
