"""The search for the smallest schedule under which a test fails.

The first example has no compaction. The second fetches batch by batch, to count the fetches. Half of the other examples compact
all records, including tombstones, after one of these fetches. The rest are random.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from diamant.broker.schedules.schedule import ALL, Compaction, Schedule

ONE_BY_ONE = Schedule(batch_records=1, is_one_batch_per_fetch=True)
MAX_COMPACTIONS = 4
MAX_FETCHES = 1000
"""The maximum number of fetches before a compaction."""
MAX_SHRINKS = 60
"""The maximum number of runs to spend on the search for a schedule smaller than the first failing one."""
SHARES = (ALL, 75, 50, 25)
FEW_RECORDS = (0, 1, 2, 3, 5)


class RunOutcome(NamedTuple):
    """The outcome of a test under a schedule."""

    has_passed: bool
    fetches: int
    """The number of fetches of the partition with the most fetches."""


class FoundSchedule(NamedTuple):
    """The outcome of a search."""

    schedule: Schedule | None
    """The smallest failing schedule that was found; None if none fails."""
    examples: int
    """The number of schedules tried up to the first failing one, or in total if none fails."""


def find_failing(
    carry_out: Callable[[Schedule], RunOutcome],
    examples: int,
    seed: int,
    *,
    may_be_late: bool = True,
    is_over: Callable[[], bool] = lambda: False,
) -> FoundSchedule:
    """Try up to `examples` schedules, then schedules smaller than the first failing one. The same seed tries the same schedules.

    Without `may_be_late`, no tombstone is removed. `is_over()`: whether to stop the search for smaller schedules.
    """
    search = _Search(carry_out)
    for schedule in search.candidates(examples, random.Random(seed)):
        if len(search.tried) == examples:
            break
        if not may_be_late:
            in_time = tuple(replace(compaction, is_late=False) for compaction in schedule.compactions)
            schedule = replace(schedule, compactions=in_time)
        if search.fails(schedule):
            count = len(search.tried)
            return FoundSchedule(search.shrunk(schedule, is_over), count)
    return FoundSchedule(None, len(search.tried))


class _Search:
    """A search, with the schedules tried so far. No schedule is tried twice."""

    def __init__(self, carry_out: Callable[[Schedule], RunOutcome]) -> None:
        self._carry_out = carry_out
        self.tried: set[Schedule] = set()
        self._fetches = 0

    def fails(self, schedule: Schedule) -> bool:
        """Return whether the test fails under a schedule; False if the schedule was tried before."""
        if schedule in self.tried:
            return False
        self.tried.add(schedule)
        outcome = self._carry_out(schedule)
        self._fetches = min(max(self._fetches, outcome.fetches), MAX_FETCHES)
        return not outcome.has_passed

    def candidates(self, examples: int, source: random.Random) -> Iterator[Schedule]:
        """Yield schedules to try. Some may be repeated."""
        yield Schedule()
        yield ONE_BY_ONE
        yield replace(ONE_BY_ONE, compactions=(Compaction(is_late=True),))
        last = self._fetches
        count = min(examples // 2, last)
        for number in range(1, count + 1):
            yield replace(ONE_BY_ONE, compactions=(Compaction(last * number // count, is_late=True),))
        for _ in range(100 * examples):
            yield random_schedule(source, self._fetches)

    def shrunk(self, schedule: Schedule, is_over: Callable[[], bool]) -> Schedule:
        """Return a smaller schedule that also fails, or the same schedule."""
        most = len(self.tried) + MAX_SHRINKS
        is_smaller = True
        while is_smaller and len(self.tried) < most:
            is_smaller = False
            for smaller in simplifications(schedule):
                if len(self.tried) < most and not is_over() and self.fails(smaller):
                    schedule, is_smaller = smaller, True
                    break
        return schedule


def random_schedule(source: random.Random, fetches: int) -> Schedule:
    """Return a random schedule for a consumer with this number of fetches."""
    count = source.randint(1, MAX_COMPACTIONS)
    return Schedule(
        tuple(
            Compaction(
                source.randint(0, max(1, fetches // count)),
                ALL if source.random() < 0.5 else source.choice(SHARES),
                source.random() < 0.5,
            )
            for _ in range(count)
        ),
        source.choice(FEW_RECORDS),
        source.choice(FEW_RECORDS),
        source.random() < 0.7,
    )


def simplifications(schedule: Schedule) -> Iterator[Schedule]:
    """Yield schedules that are simpler in one respect, simplest first."""
    compactions = schedule.compactions
    for position in range(len(compactions)):
        yield replace(schedule, compactions=compactions[:position] + compactions[position + 1 :])
    simpler = (
        replace(schedule, is_one_batch_per_fetch=False),
        replace(schedule, segment_records=0),
        replace(schedule, batch_records=0),
    )
    yield from (other for other in simpler if other != schedule)
    for position, compaction in enumerate(compactions):
        others = [replace(compaction, is_late=False), replace(compaction, share=ALL)]
        others += [
            replace(compaction, fetches=fetches)
            for fetches in (0, compaction.fetches // 2, max(0, compaction.fetches - 1))
        ]
        for smaller in others:
            if smaller != compaction:
                yield replace(schedule, compactions=(*compactions[:position], smaller, *compactions[position + 1 :]))
