"""Tests marked `diamant_any_compaction` in pytest sessions, and commands run by `diamant exec --any-compaction`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_pytest_plugin import run

pytestmark = pytest.mark.slow

READERS = """
import os, sys
from diamant.broker.client.consuming import TopicReader
from diamant.broker.client.kafka_client import EARLIEST, LATEST, KafkaClient

PAIRS = [("k1", "a"), ("k2", "a"), ("k3", "a"), ("k1", "b"), ("k3", None), ("k4", "x"), ("k2", "c")]
TABLE = {"k1": "b", "k2": "c", "k4": "x"}

def reading(servers):
    client = KafkaClient(servers, timeout_s=60)
    try:
        start, end = client.offsets("users", [0], EARLIEST), client.offsets("users", [0], LATEST)
        for read in TopicReader(client, "users", start, committed=True).records(end):
            yield read.record
    finally:
        client.close()

def table_of(servers, keeps_deleted=False):
    table = {}
    for record in reading(servers):
        if record.value is not None:
            table[record.key.decode()] = record.value.decode()
        elif not keeps_deleted:
            table.pop(record.key.decode(), None)
    return table

def keeps_deleted(servers):
    return table_of(servers, keeps_deleted=True) == TABLE

def wants_all_offsets(servers):
    offsets = [record.offset for record in reading(servers)]
    return offsets == list(range(len(PAIRS)))

def reads_once(servers):
    return table_of(servers) == TABLE

def waits_for_the_last_offset(servers):
    while [record.offset for record in reading(servers)][-1:] != [last_offset(servers)]:
        pass
    return True

def last_offset(servers):
    client = KafkaClient(servers, timeout_s=60)
    try:
        return client.offsets("users", [0], LATEST)[0] - 1
    finally:
        client.close()

def right(servers):
    table = None
    while table != (table := table_of(servers)):
        pass
    return table == TABLE

if __name__ == "__main__":
    sys.exit(not globals()[sys.argv[1]](os.environ["KAFKA_BOOTSTRAP_SERVERS"]))
"""
TESTS = """
import pytest
import readers

pytestmark = pytest.mark.diamant_any_compaction(examples=20)

def fill(broker):
    broker.create_topic("users", 1)
    for key, value in readers.PAIRS:
        broker.produce("users", value, key=key)

@pytest.mark.parametrize("reader", ["keeps_deleted", "wants_all_offsets", "reads_once", "right"])
def test_a_reader(diamant_broker, reader):
    fill(diamant_broker)
    assert getattr(readers, reader)(diamant_broker.bootstrap_servers)

@pytest.mark.diamant_any_compaction(examples=4)
class TestClass:
    async def test_async(self, diamant_manual_broker, runs=[]):
        runs.append(1)
        diamant_manual_broker.create_topic("users", 1)
        for key, value in readers.PAIRS:
            diamant_manual_broker.produce("users", value, key=key)
        assert readers.right(diamant_manual_broker.bootstrap_servers)
        assert len(runs) <= 4

    def test_fresh(self, diamant_fresh, tmp_path, runs=[]):
        runs.append(tmp_path)
        assert [record.value for _, record in diamant_fresh.records("prepared")] == [b"once"]
        diamant_fresh.create_topic("users", 1, compact=True)
        for key, value in readers.PAIRS:
            diamant_fresh.produce("users", value, key=key)
        assert readers.right(diamant_fresh.bootstrap_servers)
        assert len(set(runs)) == len(runs)

def test_that_skips(diamant_broker):
    pytest.skip("not here")

def test_that_fetches_nothing(diamant_broker):
    diamant_broker.create_topic("events", cleanup_policy="delete")
    diamant_broker.produce("events", "value")

@pytest.mark.diamant_any_compaction(examples=20)
def test_that_fails_in_its_fixture(diamant_broker, no_such_fixture): ...
"""
WRONG = """
import pytest

