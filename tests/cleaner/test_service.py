"""The loop of the cleaner on a clock that the tests move: when it looks, what it cleans, what it keeps and tells."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from diamant.cleaner import rewrite
from diamant.cleaner.cleaning_states import RETRY_FIRST_MS
from diamant.cleaner.modes import KAFKA, PROMPT
from diamant.cleaner.plan import CleanPlan
from diamant.cleaner.result import CheckDone, CleaningAborted, CleanResult, never_done
from diamant.cleaner.runner import MAX_INLINE_BYTES, InlineRunner, SwapOutput
from diamant.cleaner.runner_errors import RunnerFailed
from diamant.cleaner.service import CleanerService, UnknownPartition
from diamant.cleaner.service_settings import ServiceSettings
from diamant.storage.env import Env
from diamant.storage.log import Log
from diamant.storage.log_config import LogConfig
from tests.cleaner.several_logs import CHECKPOINT, START_MS, SeveralLogs

HOUR_MS = 3_600_000
ONCE = {"min_cleanable_dirty_ratio": 0.0}


@pytest.fixture
async def logs() -> AsyncIterator[SeveralLogs]:
    """Logs whose cleaner is stopped at the end."""
    made = SeveralLogs()
    yield made
    await made.stop()


class HeldRunner:
    """Carries out plans when it is told to; until then a round is under way."""

    name = "held"

    def __init__(self, env: Env) -> None:
        self._inline = InlineRunner(env)
        self.plans: list[CleanPlan] = []
        self.go_on = asyncio.Event()
        self.is_closed = False

    async def run(self, plan: CleanPlan, *, on_output: SwapOutput, check_done: CheckDone = never_done) -> CleanResult:
        """Wait, and ask whether to stop meanwhile."""
        self.plans.append(plan)
        while not self.go_on.is_set() and not self.is_closed:
            check_done()
            await asyncio.sleep(0)
        return await self._inline.run(plan, on_output=on_output, check_done=check_done)

    async def close(self) -> None:
        """Let everything go."""
        self.is_closed = True
        await self._inline.close()


@pytest.fixture
def held(logs: SeveralLogs, monkeypatch: pytest.MonkeyPatch) -> HeldRunner:
    """A runner for all plans, however small."""
    runner = HeldRunner(logs.env)
    monkeypatch.setattr("diamant.cleaner.cleaner_thread.MAX_INLINE_BYTES", -1)
    return runner


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until a condition holds."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


def is_clean(logs: SeveralLogs, log: Log) -> bool:
    """Whether no key is there twice in what may be cleaned."""
    keys = [key for offset, key in logs.values(log) if offset < log.active.base_offset]
    return len(keys) == len(set(keys))


# -- what it does to a log ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", range(5), ids=("none", "gzip", "snappy", "lz4", "zstd"))
async def test_writing_and_cleaning_in_turns(logs: SeveralLogs, codec: int) -> None:
    """LogCleanerParameterizedIntegrationTest.cleanerTest: the last values stay at their offsets, the log shrinks each time,
    a batch larger than the buffers is no hindrance, a deleted partition's checkpoint goes.
    """
    log = logs.add("t", segment_bytes=2048, **ONCE)
    service = await logs.start(mode=KAFKA, io_buffer_bytes=128)
    last: dict[str, int] = {}
    for turn in range(2):
        for index in range(300):
            if turn and not index:
                last["large"] = logs.data(log, "large=" + "x" * 1500, codec=codec)
            key = f"k{index % 100}"
            last[key] = logs.data(log, f"{key}=v{turn}-{index}", codec=codec)
        size = log.size
        await service.settled()
        assert log.size < size
        assert logs.checkpoints["t", 0] == log.active.base_offset
        cleaned = [(offset, key) for offset, key in logs.values(log) if offset < log.active.base_offset]
        assert len(cleaned) == len({key for _, key in cleaned})
        found = {key: offset for offset, key in logs.values(log)}
        assert found == last
    logs.delete(log)
    await service.settled()
    assert logs.checkpoints == {}


# -- when it looks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
async def test_what_is_due_is_cleaned_and_the_checkpoint_written(logs: SeveralLogs, mode: str) -> None:
    """The last record of each key stays, and the file says where the round ended."""
    log = logs.filthy("t", 20)
    service = await logs.start(mode=mode)
    await service.settled()
    assert [key for _, key in logs.values(log)] == ["k2", "k0", "k1"]
    assert logs.checkpoints == {("t", 0): log.active.base_offset}
    assert service.states.state(("t", 0)) == "none"


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
async def test_when_nothing_is_due_it_looks_again_after_the_backoff(logs: SeveralLogs, mode: str) -> None:
    """Not a millisecond sooner, by the clock of the Env."""
    log = logs.add("t", **ONCE)
    service = await logs.start(mode=mode, backoff_ms=15_000)
    await service.settled()
    logs.fill(log, 5)
    logs.clock.advance_ms(14_999)
    for _ in range(50):
        await asyncio.sleep(0)
    assert logs.cleaned == []
    logs.clock.advance_ms(1)
    await until(lambda: logs.cleaned == ["t"])


async def test_after_a_round_it_looks_again_at_once(logs: SeveralLogs) -> None:
    """All that is due is cleaned without a pause, the dirtiest first."""
    for topic, batches in (("small", 20), ("large", 30), ("medium", 25)):
        logs.filthy(topic, batches)
    logs.write_checkpoints(small=20, large=20, medium=20)
    await logs.start(mode=KAFKA, backoff_ms=HOUR_MS)
    await until(lambda: len(logs.cleaned) == 2)
    assert logs.cleaned == ["large", "medium"]


async def test_a_rolled_segment_is_looked_at_soon_in_mode_prompt(logs: SeveralLogs) -> None:
    """Whatever the backoff; several rolls are one look."""
    log = logs.add("t", **ONCE)
    service = await logs.start(backoff_ms=HOUR_MS)
    log.on_flush_due = service.rolled
    await service.settled()
    logs.fill(log, 10)
    logs.clock.advance_ms(1_000)
    await until(lambda: logs.cleaned == ["t"])
    assert is_clean(logs, log)


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
async def test_without_the_cleaner_only_requests_are_served(logs: SeveralLogs, mode: str) -> None:
    """log.cleaner.enable=false."""
    log = logs.filthy("t", 20)
    service = await logs.start(mode=mode, is_enabled=False)
    await service.settled()
    assert logs.cleaned == []
    report = await service.request(("t", 0))
    assert report.is_cleaned
    assert is_clean(logs, log)


async def test_threads_are_rounds_at_once(logs: SeveralLogs, held: HeldRunner) -> None:
    """No more than `threads`, each at another log, and more as soon as there may be more."""
    for topic in "abc":
        logs.filthy(topic, 10)
    service = await logs.start(threads=2, new_process_runner=lambda: held)
    await until(lambda: len(held.plans) == 2)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(held.plans) == 2
    service.reconfigure(ServiceSettings(threads=3))
    await until(lambda: len(held.plans) == 3)
    assert sorted(plan.topic for plan in held.plans) == ["a", "b", "c"]
    held.go_on.set()
    await service.settled()
    assert sorted(logs.cleaned) == ["a", "b", "c"]


async def test_settings_reach_the_plan_and_change_while_it_runs(logs: SeveralLogs, held: HeldRunner) -> None:
    """Buffer, load factor and rate are shared by the threads; a round under way keeps what it began with."""
    logs.filthy("a", 10)
    settings: dict[str, Any] = {"threads": 2, "dedupe_buffer_bytes": 4 << 20, "io_buffer_bytes": 4096}
    service = await logs.start(
        **settings, load_factor=0.5, io_max_bytes_per_second=1000.0, new_process_runner=lambda: held
    )
    await until(lambda: len(held.plans) == 1)
    plan = held.plans[0]
    assert (plan.map_max_entries, plan.map_memory_bytes) == ((2 << 20) // 24 // 2, 2 << 20)
    assert (plan.io_buffer_bytes, plan.io_max_bytes_per_second) == (1024, 500.0)
    service.reconfigure(ServiceSettings(**settings, io_max_bytes_per_second=10_000.0))
    logs.filthy("b", 10)
    await until(lambda: len(held.plans) == 2)
    assert held.plans[1].io_max_bytes_per_second == 5000.0
    held.go_on.set()
    await service.settled()


async def test_a_shorter_backoff_counts_at_once(logs: SeveralLogs) -> None:
    """cleanerConfigUpdateTest: a cleaner that waits waits no longer than it may now."""
    log = logs.add("t", **ONCE)
    service = await logs.start(mode=KAFKA, backoff_ms=HOUR_MS)
    await service.settled()
    logs.fill(log, 5)
    service.reconfigure(ServiceSettings(mode=KAFKA, backoff_ms=100))
    logs.clock.advance_ms(100)
    await until(lambda: logs.cleaned == ["t"])


# -- lags --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
async def test_min_compaction_lag(logs: SeveralLogs, mode: str) -> None:
    """LogCleanerLagIntegrationTest: what is younger than the lag stays as it is, what is older is cleaned."""
    log = logs.filthy("t", 20, min_compaction_lag_ms=HOUR_MS)
    before = logs.values(log)
    first_end = log.active.base_offset
    service = await logs.start(mode=mode)
    logs.clock.advance_ms(HOUR_MS // 2)
    await service.settled()
    assert logs.values(log) == before
    logs.clock.advance_ms(HOUR_MS // 2 + 1)
    logs.fill(log, 10)
    await service.settled()
    kept = [offset for offset, _ in logs.values(log)]
    assert kept[:3] == [17, 18, 19]
    assert kept[3:] == list(range(first_end, log.log_end_offset))
    assert logs.checkpoints["t", 0] >= first_end


async def test_max_compaction_lag(logs: SeveralLogs) -> None:
    """testMaxLogCompactionLag: with a ratio of 1 only what is overdue is cleaned, and only that."""
    log = logs.filthy(
        "t", 20, min_cleanable_dirty_ratio=1.0, min_compaction_lag_ms=HOUR_MS, max_compaction_lag_ms=6 * HOUR_MS
    )
    service = await logs.start(mode=KAFKA)
    before = logs.values(log)
    logs.clock.advance_ms(3 * HOUR_MS)
    await service.settled()
    assert logs.values(log) == before
    logs.clock.advance_ms(3 * HOUR_MS + 2)
    logs.fill(log, 10)
    second = log.active.base_offset
    await service.settled()
    assert [offset for offset, _ in logs.values(log)] == [17, 18, 19, *range(20, 30)]
    logs.clock.advance_ms(6 * HOUR_MS + 2)
    await service.settled()
    assert [offset for offset, _ in logs.values(log)] == [27, 28, 29]
    assert logs.checkpoints["t", 0] == second


async def test_without_traffic_everything_superseded_goes_within_the_lag(logs: SeveralLogs) -> None:
    """KIP-354 kept: mode prompt closes the active segment by itself and cleans it, at the moment when it is due."""
    log = logs.add("t", max_compaction_lag_ms=HOUR_MS)
    service = await logs.start(backoff_ms=10 * HOUR_MS)
    await service.settled()
    logs.data(log, "a=old")
    logs.data(log, "a=new", "b=1")
    await service.settled()
    logs.clock.advance_ms(HOUR_MS)
    await asyncio.sleep(0)
    assert len(logs.values(log)) == 3
    logs.clock.advance_ms(1)
    await until(lambda: logs.cleaned == ["t"])
    assert logs.values(log) == [(1, "a"), (2, "b")]


async def test_a_deadline_that_goes_by_while_all_threads_are_busy(logs: SeveralLogs, held: HeldRunner) -> None:
    """Nothing spins meanwhile; it is met when a thread is free."""
    logs.filthy("busy", 20)
    log = logs.add("t", max_compaction_lag_ms=HOUR_MS)
    logs.data(log, "a=old")
    logs.data(log, "a=new")
    service = await logs.start(backoff_ms=100 * HOUR_MS, new_process_runner=lambda: held)
    await until(lambda: len(held.plans) == 1)
    logs.clock.advance_ms(HOUR_MS + 1)
    looks = 0
    real = service._cycle

    async def count(*, is_settling: bool) -> bool:
        nonlocal looks
        looks += 1
        return await real(is_settling=is_settling)

    service._cycle = count  # type: ignore[method-assign]
    for _ in range(200):
        await asyncio.sleep(0)
    assert looks < 5
    held.go_on.set()
    await until(lambda: logs.values(log) == [(1, "a")])


async def test_kafka_keeps_what_was_written_last(logs: SeveralLogs) -> None:
    """The same in mode kafka: the active segment is out of the cleaner's reach, however long nothing comes."""
    log = logs.add("t", max_compaction_lag_ms=HOUR_MS)
    service = await logs.start(mode=KAFKA)
    logs.data(log, "a=old")
    logs.data(log, "a=new")
    logs.clock.advance_ms(100 * HOUR_MS)
    await service.settled()
    assert logs.values(log) == [(0, "a"), (1, "a")]


