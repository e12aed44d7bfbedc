"""A log directory with random failures of disk calls: topics are created and deleted, and starts fail half-way.

Strategy: a random life of two topics on `MemoryEnv`: created, deleted, created again under the old name, appended to (also by
producers), rolled, flushed, shortened; checkpoints are written, some of them outdated. In one step of five some disk calls
fail, with partial writes, for a while or until the end of the step. At random the directory is stopped in order, killed, or
loses power; up to two starts fail or lose power half-way before one succeeds.

Invariants: whichever call failed, refused records are never read and acknowledged ones always, now and after an orderly stop or
a kill. The start that succeeds opens every topic of the metadata, with its own records only, never those of an earlier topic of
the same name; after a loss of power all flushed ones exist. After an orderly stop the producer state is unchanged. The log
start is not below that of a written checkpoint, nor above the deleted offsets.
"""

from __future__ import annotations

import errno
import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

import pytest

from diamant.protocol.errors import KafkaError
from diamant.storage.directory.checkpoint_files import CheckpointState
from diamant.storage.directory.log_directory import PartitionSource
from diamant.storage.env.clocks import SettableClock
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log
from diamant.storage.log.segment_removal import delete_oldest
from diamant.storage.segments.log_config import LogConfig
from tests.injected_faults import InjectedFault, Operation
from tests.memory_env import MemoryEnv, PowerOff
from tests.storage.conftest import START_MS
from tests.storage.directory.test_log_directory import start
from tests.storage.logs import batch, read_all

PATHS = ("*", "*", "/data", "/data/*checkpoint*", "/data/a-0*", "*.log", "*.index", "*.timeindex", "*.snapshot")
OPERATIONS: tuple[Operation, ...] = (
    "append", "truncate", "create", "rename", "remove", "sync", "sync_dir", "open", "pwrite", "pread"
)  # fmt: skip
OFTEN: tuple[Operation, ...] = (*OPERATIONS, "append", "append", "sync")
"""In a life there are more of some."""
PRODUCERS = (1, 2)


@dataclass
class Truth:
    """The expected state of a topic."""

    acknowledged: dict[int, bytes] = field(default_factory=dict)
    flushed: int = 0
    min_start: int = 0
    max_start: int = 0
    sequences: dict[int, int] = field(default_factory=lambda: dict.fromkeys(PRODUCERS, 0))
    """The next one of each producer."""

    def readable(self, log: Log, end: int | None = None) -> list[bytes]:
        """Return the records that readers of `log` should get below offset `end`."""
        return [
            value
            for offset, value in sorted(self.acknowledged.items())
            if offset >= log.log_start_offset and (end is None or offset < end)
        ]


