"""`diamant log clean` on real files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diamant.broker.cli import main
from diamant.broker.commands.settings.clean_settings import BROKER_SETTINGS, parse_settings
from diamant.broker.config.broker_table import BROKER_CONFIGS
from diamant.cleaner.rules.modes import KAFKA, PROMPT
from diamant.storage import names
from diamant.storage.config_key import ConfigError
from diamant.storage.env.env import RealEnv
from tests.broker.commands.log.metadata import write_metadata
from tests.cleaner.cleaner_log import CleanerLog
from tests.storage.kraft.metadata_directory import golden_directory


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """A closed partition of three segments, two of them cleanable."""
    log = CleanerLog()
    for words in (("a", "b"), ("a", "c"), ("d",)):
        log.data(*words)
        log.roll()
    log.log.close()
    directory = tmp_path / "topic-0"
    directory.mkdir()
    for name, content in log.files().items():
        (directory / name).write_bytes(content)
    (tmp_path / names.CLEAN_SHUTDOWN).touch()
    return directory


def run(directory: Path, *options: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, ["log", "clean", str(directory), "--now", "1700000000000", *options])


def contents(directory: Path) -> dict[str, bytes]:
    """Every file in the log directory."""
    return {str(path): path.read_bytes() for path in directory.parent.rglob("*") if path.is_file()}


def test_clean_works_in_place(partition: Path) -> None:
    """Clean prints findings and removals, writes the checkpoint, releases the lock; a second run has nothing to clean."""
    result = run(partition, "--mode", "kafka")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "offsets 0 to 5, dirty from 0, cleanable up to 5" in result.output
    assert "cleaned up to offset 5 by the compiled engine; records removed: 1 superseded" in result.output
    assert (partition.parent / "cleaner-offset-checkpoint").read_text() == "0\n1\ntopic 0 5\n"
    assert not (partition.parent / ".lock").exists()
    again = run(partition)
    assert "not cleaned: nothing is cleanable" in again.output


def test_a_dry_run_changes_nothing(partition: Path) -> None:
    """The output is the same, and every file is unchanged."""
    before = contents(partition)
    result = run(partition, "--dry-run")
    assert result.exit_code == 0
    assert "would be cleaned up to offset 5" in result.output
    assert contents(partition) == before


def test_every_engine_cleans(partition: Path) -> None:
    """Each engine, in this process or a worker, prints the same text and writes the same files."""
    found = []
    for engine in ("inline", "compiled", "process"):
        directory = partition.parent / engine / partition.name
        shutil.copytree(partition, directory)
        (directory.parent / names.CLEAN_SHUTDOWN).touch()
        result = run(directory, "--engine", engine)
        assert (result.exit_code, result.stderr) == (0, "")
        assert f"cleaned up to offset 5 by the {engine} engine; records removed: 1 superseded" in result.output
        found.append({path.name: path.read_bytes() for path in directory.iterdir()})
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("engine", ["compiled", "process"])
def test_a_corrupt_segment_is_named(partition: Path, engine: str) -> None:
    """The error has file and position, and the segment stays."""
    log = sorted(partition.glob("*.log"))[1]
    data = bytearray(log.read_bytes())
    data[16] = 9
    log.write_bytes(data)
    result = run(partition, "--engine", engine)
    assert result.exit_code == 1
    assert f"{log} at 0: magic is 9" in result.stderr
    assert log.read_bytes() == data


def test_the_report_lists_bytes_cut_off_by_recovery(partition: Path) -> None:
    """The report has file, place, reason and bytes, and later files that are removed, also in a dry run, which recovers a copy,
    and JSON. Sizes before are those before the cut. Without --unclean, a log without an index is refused.
    """
    logs = sorted(partition.glob("*.log"))
    (partition.parent / names.RECOVERY_POINT_CHECKPOINT).write_text("0\n0\n")  # nothing was synced
    size, size_of_first = sum(path.stat().st_size for path in logs), logs[0].stat().st_size
    content = bytearray(logs[0].read_bytes())
    content[-1] ^= 1
    logs[0].write_bytes(content)
    (partition / f"{0:020d}.index").unlink()
    before = contents(partition)
    refused = run(partition, "--dry-run")
    assert (refused.exit_code, f"{logs[0].name}" in refused.stderr) == (1, True)
    said = (
        f"; cut off {size_of_first} bytes, the log now ends at offset 0",
        *(f"{path}: removed, since it follows the corruption" for path in logs[1:]),
        f"{size} bytes before, 0 after",
    )
    found = json.loads(run(partition, "--unclean", "--dry-run", "--json").stdout)
    assert (len(found["recovery"]), found["bytes_before"], found["bytes_after"]) == (len(logs), size, 0)
    for options, done in (("--dry-run",), "would recover"), ((), "recovered"):
        assert contents(partition) == before
        result = run(partition, "--unclean", "--mode", "prompt", *options)
        assert (result.exit_code, result.stderr) == (0, "")
        assert [words for words in said if f"{words}\n" not in result.stdout] == []
        assert result.stdout.startswith(f"{done}: {logs[0]}: CRC"), result.stdout
    assert sorted(partition.glob("*.log")) == logs[:1]
    assert json.loads(run(partition, "--unclean", "--json").stdout)["recovery"] == []


def test_a_directory_that_was_not_left_in_order_is_reported(partition: Path) -> None:
    """Without a clean shutdown a warning names --unclean, and the log is cleaned; the option silences the warning."""
    for options, is_warned in (((), False), (("--unclean",), False), (("--dry-run",), True), ((), True)):
        if is_warned:
            (partition.parent / names.CLEAN_SHUTDOWN).unlink(missing_ok=True)
        result = run(partition, *options)
        assert result.exit_code == 0, result.output
        words = f"diamant: warning: {partition.parent} has no {names.CLEAN_SHUTDOWN}"
        assert (words in result.stderr, "--unclean" in result.stderr) == (is_warned, is_warned), options


def test_a_directory_in_use_is_refused(partition: Path) -> None:
    """A broker holds the lock of its log directory."""
    lock = RealEnv().lock(str(partition.parent / ".lock"))
    try:
        result = run(partition)
    finally:
        lock.release()
    assert result.exit_code == 1
    assert "in use" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "segment.bites=7"], "--set segment.bites: expected a topic's configuration or one of"),
        (["--set", "segment.bytes"], "expected NAME=VALUE"),
        (["--set", "delete.retention.ms=soon"], "Not a number of type LONG"),
        (["--set", "log.cleaner.dedupe.buffer.size=23"], "holds no key"),
        (["--set", "log.cleaner.io.max.bytes.per.second=0"], "expected more than 0"),
        (["--set", "diamant.cleaner.kafka.version=4.2"], "String must be one of: 4.3, 4.4"),
    ],
)
def test_wrong_settings_are_refused(partition: Path, options: list[str], message: str) -> None:
    """One line on standard error, and no file changes."""
    before = contents(partition)
    result = run(partition, *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert contents(partition) == before


@pytest.mark.parametrize("command", ["stats", "explain", "whatif", "find", "dump", "clean"])
def test_a_directory_of_another_kind_is_refused(tmp_path: Path, command: str) -> None:
    """Directories named like partitions, as in /etc, are none without segments. Nothing is written."""
    (tmp_path / "dbus-1").mkdir()
    (tmp_path / "dbus-1" / "session.conf").write_text("x")
    (tmp_path / "polkit-1").mkdir()
    options = ["--key", "a"] if command == "find" else []
    result = CliRunner().invoke(main, ["log", command, str(tmp_path), *options])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(
        f"diamant: {tmp_path}: not a log directory: expected directories such as my-topic-0"
    )
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["dbus-1", "polkit-1", "session.conf"]


def test_a_copied_partition_needs_its_name_back(partition: Path) -> None:
    """Segments in a directory with another name are of no known partition."""
    directory = partition.rename(partition.parent / "copy")
    result = run(directory)
    assert (result.exit_code, "expected topic-partition" in result.stderr) == (2, True)


def test_settings_have_no_minimum() -> None:
    """Tiny segments and maps are accepted; other settings have Kafka's defaults."""
    settings = parse_settings(
        [
            "segment.bytes=100",
            "log.cleaner.dedupe.buffer.size=96",
            "log.cleaner.io.buffer.size=1",
            "message.max.bytes=5",
            "producer.id.expiration.ms=7",
        ],
        KAFKA,
    )
    config, cleaner = settings.config, settings.cleaner
    assert (config.segment_bytes, config.max_message_bytes, config.is_compacted) == (100, 5, True)
    assert (cleaner.map_max_entries, cleaner.io_buffer_bytes, settings.producer_expiration_ms) == (3, 1, 7)
    assert parse_settings([], KAFKA).cleaner.map_max_entries == 5_033_164
    assert parse_settings(["message.max.bytes=5", "max.message.bytes=6"], KAFKA).config.max_message_bytes == 6
    with pytest.raises(ConfigError):
        parse_settings(["cleanup.policy=shred"], KAFKA)