# -- requests ----------------------------------------------------------------------------------------------------------


async def test_a_request_cleans_what_is_not_due(logs: SeveralLogs) -> None:
    """The report says what was done, and the checkpoint is on disk by then."""
    log = logs.filthy("t", 20, min_cleanable_dirty_ratio=1.0)
    service = await logs.start()
    await service.settled()
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
    """It is left alone, and the report says why."""
    log = logs.filthy("t", 20, cleanup_policy=frozenset({"delete"}))
    before = logs.values(log)
    service = await logs.start()
    report = await service.request(("t", 0))
    assert (report.result, report.error) == (None, "cleanup.policy is delete, not compact")
    assert logs.values(log) == before
    assert not service.states.uncleanable


async def test_a_request_waits_for_a_round_that_began_before_it(logs: SeveralLogs, held: HeldRunner) -> None:
    """What was written since is cleaned by the round that answers."""
    log = logs.filthy("t", 10)
    service = await logs.start(new_process_runner=lambda: held)
    await until(lambda: len(held.plans) == 1)
    logs.fill(log, 10)
    answer = service.request(("t", 0))
    held.go_on.set()
    report = await answer
    assert report.result is not None
    assert report.result.end_offset == log.active.base_offset
    assert is_clean(logs, log)


async def test_a_request_for_nothing(logs: SeveralLogs, held: HeldRunner) -> None:
    """An unknown partition is refused; one that is deleted meanwhile fails; a stop cancels."""
    log = logs.filthy("t", 10)
    logs.filthy("u", 10, min_cleanable_dirty_ratio=1.0)
    service = await logs.start(new_process_runner=lambda: held)
    with pytest.raises(UnknownPartition):
        service.request(("none", 0))
    await until(lambda: len(held.plans) == 1)
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
    """The round ends, nothing is left of it; a new log of that name begins without a checkpoint and is cleaned."""
    log = logs.filthy("t", 20)
    logs.write_checkpoints(t=1)
    service = await logs.start(new_process_runner=lambda: held)
    await until(lambda: len(held.plans) == 1)
    logs.delete(log)
    new = logs.filthy("t", 10)
    service.forget(new)
    assert service.states.state(("t", 0)) == "aborted"
    held.go_on.set()
    await service.settled()
    assert is_clean(logs, new)
    assert [plan.first_dirty_offset for plan in held.plans] == [1, 0]
    assert not service.states.uncleanable
    assert not [name for name in logs.env.list_dir(new.path) if name.endswith((".cleaned", ".swap"))]