@pytest.mark.diamant_any_compaction(example=20)
def test_it(diamant_broker): ...
"""


def test_wrong_consumers_are_found_and_right_ones_pass(tmp_path: Path) -> None:
    """Wrong consumers are found in twenty examples: one that keeps what is deleted, one that wants every offset, one that reads
    once.
    """
    (tmp_path / "readers.py").write_text(READERS)
    found = run(tmp_path, TESTS)
    assert "4 failed, 3 passed, 1 skipped, 1 error" in found.stdout, found.stdout
    sections = re.split(r"^-+ Compactions -+$", found.stdout, flags=re.M)[1:]
    texts = [section.partition("\n_")[0] for section in sections]
    assert any("The test fails without any compaction." in text for text in texts)
    assert any("the value of k1 at offset 0" in text and "tombstone" not in text for text in texts)
    (missed,) = (text for text in texts if "The tombstone of k3 at offset 4 was removed between" in text)
    assert "schedule=Schedule(compactions=(Compaction(fetches=3, is_late=True),))" in missed
    for number in re.findall(r"found by example (\d+)", found.stdout):
        assert int(number) <= 20
    assert "no client has fetched from a compacted topic" in found.stdout
    assert "events (delete)" in found.stdout
    assert "fixture 'no_such_fixture' not found" in found.stdout


def test_workers_of_xdist_do_the_same(tmp_path: Path) -> None:
    """Each worker finds wrong consumers among its tests, and runs have their own fixtures."""
    (tmp_path / "readers.py").write_text(READERS)
    found = run(tmp_path, TESTS, "-n", "2", "-k", "keeps_deleted or TestClass or skips or fixture").stdout
    assert "1 failed, 2 passed, 1 skipped, 1 error" in found, found
    assert "the value of k1 at offset 0" in found or "The test fails without any compaction." in found


def test_a_schedule_is_repeated(tmp_path: Path) -> None:
    """The schedule printed by a failure can be put into the mark: the test runs once under it."""
    (tmp_path / "readers.py").write_text(READERS)
    schedule = "Schedule((Compaction(fetches=3, is_late=True),), is_one_batch_per_fetch=True)"
    text = TESTS.replace("(examples=20)", f"(schedule={schedule})", 1)
    found = run(tmp_path, f"from diamant.schedules import Compaction, Schedule\n{text}", "-k", "reads_once or right")
    assert "1 failed, 1 passed" in found.stdout
    assert "The tombstone of k3 at offset 4 was removed between" in found.stdout


def test_the_page_is_right(tmp_path: Path) -> None:
    """The page's examples pass. Its reader that reads once fails with the text on the page, and passes without late
    compactions.
    """
    page = (Path(__file__).resolve().parents[3] / "docs/how-to/any-compaction.md").read_text()
    text = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    once = text.replace("read_until_stable(diamant_broker)", "read_table(diamant_broker)")
    assert "2 passed" in run(tmp_path, text.replace("examples=20", "examples=5")).stdout
    in_time = once.replace("examples=20", "examples=5, late=False")
    assert "1 passed" in run(tmp_path, in_time, "-k", "table_is_right").stdout
    found = run(tmp_path, once, "-k", "table_is_right").stdout
    shown = re.search(
        r"^    (@pytest.mark.diamant_any_compaction\(schedule=.*?), \.\.\.\n(.*?)\n\n", page, re.DOTALL | re.MULTILINE
    )
    assert shown is not None
    assert shown[1] in found
    assert "\n".join(line.removeprefix("    ") for line in shown[2].splitlines()) in found


def test_a_wrong_mark_is_named(tmp_path: Path) -> None:
    """The error comes before any test runs."""
    found = run(tmp_path, WRONG)
    assert found.returncode == 4
    assert (
        "test_it[any-compaction]: @pytest.mark.diamant_any_compaction takes examples= (1 or more), seed=, schedule= and late="
        in found.stderr
    )


def exec_(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `diamant exec` with a filled topic."""
    (directory / "readers.py").write_text(READERS)
    pairs = [("k1", "a"), ("k2", "a"), ("k3", "a"), ("k1", "b"), ("k3", None), ("k4", "x"), ("k2", "c")]
    lines = [json.dumps({"topic": "users", "key": key, "value": value}) for key, value in pairs]
    (directory / "users.ndjson").write_text("\n".join(lines))
    seeded = ("--topic", "users:1", "--seed", "users.ndjson")
    command = [sys.executable, "-m", "diamant.broker.cli", "exec", *seeded, *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=120)


def test_a_command_under_any_compaction(tmp_path: Path) -> None:
    """A command in any language that is wrong fails with its exit code and the schedule as text; a right one passes."""
    python = ("--", sys.executable, "readers.py")
    wrong = exec_(tmp_path, "--any-compaction", "20", *python, "reads_once")
    assert wrong.returncode == 1
    assert "the command fails under Schedule(" in wrong.stderr
    assert "The tombstone of k3 at offset 4 was removed between" in wrong.stderr
    right = exec_(tmp_path, "--any-compaction", "3", "--random-seed", "7", *python, "right")
    assert (right.returncode, right.stdout) == (0, "")
    assert right.stderr == "diamant exec: the command has passed under 3 schedules of compactions\n"


def test_a_consumer_that_waits_for_the_last_offset_passes(tmp_path: Path) -> None:
    """A consumer of a topic without transactional producers finds the last record at the last offset under every schedule."""
    found = exec_(tmp_path, "--any-compaction", "12", "--", sys.executable, "readers.py", "waits_for_the_last_offset")
    assert (found.returncode, found.stderr) == (
        0,
        "diamant exec: the command has passed under 12 schedules of compactions\n",
    )


def test_a_command_that_cannot_be_tried(tmp_path: Path) -> None:
    """Covers a command that fetches nothing, one that always fails, one that never ends, and one that is killed, which is not run
    again.
    """
    nothing = exec_(tmp_path, "--any-compaction", "20", "--", "sh", "-c", "echo run")
    assert (nothing.returncode, nothing.stdout) == (1, "run\n")
    assert "no client has fetched from a compacted topic" in nothing.stderr
    anyway = exec_(tmp_path, "--any-compaction", "20", "--", "sh", "-c", "exit 3")
    assert (anyway.returncode, anyway.stderr) == (3, "diamant exec: the command fails without any compaction\n")
    killed = exec_(tmp_path, "--any-compaction", "20", "--", "sh", "-c", "echo run; kill -9 $$")
    assert (killed.returncode, killed.stdout) == (137, "run\n")
    endless = exec_(tmp_path, "--any-compaction", "20", "--run-timeout", "1s", "--", "sleep", "600")
    assert (endless.returncode, endless.stderr) == (
        124,
        "diamant exec: the command did not end within 1s (--run-timeout)\n"
        "diamant exec: the command fails without any compaction\n",
    )
    data = exec_(tmp_path, "--any-compaction", "20", "--data", str(tmp_path / "data"), "--", "true")
    assert data.returncode == 2
    assert "omit --data" in data.stderr
