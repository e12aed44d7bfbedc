"""`diamant erase` on Apache Kafka, ended from outside: configurations are put back, at once or by `diamant restore`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from diamant.broker.clusters.register import STATE_VARIABLE, Register
from tests.broker.clusters.any_cluster import OLD_MS, open_works
from tests.broker.clusters.real_kafka import RealKafka, real_kafka
from tests.broker.commands.running import INSTALLED
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """One broker, whose cleaner is slow enough to end an erasure before it comes."""
    with real_kafka(tmp_path_factory.mktemp("kafka"), log_cleaner_backoff_ms="4000") as running:
        yield running


def diamant(kafka: RealKafka, state: Path, *words: str) -> subprocess.Popen[str]:
    """Return a command on the cluster, with a register of its own."""
    command = [*INSTALLED, *words, "-b", kafka.bootstrap]
    environment = {**os.environ, STATE_VARIABLE: str(state)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_lowered(register: Register, kafka: RealKafka, name: str, before: object) -> str:
    """Wait until an erasure has lowered configurations; return its id."""
    deadline = time.monotonic() + PATIENCE_S
    while not (works := [one for one in register.all() if one.changes]) or kafka.configs(name) == before:
        assert time.monotonic() < deadline, "nothing was lowered"
        time.sleep(0.01)
    return works[0].id


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_an_ended_command_leaves_no_lowered_configuration(kafka: RealKafka, tmp_path: Path, how: str) -> None:
    """A killed run needs `diamant restore`, which the next run names; the erasure is open until --resume closes it."""
    name = kafka.create(f"ended-by-{how.lower()}", segment_ms="99999")
    kafka.produce(name, [(b"k", b"1"), (b"other", b"2"), (b"k", b"3")], timestamp_ms=OLD_MS)
    before, register = kafka.configs(name), Register(tmp_path)
    run = diamant(kafka, tmp_path, "erase", name, "-k", "k", "--reason", "asked")
    work = wait_lowered(register, kafka, name, before)
    run.send_signal(getattr(signal, how))
    _, errors = run.communicate()
    if how == "SIGKILL":
        assert kafka.configs(name) != before
        again = diamant(kafka, tmp_path, "erase", name, "-k", "k", "--reason", "asked")
        assert f"diamant restore {work}" in again.communicate()[1]
        assert again.returncode == 2
        restored = diamant(kafka, tmp_path, "restore", work)
        assert "--resume" in restored.communicate()[0]
        assert restored.returncode == 0
    else:
        assert (run.returncode, f"--resume {work}" in errors) == (130 if how == "SIGINT" else 143, True), errors
    assert kafka.configs(name) == before
    listed = diamant(kafka, tmp_path, "restore", "--json")
    (open_work,) = json.loads(listed.communicate()[0])["open"]
    assert (open_work["id"], open_work["lowered"], [*open_work["missing"]]) == (work, {}, [f"{name}-0@1"])
    resumed = diamant(kafka, tmp_path, "erase", "--resume", work)
    output, errors = resumed.communicate()
    assert (resumed.returncode, "unreadable" in output) == (0, True), errors
    assert kafka.configs(name) == before
    assert [record.value for record in kafka.held(name) if record.value] == [b"2"]
    assert open_works(register) == []
