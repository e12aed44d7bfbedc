"""Durability of a log directory when the machine loses power after any of its file operations.

Strategy: short lives of a directory (`LIVES`) run once each on `MemoryEnv`. The machine is copied before every call that changes
or syncs a file or directory. Each copy loses power in each way of `LOSSES`, and is then opened.

Invariants:

* every partition of the metadata opens; its batches are byte for byte those written, have valid checksums, and are a prefix of
  all written ones (as in Kafka, the end of an unflushed segment may be lost while the next segment's name survives: the gap then
  ends with the segment);
* completed flushes and checkpoints hold: below the flushed offset nothing is missing, the log start is not before that in the
  checkpoint, and no checkpoint is beyond the end of the log;
* producers, the last stable offset, the indexes of aborted transactions and the leader epochs are those of a replay of the
  batches; offset and time indexes agree with a scan;
* opening once more changes nothing; appends continue, and flushed ones survive a second, strict loss of power.

Bound: one loss of power, which affects all files and directories alike, and a second one after a recovery, some appends and a
flush; up to six segments, two partitions and two producers. Of unsynced data a prefix survives per directory and per file, in the
shares of `LOSSES`; writes are never reordered.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle

import pytest

from tests.effort import some
from tests.memory_env import Loss, MemoryEnv
from tests.storage.recovery.power_machine import HOUR_MS, NOTHING_LOST, Cut, Machine, check, open_directory, state_of

LOSSES = {
    "all that was not synced": Loss(0, 0),
    "nothing": NOTHING_LOST,
    "content, not names": Loss(names=1, content=0),
    "content, not names and lengths": Loss(names=1, content=0, is_length_kept=True),
    "names, not content": Loss(names=0, content=1),
    "half of both": Loss(0.5, 0.5),
    "most of both, torn": Loss(0.8, 0.9),
}


def rolls(machine: Machine) -> None:
    """Segments roll by size, and are flushed after each roll."""
    for _ in range(9):
        machine.append(2)
    machine.checkpoint()
    machine.append()


def rolls_without_flush(machine: Machine) -> None:
    """The flusher hangs: segments roll and nothing is flushed until the end."""
    machine.is_flushing = False
    for number in range(10):
        machine.append(2, producer=1 if number % 2 else -1)
    machine.checkpoint()
    machine.flush()
    machine.checkpoint()
    machine.append()


def rolls_by_time(machine: Machine) -> None:
    """Segments roll after an hour, or in the background."""
    for _ in range(3):
        machine.append(1, producer=1)
        machine.clock.advance_ms(HOUR_MS + 1)
        machine.append(2)
    machine.roll()
    machine.append()


def producers(machine: Machine) -> None:
    """Idempotent and transactional producers; an abort after a flush in the middle of a segment, which then rolls."""
    machine.append(2, producer=1)
    machine.append(1, producer=2, txn=True)
    machine.flush()
    machine.append(1, producer=1)
    machine.marker(2, is_commit=False)
    machine.roll()
    machine.append(1, producer=2, txn=True)
    machine.append(1, producer=3, txn=True)
    machine.marker(2, is_commit=True)
    machine.checkpoint()
    machine.append(2, producer=3, txn=True)
    machine.marker(3, is_commit=False)
    machine.append(1, producer=1)
    machine.append()


def flush_messages(machine: Machine) -> None:
    """`flush.messages=3`: every few appends are flushed, in the middle of segments."""
    for number in range(8):
        machine.append(1, producer=1, txn=True)
        machine.marker(1, is_commit=number % 3 == 0)
    machine.checkpoint()
    machine.append()


def retention(machine: Machine) -> None:
    """The oldest segments are removed, then all of them; then the log continues."""
    for _ in range(8):
        machine.append(2, producer=1)
    machine.checkpoint()
    machine.retain(1)
    machine.append(2, producer=1)
    machine.retain(2)
    machine.checkpoint()
    machine.append(1, producer=1)
    machine.retain(-1)
    machine.checkpoint()
    machine.append(2, producer=1)
    machine.retain(-1)
    machine.checkpoint()
    machine.append(2, producer=1)
    machine.flush()


def delete_records(machine: Machine) -> None:
    """Records are deleted: in the middle of a segment, then more by retention, then up to what no flush has covered."""
    for _ in range(7):
        machine.append(2)
    machine.delete_records(5)
    machine.checkpoint()
    machine.retain(1)
    machine.checkpoint()
    machine.append(2)
    machine.delete_records(machine.log().log_end_offset - 1)
    machine.checkpoint()
    machine.append()
    machine.flush()
    machine.checkpoint()


def topics(machine: Machine) -> None:
    """Topics are created and deleted, one under the name of another."""
    machine.create_now("u")
    machine.append(2, topic="u")
    machine.append(2)
    machine.flush("u")
    machine.checkpoint()
    machine.delete("u")
    machine.checkpoint()
    machine.create_now("u")
    machine.append(1, topic="u", producer=1)
    machine.checkpoint()
    machine.append(2)
    machine.flush("u")
    machine.flush()


def stops(machine: Machine) -> None:
    """Orderly stops, and starts after them."""
    for _ in range(4):
        machine.append(2, producer=1)
    machine.append(1, producer=2, txn=True)
    machine.stop()
    machine.append(2, producer=1)
    machine.marker(2, is_commit=False)
    machine.stop()
    machine.append(1, producer=1)


def recoveries(machine: Machine) -> None:
    """The process is killed and power is lost during a continuing life."""
    for _ in range(3):
        machine.append(2, producer=1)
    machine.checkpoint()
    machine.lose_power(NOTHING_LOST)
    machine.append(1)
    machine.append(1, producer=2, txn=True)
    machine.flush()
    machine.append(2)
    machine.lose_power(Loss(names=1, content=0.4))
    machine.append(1)
    machine.checkpoint()
    machine.is_flushing = False
    machine.append(4)
    machine.append(4)
    machine.append(3)
    machine.lose_power(Loss(names=1, content=0.6))
    machine.append(3)
    machine.flush()
    machine.checkpoint()
    machine.append(1)


def corrupt_tails(machine: Machine, seed: int) -> None:
    """Power is lost repeatedly; recovery cuts off torn ends and later segments, and the log grows again from there."""
    chance = random.Random(seed)
    machine.append(2, producer=1)
    machine.flush()
    machine.checkpoint()
    for _ in range(3):
        machine.is_flushing = False
        for _ in range(chance.randint(3, 6)):
            machine.append(chance.randint(1, 4))
        machine.lose_power(chance)
        machine.is_flushing = True
        for _ in range(chance.randint(2, 4)):
            machine.append(chance.randint(1, 4))


def appends_at_random(machine: Machine, seed: int) -> None:
    """Random batches, half of them of a producer, and a flush after one in five."""
    chance = random.Random(seed)
    machine.is_flushing = False
    for _ in range(14):
        machine.append(chance.randint(1, 4), producer=7 if chance.random() < 0.5 else -1)
        if chance.random() < 0.2:
            machine.flush()


def cleaning(machine: Machine) -> None:
    """A cleaner's swap of three segments with an emptied end, during appends, rolls, flushes and retention."""
    for number in range(10):
        machine.append(2, producer=1 if number == 3 else -1)
    machine.checkpoint()

    def go_on() -> None:
        machine.append(2)
        if machine.log().is_exchanging:
            machine.roll()
            machine.flush()

    machine.clean(0, 2, lambda base: base in (0, 4), go_on)
    machine.checkpoint()
    machine.clean(0, 1, lambda base: base == 4, go_on)
    machine.append(1, producer=1)
    machine.retain(1)
    machine.checkpoint()


