"""What a whole log directory keeps when the machine loses power after any one of its file operations.

Strategy: short lives of a directory (`LIVES`) are run once each on `MemoryEnv`. Before every call that changes a file or
directory or makes it durable, the machine is copied, and each copy loses power in each of the ways of `LOSSES`. What is left is
opened.

Invariants:

* every partition that the metadata know opens; its batches are byte for byte those that were written, their checksums
  are right, and they are a beginning of what was written (of a segment that no flush has covered the end may be lost while the
  next one's name is not, as in Kafka: then the loss ends with the segment);
* no flush or checkpoint that was completed has promised too much: below the flushed offset nothing is missing, the log start
  is not before the one in the checkpoint, and neither checkpoint lies behind the end of the log;
* producers, the last stable offset, the indexes of aborted transactions and the leader epochs are those of a replay of the
  batches; offset and time indexes agree with a scan;
* opening once more changes nothing; appends go on, and what is flushed then survives a second, strict loss of power.

Bound: one loss of power, which hits all files and directories alike, and a second one after a recovery, some appends and a flush;
up to six segments, two partitions and two producers. What was not synced is kept from its beginning on, per directory and
per file, in the parts that `LOSSES` names, and never reordered within either.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle

import pytest

from diamant.storage.env.memory import Loss, MemoryEnv
from tests.effort import some
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
    """Segments roll by size, and are flushed when they have."""
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
    """Segments roll since an hour has passed, or in the background."""
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
    """The oldest segments go, then all of them, then the log goes on."""
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
    """Topics come and go, one under the name of another."""
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
    """The process is killed, and power is lost, while it goes on."""
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
    """Power is lost again and again; recovery cuts off what is torn, with the segments behind it, and the log grows over that."""
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


def cleaning(machine: Machine) -> None:
    """A cleaner's swap of three segments, whose end it has emptied, while appends, rolls, flushes and retention go on."""
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
    """What a broker does while segments are exchanged: between two turns one thing of all that there is, in turn.

    No flush has covered the last source, nor what is rolled later, until it is asked for.
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
    "cleaning": (cleaning, {}),
    "exchanges": (exchanges, {}),
    "corrupt tails 1": (partial(corrupt_tails, seed=1), {}),
}
TORN_LIVES: dict[str, tuple[Callable[[Machine], None], dict[str, int]]] = {
    f"corrupt tails {seed}": (partial(corrupt_tails, seed=seed), {}) for seed in range(2, 9)
}


LEFT: set[int] = set()
"""Hashes of what losses of power have left, with what was promised, in all tests of this process."""
OPENED: set[int] = set()
"""The same of what first openings have made of it."""


def cuts_of(life: str) -> list[Cut]:
    """Every moment of a life, from its very beginning to its end."""
    run, config = (LIVES | TORN_LIVES)[life]
    cuts: list[Cut] = []
    machine = Machine(cuts.append, **config)
    run(machine)
    machine.cut()  # the moment after everything
    return cuts


def different(
    cuts: Sequence[Cut], losses: Mapping[str, Loss | int], *, every: int, seen: set[int]
) -> Iterator[tuple[str, Cut, MemoryEnv]]:
    """What is left after each cut and loss, with a name for it. A number stands for the seed of a random loss.

    Many a change makes no difference to what is left: what was `seen` (by its hash) with the same promises is left out.
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


@pytest.mark.parametrize("life", LIVES)
def test_power_lost_after_any_operation(life: str) -> None:
    """See the module."""
    cuts = cuts_of(life)
    checked = 0
    for name, cut, env in different(cuts, LOSSES, every=16, seen=LEFT):
        checked += 1
        with told(name):
            check(cut, env, OPENED)
    print(f"{life}: {len(cuts)} operations, {len(cuts) * len(LOSSES)} cut points, {checked} different")


@pytest.mark.slow
@pytest.mark.parametrize("life", LIVES | TORN_LIVES)
def test_power_lost_at_random(life: str) -> None:
    """The same after any operation, with a random beginning of what each directory and file held."""
    cuts = cuts_of(life)
    seeds = range(1, 2)
    checked = 0
    for name, cut, env in different(cuts, {f"seed {seed}": seed for seed in seeds}, every=1, seen=LEFT):
        checked += 1
        with told(name):
            check(cut, env, OPENED)
    print(f"{life}: {len(cuts)} operations, {len(cuts) * len(seeds)} cut points, {checked} different")


@pytest.mark.slow
@pytest.mark.parametrize("life", LIVES | TORN_LIVES)
def test_power_lost_again_while_recovering(life: str) -> None:
    """Power is lost a second time after any operation of the recovery itself; of the states it begins with, one in 240."""
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
    """Have a failure tell where."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{name}: {error}") from error
