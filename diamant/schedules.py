"""Schedules of legal compactions, for tests of consumers of compacted topics.

The pytest mark `diamant_any_compaction` and `diamant exec --any-compaction` generate schedules. To play your own schedule:

with Broker(log_cleaner_enable=False) as broker:
    broker.play(Schedule((Compaction(fetches=2, is_late=True),), is_one_batch_per_fetch=True))

With Hypothesis:

@given(schedules())
def test_any(schedule): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.schedules.schedule import Compaction as Compaction
from diamant.broker.schedules.schedule import Schedule as Schedule
from diamant.broker.schedules.schedule_history import History as History
from diamant.broker.schedules.schedule_search import FEW_RECORDS, MAX_COMPACTIONS, SHARES

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["Compaction", "History", "Schedule", "schedules"]


def schedules(*, max_fetches: int = 10) -> SearchStrategy[Schedule]:
    """Return a Hypothesis strategy for schedules, for a consumer that fetches a partition about `max_fetches` times.

    Examples shrink towards the empty schedule. Needs Hypothesis: ``pip install "diamant-broker[schedules]"``.
    """
    from hypothesis import strategies

    compactions = strategies.builds(
        Compaction,
        fetches=strategies.integers(0, max_fetches),
        share=strategies.sampled_from(SHARES),
        is_late=strategies.booleans(),
    )
    return strategies.builds(
        Schedule,
        compactions=strategies.lists(compactions, max_size=MAX_COMPACTIONS).map(tuple),
        batch_records=strategies.sampled_from(FEW_RECORDS),
        segment_records=strategies.sampled_from(FEW_RECORDS),
        is_one_batch_per_fetch=strategies.booleans(),
    )