def exchanges(machine: Machine) -> None:
    """A broker's actions during an exchange of segments: one of all possible ones between two turns.

    No flush covers the last source, or segments rolled later, before it is requested.
    """
    for number in range(4):
        machine.is_flushing = number < 2
        machine.append(2)
        machine.append(1, producer=1 if number == 1 else -1)
        machine.roll()
    machine.checkpoint()
    things: Iterator[Callable[[], object]] = cycle(
        (
            lambda: machine.delete_records(machine.log().log_start_offset + 3),
            lambda: machine.retain(1),
            machine.flush,
            machine.checkpoint,
            lambda: machine.append(1, producer=1),
            machine.roll,
            lambda: machine.append(2),
        )
    )

    def do_one_thing() -> None:
        if machine.log().is_exchanging:
            next(things)()

    machine.clean(0, 2, lambda base: base in (0, 3), do_one_thing)
    machine.clean(0, 1, lambda base: base == 3, do_one_thing)
    machine.append(1, producer=1)


LIVES: dict[str, tuple[Callable[[Machine], None], dict[str, int]]] = {
    "rolls": (rolls, {}),
    "rolls without flush": (rolls_without_flush, {}),
    "rolls by time": (rolls_by_time, {}),
    "producers": (producers, {}),
    "flush.messages": (flush_messages, {"flush_messages": 3}),
    "retention": (retention, {}),
    "delete records": (delete_records, {}),
    "topics": (topics, {}),
    "stops": (stops, {}),
    "recoveries": (recoveries, {}),
    "appends at random": (partial(appends_at_random, seed=1), {"segment_bytes": 900}),
    "cleaning": (cleaning, {}),
    "exchanges": (exchanges, {}),
    "corrupt tails 1": (partial(corrupt_tails, seed=1), {}),
}
TORN_LIVES: dict[str, tuple[Callable[[Machine], None], dict[str, int]]] = {
    f"corrupt tails {seed}": (partial(corrupt_tails, seed=seed), {}) for seed in range(2, 9)
}


