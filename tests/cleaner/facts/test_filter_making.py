"""Filters of rolled segments are made soon after the roll, while the cleaner is idle."""

from __future__ import annotations

import pytest

from diamant.cleaner.facts.facts_file import facts_path
from diamant.cleaner.facts.filter_making import FactsTask
from diamant.cleaner.facts.key_filter import MIN_LOG_BYTES, cannot_hold
from diamant.cleaner.facts.segment_keys import file_segment_facts
from diamant.cleaner.rules.modes import KAFKA, PROMPT
from diamant.cleaner.service.service import ROLL_DELAY_MS, CleanerService
from diamant.storage.errors import CorruptLog
from diamant.storage.log.log import Log
from diamant.storage.log.segment_removal import delete_oldest
from tests.cleaner.held_runner import HeldWorker
from tests.cleaner.service.several_logs import HOUR_MS, SeveralLogs
from tests.waiting import wait_until

SEGMENT_BYTES = 4 << 20
HASH_KEY = bytes(16)


def add_segment(logs: SeveralLogs, log: Log, name: str) -> None:
    """A closed segment of 4 MiB with one key."""
    logs.data(log, f"{name}=" + "v" * SEGMENT_BYTES)
    log.roll()


def large_log(logs: SeveralLogs, topic: str = "large") -> Log:
    """Return a log whose closed segments no round may touch for an hour, just large enough for filters."""
    log = logs.add(topic, min_compaction_lag_ms=HOUR_MS)
    for number in range(MIN_LOG_BYTES // SEGMENT_BYTES):
        add_segment(logs, log, f"k{number}")
    return log


def filtered(log: Log) -> list[int]:
    """Base offsets of the segments that have facts."""
    return [one.base_offset for one in log.segments if log.env.exists(facts_path(log.path, one.base_offset))]


def closed(log: Log) -> list[int]:
    """Base offsets of the closed segments."""
    return [one.base_offset for one in log.segments[:-1]]


def knows(service: CleanerService, log: Log, index: int, key: bytes) -> bool:
    """Tell whether a segment may hold a key, according to its filter."""
    segment, hash_key = log.segments[index], service.view(log).hash_key
    return not cannot_hold(log.env, segment.path, segment.base_offset, segment.size, [key], hash_key)


async def test_closed_segments_get_filters_before_any_round(logs: SeveralLogs) -> None:
    """Segments present at a start, and those rolled later, get filters; the active one has none."""
    log = large_log(logs)
    logs.data(log, "active=" + "v" * SEGMENT_BYTES)
    service = await logs.start(mode=PROMPT)
    await wait_until(lambda: filtered(log) == closed(log))
    assert knows(service, log, 1, b"k1")
    assert not knows(service, log, 1, b"k0")
    log.roll()
    service.rolled(log)
    logs.clock.advance_ms(ROLL_DELAY_MS)
    await wait_until(lambda: filtered(log) == closed(log))
    assert knows(service, log, -2, b"active")
    assert not knows(service, log, -2, b"k0")
    assert logs.cleaned == []


@pytest.mark.parametrize(("mode", "count"), [(KAFKA, 5), (PROMPT, 3)])
async def test_other_logs_get_none(logs: SeveralLogs, mode: str, count: int) -> None:
    """Mode kafka needs no filters, and a small log is read quickly."""
    log = logs.add("t", min_compaction_lag_ms=HOUR_MS)
    for number in range(count):
        add_segment(logs, log, f"k{number}")
    service = await logs.settled(mode=mode)
    assert service.picker.without_filters == []


@pytest.fixture
def maker(logs: SeveralLogs) -> HeldWorker:
    """A maker that waits to be released."""
    return HeldWorker(logs.env)


async def test_a_round_does_not_wait_for_filters(logs: SeveralLogs, maker: HeldWorker) -> None:
    """A round ends the making of filters, which continues afterwards."""
    log, other = large_log(logs), logs.filthy("other", 20, min_cleanable_dirty_ratio=0.5)
    service = await logs.settled(mode=PROMPT, new_process_runner=lambda: maker)
    await wait_until(lambda: len(maker.tasks) == 1)
    report = await service.request((other.topic, other.partition))
    assert report.error is None
    assert filtered(log) == []
    maker.may_make.set()
    await wait_until(lambda: filtered(log) == closed(log))
    assert maker.tasks[0].base_offset == maker.tasks[1].base_offset == 0


async def test_a_segment_that_goes_leaves_no_file_behind(logs: SeveralLogs, maker: HeldWorker) -> None:
    """If retention removes a segment just before its facts are written, no file stays; the others get theirs."""
    log = large_log(logs)
    gone = log.segments[0].base_offset

    def remove_first(task: FactsTask) -> None:
        if task.base_offset == gone:
            assert log.env.exists(facts_path(log.path, gone))
            delete_oldest(log, 1)

    maker.after = remove_first
    maker.may_make.set()
    add_segment(logs, log, "more")
    await logs.start(mode=PROMPT, new_process_runner=lambda: maker)
    await wait_until(lambda: filtered(log) == closed(log))
    assert gone not in closed(log)
    await wait_until(lambda: not log.env.exists(facts_path(log.path, gone)))


async def test_a_deletion_or_a_stop_ends_the_making(logs: SeveralLogs, maker: HeldWorker) -> None:
    """A deletion or a stop does not wait for the making, and no file is written afterwards."""
    log = large_log(logs)
    await logs.start(mode=PROMPT, new_process_runner=lambda: maker)
    await wait_until(lambda: len(maker.tasks) == 1)
    logs.delete(log)
    await logs.stop()
    assert not [name for name in log.env.list_dir(f"{log.path}.0-delete") if name.endswith(".facts")]


async def test_a_segment_that_cannot_be_read_is_tried_once(logs: SeveralLogs, maker: HeldWorker) -> None:
    """The other segments get their filters; later looks do not retry the unreadable one."""
    log = large_log(logs)

    def fail(task: FactsTask) -> None:
        if task.base_offset == 0:
            raise CorruptLog(log.path, 0, "made up")

    maker.after = fail
    maker.may_make.set()
    service = await logs.start(mode=PROMPT, new_process_runner=lambda: maker)
    await wait_until(lambda: len(maker.tasks) == len(closed(log)))
    await service.settled()
    await service.settled()
    assert [task.base_offset for task in maker.tasks] == closed(log)


def test_facts_of_a_file_that_was_replaced_are_not_filed(logs: SeveralLogs) -> None:
    """If a file was replaced while it was read, its facts are discarded."""
    log = large_log(logs)
    segment = log.segments[0]
    task = FactsTask(log.path, 0, segment.size, HASH_KEY, 1e9)
    file_segment_facts(log.env, task, check_done=lambda: log.env.set_mtime_ms(segment.path, 5))
    assert filtered(log) == []
    file_segment_facts(log.env, task)
    assert filtered(log) == [0]