class Life:
    """A directory, the metadata of its topics, and the truth about them."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.env = MemoryEnv(SettableClock(START_MS))
        self.env.make_dirs("/data")
        self.env.sync_dir("/")
        self.config = LogConfig(
            segment_bytes=chance.choice([300, 600, 2000]),
            index_interval_bytes=chance.choice([0, 80, 300]),
            file_delete_delay_ms=chance.choice([0, 1000]),
        )
        self.sources: dict[tuple[str, int], PartitionSource] = {}
        self.truths: dict[tuple[str, int], Truth] = {}
        self.number = 0
        self.pending: CheckpointState | None = None
        self.directory = start(self.env, self.sources)

    def fail(self, env: MemoryEnv, operations: tuple[Operation, ...] = OPERATIONS) -> InjectedFault:
        """Make some calls fail from now on."""
        chance = self.chance
        return env.fail(
            chance.choice(operations),
            chance.choice(PATHS),
            chance.choice([errno.ENOSPC, errno.EIO]),
            after=chance.choice([0, 0, 0, 1, 2, 5, 9]),
            times=chance.choice([1, 2, None]),
            partial_bytes=chance.choice([0, 5, 70]),
        )

    def step(self) -> None:
        """Run one random action, which may fail."""
        fault = self.fail(self.env, OFTEN) if self.chance.random() < 0.2 else None
        key = (self.chance.choice("ab"), 0)
        log = self.directory.logs.get(key)
        with suppress(KafkaError, OSError):
            match self.chance.choices(["topic", "log", "checkpoints", "files"], [5, 22, 4, 2])[0]:
                case "topic" if key in self.sources:
                    self.delete(key, log)
                case "topic":
                    self.number += 1
                    self.sources[key] = PartitionSource(UUID(int=self.number), self.config)
                    self.truths[key] = Truth()
                    self.directory.create_log(*key, UUID(int=self.number), self.config)
                case "log" if log is not None:
                    self.change(log, self.truths[key])
                case "checkpoints":
                    self.write_checkpoints()
                case "files":
                    self.env.clock.advance_ms(self.chance.choice([0, 500, 1500]))  # type: ignore[attr-defined]
                    self.directory.deletions.add(self.directory.deletions.remove(self.directory.deletions.take_due()))
        if fault is not None:
            fault.clear()
        for key, log in self.directory.logs.items():
            if key in self.truths:
                assert read_all(log, log.log_start_offset) == self.truths[key].readable(log)

    def delete(self, key: tuple[str, int], log: Log | None) -> None:
        """Delete topics like `delete_topics`."""
        del self.sources[key], self.truths[key]
        if log is not None:
            self.directory.delete_log(log, 0)
        self.directory.delete_unopened(key[0], 0)
        self.directory.take_away_left(self.directory.left, 0)

    def change(self, log: Log, truth: Truth) -> None:
        match self.chance.choices(["append", "produce", "flush", "roll", "retain", "delete"], [7, 7, 4, 2, 2, 1])[0]:
            case "append":
                self.append(log, truth)
            case "produce":
                producer_id = self.chance.choice(PRODUCERS)
                sequence = truth.sequences[producer_id]
                self.append(log, truth, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
                truth.sequences[producer_id] += 1
            case "flush" if log.write_failure is None:
                try:
                    log.flush()
                    truth.flushed = log.log_end_offset
                except OSError as error:
                    log.fail(error)
            case "roll":
                log.roll()
            case "retain":
                count = self.chance.randrange(len(log.segments) + 1)
                is_all = count == len(log.segments)
                allowed = log.log_end_offset if is_all else log.segments[count].base_offset
                truth.max_start = max(truth.max_start, allowed)
                delete_oldest(log, count)
            case "delete":
                before = self.chance.randint(log.log_start_offset, log.log_end_offset)
                truth.max_start = max(truth.max_start, before)
                log.delete_records(before)

    def append(self, log: Log, truth: Truth, **fields: int) -> None:
        self.number += 1
        value = b"%d" % self.number
        result = log.append_as_leader(batch(value, **fields))
        assert result.base_offset not in truth.acknowledged
        truth.acknowledged[result.base_offset] = value

    def write_checkpoints(self) -> None:
        """Write the current checkpoint state or an outdated one, or keep the current one for later."""
        if self.pending is None and self.chance.random() < 0.5:
            self.pending = self.directory.checkpoint_state()
            return
        state, self.pending = self.pending, None
        starts = {} if state else {key: log.log_start_offset for key, log in self.directory.logs.items()}
        self.directory.checkpoint_files.write(state or self.directory.checkpoint_state())
        for key, offset in starts.items():
            self.truths[key].min_start = offset

    # -- stops and starts ----------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Stop in a random way, start until a start succeeds, and continue there."""
        chance = self.chance
        has_failed = any(log.write_failure is not None for log in self.directory.logs.values())
        how = chance.choice(["stopped", "killed", "power lost"])
        if how == "stopped":
            self.directory.close()
        before = {key: state_of(log) for key, log in self.directory.logs.items()}
        machine = self.env.copy(SettableClock(self.env.clock.now_ms()))
        if how == "power lost":
            machine.crash(chance if chance.random() < 0.7 else None)
        vain_starts = chance.choice([0, 0, 1, 2])
        for _ in range(vain_starts):
            machine, is_power_lost = self.start_in_vain(machine)
            if is_power_lost and how == "killed":
                how = "power lost"
        self.env, self.directory, self.pending = machine, start(machine, self.sources), None
        for key, source in self.sources.items():
            if not has_failed:
                self.check(key, source, is_power_lost=how == "power lost")
                log = self.directory.logs[key]
                if how == "stopped" and not vain_starts and key in before and log.log_start_offset < log.log_end_offset:
                    assert state_of(log) == before[key]
                    for offset in range(log.log_start_offset, log.log_end_offset):
                        assert log.read(offset, 1, isolation_level=0, min_one_message=True).size, offset
            self.take_over(key, self.directory.logs[key])

    def start_in_vain(self, machine: MemoryEnv) -> tuple[MemoryEnv, bool]:
        """Start while calls fail, then be killed or lose power; return the machine, and True if power was lost."""
        is_power_lost = self.chance.random() < 0.5
        if is_power_lost:
            machine.power_off_after(changes=self.chance.randrange(25))
        else:
            self.fail(machine)
        with suppress(OSError, StorageError, PowerOff):
            start(machine, self.sources)
        if is_power_lost:
            machine.crash(self.chance if self.chance.random() < 0.7 else None)
            return machine, True
        return machine.copy(SettableClock(machine.clock.now_ms())), False

    def check(self, key: tuple[str, int], source: PartitionSource, *, is_power_lost: bool) -> None:
        """Check the invariants."""
        assert not self.directory.failures
        log, truth = self.directory.logs[key], self.truths[key]
        assert log.topic_id == source.topic_id
        assert truth.min_start <= log.log_start_offset <= truth.max_start
        found = read_all(log, log.log_start_offset)
        sure = truth.readable(log, truth.flushed if is_power_lost else None)
        assert found[: len(sure)] == sure
        left = iter(truth.readable(log))
        assert all(value in left for value in found)
        assert is_power_lost or len(found) == len(sure)

    def take_over(self, key: tuple[str, int], log: Log) -> None:
        """Continue with the state found by a start."""
        truth, found = self.truths[key], set(read_all(log, log.log_start_offset))
        for offset, value in list(truth.acknowledged.items()):
            if offset >= log.log_end_offset or (offset >= log.log_start_offset and value not in found):
                del truth.acknowledged[offset]
        truth.flushed = min(truth.flushed, log.log_end_offset)
        truth.min_start, truth.max_start = 0, max(truth.max_start, log.log_start_offset)
        truth.sequences = {producer_id: last + 1 for producer_id, last in state_of(log).sequences.items()}


class LogState(NamedTuple):
    """What a client may see of a log, apart from its records."""

    log_start_offset: int
    log_end_offset: int
    sequences: dict[int, int]
    """The last one of each producer; -1 if unknown."""


def state_of(log: Log) -> LogState:
    """Return the state of a log."""
    states = {producer_id: log.producers.state_of(producer_id) for producer_id in PRODUCERS}
    sequences = {producer_id: -1 if state is None else state.last_sequence for producer_id, state in states.items()}
    return LogState(log.log_start_offset, log.log_end_offset, sequences)


@pytest.mark.parametrize("seed", range(120))
def test_a_life_with_failing_calls_and_starts(seed: int) -> None:
    """See the module."""
    print(f"seed {seed}")
    life = Life(seed)
    for _ in range(life.chance.randrange(20, 100)):
        life.step()
        if life.chance.random() < 0.15:
            life.restart()
