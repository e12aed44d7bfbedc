"""Consistency after the machine stops in the middle of a segment replacement.

Strategy: one history runs repeatedly on `MemoryEnv`, each time stopped at another change or sync: while the `.cleaned` files are
written, during the swap, between two groups. Then only the process is lost (`kill`), or all unsynced data (`strict`), or a random
part of them (`seed ...`). The directory is opened again, and the opening itself is stopped at every change and repeated.

Invariants: each group and its index of aborted transactions hold exactly the old or exactly the new content; if a group is new,
so are all earlier ones; all other segments are unchanged; no temporary file is left; the log accepts appends and reads them back.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import NamedTuple

import pytest

from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record, parse_header
from diamant.storage import names
from diamant.storage.env.clocks import SettableClock
from diamant.storage.log.log import Log
from diamant.storage.log.segment_swap import Replacement, replace_segments
from diamant.storage.segments.log_config import LogConfig
from tests.builder import make_marker
from tests.effort import some
from tests.memory_env import Loss, MemoryEnv, PowerOff
from tests.storage.cleaned import write_cleaned
from tests.storage.one_log import create_one, load_one

START_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=450, index_interval_bytes=60)
PATH = "/data/t-0"


MODES = {"kill": Loss(names=1, content=1), "strict": None, "seed 1": random.Random(1), "seed 2": random.Random(2)}


class Group(NamedTuple):
    """Sources, as numbers of segments, and the batches that the cleaner keeps."""

    first: int
    last: int
    keep: Callable[[int], bool]
    keep_aborted: bool = True


SCENARIOS = {
    "merged": [Group(0, 2, lambda offset: offset % 2 == 0)],
    "end emptied": [Group(0, 2, lambda offset: offset < 2)],
    "emptied": [Group(0, 2, lambda offset: False, False)],
    "one emptied": [Group(1, 1, lambda offset: False, False)],
    "one": [Group(1, 1, lambda offset: offset % 2 == 0)],
    "two groups": [Group(0, 1, lambda offset: offset < 1), Group(2, 3, lambda offset: offset % 2 == 1)],
}


class Content(NamedTuple):
    """Contents of a range of segments: base offsets, bytes of the `.log` files, aborted transactions."""

    bases: tuple[int, ...]
    data: bytes
    aborted: tuple[object, ...]


@cache
def filled() -> MemoryEnv:
    """Return a machine with a flushed log of six segments, each with an aborted transaction."""
    env = MemoryEnv(SettableClock(START_MS))
    env.make_dirs("/data")
    env.sync_dir("/")
    log = create_one(env, CONFIG)
    env.sync_dir("/data")
    log.become_leader(1)
    sequence = 0
    while len(log.segments) < 6:
        append(log, producer_id=7, producer_epoch=0, base_sequence=sequence, is_transactional=True)
        marker = make_marker(7, is_commit=False, leader_epoch=1, timestamp=START_MS)
        log.append_internal(marker)
        sequence += 1
        append(log)
    log.close()
    env.sync_dir(PATH)
    return env


def start() -> Log:
    """Return the log of `filled` in another machine."""
    return recover(copy_of(filled()), 1 << 40)


def append(log: Log, **fields: object) -> None:
    value = b"value-%d" % log.log_end_offset
    log.append_as_leader(memoryview(build_batch([Record(0, START_MS, b"k", value)], **fields)))  # type: ignore[arg-type]


def content(log: Log, start: int, end: int) -> Content:
    segments = [segment for segment in log.segments if start <= segment.base_offset < end]
    return Content(
        tuple(segment.base_offset for segment in segments),
        b"".join(log.env.read_bytes(segment.path) for segment in segments),
        tuple(aborted for segment in segments for aborted in segment.txn_index.all()),
    )


def clean(log: Log, groups: list[Group]) -> None:
    """Clean and replace group by group, as a round does."""
    segments = list(log.segments)
    for group in groups:
        bases = [segment.base_offset for segment in segments[group.first : group.last + 1]]
        write_cleaned(log, bases, group.keep, keep_aborted=group.keep_aborted)
        replace_segments(log, bases[0], bases)


def recover(env: MemoryEnv, recovery_point: int) -> Log:
    return load_one(env, CONFIG, recovery_point=recovery_point)


class Expected(NamedTuple):
    """Allowed contents of offset ranges: one content, or the old and the new one."""

    ranges: list[tuple[int, int, list[Content]]]
    recovery_point: int

    def check(self, log: Log) -> list[bool]:
        """Check the contents of `log`; return for each group if its content is new."""
        is_new = []
        for start, end, allowed in self.ranges:
            found = content(log, start, end)
            assert found in allowed, f"offsets {start} to {end}: {found.bases}, {len(found.data)} bytes"
            if len(allowed) == 2:
                is_new.append(found == allowed[1])
        assert is_new == sorted(is_new, reverse=True), "a group was replaced before an earlier one"
        suffixes = (names.CLEANED_SUFFIX, names.SWAP_SUFFIX, names.DELETED_SUFFIX)
        assert not [name for name in log.env.list_dir(PATH) if name.endswith(suffixes)]
        end = log.log_end_offset
        append(log)
        result = log.read(end, 1 << 20, isolation_level=0, min_one_message=True)
        assert parse_header(result.slices[0].read()).base_offset == end
        return is_new


def expect(groups: list[Group]) -> tuple[Expected, int, int]:
    """Return the contents before and after an undisturbed run, and its numbers of changes and syncs."""
    log = start()
    env = log.env
    bounds = [segment.base_offset for segment in log.segments]
    ranges: list[tuple[int, int, list[Content]]] = []
    number = 0
    for group in [*groups, Group(len(bounds) - 1, len(bounds) - 1, lambda offset: True)]:
        if number < group.first:
            ranges.append((bounds[number], bounds[group.first], [content(log, bounds[number], bounds[group.first])]))
        if group.last + 1 < len(bounds):
            first, end = bounds[group.first], bounds[group.last + 1]
            ranges.append((first, end, [content(log, first, end)]))
        number = group.last + 1
    changes, syncs = env.change_count, env.sync_count
    clean(log, groups)
    expected = []
    for first, end, allowed in ranges:
        new = content(log, first, end)
        expected.append((first, end, allowed if new == allowed[0] else [*allowed, new]))
    return Expected(expected, log.recovery_point), env.change_count - changes, env.sync_count - syncs


def stopped(groups: list[Group], **stop: int) -> MemoryEnv:
    """Return the machine stopped in the middle of the round."""
    log = start()
    env = log.env
    env.power_off_after(**stop)
    with suppress(PowerOff):
        clean(log, groups)
    return env


def copy_of(env: MemoryEnv) -> MemoryEnv:
    """Another machine with the same files."""
    return env.copy(SettableClock(START_MS))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_stopped_at_any_point(scenario: str, mode: str) -> None:
    """Every group is old or new, whatever data were lost."""
    groups = SCENARIOS[scenario]
    expected, changes, syncs = expect(groups)
    seen = set()
    for kind, total in (("changes", changes), ("syncs", syncs)):
        for number in some(range(total + 1), every=2, seed=list(MODES).index(mode)):
            env = stopped(groups, **{kind: number})
            env.crash(MODES[mode])
            seen.add(tuple(expected.check(recover(env, expected.recovery_point))))
    print(scenario, mode, f"{changes} changes, {syncs} syncs")
    assert seen == {tuple(number < new for number in range(len(groups))) for new in range(len(groups) + 1)}


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["merged", "end emptied", "emptied", "one emptied"])
def test_stopped_again_while_recovering(scenario: str) -> None:
    """Recovery may be interrupted at each of its changes and repeated from the start."""
    groups = SCENARIOS[scenario]
    expected, changes, _ = expect(groups)
    seen = set()
    for number in some(range(changes), every=3):
        found = stopped(groups, changes=number)
        found.crash(MODES["kill"])
        names_left = frozenset(found.list_dir(PATH))
        is_over = names_left in seen
        seen.add(names_left)
        again = 0
        while not is_over:
            env = copy_of(found)
            env.power_off_after(changes=again)
            with suppress(PowerOff):
                recover(env, expected.recovery_point)
                is_over = True
            env.crash(MODES["kill"])
            expected.check(recover(env, expected.recovery_point))
            again += 1


@pytest.mark.parametrize("mode", MODES)
def test_a_flush_does_not_vouch_for_what_was_replaced_before_its_fsync(mode: str) -> None:
    """If a flush skips a segment because it was replaced, the recovery point passes it, yet the old bytes are safe."""
    log = start()
    env = log.env
    end = log.segments[1].base_offset
    log.segments[0].close()
    _forget_sync(env, log.segments[0].path)
    log.recovery_point = log.unsynced.synced_name_changes = 1
    before = content(log, 0, end)
    flush = log.begin_flush(end)
    assert flush is not None
    write_cleaned(log, [0], lambda offset: offset % 2 == 0)
    replacement = Replacement(log, 0, [0])
    replacement.prepare()
    replacement.swap()
    after = content(log, 0, end)
    flush.run()
    log.complete_flush(flush)
    env.crash(MODES[mode])
    assert content(recover(env, end), 0, end) in ((before,) if mode == "strict" else (before, after))


def _forget_sync(env: MemoryEnv, path: str) -> None:
    """Mark a file's content as never synced."""
    data = env.read_bytes(path)
    env.remove(path)
    file = env.create_new(path)
    env.sync_dir(PATH)
    file.append(data)


