"""Requests to the cleaner's loop, and events at a log during a round."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CleanResult, OutputSegment
from diamant.cleaner.runners.contract import SwapOutput
from diamant.cleaner.service.round_requests import RoundRequest, UnknownPartition
from diamant.cleaner.service.service import CleanerService
from diamant.storage.log.segment_removal import delete_oldest
from tests.cleaner.held_runner import HeldRunner
from tests.cleaner.service.several_logs import HOUR_MS, SeveralLogs
from tests.waiting import wait_until


async def under_way(logs: SeveralLogs, held: HeldRunner) -> CleanerService:
    """A cleaner whose first round waits for the test."""
    service = await logs.start(new_process_runner=lambda: held)
    await wait_until(lambda: len(held.plans) == 1)
    return service


# -- requests ----------------------------------------------------------------------------------------------------------


async def test_a_request_cleans_what_is_not_due(logs: SeveralLogs) -> None:
    """The report says what was done, and the checkpoint is on disk by then."""
    log = logs.filthy("t", 20, min_cleanable_dirty_ratio=1.0)
    service = await logs.settled()
    assert logs.cleaned == []
    report = await service.request(("t", 0))
    assert report.result is not None
    assert (report.result.runner, report.result.end_offset, report.error) == ("inline", log.active.base_offset, None)
    assert report.range is not None
    assert report.range.cleanable_bytes > 0
    assert logs.checkpoints == {("t", 0): log.active.base_offset}
    again = await service.request(("t", 0))
    assert (again.result, again.error) == (None, None)


async def test_a_request_for_a_log_that_is_not_compacted(logs: SeveralLogs) -> None:
    """Such a log is not cleaned, and the report has the reason."""
    log = logs.filthy("t", 20, cleanup_policy=frozenset({"delete"}))
    before = logs.values(log)
    service = await logs.start()
    report = await service.request(("t", 0))
    assert (report.result, report.error) == (None, "cleanup.policy is delete, not compact")
    assert logs.values(log) == before
    assert not service.states.uncleanable


async def test_a_request_waits_for_a_round_that_began_before_it(logs: SeveralLogs, held: HeldRunner) -> None:
    """The round that answers the request also cleans the records written since."""
    log = logs.filthy("t", 10)
    service = await under_way(logs, held)
    logs.fill(log, 10)
    answer = service.request(("t", 0))
    held.go_on.set()
    report = await answer
    assert report.result is not None
    assert report.result.end_offset == log.active.base_offset
    assert logs.is_clean(log)


async def test_requests_at_once_share_a_round_that_begins_at_once(logs: SeveralLogs, held: HeldRunner) -> None:
    """The partition is acquired in the turn of the request; the round serves all requests of that turn."""
    logs.filthy("t", 20, min_compaction_lag_ms=HOUR_MS)
    service = await logs.start(new_process_runner=lambda: held, is_enabled=False)
    plain = service.request(("t", 0))
    assert service.states.state(("t", 0)) == "in progress"
    forced = service.request(("t", 0), RoundRequest(force=True))
    held.go_on.set()
    assert await plain is await forced
    assert (await plain).is_cleaned
    assert len(held.plans) == 1


async def test_a_request_for_a_paused_partition_waits(logs: SeveralLogs, held: HeldRunner) -> None:
    """Its round begins when the pause is over; others take the slot until then."""
    logs.filthy("t", 20)
    logs.filthy("u", 20)
    held.go_on.set()
    service = await logs.start(new_process_runner=lambda: held, is_enabled=False)
    await service.abort_and_pause(("t", 0))
    paused = service.request(("t", 0))
    assert (await service.request(("u", 0))).is_cleaned
    assert not paused.done()
    service.resume(("t", 0))
    assert (await paused).is_cleaned


async def test_a_request_for_nothing(logs: SeveralLogs, held: HeldRunner) -> None:
    """An unknown partition is refused, a deletion fails the request, a stop cancels it."""
    log = logs.filthy("t", 10)
    logs.filthy("u", 10, min_cleanable_dirty_ratio=1.0)
    service = await logs.start(new_process_runner=lambda: held)
    with pytest.raises(UnknownPartition):
        service.request(("none", 0))
    await wait_until(lambda: len(held.plans) == 1)
    deleted, stopped = service.request(("t", 0)), service.request(("u", 0))
    logs.delete(log)
    with pytest.raises(UnknownPartition, match="t-0 was deleted"):
        await deleted
    await logs.stop()
    assert stopped.cancelled() or stopped.result().error is not None
    with pytest.raises(asyncio.CancelledError):
        await service.request(("u", 0))


# -- what happens to a log that is being cleaned -----------------------------------------------------------------------


async def test_a_topic_deleted_while_it_is_cleaned(logs: SeveralLogs, held: HeldRunner) -> None:
    """The round ends without effect. A new log of that name begins without a checkpoint, and is cleaned."""
    log = logs.filthy("t", 20)
    logs.write_checkpoints(t=1)
    service = await under_way(logs, held)
    logs.delete(log)
    new = logs.filthy("t", 10)
    service.forget(new)
    assert service.states.state(("t", 0)) == "aborted"
    held.go_on.set()
    await service.settled()
    assert logs.is_clean(new)
    assert [plan.first_dirty_offset for plan in held.plans] == [1, 0]
    assert not service.states.uncleanable
    assert not [name for name in logs.env.list_dir(new.path) if name.endswith((".cleaned", ".swap"))]


async def test_a_policy_without_compact_ends_the_round(logs: SeveralLogs, held: HeldRunner) -> None:
    """The log is unchanged; once the policy is compact again it is cleaned."""
    log = logs.filthy("t", 20)
    before = logs.values(log)
    service = await under_way(logs, held)
    logs.change(log, cleanup_policy=frozenset({"delete"}))
    await wait_until(lambda: service.states.state(("t", 0)) == "none")
    await service.settled()
    assert (logs.values(log), logs.cleaned, service.states.checkpoints()) == (before, [], {})
    held.go_on.set()
    logs.change(log, cleanup_policy=frozenset({"compact"}))
    await wait_until(lambda: logs.cleaned == ["t"])


async def test_a_policy_without_compact_during_the_swaps(logs: SeveralLogs) -> None:
    """Swapped groups remain, the others and the checkpoint are unchanged: nothing is lost."""
    log = logs.filthy("t", 40)
    logs.change(log, segment_bytes=400)
    lasts = dict(reversed([(key, offset) for offset, key in reversed(logs.values(log))]))

    class Changing(HeldRunner):
        async def run(self, plan: CleanPlan, *, on_output: SwapOutput, **rest: Any) -> CleanResult:
            async def swap(output: OutputSegment) -> None:
                await on_output(output)
                logs.change(log, cleanup_policy=frozenset({"delete"}))

            return await self._inline.run(plan, on_output=swap, **rest)

    logs.max_inline_bytes = -1
    service = await logs.start(new_process_runner=lambda: Changing(logs.env))
    await wait_until(lambda: not log.config.is_compacted and service.states.is_free(("t", 0)))
    assert logs.cleaned == []
    assert service.states.checkpoint(("t", 0)) is None
    found = dict(reversed([(key, offset) for offset, key in reversed(logs.values(log))]))
    assert found == lasts
    assert not [name for name in logs.env.list_dir(log.path) if name.endswith((".cleaned", ".swap"))]


async def test_a_pause_waits_for_the_round_to_end(logs: SeveralLogs, held: HeldRunner) -> None:
    """No round begins during the pause; after it the log is cleaned."""
    logs.filthy("t", 20)
    service = await under_way(logs, held)
    await service.abort_and_pause(("t", 0))
    assert service.states.state(("t", 0)) == "paused(1)"
    held.go_on.set()
    await service.settled()
    assert len(held.plans) == 1
    service.resume(("t", 0))
    await wait_until(lambda: logs.cleaned == ["t"])


async def test_retention_removes_the_sources_of_a_round(logs: SeveralLogs, held: HeldRunner) -> None:
    """The round fails, or ends without the deleted segments. The log is not marked uncleanable, and the next round succeeds."""
    log = logs.filthy("t", 20)
    service = await under_way(logs, held)
    delete_oldest(log, 2)
    held.go_on.set()
    await service.settled()
    assert not service.states.uncleanable
    assert logs.is_clean(log)


async def test_a_round_that_is_stopped_is_no_failure(logs: SeveralLogs, held: HeldRunner) -> None:
    """An abort leaves the partition cleanable."""
    logs.filthy("t", 20)
    service = await under_way(logs, held)
    answer = service.request(("t", 0))
    service.states.abort(("t", 0))
    held.go_on.set()
    report = await answer
    assert report.error is None or "aborted" in report.error
    assert not service.states.uncleanable
