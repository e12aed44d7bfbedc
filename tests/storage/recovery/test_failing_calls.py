"""A log that survives random failures of disk calls, kills of its broker and losses of power.

Strategy: a random life of appends (also by producers), rolls, flushes and retention on `MemoryEnv`. In one step of seven some
disk calls fail, with partial writes, for a while or until the end of the step. At random the log is stopped in order and started,
or a copy of the machine is killed or loses power, and some lives continue on the copy.

Invariants: whichever call failed, refused records are never read and acknowledged ones always: now, after an orderly stop, and
after a kill. After a loss of power all flushed records exist; the others may only have gaps. Every start opens the log; after an
orderly stop the producer state is unchanged.
"""

from __future__ import annotations

import errno
import random
from contextlib import suppress

import pytest

from diamant.protocol.errors import KafkaError
from diamant.storage.env.clock import SettableClock
from diamant.storage.env.injected_faults import Operation
from diamant.storage.env.memory import MemoryEnv
from diamant.storage.log.log import Log
from diamant.storage.log.segment_removal import delete_oldest
from diamant.storage.segments.log_config import LogConfig
from tests.storage.conftest import START_MS
from tests.storage.log.test_log import batch, read_all
from tests.storage.one_log import create_one, load_one

PRODUCERS = (1, 2)
OPERATIONS: tuple[Operation, ...] = (
    "append", "truncate", "create", "rename", "remove", "sync", "sync_dir", "open", "pwrite", "pread"
)  # fmt: skip


class Life:
    """One log, and its expected state."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.env = MemoryEnv(SettableClock(START_MS))
        self.env.make_dirs("/data")
        self.env.sync_dir("/")
        self.config = LogConfig(
            segment_bytes=self.chance.choice([300, 600, 2000]),
            index_interval_bytes=self.chance.choice([0, 80, 300]),
            file_delete_delay_ms=0,
        )
        self.log = create_one(self.env, self.config)
        self.acknowledged: dict[int, bytes] = {}
        self.flushed = 0
        self.checkpoint = 0
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.number = 0

    def expected(self, log: Log, end: int | None = None) -> list[bytes]:
        """Return the records that readers of `log` should get below offset `end`."""
        return [
            value
            for offset, value in sorted(self.acknowledged.items())
            if offset >= log.log_start_offset and (end is None or offset < end)
        ]

    def step(self) -> None:
        """Run one random action, which may fail."""
        chance, log = self.chance, self.log
        fault = None
        if chance.random() < 0.15:
            fault = self.env.fail(
                chance.choice(OPERATIONS),
                chance.choice(["*", "*.log", "*.index", "*.timeindex", "*.snapshot"]),
                chance.choice([errno.ENOSPC, errno.EIO]),
                after=chance.choice([0, 0, 1, 2, 3]),
                times=chance.choice([1, 2, None]),
                partial_bytes=chance.choice([0, 0, 5, 70]),
            )
        what = chance.choices(
            [self.append, self.produce, log.roll, self.flush, self.retain, self.note], [10, 6, 2, 2, 1, 1]
        )
        with suppress(KafkaError, OSError):
            what[0]()
        if fault is not None:
            fault.clear()
        assert read_all(self.log, self.log.log_start_offset) == self.expected(self.log)

    def append(self, **options: int) -> None:
        self.number += 1
        value = b"%d" % self.number
        result = self.log.append_as_leader(batch(value, **options))
        assert result.base_offset not in self.acknowledged
        self.acknowledged[result.base_offset] = value

    def produce(self) -> None:
        producer_id = self.chance.choice(PRODUCERS)
        self.append(producer_id=producer_id, producer_epoch=0, base_sequence=self.sequences[producer_id])
        self.sequences[producer_id] += 1

    def flush(self) -> None:
        """Flush like the flusher."""
        if self.log.write_failure is None:
            try:
                self.log.flush()
                self.flushed = self.log.log_end_offset
            except OSError as error:
                self.log.fail(error)

    def retain(self) -> None:
        delete_oldest(self.log, self.chance.randrange(len(self.log.segments) + 1))

    def note(self) -> None:
        """Write the checkpoint of recovery points."""
        self.checkpoint = self.log.recovery_point

    def load(self, env: MemoryEnv, recovery_point: int, log_start_offset: int, *, is_clean: bool) -> Log:
        return load_one(
            env, self.config, recovery_point=recovery_point, log_start_offset=log_start_offset, is_clean=is_clean
        )

    def restart(self) -> None:
        """Stop in order and start."""
        before = self.log
        before.close()
        self.log = self.load(self.env, before.recovery_point, before.log_start_offset, is_clean=True)
        assert (self.log.log_start_offset, self.log.log_end_offset) == (before.log_start_offset, before.log_end_offset)
        for offset in range(before.log_start_offset, before.log_end_offset):
            assert self.log.read(offset, 1, isolation_level=0, min_one_message=True).size, offset
        assert read_all(self.log, self.log.log_start_offset) == self.expected(self.log)
        if before.log_start_offset < before.log_end_offset:  # else they are forgotten, as in Kafka
            assert sequences(self.log) == sequences(before)
        self.flushed, self.checkpoint = self.log.log_end_offset, self.log.recovery_point

    def crash(self, *, is_power_lost: bool) -> None:
        """Start on a copy of the machine, after a kill or a loss of power; perhaps continue there."""
        chance, log = self.chance, self.log
        machine = self.env.copy(SettableClock(START_MS))
        if is_power_lost:
            machine.crash(chance if chance.random() < 0.7 else None)
        needs_start = log.needs_start_checkpoint or chance.random() < 0.5
        recovery_point = chance.choice([self.checkpoint, log.recovery_point])
        again = self.load(machine, recovery_point, log.log_start_offset if needs_start else 0, is_clean=False)
        found = read_all(again, again.log_start_offset)
        if log.write_failure is None:
            sure = self.expected(again, self.flushed if is_power_lost else None)
            assert found[: len(sure)] == sure
            left = iter(self.expected(again))
            assert all(value in left for value in found)
            assert is_power_lost or (len(found), again.log_end_offset) == (len(sure), log.log_end_offset)
        if chance.random() < 0.4:
            self.env, self.log = machine, again
            self.acknowledged = {
                offset: value
                for offset, value in self.acknowledged.items()
                if offset < again.log_end_offset and value in found
            }
            self.flushed = min(self.flushed, again.log_end_offset)
            self.checkpoint = again.recovery_point
            self.sequences = {producer_id: last + 1 for producer_id, last in sequences(again).items()}


def sequences(log: Log) -> dict[int, int]:
    """Return the last sequence of each producer; -1 if unknown."""
    states = {producer_id: log.producers.state_of(producer_id) for producer_id in PRODUCERS}
    return {producer_id: -1 if state is None else state.last_sequence for producer_id, state in states.items()}


@pytest.mark.parametrize("seed", range(60))
def test_a_life_with_failing_calls(seed: int) -> None:
    """See the module."""
    print(f"seed {seed}")
    life = Life(seed)
    for _ in range(life.chance.randrange(20, 120)):
        life.step()
        happens = life.chance.random()
        if happens < 0.06 and life.log.write_failure is None:
            life.restart()
        elif happens < 0.2:
            life.crash(is_power_lost=life.chance.random() < 0.5)