@pytest.mark.parametrize("scenario", ["merged", "end emptied"])
def test_a_rename_that_fails_leaves_a_log_that_works(scenario: str) -> None:
    """After a failed rename the log is unchanged, or it reads the new content and refuses appends."""
    groups = SCENARIOS[scenario]
    expected, _, _ = expect(groups)
    outcomes = set()
    for number in range(100):
        log = start()
        env = log.env
        fault = env.fail("rename", f"{PATH}/*", errno.EIO, after=number, times=1)
        with suppress(OSError):
            clean(log, groups)
        if not fault.hits:
            break
        fault.clear()
        found = [content(log, first, end) for first, end, _ in expected.ranges]
        outcome = [allowed.index(one) for one, (_, _, allowed) in zip(found, expected.ranges, strict=True)]
        outcomes.add((max(outcome), log.write_failure is not None))
        assert log.read(0, 1 << 20, isolation_level=0, min_one_message=True).size
        log.close()
        expected.check(recover(env, expected.recovery_point))
    assert outcomes == {(0, False), (1, True)}


def torn(env: MemoryEnv) -> None:
    """Make a `.swap` file that ends in zeros, as a file system may leave an unsynced file."""
    path = names.log_file(PATH, 0) + names.SWAP_SUFFIX
    data = env.read_bytes(path)
    file = env.open(path)
    file.truncate(len(data) // 2)
    file.truncate(len(data))


def emptied(env: MemoryEnv) -> None:
    """Make an empty `.swap` file."""
    env.open(names.log_file(PATH, 0) + names.SWAP_SUFFIX).truncate(0)


@pytest.mark.parametrize("damage", [torn, emptied])
def test_a_swap_file_that_is_not_whole_replaces_nothing(damage: Callable[[MemoryEnv], None]) -> None:
    """A torn or empty `.swap` file, for example of Kafka's, is dropped while the old segments exist."""
    groups = SCENARIOS["merged"]
    expected, changes, _ = expect(groups)
    for number in range(changes):
        env = stopped(groups, changes=number)
        env.crash(MODES["kill"])
        if names.log_file(PATH, 0)[len(PATH) + 1 :] + ".swap" not in env.list_dir(PATH):
            continue
        if not env.exists(names.log_file(PATH, 0)):
            break
        damage(env)
        assert expected.check(recover(env, expected.recovery_point)) == [False]
    else:
        pytest.fail("the swap never began")