async def test_a_policy_without_compact_ends_the_round(logs: SeveralLogs, held: HeldRunner) -> None:
    """It leaves everything as it was; when the policy comes back the log is cleaned."""
    log = logs.filthy("t", 20)
    before = logs.values(log)
    service = await logs.start(new_process_runner=lambda: held)
    await until(lambda: len(held.plans) == 1)
    logs.change(log, cleanup_policy=frozenset({"delete"}))
    await until(lambda: service.states.state(("t", 0)) == "none")
    await service.settled()
    assert (logs.values(log), logs.cleaned, service.states.checkpoints()) == (before, [], {})
    held.go_on.set()
    logs.change(log, cleanup_policy=frozenset({"compact"}))
    await until(lambda: logs.cleaned == ["t"])


async def test_a_policy_without_compact_during_the_swaps(logs: SeveralLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that were swapped stay, the rest stays as it was, and the checkpoint is not moved: nothing is lost."""
    log = logs.filthy("t", 40)
    logs.change(log, segment_bytes=400)
    lasts = dict(reversed([(key, offset) for offset, key in reversed(logs.values(log))]))
    real = rewrite.clean

    def clean(env: Env, plan: CleanPlan, *, on_output: Any, **rest: Any) -> CleanResult:
        def first_only(output: Any) -> None:
            on_output(output)
            loop.call_soon_threadsafe(logs.change, log, *(), **{"cleanup_policy": frozenset({"delete"})})

        return real(env, plan, on_output=first_only, **rest)

    def call_soon_threadsafe(call: Any, *arguments: Any, **fields: Any) -> None:
        real_loop.call_soon_threadsafe(lambda: call(*arguments, **fields))

    real_loop = asyncio.get_running_loop()
    loop = type("Loop", (), {"call_soon_threadsafe": staticmethod(call_soon_threadsafe)})()
    monkeypatch.setattr("diamant.cleaner.rewrite.clean", clean)
    service = await logs.start()
    await until(lambda: not log.config.is_compacted and service.states.is_free(("t", 0)))
    assert logs.cleaned == []
    assert service.states.checkpoint(("t", 0)) is None
    found = dict(reversed([(key, offset) for offset, key in reversed(logs.values(log))]))
    assert found == lasts
    assert not [name for name in logs.env.list_dir(log.path) if name.endswith((".cleaned", ".swap"))]


async def test_a_pause_waits_for_the_round_to_end(logs: SeveralLogs, held: HeldRunner) -> None:
    """Nothing begins while it lasts; after it the log is cleaned."""
    logs.filthy("t", 20)
    service = await logs.start(new_process_runner=lambda: held)
    await until(lambda: len(held.plans) == 1)
    await service.abort_and_pause(("t", 0))
    assert service.states.state(("t", 0)) == "paused(1)"
    held.go_on.set()
    await service.settled()
    assert len(held.plans) == 1
    service.resume(("t", 0))
    await until(lambda: logs.cleaned == ["t"])


async def test_retention_removes_the_sources_of_a_round(logs: SeveralLogs, held: HeldRunner) -> None:
    """The round fails or ends without what is gone, the log is not blamed, and the next round goes on."""
    log = logs.filthy("t", 20)
    service = await logs.start(new_process_runner=lambda: held)
    await until(lambda: len(held.plans) == 1)
    log.delete_oldest(2)
    held.go_on.set()
    await service.settled()
    assert not service.states.uncleanable
    assert is_clean(logs, log)


async def test_a_log_that_changes_all_the_time_is_not_tried_for_ever(logs: SeveralLogs) -> None:
    """After some rounds that found their log changed it counts as a failure, with its reason."""
    log = logs.filthy("t", 20)

    class Changing(HeldRunner):
        async def run(self, plan: CleanPlan, **rest: Any) -> CleanResult:
            self.plans.append(plan)
            log.segments[1].size -= 1
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", "somewhere.log")

    runner = Changing(logs.env)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diamant.cleaner.cleaner_thread.MAX_INLINE_BYTES", -1)
        service = await logs.start(new_process_runner=lambda: runner)
        await service.settled()
    assert len(runner.plans) == 6
    assert "somewhere.log" in service.states.uncleanable["t", 0].reason


async def test_a_worker_that_was_killed_is_replaced_at_once(logs: SeveralLogs, held: HeldRunner) -> None:
    """Once; if that does not help it is a failure, which the log's next try ends."""
    log = logs.filthy("t", 20)
    deaths = [RunnerFailed("worker 7 was killed by signal 9")] * 3
    run = held.run
    held.go_on.set()

    async def die(plan: CleanPlan, **rest: Any) -> CleanResult:
        if deaths:
            raise deaths.pop()
        return await run(plan, **rest)

    held.run = die  # type: ignore[method-assign]
    service = await logs.start(mode=KAFKA, new_process_runner=lambda: held)
    await service.settled()
    assert len(deaths) == 1
    assert "signal 9" in service.states.uncleanable["t", 0].reason
    logs.clock.advance_ms(RETRY_FIRST_MS)
    await service.settled()
    logs.clock.advance_ms(2 * RETRY_FIRST_MS)
    await service.settled()
    assert is_clean(logs, log)
    assert not service.states.uncleanable


async def test_a_map_that_takes_no_key_is_a_failure(logs: SeveralLogs) -> None:
    """A round that ends where it began would be followed by the same one for ever."""
    logs.filthy("t", 20)
    service = await logs.start(mode=KAFKA, dedupe_buffer_bytes=24)
    await service.settled()
    assert "offset map is too small" in service.states.uncleanable["t", 0].reason
    assert not (await service.request(("t", 0))).is_cleaned


# -- failures ----------------------------------------------------------------------------------------------------------


def corrupt(logs: SeveralLogs, log: Log, segment: int = 0) -> None:
    """Put bytes in a segment that are no batch."""
    logs.env.open(log.segments[segment].path).pwrite(b"\x00" * 17, 0)


async def test_in_mode_kafka_a_corrupt_log_is_left_alone_for_good(logs: SeveralLogs) -> None:
    """testMarksPartitionsAsOffline…: others are cleaned; its reason and bytes are shown; its deletion ends that."""
    broken, _ = logs.filthy("broken", 20), logs.filthy("fine", 10)
    corrupt(logs, broken)
    service = await logs.start(mode=KAFKA)
    await service.settled()
    logs.clock.advance_ms(100 * HOUR_MS)
    logs.change(broken, delete_retention_ms=1)
    await service.settled()
    assert logs.cleaned == ["fine"]
    status = service.status()
    assert status.uncleanable_partitions_count == 1
    assert status.uncleanable_bytes == sum(segment.size for segment in broken.segments[:-1])
    assert [one.topic for one in status.partitions if one.uncleanable_reason] == ["broken"]
    assert "00000000000000000000.log" in str(status.partitions[0].uncleanable_reason)
    logs.delete(broken)
    assert service.status().uncleanable_partitions_count == 0


async def test_in_mode_prompt_a_corrupt_segment_is_left_out(logs: SeveralLogs) -> None:
    """The segments before and after it are cleaned, it is shown, its records stay; repaired, it is cleaned with the rest."""
    log = logs.add("t", **ONCE)
    for start in range(3):
        logs.fill(log, 10, keys=3)
        if start == 1:
            bad = log.segments[-3]
    path, good = bad.path, logs.env.read_bytes(bad.path)
    middle = len(good) // 2
    logs.env.open(path).pwrite(b"\xff" * 4, middle)
    last = {key: offset for offset, key in [(offset, f"k{offset % 10 % 3}") for offset in range(30)]}
    service = await logs.start()
    await service.settled()
    assert not service.states.uncleanable
    (shown,) = service.status().partitions[0].quarantined
    assert shown.startswith(f"segment {bad.base_offset}, position")
    assert logs.env.read_bytes(path)[: len(good)] == good[:middle] + b"\xff" * 4 + good[middle + 4 :]
    assert logs.checkpoints["t", 0] <= bad.base_offset
    assert len(log.segments) < 8
    logs.clock.advance_ms(1)
    logs.env.remove(path)
    logs.env.write_atomically(path, good)
    bad.close()
    await service.settled()
    assert service.status().partitions[0].quarantined == ()
    assert sorted(logs.values(log)) == sorted((offset, key) for key, offset in last.items())
    assert logs.checkpoints["t", 0] == log.active.base_offset


async def test_a_segment_without_a_readable_beginning_is_left_out(logs: SeveralLogs) -> None:
    """Not even the age of it can be told."""
    log = logs.filthy("t", 20, max_compaction_lag_ms=HOUR_MS)
    corrupt(logs, log, 1)
    for segment in log.segments:
        segment.close()
        segment._first_timestamp = None
    service = await logs.start()
    await service.settled()
    assert not service.states.uncleanable
    assert len(service.status().partitions[0].quarantined) == 1
    assert logs.cleaned


# -- what expires ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "is_left"), [(KAFKA, True), (PROMPT, False)])
async def test_a_tombstone_goes_when_its_time_is_over(logs: SeveralLogs, mode: str, is_left: bool) -> None:
    """In mode prompt a round comes for it, without traffic; in Kafka it stays until something else makes a round due."""
    log = logs.add("t", delete_retention_ms=HOUR_MS, **ONCE)
    logs.data(log, "a=1")
    logs.data(log, "a=")
    logs.data(log, "b=1")
    log.roll()
    service = await logs.start(mode=mode, backoff_ms=100 * HOUR_MS)
    await service.settled()
    assert [key for _, key in logs.values(log)] == ["a", "b"]
    logs.clock.advance_ms(HOUR_MS - 1)
    await service.settled()
    assert [key for _, key in logs.values(log)] == ["a", "b"]
    end = logs.checkpoints["t", 0]
    logs.clock.advance_ms(1)
    if is_left:
        await service.settled()
    else:
        await until(lambda: [key for _, key in logs.values(log)] == ["b"])
        await service.settled()
    assert ([key for _, key in logs.values(log)] == ["a", "b"]) is is_left
    assert logs.checkpoints["t", 0] == end


async def test_markers_of_empty_transactions_go_without_traffic(logs: SeveralLogs) -> None:
    """One round gives the marker its time, one later removes it (mode prompt)."""
    log = logs.add("t", delete_retention_ms=HOUR_MS, **ONCE)
    logs.data(log, "a=1", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    logs.marker(log, 1, is_commit=True)
    logs.data(log, "a=2")
    logs.data(log, "b=2", producer_id=1, producer_epoch=0, base_sequence=1)
    log.roll()
    service = await logs.start()
    await service.settled()
    before = log.size
    logs.clock.advance_ms(HOUR_MS)
    await service.settled()
    assert log.size < before
    assert [key for _, key in logs.values(log)] == ["a", "b"]
    assert service.status().partitions[0].records_removed.get("marker") == 1


async def test_a_full_disk_is_tried_again(logs: SeveralLogs) -> None:
    """Nothing is lost; after the wait, or once room is made and a configuration changed, the log is cleaned."""
    log = logs.filthy("t", 20)
    before = logs.values(log)
    fault = logs.env.fail("append", "*.cleaned", OSError(errno.ENOSPC, "No space left on device"))
    service = await logs.start()
    await service.settled()
    assert logs.values(log) == before
    assert "No space left" in service.states.uncleanable["t", 0].reason
    assert not [name for name in logs.env.list_dir(log.path) if name.endswith(".cleaned")]
    fault.clear()
    await service.settled()
    assert logs.cleaned == []
    logs.clock.advance_ms(RETRY_FIRST_MS)
    await until(lambda: logs.cleaned == ["t"])
    assert not service.states.uncleanable
    assert is_clean(logs, log)


async def test_a_changed_configuration_brings_the_next_try_at_once_in_mode_prompt(logs: SeveralLogs) -> None:
    """As soon as the user has done something about it."""
    log = logs.filthy("t", 20)
    fault = logs.env.fail("append", "*.cleaned", OSError(errno.ENOSPC, "No space left on device"))
    service = await logs.start()
    await service.settled()
    fault.clear()
    logs.change(log, delete_retention_ms=5)
    await until(lambda: logs.cleaned == ["t"])


@pytest.mark.parametrize(("mode", "is_deleted"), [(KAFKA, False), (PROMPT, True)])
async def test_retention_goes_on_where_cleaning_fails_in_mode_prompt(
    logs: SeveralLogs, mode: str, is_deleted: bool
) -> None:
    """Kafka applies it no more to a partition that is uncleanable."""
    log = logs.filthy("t", 20, cleanup_policy=frozenset({"compact", "delete"}), retention_ms=HOUR_MS)
    logs.env.fail("append", "*.cleaned", OSError(errno.EIO, "Input/output error"))
    service = await logs.start(mode=mode)
    await service.settled()
    assert service.states.uncleanable
    logs.clock.advance_ms(HOUR_MS + 1)
    # In mode kafka a failure of the disk is tried again after the wait as well, and fails again.
    await service.settled()
    assert (log.log_start_offset == log.log_end_offset) is is_deleted


async def test_an_unexpected_error_is_a_failure_of_its_round_only(
    logs: SeveralLogs, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in an engine is logged with its traceback; other logs are cleaned."""
    real = rewrite.clean

    def clean(env: Env, plan: CleanPlan, **rest: Any) -> CleanResult:
        if plan.topic == "bad":
            raise ZeroDivisionError("a bug")
        return real(env, plan, **rest)

    monkeypatch.setattr("diamant.cleaner.rewrite.clean", clean)
    logs.filthy("bad", 30)
    logs.filthy("good", 20)
    with caplog.at_level(logging.WARNING):
        service = await logs.start()
        await service.settled()
    assert logs.cleaned == ["good"]
    assert "a bug" in service.states.uncleanable["bad", 0].reason
    assert any(record.exc_info for record in caplog.records)


async def test_a_look_that_fails_does_not_end_the_cleaner(logs: SeveralLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one comes after the backoff."""
    logs.filthy("t", 20)
    service = await logs.start(mode=KAFKA, backoff_ms=1000)
    real, failures = service._due.next, []

    async def fail() -> Log | None:
        if not failures:
            failures.append(1)
            raise RuntimeError("a bug")
        return await real()

    monkeypatch.setattr(service._due, "next", fail)
    await until(lambda: bool(failures))
    logs.clock.advance_ms(1000)
    await until(lambda: logs.cleaned == ["t"])
    assert service.status().dead_thread_count == 0


# -- checkpoints -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
async def test_the_key_of_hashes_is_kept(logs: SeveralLogs, held: HeldRunner, mode: str) -> None:
    """In mode prompt it is the same after a restart, for filters on disk; Kafka's directory holds nothing of ours."""
    logs.filthy("t", 20)
    for count in (1, 2):
        held.is_closed = False
        await logs.start(mode=mode, new_process_runner=lambda: held)
        await until(lambda count=count: len(held.plans) == count)  # type: ignore[misc]
        await logs.stop()
    keys = {plan.hash_key for plan in held.plans}
    assert len(keys) == (1 if mode == PROMPT else 2)
    assert logs.env.exists("/data/diamant-hash-key") is (mode == PROMPT)


async def test_a_restart_goes_on_at_the_checkpoint(logs: SeveralLogs) -> None:
    """Entries of partitions that are no more are dropped with the next write."""
    log = logs.filthy("t", 20)
    logs.write_checkpoints(gone=7)
    await logs.start()
    assert logs.service is not None
    await logs.service.settled()
    first_end = log.active.base_offset
    await logs.stop()
    assert logs.checkpoints == {("t", 0): first_end}
    logs.fill(log, 5)
    service = await logs.start()
    report = await service.request(("t", 0))
    if report.range is not None and report.result is not None:
        assert report.range.first_dirty_offset == first_end
    await service.settled()
    assert logs.checkpoints == {("t", 0): log.active.base_offset}


async def test_a_deleted_log_leaves_the_checkpoint_file_soon(logs: SeveralLogs) -> None:
    """Without waiting for the next look: after a crash a new log of that name would be taken for clean."""
    log = logs.filthy("t", 20)
    service = await logs.start(backoff_ms=HOUR_MS)
    await service.settled()
    assert list(logs.checkpoints) == [("t", 0)]
    logs.delete(log)
    await until(lambda: logs.checkpoints == {})


async def test_a_broken_checkpoint_file_counts_as_empty(logs: SeveralLogs) -> None:
    """Everything is cleaned once more."""
    log = logs.filthy("t", 20)
    logs.env.write_atomically(CHECKPOINT, b"0\nmany\n")
    service = await logs.start()
    await service.settled()
    assert logs.checkpoints == {("t", 0): log.active.base_offset}


async def test_a_checkpoint_that_cannot_be_written_is_written_later(logs: SeveralLogs) -> None:
    """The round counts nevertheless: without the entry the next start would only clean too much."""
    logs.filthy("t", 20)
    fault = logs.env.fail("create", f"{CHECKPOINT}*", OSError(errno.ENOSPC, "No space left on device"))
    service = await logs.start()
    await service.settled()
    assert logs.cleaned == ["t"]
    assert logs.checkpoints == {}
    fault.clear()
    await service.settled()
    assert list(logs.checkpoints) == [("t", 0)]


async def test_a_stop_ends_a_round_and_loses_nothing(logs: SeveralLogs, held: HeldRunner) -> None:
    """The log is as it was; stopping twice is harmless; the next start cleans it."""
    log = logs.filthy("t", 20)
    before = logs.values(log)
    service = await logs.start(new_process_runner=lambda: held)
    await until(lambda: len(held.plans) == 1)
    await logs.stop()
    await service.stop()
    assert (logs.values(log), logs.checkpoints) == (before, {})
    service = await logs.start()
    await service.settled()
    assert is_clean(logs, log)


async def test_the_lost_checkpoint_of_a_crash_costs_a_round_only(logs: SeveralLogs) -> None:
    """Cleaning the same range again changes nothing."""
    log = logs.filthy("t", 20)
    service = await logs.start()
    await service.settled()
    after = logs.values(log)
    await logs.stop()
    logs.write_checkpoints()
    service = await logs.start()
    await service.request(("t", 0))
    assert logs.values(log) == after


# -- retention ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "deleted"), [({"delete"}, False), ({"compact", "delete"}, True), ({"compact"}, False), (set(), False)]
)
@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
async def test_retention_of_compacted_logs(logs: SeveralLogs, mode: str, policy: set[str], deleted: bool) -> None:
    """testLogsWithSegmentsToDelete…: logs of policy delete are another's business, compact alone keeps what is old."""
    log = logs.filthy("t", 20, cleanup_policy=frozenset(policy), retention_ms=HOUR_MS)
    service = await logs.start(mode=mode)
    logs.clock.advance_ms(HOUR_MS + 1)
    await service.settled()
    assert (log.log_start_offset == log.log_end_offset) is deleted


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
async def test_segments_below_the_log_start_go(logs: SeveralLogs, mode: str) -> None:
    """Whatever the policy (KAFKA-7400)."""
    log = logs.filthy("t", 20, min_cleanable_dirty_ratio=1.0)
    log.delete_records(12)
    service = await logs.start(mode=mode)
    await service.settled()
    assert log.segments[0].base_offset == 11


@pytest.mark.parametrize(("mode", "is_deleted"), [(KAFKA, False), (PROMPT, True)])
async def test_retention_without_the_cleaner(logs: SeveralLogs, mode: str, is_deleted: bool) -> None:
    """In Kafka a compact,delete log grows for ever then; mode prompt goes on deleting."""
    log = logs.filthy("t", 20, cleanup_policy=frozenset({"compact", "delete"}), retention_ms=HOUR_MS)
    service = await logs.start(mode=mode, is_enabled=False)
    logs.clock.advance_ms(HOUR_MS + 1)
    await service.settled()
    assert (log.log_start_offset == log.log_end_offset) is is_deleted


async def test_a_log_is_compacted_first_and_deleted_later(logs: SeveralLogs) -> None:
    """TestCleansCombinedCompactAndDeleteTopic."""
    policy = frozenset({"compact", "delete"})
    log = logs.filthy("t", 20, cleanup_policy=policy, retention_ms=100_000)
    service = await logs.start(mode=KAFKA)
    await service.settled()
    assert [offset for offset, _ in logs.values(log)] == [17, 18, 19]
    logs.clock.advance_ms(200_000)
    await service.settled()
    assert (log.log_start_offset, len(log.segments)) == (20, 1)
    logs.fill(log, 20)
    await service.settled()
    assert [offset for offset, _ in logs.values(log)] == [37, 38, 39]


async def test_a_log_paused_by_another_is_neither_cleaned_nor_deleted(logs: SeveralLogs) -> None:
    """testLogsUnderCleanupIneligibleForCompaction: once it is resumed it is."""
    log = logs.filthy("t", 20, cleanup_policy=frozenset({"delete"}), retention_ms=HOUR_MS, **{})
    service = await logs.start()
    await service.abort_and_pause(("t", 0))
    logs.change(log, cleanup_policy=frozenset({"compact", "delete"}), min_cleanable_dirty_ratio=0.0)
    logs.clock.advance_ms(HOUR_MS + 1)
    await service.settled()
    assert (logs.cleaned, log.log_start_offset) == ([], 0)
    service.resume(("t", 0))
    await service.settled()
    assert log.log_start_offset == log.log_end_offset


# -- what is told ------------------------------------------------------------------------------------------------------


async def test_status(logs: SeveralLogs) -> None:
    """The gauges of Kafka, and per partition what was removed and by whom."""
    logs.filthy("t", 20)
    logs.filthy("deleted", 20, cleanup_policy=frozenset({"delete"}))
    service = await logs.start(mode=KAFKA)
    await service.settled()
    logs.clock.advance_ms(5_000)
    status = service.status()
    assert [one.topic for one in status.partitions] == ["t"]
    found = status.partitions[0]
    assert found.records_removed == {"superseded": 17}
    assert (found.rounds, found.last_cleaned_ms, found.dirty_ratio) == ({"inline": 1}, START_MS, 0.0)
    assert 0 < status.cleaner_recopy_percent < 50
    assert (status.time_since_last_run_ms, status.uncleanable_partitions_count) == (5_000, 0)
    assert status.io_bytes_total > 0


async def test_overdue_is_shown(logs: SeveralLogs) -> None:
    """A log that is not cleaned although its lag is over shows for how long."""
    log = logs.filthy("t", 20, max_compaction_lag_ms=HOUR_MS)
    logs.env.fail("append", "*.cleaned", OSError(errno.EIO, "Input/output error"))
    service = await logs.start(mode=KAFKA)
    logs.clock.advance_ms(HOUR_MS + 10_000)
    await service.settled()
    logs.clock.advance_ms(2_000)
    found = service.status().partitions[0]
    assert found.overdue_ms == found.compaction_lag_ms == 12_000
    assert log.config.max_compaction_lag_ms == HOUR_MS


async def test_the_summary_of_a_round_is_logged(logs: SeveralLogs, caplog: pytest.LogCaptureFixture) -> None:
    """Kafka's figures, with the partition and the dirty section."""
    logs.filthy("t", 20)
    with caplog.at_level(logging.INFO):
        service = await logs.start()
        await service.settled()
    assert any("t-0: cleaned by inline" in record.getMessage() for record in caplog.records)


async def test_a_full_map_takes_several_rounds_in_mode_kafka(
    logs: SeveralLogs, caplog: pytest.LogCaptureFixture
) -> None:
    """Each ends where the map was full, and is followed by the next at once."""
    log = logs.add("t", **ONCE)
    logs.fill(log, 40, keys=20)
    with caplog.at_level(logging.INFO):
        service = await logs.start(mode=KAFKA, dedupe_buffer_bytes=24 * 10, load_factor=0.9)
        await service.settled()
    assert len(logs.cleaned) > 2
    assert any("offset map is full" in record.getMessage() for record in caplog.records)
    assert logs.checkpoints == {("t", 0): log.active.base_offset}


# -- workers -----------------------------------------------------------------------------------------------------------


class WarmRunner(HeldRunner):
    """A runner with a worker."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.progress_bytes = 0
        self.worker_pid: int | None = None
        self.warm_ups = 0
        self.go_on.set()

    async def warm_up(self) -> str:
        """Count."""
        self.warm_ups += 1
        return "compiled"


@pytest.mark.parametrize("is_cached", [True, False])
async def test_a_worker_is_warmed_up_when_traffic_begins(
    logs: SeveralLogs, monkeypatch: pytest.MonkeyPatch, is_cached: bool
) -> None:
    """Once, and only for logs that are too large for a thread of the broker; another one compiles first if need be."""
    monkeypatch.setattr("diamant.cleaner.kernel_cache.is_cached", lambda: is_cached)
    log = logs.add("t")
    runners: list[WarmRunner] = []

    def new() -> WarmRunner:
        runners.append(WarmRunner(logs.env))
        return runners[-1]

    service = await logs.start(new_process_runner=new)
    logs.data(log, "k=v")
    service.saw_append(log)
    await service.settled()
    assert runners == []
    logs.data(log, "k=" + "v" * MAX_INLINE_BYTES)
    for _ in range(3):
        service.saw_append(log)
        await asyncio.sleep(0)
    await until(lambda: sum(runner.warm_ups for runner in runners) == (1 if is_cached else 2))
    assert [runner.is_closed for runner in runners] == ([False] if is_cached else [True, False])


async def test_large_plans_are_for_the_worker(logs: SeveralLogs) -> None:
    """Up to the limit a thread of the broker does it."""
    runner = WarmRunner(logs.env)
    log = logs.filthy("small", 10)
    large = logs.add("large", **ONCE)
    logs.fill(large, 6, size=MAX_INLINE_BYTES // 4)
    service = await logs.start(new_process_runner=lambda: runner)
    await service.settled()
    assert [plan.topic for plan in runner.plans] == ["large"]
    assert is_clean(logs, log)
    assert is_clean(logs, large)


async def test_a_round_that_is_told_to_stop_is_no_failure(logs: SeveralLogs, held: HeldRunner) -> None:
    """An abort leaves the partition cleanable."""
    logs.filthy("t", 20)
    service = await logs.start(new_process_runner=lambda: held)
    await until(lambda: len(held.plans) == 1)
    answer = service.request(("t", 0))
    service.states.abort(("t", 0))
    held.go_on.set()
    report = await answer
    assert report.error is None or "aborted" in report.error
    assert not service.states.uncleanable


async def test_many_logs_let_others_have_their_turn(logs: SeveralLogs) -> None:
    """A look at all of them is cut into pieces."""
    for partition in range(600):
        logs.add("t", partition)
    service = await logs.start(mode=KAFKA)
    turns = 0
    settled = asyncio.ensure_future(service.settled())
    while not settled.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 5


def test_settings_have_kafkas_defaults() -> None:
    """For those who use the service without a broker."""
    settings = ServiceSettings().for_rounds(bytes(16))
    assert settings.map_max_entries == int(134_217_728 // 24 * 0.9)
    assert settings.io_buffer_bytes == 262_144
    assert issubclass(CleaningAborted, Exception)
    assert LogConfig().is_compacted is False
    assert CleanerService.__doc__
