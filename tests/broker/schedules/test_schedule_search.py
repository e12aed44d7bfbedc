"""The search for a failing schedule: the schedules tried, their reduction, and repeatability."""

from __future__ import annotations

import pytest

from diamant.broker.schedules.schedule import Compaction, Schedule
from diamant.broker.schedules.schedule_search import MAX_SHRINKS, FoundSchedule, RunOutcome, find_failing


def test_the_first_example_has_no_compaction() -> None:
    """A test that always fails is reported at once."""
    assert find_failing(lambda _: RunOutcome(False, 0), 50, 0) == FoundSchedule(Schedule(), 1)


@pytest.mark.parametrize("fetches", [5, 40, 400])
def test_one_moment_in_many_is_found(fetches: int) -> None:
    """A tombstone must be removed after exactly a tenth of the topic has been fetched."""

    def carry_out(schedule: Schedule) -> RunOutcome:
        late = [one for one in schedule.compactions if one.is_late]
        is_missed = bool(late) and fetches // 5 <= late[0].fetches < fetches // 5 + fetches // 10 + 1
        return RunOutcome(not (is_missed and schedule.is_one_batch_per_fetch), fetches)

    found = find_failing(carry_out, 50, 1)
    assert found.examples <= 20
    assert found.schedule is not None
    assert found.schedule.compactions[0].is_late


def test_a_schedule_is_made_small() -> None:
    """Compactions and limits without influence on the failure are dropped."""

    def carry_out(schedule: Schedule) -> RunOutcome:
        return RunOutcome(not any(one.share < 100 and one.fetches > 1 for one in schedule.compactions), 30)

    found = find_failing(carry_out, 1_000, 0)
    assert found.schedule is not None
    (one,) = found.schedule.compactions
    assert found.schedule == Schedule((Compaction(2, one.share),))


def test_each_schedule_is_tried_once_and_the_same_seed_tries_the_same() -> None:
    """Another seed tries others. The number of runs for reduction is limited."""
    tried: dict[int, list[Schedule]] = {seed: [] for seed in (0, 1, 2)}

    def passing(seed: int) -> list[Schedule]:
        def carry_out(schedule: Schedule) -> RunOutcome:
            tried[seed].append(schedule)
            return RunOutcome(True, 10)

        assert find_failing(carry_out, 50, min(seed, 1)).schedule is None
        return tried[seed]

    assert passing(0) != passing(1)
    assert passing(1)[:50] == passing(2)
    assert len(set(tried[2])) == len(tried[2]) == 50
    failing: list[Schedule] = []

    def fails_from_the_tenth(schedule: Schedule) -> RunOutcome:
        failing.append(schedule)
        return RunOutcome(len(failing) < 10, 100)

    assert find_failing(fails_from_the_tenth, 50, 0).examples == 10
    assert len(failing) <= 10 + MAX_SHRINKS


def test_a_schedule_is_written_as_it_is_made() -> None:
    """A schedule's text has the arguments that differ from the default; invalid ones are refused."""
    schedule = Schedule((Compaction(fetches=2, is_late=True), Compaction()), is_one_batch_per_fetch=True)
    text = "Schedule(compactions=(Compaction(fetches=2, is_late=True), Compaction()), is_one_batch_per_fetch=True)"
    assert repr(schedule) == text
    assert eval(text) == schedule
    for wrong in ({"fetches": -1}, {"share": 0}, {"share": 101}):
        with pytest.raises(ValueError, match="expected"):
            Compaction(**wrong)
    with pytest.raises(ValueError, match="expected"):
        Schedule(batch_records=-1)
