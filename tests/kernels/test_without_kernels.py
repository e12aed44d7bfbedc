"""An installation built without a compiler: features with a plain twin work, the others name the missing kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SCENARIO = """
import asyncio, sys
from contextlib import aclosing
from pathlib import Path

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.cleaner.engines import plain_round
from diamant.cleaner.runners.best_engine import best_engine
from diamant.kernels import ARE_COMPILED, KernelsMissing
from diamant.protocol.batches.records import build_batch
from diamant.protocol.batches.header import Record
from tests.broker.wire import PRODUCE, WireClient, produce_fields

RECORDS = [Record(n, 1, b"%d" % (n % 7), b"v" * 1000) for n in range(100)]


async def main():
    assert not ARE_COMPILED
    assert best_engine() is plain_round.clean
    settings = {"diamant.certificate.key.ephemeral": "true"}
    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=Path("data"), properties=settings)) as broker:
        async with WireClient(broker.bootstrap_servers) as client:
            await client.create("users", cleanup_policy="compact", segment_bytes="1048576")
            for _ in range(30):
                result = await client.call(PRODUCE, 12, produce_fields("users", 0, bytes(build_batch(RECORDS))))
                assert result.responses[0].partition_responses[0].error_code == 0
        (partition,) = (await broker.compact("users", engine="process")).partitions
        assert partition.records_after == 7, partition
        assert (await broker.explain("users", key=b"3")).records
        erasure = await broker.erase(b"3", "users", reason="test")
        assert erasure.certificate["is_evidence"]
        try:
            async with aclosing(broker.latest("users")) as records:
                async for _ in records:
                    pass
        except KernelsMissing as error:
            print(error)


asyncio.run(main())
"""


@pytest.mark.slow
def test_a_broker_without_kernels_cleans_and_erases(tmp_path: Path) -> None:
    """Produce, rounds, explain and an erasure with its scan work; the latest records need a kernel, which the error names."""
    shutil.copytree(ROOT / "diamant", tmp_path / "diamant", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    done = subprocess.run(
        [sys.executable, "-c", SCENARIO],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Diamant was built without its kernels: it cleans much more slowly" in done.stderr
    assert "needs the kernel" in done.stdout
    assert "Diamant was built without kernels: install a wheel for this machine" in done.stdout