def test_every_setting_of_the_broker_has_a_default() -> None:
    """The text of every default is accepted as a value."""
    assert all(parse_settings([f"{name}={BROKER_CONFIGS[name].default}"], KAFKA) for name in BROKER_SETTINGS)


def test_the_version_of_kafka_decides_what_the_end_of_a_round_leaves(tmp_path: Path) -> None:
    """By default nothing stays of an emptied batch with others behind it, with 4.3 its header; in mode prompt nothing."""
    left = {}
    for version, mode in (("4.3", KAFKA), ("4.4", KAFKA), (None, KAFKA), ("4.3", PROMPT)):
        log = CleanerLog("a")
        log.data((None, b"a record without a key"))
        log.roll()
        log.data("b")
        log.log.close()
        directory = tmp_path / f"{version}-{mode}" / "topic-0"
        directory.mkdir(parents=True)
        for name, content in log.files().items():
            (directory / name).write_bytes(content)
        options = () if version is None else ("--set", f"diamant.cleaner.kafka.version={version}")
        assert run(directory, "--mode", mode, *options).exit_code == 0
        left[version, mode] = (directory / f"{0:020d}.log").stat().st_size
    size = left[None, KAFKA]
    assert left == {("4.3", KAFKA): size + 61, ("4.4", KAFKA): size, (None, KAFKA): size, ("4.3", PROMPT): size}


