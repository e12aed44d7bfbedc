"""The base installation: broker, cleaner and tools work without what only Spark needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

ROUND = """
import asyncio, sys
from diamant import Broker, BrokerConfig
from tests.broker.compacted import produce
from tests.broker.wire import WireClient

async def main():
    async with Broker(BrokerConfig("127.0.0.1:0", sys.argv[1])) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t", cleanup_policy="compact", file_delete_delay_ms="0")
        for batch in range(40):
            await produce(wire, "t", *(f"k{index}=" + f"{batch:01000}" for index in range(500)))
        report = await broker.compact("t")
        assert report.partitions[0].runners == ("process",), report
        await broker.erase("k7", "t", reason="a test", now=True)
        await broker.redact("t", where='key == "k8"', reason="a test", yes_all=True)
        latest = {record.key async for _, record in broker.latest("t", 0)}
        assert latest == {b"k%d" % index for index in range(500)} - {b"k7", b"k8"}

asyncio.run(main())
"""


@pytest.mark.slow
def test_nothing_but_spark_imports_numpy(tmp_path: Path) -> None:
    """A start, a round in a worker process, an erasure with its scan, a redaction, and the tools on a log directory work
    without numpy.
    """
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text("raise ImportError('the base installation has no numpy')\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}

    def run(*words: str) -> str:
        done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    data = str(tmp_path / "data")
    run("-c", ROUND, data)
    assert "t-0" in run("-m", "diamant", "log", "stats", data)
    assert "k9" in run("-m", "diamant", "log", "find", data, "--key", "k9")
    run("-m", "diamant", "log", "explain", data + "/t-0", "--key", "k9")
    run("-m", "diamant", "log", "whatif", data)
