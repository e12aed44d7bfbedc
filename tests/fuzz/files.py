"""Data directories with a file or two that are damaged: a broker starts and serves, or says which file it cannot read.

The directory has every kind of file that a broker opens: segments, indexes, snapshots, checkpoints, the metadata log, the logs of
the coordinators. In half of the cases a damaged log gets its checksums right, so that the damage reaches what is behind them.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from crc32c import crc32c

from diamant.broker.broker import Broker
from diamant.broker.cannot_start import CannotStart
from tests.broker.groups.offsets.offset_requests import commit
from tests.broker.transactions.txn_wire import TxnProducer
from tests.broker.wire import API_VERSIONS, FETCH, METADATA, WireClient, fetch_fields
from tests.fuzz.watching import Finding, watched
from tests.protocol.wire.test_fuzz_requests import damage
from tests.waiting import PATIENCE_S

LIST_GROUPS, LIST_TRANSACTIONS, DESCRIBE_CONFIGS = 16, 66, 32
SETTINGS = {
    "diamant.http.listen": "",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "num.partitions": "1",
    "log.index.interval.bytes": "100",
    "log.cleaner.backoff.ms": "100",
}
CRC, COVERED, SIZE = 17, 21, 8
"""Places in a batch: its checksum, what that covers, its size (without the first twelve bytes)."""


async def make(directory: Path) -> None:
    """Fill a data directory."""
    async with Broker(listen="127.0.0.1:0", data_dir=directory, properties=SETTINGS) as broker:
        async with WireClient(broker.bootstrap_servers) as wire:
            await wire.create("t", internal_segment_bytes="2000")
            await wire.create("compacted", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
            for number in range(20):
                await wire.produce(
                    "t", [b"value-%d" % number * 20] * 3, producer_id=5, producer_epoch=0, base_sequence=3 * number
                )
            for number in range(3):
                await broker.produce("compacted", b"value-%d" % number, b"key")
            for kind, key in ((1, "x"), (0, "g")):
                await wire.call(10, 4, {"key_type": kind, "coordinator_keys": [key]})
            txn = TxnProducer(wire, "x")
            await until_zero(txn.init)
            for number in range(3):
                await txn.produce_result("t", 0, values=(b"in a transaction",))
                await txn.end(commit=number != 1)
            await until_zero(lambda: commit_code(wire))


async def commit_code(wire: WireClient) -> int:
    """Commit an offset; the error code."""
    (code,) = await commit(wire, "g", {("t", 0): 3}, version=8)
    return int(code)


async def until_zero(ask: Callable[[], Awaitable[object]]) -> None:
    """Ask again while a coordinator is loading."""
    async with asyncio.timeout(PATIENCE_S):
        while str(await ask()) not in ("0", "NONE", "ErrorCode.NONE"):
            await asyncio.sleep(0)


def contents(directory: Path) -> dict[str, bytes]:
    """Return the files by their paths."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def damaged_log(rng: random.Random, data: bytes) -> bytes:
    """A log one of whose batches is damaged behind its checksum, which is right."""
    starts, position = [], 0
    while position + COVERED < len(data):
        starts.append(position)
        position += 12 + int.from_bytes(data[position + SIZE : position + SIZE + 4], "big")
    if not starts:
        return damage(rng, data)
    start = rng.choice(starts)
    end = start + 12 + int.from_bytes(data[start + SIZE : start + SIZE + 4], "big")
    behind = damage(rng, data[start + COVERED : end])
    head = bytearray(data[start : start + COVERED])
    head[SIZE : SIZE + 4] = (COVERED - 12 + len(behind)).to_bytes(4, "big")
    head[CRC:COVERED] = crc32c(behind).to_bytes(4, "big")
    return data[:start] + bytes(head) + behind + data[end:]


def damaged(rng: random.Random, name: str, data: bytes) -> bytes:
    """Return a damaged file."""
    if name.endswith(".log") and rng.random() < 0.7:
        return damaged_log(rng, data)
    return damage(rng, data)


async def use(broker: Broker) -> None:
    """What clients do; each gets an answer or an error."""
    async with WireClient(broker.bootstrap_servers) as wire:
        topics = [str(topic.name) for topic in (await wire.call(METADATA, 8, {"topics": None})).topics]
        for topic in [*topics, "t", "compacted"]:
            await wire.call(FETCH, 12, fetch_fields(topic, 0))
            await wire.call(FETCH, 12, fetch_fields(topic, 0) | {"isolation_level": 1})
        await wire.produce("t", [b"more"])
        for key in (LIST_GROUPS, LIST_TRANSACTIONS):
            await wire.call(key, 0, {})
        await wire.call(10, 4, {"key_type": 0, "coordinator_keys": ["g"]})
        await commit_code(wire)
        await TxnProducer(wire, "x").init()
        answer = await wire.call(API_VERSIONS, 2, {})
        if answer.error_code:
            raise Finding(f"a client is answered {answer}")


async def start_on(files: Mapping[str, bytes]) -> bool:
    """Start a broker on these files and use it; False if it has refused."""
    with tempfile.TemporaryDirectory(prefix="diamant-fuzz-") as directory:
        for name, data in files.items():
            path = Path(directory) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        try:
            async with (
                asyncio.timeout(60),
                Broker(listen="127.0.0.1:0", data_dir=directory, properties=SETTINGS) as broker,
            ):
                await use(broker)
        except CannotStart:
            return False
    return True


async def fuzz(seed: int, count: int) -> int:
    """Start on that many damaged directories; raises Finding."""
    rng = random.Random(seed)
    place = Path(tempfile.mkdtemp(prefix="diamant-fuzz-"))
    try:
        await make(place)
        files = contents(place)
    finally:
        shutil.rmtree(place)
    for number in range(count):
        chosen = rng.sample(sorted(files), rng.choice((1, 1, 2)))
        now = {**files, **{name: damaged(rng, name, files[name]) for name in chosen}}
        if rng.random() < 0.5:
            now.pop(".kafka_cleanshutdown", None)
        with watched(f"seed {seed}, directory {number}: {', '.join(chosen)}"):
            await start_on(now)
    return count