def configure(partition: Path, **configs: str) -> None:
    """Write a metadata log in which the topic has these configurations."""
    write_metadata(partition.parent, {"topic": configs})


@pytest.mark.parametrize("configs", [{}, {"cleanup_policy": "delete"}])
@pytest.mark.parametrize("options", [(), ("--force",), ("--force", "--retention"), ("--dry-run",)])
def test_a_topic_that_is_not_compacted_is_refused(
    partition: Path, configs: dict[str, str], options: tuple[str, ...]
) -> None:
    """The topic's policy in the metadata decides; nothing changes, and the error names the option that overrides it."""
    configure(partition, **configs)
    before = contents(partition)
    result = run(partition, *options)
    assert result.exit_code == 1
    assert result.stderr == (
        f"diamant: topic-0: cleanup.policy is delete in {partition.parent}'s metadata; compacting would remove records "
        "that no later one replaces. --set cleanup.policy=compact compacts it anyway\n"
    )
    assert contents(partition) == before
    assert "cleaned up to offset 5" in run(partition, "--set", "cleanup.policy=compact").output


def test_retention_alone_needs_no_compacted_topic(partition: Path) -> None:
    """--retention removes segments as cleanup.policy=delete does, and compacts nothing."""
    configure(partition, cleanup_policy="delete", retention_ms="1")
    late = ["log", "clean", str(partition), "--retention", "--now", "1800000000000"]
    result = CliRunner().invoke(main, late)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "not cleaned: cleanup.policy is not compact" in result.output
    assert "retention removed 3 segments" in result.output


def test_the_topics_configuration_counts(partition: Path) -> None:
    """The directory's metadata apply; --set overrides them."""
    configure(partition, cleanup_policy="compact", min_cleanable_dirty_ratio="1")
    assert "not cleaned: it is not due" in run(partition).output
    assert "cleaned up to offset 5" in run(partition, "--set", "min.cleanable.dirty.ratio=0").output


def test_metadata_that_cannot_be_read_demand_a_decision(partition: Path) -> None:
    """With unreadable metadata the policy must be given."""
    configure(partition, cleanup_policy="compact")
    for path in (partition.parent / "__cluster_metadata-0").glob("*.log"):
        data = bytearray(path.read_bytes())
        data[70] ^= 1
        path.write_bytes(data)
    result = run(partition)
    assert result.exit_code == 1
    assert "the configuration of topic is unknown: use --set cleanup.policy=compact to clean it anyway" in result.stderr
    assert "cleaned up to offset 5" in run(partition, "--set", "cleanup.policy=compact").output


def test_a_topic_that_the_metadata_do_not_have_is_taken_for_compacted(partition: Path) -> None:
    """An unknown topic counts as compacted, as without metadata: its partition was copied from another broker."""
    configure(partition)
    directory = partition.parent / "elsewhere-0"
    partition.rename(directory)
    assert "cleaned up to offset 5" in run(directory).output


def test_why_nothing_is_cleanable(partition: Path) -> None:
    """The reasons are: already clean, too young, in the active segment."""
    young = run(partition, "--set", f"min.compaction.lag.ms={10**15}", "--force").output
    assert (
        "nothing is cleanable: the whole log waits for the segment at offset 0, which is younger than min.compaction.lag.ms"
        in young
    )
    run(partition)
    assert "nothing is cleanable: the whole log is clean" in run(partition).output
    for path in partition.glob("*"):
        if path.name != f"{0:020d}.log":
            path.unlink()
    (partition.parent / "cleaner-offset-checkpoint").unlink()
    active = run(partition, "--force").output
    assert "nothing is cleanable: the whole log is in the active segment, which is never cleaned" in active