LEFT: set[int] = set()
"""Hashes of the states after losses of power, with their promises, of all tests in this process."""
OPENED: set[int] = set()
"""Hashes of the states after first openings."""


def cuts_of(life: str) -> list[Cut]:
    """Return all cuts of a life, from its start to its end."""
    run, config = (LIVES | TORN_LIVES)[life]
    cuts: list[Cut] = []
    machine = Machine(cuts.append, **config)
    run(machine)
    machine.cut()  # the moment after everything
    return cuts


def different(
    cuts: Sequence[Cut], losses: Mapping[str, Loss | int], *, every: int, seen: set[int]
) -> Iterator[tuple[str, Cut, MemoryEnv]]:
    """Yield the state after each cut and loss, with its name. A number is the seed of a random loss.

    Many changes do not affect that state: states already `seen` (by hash) with the same promises are omitted.
    """
    for loss_number, (lost, loss) in enumerate(losses.items()):
        for number in some(range(len(cuts)), every=every, seed=loss_number):
            cut = cuts[number]
            env = cut.env.copy(cut.env.clock)
            env.crash(random.Random(loss * 100_000 + number) if isinstance(loss, int) else loss)
            state = hash(state_of(env, cut, cut.truths))
            if state not in seen:
                seen.add(state)
                yield f"cut {number} of {len(cuts)}, lost: {lost}", cut, env


@pytest.mark.parametrize("life", [*LIVES, *(pytest.param(life, marks=pytest.mark.slow) for life in TORN_LIVES)])
def test_power_lost_after_any_operation(life: str) -> None:
    """Besides, a random prefix survives per directory and file; of torn lives nothing else."""
    cuts = cuts_of(life)
    losses: dict[str, Loss | int] = {**(LOSSES if life in LIVES else {}), "a random part": 1}
    checked = 0
    for name, cut, env in different(cuts, losses, every=16, seen=LEFT):
        checked += 1
        with told(name):
            check(cut, env, OPENED)
    print(f"{life}: {len(cuts)} operations, {len(cuts) * len(losses)} cut points, {checked} different")


@pytest.mark.slow
@pytest.mark.parametrize("life", LIVES | TORN_LIVES)
def test_power_lost_again_while_recovering(life: str) -> None:
    """The invariants hold after a second loss of power at any operation of recovery, for one in 240 initial states."""
    points = checked = 0
    for number, (name, cut, env) in enumerate(different(cuts_of(life), LOSSES, every=1, seen=set())):
        if number % 240:
            continue
        again: list[Cut] = []

        def on_change(env: MemoryEnv = env, cut: Cut = cut, again: list[Cut] = again) -> None:
            again.append(cut._replace(env=env.copy(env.clock)))

        env.before_change = on_change
        open_directory(env, cut.sources)
        points += len(again) * len(LOSSES)
        for second, recovery_cut, left in different(again, LOSSES, every=1, seen=LEFT):
            checked += 1
            with told(f"{name}; recovery {second}"):
                check(recovery_cut, left, OPENED)
    print(f"{life}: {points} cut points, {checked} different")


@contextmanager
def told(name: str) -> Iterator[None]:
    """Add the location to a failure."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{name}: {error}") from error
