"""A topic to explain, in a broker with a frozen clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.cleaner.explain.explanation import Gate, PartitionExplanation, RecordExplanation
from diamant.cleaner.service.service import CleanerService
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import Env, RealEnv
from diamant.storage.log.log import Log
from tests.broker.compacted import keyed, produce, read
from tests.broker.configurations import TOPIC, alter
from tests.broker.request_fields import SET
from tests.broker.wire import WireClient
from tests.builder import make_marker

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Stage:
    """The topic `t` with one partition."""

    def __init__(self, broker: Broker, wire: WireClient, clock: SettableClock) -> None:
        self.broker = broker
        self.wire = wire
        self.clock = clock

    @property
    def log(self) -> Log:
        """Its log."""
        return self.broker.node.topics.log("t", 0)

    async def service(self) -> CleanerService:
        """Return the cleaner."""
        return await self.broker.services.cleaning.service()

    async def settle(self) -> None:
        """Let the cleaner and retention do all work due now."""
        if self.log.config.is_compacted:
            await (await self.service()).settled()
        else:
            await self.broker.services.housekeeping.retain()

    async def put(self, *words: str, ahead_ms: int = 0) -> int:
        """Produce one batch of "key=value" with the clock's time or one ahead of it; return its base offset."""
        return await produce(self.wire, "t", *words, timestamp=self.clock.now_ms() + ahead_ms)

    async def roll(self) -> None:
        """Close the active segment."""
        self.log.roll()

    async def put_bytes(self, size: int) -> None:
        """Produce one batch of this size."""
        words = (f"z={'x' * length}" for length in range(1, size))
        await self.put(next(word for word in words if len(keyed([word], self.clock.now_ms())) == size))

    async def play(self, script: str) -> None:
        """Do one thing after another: put batches, move the clock by ms, `roll` and `settle`.

        play("k=1 j=1 | +1000 | k=2 | roll")
        """
        for step in script.split(" | "):
            if step.startswith("+"):
                self.clock.advance_ms(int(step))
            elif step == "roll":
                await self.roll()
            elif step == "settle":
                await self.settle()
            else:
                await self.put(*step.split(" "))

    async def alter(self, **configs: str) -> None:
        """Change topic configurations."""
        await alter(self.wire, TOPIC, "t", *((name.replace("_", "."), SET, value) for name, value in configs.items()))

    def put_transactional(self, key: str, producer_id: int = 5) -> int:
        """Append a batch of a transaction unknown to the coordinator; return its offset."""
        records = [Record(0, self.clock.now_ms(), key.encode(), b"v")]
        batch = build_batch(
            records, base_offset=0, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        return self.log.append_internal(batch).base_offset

    def end_transaction(self, *, is_commit: bool, producer_id: int = 5) -> int:
        """Append the marker that ends such a transaction; return its offset."""
        marker = make_marker(producer_id, is_commit=is_commit, timestamp=self.clock.now_ms())
        return self.log.append_internal(marker).base_offset

    async def offsets(self) -> list[int]:
        """Return the offsets that a consumer gets, including those of markers."""
        return [offset for offset, _, _ in await read(self.wire, "t", self.log.log_start_offset)]

    async def partition(self, **what: Any) -> PartitionExplanation:
        """Return the explanation of the partition."""
        return (await self.broker.explain("t", **what)).partitions[0]

    async def record(self, offset: int, key: str = "k") -> RecordExplanation:
        """Return the explanation of a record in the log, requested by its key."""
        found = await self.partition(key=key)
        return next(one for one in found.records if one.offset == offset and not one.segment.endswith(".deleted"))

    async def at_offset(self, offset: int) -> RecordExplanation:
        """Return the explanation of the record, or marker, at an offset."""
        found = await self.partition(partition=0, offset=offset)
        return next(one for one in found.records if one.offset == offset and not one.segment.endswith(".deleted"))

    async def goes_exactly_when_told(self, offset: int, key: str = "k") -> RecordExplanation:
        """Check that a record exists one millisecond before its stated time, and not at it; return the explanation."""
        told = await self.record(offset, key)
        assert told.goes_ms is not None, told
        await self.is_there_until(told.goes_ms, offset)
        return told

    async def is_there_until(self, goes_ms: int, offset: int) -> None:
        """Move to one millisecond before a time and to it: a record exists, and then does not."""
        self.clock.set_ms(goes_ms - 1)
        await self.settle()
        assert offset in await self.offsets(), "gone too soon"
        self.clock.set_ms(goes_ms)
        await self.settle()
        assert offset not in await self.offsets(), "still there"

    async def stays(self, offset: int, for_ms: int = 400 * DAY_MS) -> None:
        """Check that a record stays, however much time passes."""
        self.clock.advance_ms(for_ms)
        await self.settle()
        assert offset in await self.offsets()


@asynccontextmanager
async def stage(
    path: Path, broker: dict[str, Any] | None = None, *, env: Env | None = None, is_there: bool = False, **configs: str
) -> AsyncIterator[Stage]:
    """A broker with the topic `t`, compacted unless `configs` differ. `broker`: its configuration.

    `env`: an environment other than the real one, with a settable clock. `is_there`: the topic exists from another stage.
    """
    env = RealEnv(SettableClock(START_MS)) if env is None else env
    assert isinstance(env.clock, SettableClock)
    settings: dict[str, Any] = {"listen": "127.0.0.1:0", "data_dir": path, **(broker or {})}
    configs = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0", **configs}
    async with Broker(BrokerConfig(**settings), env=env) as running, WireClient(running.bootstrap_servers) as wire:
        if not is_there:
            await wire.create("t", 1, **configs)
        made = Stage(running, wire, env.clock)
        await made.settle()  # or the first look of the cleaner would come at some time during the test
        yield made


def gate(found: RecordExplanation | PartitionExplanation, kind: str) -> Gate:
    """Return the gate of a kind."""
    return next(one for one in found.gates if one.kind == kind)


def kinds(found: RecordExplanation | PartitionExplanation) -> list[str]:
    """Return the kinds of the gates."""
    return [one.kind for one in found.gates]