def directory_of(tmp_path: Path, partition: Path, **topics: str) -> Path:
    """Return a log directory with a copy of the partition for each topic, of which the metadata log has the policies."""
    directory = tmp_path / "data-1"  # as of Kafka's own default, kafka-logs: the name says nothing
    directory.mkdir()
    for topic in topics:
        shutil.copytree(partition, directory / f"{topic}-0")
    write_metadata(directory, {topic: {"cleanup_policy": policy} for topic, policy in topics.items()})
    (directory / names.CLEAN_SHUTDOWN).touch()
    return directory


def test_each_compacted_partition_of_a_directory_is_cleaned(tmp_path: Path, partition: Path) -> None:
    """Others are left alone; a failure is told, keeps none from being cleaned, and gives exit code 1."""
    directory = directory_of(tmp_path, partition, a="compact", b="delete", c="compact,delete", d="compact")
    shutil.copytree(partition, directory / "unknown-0")  # the metadata do not say that it is compacted
    damaged = sorted((directory / "d-0").glob("*.log"))[1]
    damaged.write_bytes(damaged.read_bytes()[:16] + b"\x09" + damaged.read_bytes()[17:])
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    tried = run(directory, "--dry-run")
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before
    result = run(directory)
    assert (tried.exit_code, result.exit_code) == (1, 1)
    for word, found in (("would be cleaned", tried), ("cleaned", result)):
        assert found.stdout.count(f"{word} up to offset 5 by the compiled engine; records removed: 1 superseded") == 2
        assert found.stdout.splitlines()[-1] == "3 partitions, 1 failed; records removed: 2 superseded"
        assert "diamant: d-0: " in found.stderr
    checkpoint = (directory / names.CLEANER_CHECKPOINT).read_text().splitlines()
    assert sorted(checkpoint[2:]) == ["a 0 5", "c 0 5"]
    assert "--first-dirty is the offset of one partition" in run(directory, "--first-dirty", "0").stderr
    told = [json.loads(line) for line in run(directory, "--json").stdout.splitlines()]
    assert sorted((one["partition"], one.get("error") is None) for one in told) == [
        ("a-0", True),
        ("c-0", True),
        ("d-0", False),
    ]


def test_a_directory_without_metadata_demands_a_decision(tmp_path: Path, partition: Path) -> None:
    """Nobody knows which topics are compacted; the error says how to tell."""
    found = run(partition.parent)
    assert (found.exit_code, "name the directories of partitions, or clean all topics with --set" in found.stderr) == (
        1,
        True,
    )
    found = run(partition.parent, "--set", "cleanup.policy=compact")
    assert (found.exit_code, "1 partition, 0 failed; records removed: 1 superseded" in found.stdout) == (0, True)


@pytest.mark.parametrize("command", ["explain", "whatif", "clean"])
def test_a_directory_that_kafka_wrote_has_kafkas_rules(tmp_path: Path, partition: Path, command: str) -> None:
    """The first line says so; what Diamant wrote last has Diamant's; the option decides in any case."""
    line = (
        "Using Kafka's rules, because nothing in {} shows that a Diamant broker used it last. --mode prompt applies "
        "Diamant's rules."
    )

    def first(directory: Path, *options: str) -> str:
        dry = ["--dry-run"] if command == "clean" else []
        found = CliRunner().invoke(main, ["log", command, str(directory / "topic-0"), *dry, *options])
        assert found.exit_code == 0, found.output
        return found.stdout.splitlines()[0]

    own, kafkas = tmp_path / "own", Path(golden_directory(tmp_path))
    for directory in (own, kafkas):
        shutil.copytree(partition, directory / "topic-0")
        (directory / names.CLEAN_SHUTDOWN).touch()
    write_metadata(own, {"topic": {"cleanup_policy": "compact"}})
    assert first(partition.parent) == line.format(partition.parent)
    assert first(kafkas) == line.format(kafkas)
    assert "rules" not in first(own)
    assert "rules" not in first(kafkas, "--mode", "prompt") + first(kafkas, "--mode", "kafka") + first(
        own, "--mode", "kafka"
    )
    modes = {
        directory: json.loads(CliRunner().invoke(main, ["log", "whatif", str(directory / "topic-0"), "--json"]).stdout)[
            "mode"
        ]
        for directory in (own, kafkas)
    }
    assert modes == {own: "prompt", kafkas: "kafka"}


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_has_gone_does_not_stop_it(partition: Path, options: list[str]) -> None:
    """All partitions are cleaned, and no traceback is printed: `diamant log clean DIR | head -1`."""
    shutil.copytree(partition, partition.with_name("topic-1"))
    reader, writer = os.pipe()
    os.close(reader)
    compacted = ["--set", "cleanup.policy=compact"]
    command = [sys.executable, "-m", "diamant", "log", "clean", str(partition.parent), *compacted, *options]
    found = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (found.returncode, found.stderr) == (0, "")
    again = run(partition.parent, *compacted)
    assert again.stdout.count("nothing is cleanable: the whole log is clean") == 2, again.stdout
