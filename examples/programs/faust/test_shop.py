"""A table in memory, restored from its compacted changelog."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diamant import BlockingBroker


@contextmanager
def shop(broker: BlockingBroker) -> Iterator[None]:
    """A worker of the shop; its table is in its memory."""
    environment = os.environ | {"KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
    command = [sys.executable, "-m", "faust", "-A", "shop", "worker", "--loglevel", "warn"]
    with subprocess.Popen(command, cwd=Path(__file__).parent, env=environment) as worker:
        try:
            yield
        finally:
            worker.terminate()


def wait_until_told(broker: BlockingBroker, totals: dict[bytes, bytes]) -> None:
    """Wait until the latest totals that the shop told are these."""
    end = time.monotonic() + 600
    told: dict[bytes | None, bytes | None] = {}
    while told != totals:
        assert time.monotonic() < end, told
        time.sleep(0.1)
        told = {record.key: record.value for _, record in broker.records("told")}


def test_a_table_is_restored_after_compaction(diamant_broker: BlockingBroker) -> None:
    """The worker that is started after compaction continues with the totals of the first."""
    diamant_broker.create_topic("told")
    with shop(diamant_broker):
        for _ in range(100):
            diamant_broker.produce("sales", "1", key="apple")
            diamant_broker.produce("sales", "2", key="pear")
        wait_until_told(diamant_broker, {b"apple": b"100", b"pear": b"200"})

    report = diamant_broker.compact("shop-totals-changelog")
    assert report.partitions[0].records_after == 2

    with shop(diamant_broker):
        diamant_broker.produce("sales", "1", key="apple")
        wait_until_told(diamant_broker, {b"apple": b"101", b"pear": b"200"})
