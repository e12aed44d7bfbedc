"""Nothing is lost and nothing comes twice in random schedules of brokers."""

from __future__ import annotations

import subprocess
import sys

import pytest

CONFIGS = (
    "min.insync.replicas=2",
    "offsets.topic.replication.factor=3",
    "offsets.topic.num.partitions=6",
    "transaction.state.log.replication.factor=3",
    "transaction.state.log.num.partitions=6",
    "group.initial.rebalance.delay.ms=0",
    "group.consumer.heartbeat.interval.ms=100",
    "group.consumer.min.heartbeat.interval.ms=100",
)


def run(first: int, count: int) -> str:
    """Run schedules beside three brokers; the output of a run without a failure."""
    broker = [sys.executable, "-m", "diamant", "exec", "--brokers", "3"]
    broker += [word for config in CONFIGS for word in ("--set", config)]
    program = [sys.executable, "-m", "tests.broker.brokers.schedules", str(first), str(count)]
    done = subprocess.run([*broker, "--", *program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 2000, 10))
def test_nothing_is_lost_or_twice_in_a_thousand_schedules(first: int) -> None:
    """What is acknowledged or committed is stored once and read by both groups, what is aborted by none."""
    assert "10 schedules" in run(first, 10)
