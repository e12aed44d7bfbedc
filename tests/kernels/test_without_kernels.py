"""An installation built without a compiler: features with a plain twin work, the others name the missing kernel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from diamant.kernels import GET_KERNELS, WITHOUT_KERNELS
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.version import __version__

ROOT = Path(__file__).resolve().parent.parent.parent
SCENARIO = """
import asyncio, sys
from contextlib import aclosing
from pathlib import Path

import aiohttp

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.cleaner.engines import plain_round
from diamant.cleaner.runners.best_engine import best_engine
from diamant.kernels import ARE_COMPILED, WITHOUT_KERNELS, KernelsMissing
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from tests.broker.wire import PRODUCE, WireClient, produce_fields

RECORDS = [Record(n, 1, b"%d" % (n % 7), b"v" * 1000) for n in range(100)]


async def main():
    assert not ARE_COMPILED
    assert best_engine() is plain_round.clean
    settings = {"diamant.certificate.key.ephemeral": "true", "diamant.http.listen": "127.0.0.1:0"}
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
        try:
            await broker.compact("users", engine="spark")
        except KernelsMissing as error:
            print(error)
        command = [sys.executable, "-m", "diamant", "status", "-b", broker.bootstrap_servers]
        status = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        told, _ = await status.communicate()
        assert status.returncode == 0
        assert " ".join(told.decode().split()).count(f"without kernels: {WITHOUT_KERNELS}") == 1, told
        async with aiohttp.ClientSession(broker.http_url) as http:
            async with http.get("/metrics") as answer:
                assert "diamant_has_kernels 0" in await answer.text()
            async with http.get("/v1/status") as answer:
                assert (await answer.json())["has_kernels"] is False
            async with http.get("/") as answer:
                assert WITHOUT_KERNELS in await answer.text()
            async with http.post("/v1/compact", json={"topic": "users", "engine": "spark"}) as answer:
                assert answer.status == 501, await answer.text()
                assert (await answer.json())["code"] == "kernels-missing"


asyncio.run(main())
"""


IMPORTS = """
import sys
from importlib import import_module
from diamant.kernels import KernelsMissing

for name in sys.argv[1:]:
    for take in (lambda: import_module(f"diamant.kernels.{name}"), lambda: exec(f"from diamant.kernels import {name}")):
        try:
            take()
        except KernelsMissing:
            continue
        sys.exit(name)
"""


@pytest.fixture(scope="module")
def without_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package."""
    place = tmp_path_factory.mktemp("without")
    shutil.copytree(ROOT / "diamant", place / "diamant", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return place


def run_without(place: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Python with the copy."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=place, env=os.environ | {"PYTHONPATH": f"{place}{os.pathsep}{ROOT}"},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


@pytest.mark.slow
def test_a_broker_without_kernels_cleans_and_erases_and_says_what_is_missing(without_kernels: Path) -> None:
    """Produce, rounds, explain and an erasure with its scan work; what needs a kernel is refused, and says what to do. The log,
    the status, the metrics and the page tell that the kernels are missing.
    """
    done = run_without(without_kernels, "-c", SCENARIO)
    assert done.returncode == 0, done.stderr
    assert "Diamant was built without its kernels: it cleans 6 to 18 times slower" in done.stderr
    assert f"this needs the kernels, and Diamant was built without them. {GET_KERNELS}" in done.stdout
    assert f"Spark needs the kernels, and Diamant was built without them. {GET_KERNELS}" in done.stdout


@pytest.mark.slow
def test_no_import_of_a_kernel_ends_in_a_module_that_python_does_not_know(without_kernels: Path) -> None:
    """Whichever way it is imported."""
    names = [path.stem for path in (ROOT / "diamant" / "kernels").glob("[!_]*.py")]
    done = run_without(without_kernels, "-c", IMPORTS, *names, "not_even_a_kernel")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["log", "clean", "--force", "--engine", "compiled"], "--engine compiled"),
        (["log", "clean", "--force", "--engine", "spark"], "--engine spark"),
        (["spark", "stats"], "Spark"),
        (["spark", "audit"], "Spark"),
        (["spark", "clean", "--set", "cleanup.policy=compact"], "Spark"),
    ],
)
def test_a_command_that_needs_kernels_is_refused_in_one_line(
    without_kernels: Path, tmp_path: Path, arguments: list[str], what: str
) -> None:
    """The line has the remedy, and no traceback; it is JSON if that is asked for."""
    log = make_log(tmp_path)
    target = log if arguments[0] == "log" else log.parent
    done = run_without(without_kernels, "-m", "diamant", *arguments, target)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"diamant: {what} needs the kernels, and Diamant was built without them. {GET_KERNELS}"
    )
    assert "Traceback" not in done.stderr


def make_log(tmp_path: Path) -> Path:
    """Return a partition of one segment, with two records of a key."""
    log = tmp_path / "logs" / "users-0"
    log.mkdir(parents=True)
    batches = [bytearray(build_batch([Record(0, 1, b"k", b"v")])) for _ in range(2)]
    batches[1][:8] = (1).to_bytes(8)
    (log / "00000000000000000000.log").write_bytes(b"".join(batches))
    return log


@pytest.mark.slow
def test_the_version_tells_whether_there_are_kernels(without_kernels: Path) -> None:
    """The version says it in words with the remedy, and with --json as a fact beside version, engines and libraries."""
    done = run_without(without_kernels, "-m", "diamant", "--version")
    assert done.stdout.splitlines() == [f"diamant, version {__version__}", WITHOUT_KERNELS]
    facts = json.loads(run_without(without_kernels, "-m", "diamant", "--version", "--json").stdout)
    assert (facts["kernels"], facts["engines"]) == (False, ["inline", "process"])
