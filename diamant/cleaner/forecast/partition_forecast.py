"""Forecasts what the cleaner would do with a partition under other settings: `diamant log whatif` without the printing.

The files are not touched. The broker's own code cleans, closes segments and applies retention in an overlay
(`storage.env.overlay`), with a clock that moves from one event to the next. So a forecast is not an estimate: it is exact if its
assumptions hold:

* No record arrives, no transaction ends, no records are deleted and no configuration changes.
* A broker started at `now_ms`, and checks the partition all the time (a real broker: every `log.cleaner.backoff.ms`). It always
  has a free thread, and rounds take no time.
* If `Scenario.is_laid_out_anew`, the segments are made by `lay_out_anew` as if the settings had applied from the beginning.
  Otherwise the segments stay, and the settings apply from now on. Removed records do not come back.
* In mode prompt, a round writes all segments, even unchanged ones. A real broker leaves unchanged segments alone, so it may have
  more segments with the same batches. No segment is in quarantine.

The plain engine runs each round up to `MAX_PLAIN_BYTES`; larger rounds run in the compiled engine, which writes the same bytes.

    states = OverlayStates(env, partition, checkpoint, now_ms, scratch_env, scratch_directory)
    for scenario in scenarios: forecast(states, scenario)

A step that several scenarios share runs once if its result is still kept (`OverlayStates.max_kept_bytes`).

Memory: that of one engine (`plain_round` with `MAX_PLAIN_BYTES` of log, or `compiled` with the scenario's map), and
`max_key_bytes` for counting keys. Disk space in the scratch directory: the input and output of a round, at most twice the size of
the partition; as much again for a new layout; and the kept results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from diamant.cleaner.engines import plain_round
from diamant.cleaner.facts.facts_file import read_facts
from diamant.cleaner.facts.partition_facts import PartitionFacts, horizon_round_end
from diamant.cleaner.forecast.forecast import (
    BY_HORIZON,
    BY_RETENTION,
    BY_SEGMENT_MS,
    CLEAN,
    DELETE,
    ROLL,
    WAITS_FOR_APPEND,
    WAITS_FOR_POLICY,
    WAITS_FOR_RATIO,
    WAITS_FOR_ROUND,
    WAITS_FOR_TIME,
    WAITS_FOR_TRANSACTION,
    Contents,
    Event,
    Forecast,
    Scenario,
)
from diamant.cleaner.forecast.overlay_states import OverlayStates, State, next_key
from diamant.cleaner.offline.offline_clean import swap_into
from diamant.cleaner.rules import time_based_roll
from diamant.cleaner.rules.eligibility import (
    BY_LAG,
    BY_RATIO,
    CleanableRange,
    cleanable_range,
    is_candidate,
    old_enough_ms,
)
from diamant.cleaner.rules.modes import KAFKA
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.plan_of_log import make_plan
from diamant.cleaner.rules.result import CleanResult, OutputOverflow
from diamant.cleaner.rules.retention import deletable_segments
from diamant.cleaner.runners.best_engine import best_engine
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.errors import CorruptBatch
from diamant.storage.config_key import LONG_MAX
from diamant.storage.env.overlay import OverlayEnv
from diamant.storage.errors import CorruptLog
from diamant.storage.log.log import Log
from diamant.storage.log.segment_removal import delete_oldest
from diamant.storage.segments.segment import scan_headers

MAX_PLAIN_BYTES = 16 * 1024 * 1024
"""Larger rounds use the compiled engine, which takes a second to load, and longer on its first use on a machine."""
MAX_STEPS = 1000
"""Maximum number of events in one forecast."""
_FAR_MS = 1 << 60
"""Times from here on count as never; this is some 36 million years after 1970."""


def engine_for(size: int) -> Callable[..., CleanResult]:
    """Return the `clean` function of the engine for a round over `size` bytes of log."""
    return plain_round.clean if size <= MAX_PLAIN_BYTES else best_engine()


def forecast(
    states: OverlayStates,
    scenario: Scenario,
    until_ms: int | None = None,
    engine_for: Callable[[int], Callable[..., CleanResult]] = engine_for,
) -> Forecast:
    """Return the forecast from `states.now_ms` up to `until_ms`.

    A failed round ends the forecast, which has the reason but none of the groups of segments that the round had finished. Raises
    CorruptLog and similar errors if the partition cannot be opened, StorageError if the scratch directory is full.
    """
    return _Course(states, scenario, until_ms, engine_for).run(states.beginning(scenario))


class _Course:
    """The course of one scenario from `now_ms` on."""

    def __init__(
        self,
        states: OverlayStates,
        scenario: Scenario,
        until_ms: int | None,
        engine_for: Callable[[int], Callable[..., CleanResult]],
    ) -> None:
        self._engine_for = engine_for
        self.states = states
        self.scenario = scenario
        self.until_ms = _FAR_MS if until_ms is None else until_ms
        self.is_prompt = scenario.cleaner.mode != KAFKA
        self.ages = time_based_roll.ages_in(scenario.cleaner.mode)
        self.facts = PartitionFacts()
        self.events: list[Event] = []
        self.is_cut = False
        """True if there are events after `until_ms`."""

    def run(self, first: State) -> Forecast:
        states, scenario = self.states, self.scenario
        before = states.count(first, scenario)
        with self._opened(first) as log:
            cleanable = self._look(log, first.checkpoint, states.now_ms)
            rolls_ms, overdue_ms = self._rolls_ms(log), self._overdue_ms(log, cleanable.first_dirty_offset)
        last, failure = self._go(first)
        after = states.count(last, scenario)
        with self._opened(last) as log:
            expire_ms = max(_horizons(log), default=None)
            waits_for = () if failure else tuple(self._reasons(log, last, after, expire_ms))
        return Forecast(
            settings=scenario.settings,
            before=before,
            events=tuple(self.events),
            after=after,
            dirty_ratio=cleanable.dirty_ratio,
            rolls_ms=rolls_ms,
            overdue_ms=overdue_ms,
            cleaned_ms=next((event.at_ms for event in self.events if event.kind == CLEAN), None),
            tombstones_expire_ms=expire_ms,
            waits_for=waits_for,
            failure=failure,
        )

    @contextmanager
    def _opened(self, state: State) -> Iterator[Log]:
        """Open the log of a state for reading, as of the clock's time."""
        log, _ = self.states.load(state, self.scenario)
        try:
            yield log
        finally:
            log.close()

    def _go(self, state: State) -> tuple[State, str | None]:
        """Run all steps. Return the last state, and the reason why the forecast ends early, or None if it does not."""
        try:
            for _ in range(MAX_STEPS):
                following = self._step(state)
                if following is None:
                    return state, None
                state = following
        except (CorruptLog, OutputOverflow) as error:
            return state, str(error)
        return state, f"after {MAX_STEPS} steps the forecast is not complete"

    # -- events --------------------------------------------------------------------------------------------------

    def _step(self, state: State) -> State | None:
        """Move the clock to the next event and carry it out. Return the new state; None if there is no event up to `until_ms`."""
        clock = self.states.clock
        log, env = self.states.load(state, self.scenario)
        try:
            self._learn(log, state.checkpoint)
            at_ms = next(
                (moment for moment in self._moments(log, state.checkpoint) if self._is_due(log, state, moment)), None
            )
            if at_ms is None or at_ms > self.until_ms:
                self.is_cut = at_ms is not None
                return None
            if at_ms > clock.now_ms():
                # The log is reopened at that time, since producers may have expired by then.
                log.close()
                clock.set_ms(at_ms)
                log, env = self.states.load(replace(state, env=env), self.scenario)
                self._learn(log, state.checkpoint)
            following, event = self._act(log, env, state, at_ms)
        finally:
            log.close()
        size, segments = following.extent(log.path)
        self.events.append(replace(event, bytes=size, segments=segments))
        return following

    def _moments(self, log: Log, checkpoint: int | None) -> list[int]:
        """Return all known times from now on at which something may become due, ascending."""
        now_ms, config = self.states.clock.now_ms(), log.config
        first_dirty = self._look(log, checkpoint, now_ms).first_dirty_offset
        times: set[int | None] = {now_ms}
        for segment in log.segments:
            # The age of an empty segment counts, too, because retention stops at the first segment that is too young.
            if config.is_deleted and config.retention_ms >= 0:
                times.add(segment.largest_timestamp + config.retention_ms + 1)
            times.add(old_enough_ms(segment, config, self.ages))
            if config.max_compaction_lag_ms < LONG_MAX and segment.size:
                times.add(segment.first_timestamp + config.max_compaction_lag_ms + 1)
                if self.is_prompt:
                    appended_ms = time_based_roll.first_append_ms(log, segment, now_ms)
                    times.add(appended_ms + config.max_compaction_lag_ms + 1)
        if self.is_prompt:
            times.add(time_based_roll.roll_due_ms(log, now_ms))
            times.add(self.facts.next_horizon_ms(log, first_dirty))
        return sorted(time for time in times if time is not None and now_ms <= time < _FAR_MS)

    def _is_due(self, log: Log, state: State, at_ms: int) -> bool:
        return (
            self._must_roll(log, at_ms)
            or self._is_round_due(log, self._look(log, state.checkpoint, at_ms))
            or self._is_horizon_over(log, state.checkpoint, at_ms)
            or deletable_segments(log, at_ms) > 0
        )

    def _act(self, log: Log, env: OverlayEnv, state: State, at_ms: int) -> tuple[State, Event]:
        """Do the first thing that is due, in the order of the cleaner's loop. The caller must fill in the event's sizes."""
        if self._must_roll(log, at_ms):
            log.roll()
            key = next_key(state.key, ROLL, at_ms, log.log_end_offset, self.scenario.producer_expiration_ms)
            return replace(state, env=env, key=key), Event(ROLL, at_ms, _roll_reason(log), log.log_end_offset)
        cleanable = self._look(log, state.checkpoint, at_ms)
        if self._is_round_due(log, cleanable) and not self._is_retention_first(log, at_ms):
            plan = self._plan(log, cleanable.first_dirty_offset, cleanable.first_uncleanable_offset, at_ms)
            state, result = self._round(log, env, state, plan)
            because = BY_RATIO if cleanable.dirty_ratio > cleanable.min_dirty_ratio else BY_LAG
            event = Event(CLEAN, at_ms, because, result.end_offset, dict(sorted(result.stats.removed.items())))
            return replace(state, checkpoint=result.end_offset), event
        if self._is_horizon_over(log, state.checkpoint, at_ms):
            end = horizon_round_end(log, cleanable.first_dirty_offset)
            plan = self.facts.without_untouched(self._plan(log, end, end, at_ms))
            state, result = self._round(log, env, state, plan)
            removed = dict(sorted(result.stats.removed.items()))
            return state, Event(CLEAN, at_ms, BY_HORIZON, cleanable.first_dirty_offset, removed)
        delete_oldest(log, deletable_segments(log, at_ms))
        start = log.log_start_offset
        key = next_key(state.key, DELETE, at_ms, start)
        return replace(state, env=env, key=key, log_start_offset=start), Event(DELETE, at_ms, BY_RETENTION, start)

    def _is_retention_first(self, log: Log, at_ms: int) -> bool:
        """Tell whether retention comes before the next round, as in Kafka, which applies it after each round."""
        last = self.events[-1] if self.events else None
        after_round = last is not None and last.kind == CLEAN and last.at_ms == at_ms
        return not self.is_prompt and after_round and deletable_segments(log, at_ms) > 0

    def _must_roll(self, log: Log, at_ms: int) -> bool:
        return self.is_prompt and time_based_roll.should_roll(log, at_ms)

    def _look(self, log: Log, checkpoint: int | None, at_ms: int) -> CleanableRange:
        return cleanable_range(log, checkpoint, at_ms, ages=self.ages)

    def _is_round_due(self, log: Log, found: CleanableRange) -> bool:
        return is_candidate(log, found) and found.is_eligible and found.cleanable_bytes > 0

    def _is_horizon_over(self, log: Log, checkpoint: int | None, at_ms: int) -> bool:
        if not self.is_prompt or not log.config.is_compacted:
            return False
        first_dirty = cleanable_range(log, checkpoint, at_ms).first_dirty_offset
        due_ms = self.facts.next_horizon_ms(log, first_dirty)
        return due_ms is not None and due_ms <= at_ms

    def _learn(self, log: Log, checkpoint: int | None) -> None:
        if not self.is_prompt or not log.config.is_compacted:
            return
        first_dirty = cleanable_range(log, checkpoint, self.states.clock.now_ms()).first_dirty_offset
        for base_offset, size in self.facts.unknown(log, first_dirty):
            self.facts.add(log, read_facts(log.env, log.path, base_offset, size))

    def _plan(self, log: Log, start: int, end: int, at_ms: int) -> CleanPlan:
        if self.is_prompt:
            self.facts.note_round(log, start, at_ms)
        # No other process hashes these keys, and equal plans must be identical, so the hash key is constant.
        return make_plan(log, start, end, at_ms, replace(self.scenario.cleaner, hash_key=bytes(16)))

    def _round(self, log: Log, env: OverlayEnv, state: State, plan: CleanPlan) -> tuple[State, CleanResult]:
        states = self.states
        key = next_key(state.key, CLEAN, plan.to_json())
        kept = states.kept(key)
        if kept is not None and kept[1] is not None:
            return kept[0], kept[1]
        size = sum(segment.size for segment in plan.segments)
        states.demand_space(env, size)
        result = self._engine_for(size)(env, plan, on_output=swap_into(log, plan), throttle=states.advance)
        following = replace(state, env=env, key=key)
        states.keep(key, following, result, sum(output.size for output in result.outputs))
        return following, result

    # -- results -------------------------------------------------------------------------------------------------

    def _rolls_ms(self, log: Log) -> int | None:
        """Return the time at which the active segment is closed, by itself or, in mode kafka, by an append."""
        now_ms = self.states.now_ms
        if self.is_prompt and log.config.is_compacted:
            due_ms = time_based_roll.roll_due_ms(log, now_ms)
            return None if due_ms is None else max(due_ms, now_ms)
        active, limit_ms = log.active, log.config.max_segment_ms
        if not active.size or active.first_timestamp < 0 or limit_ms >= _FAR_MS:
            return None
        return active.first_timestamp + limit_ms + 1

    def _overdue_ms(self, log: Log, first_dirty: int) -> int | None:
        """Return the time of the first round that `max.compaction.lag.ms` requires for segments that are or will be closed."""
        limit_ms = log.config.max_compaction_lag_ms
        if limit_ms >= _FAR_MS or not log.config.is_compacted:
            return None
        now_ms = self.states.now_ms
        times = []
        for segment, following in zip(log.segments, [*log.segments[1:], None], strict=True):
            if not segment.size or (following is not None and following.base_offset <= first_dirty):
                continue
            if following is not None and segment.first_timestamp > 0:
                times.append(segment.first_timestamp)
            if self.is_prompt:
                times.append(time_based_roll.first_append_ms(log, segment, now_ms))
        return min(times) + limit_ms + 1 if times else None

    def _reasons(self, log: Log, state: State, after: Contents, expire_ms: int | None) -> Iterator[str]:
        """Yield the reasons why removable records are still in the log although nothing is due."""
        kinds = after.kinds
        if not (kinds.superseded or kinds.aborted or kinds.keyless or kinds.tombstones):
            if kinds.undecided and log.config.is_compacted:
                yield WAITS_FOR_TRANSACTION
            return
        if not log.config.is_compacted:
            yield WAITS_FOR_POLICY
            return
        cleanable = self._look(log, state.checkpoint, self.states.clock.now_ms())
        bound = min(log.last_stable_offset, log.active.base_offset)
        if log.last_stable_offset < log.log_end_offset:
            yield WAITS_FOR_TRANSACTION
        if cleanable.cleanable_bytes and not cleanable.is_eligible:
            yield WAITS_FOR_RATIO
        if (
            self.is_cut
            or log.segments[max(0, log.floor_segment(bound))].base_offset > cleanable.first_uncleanable_offset
        ):
            yield WAITS_FOR_TIME
        if log.active.size and (not self.is_prompt or self._rolls_ms(log) is None):
            yield WAITS_FOR_APPEND
        if not self.is_prompt and expire_ms is not None:
            yield WAITS_FOR_ROUND


def _roll_reason(log: Log) -> str:
    return BY_LAG if log.config.max_compaction_lag_ms < log.config.segment_ms else BY_SEGMENT_MS


def _horizons(log: Log) -> Iterator[int]:
    """Yield the delete horizons of batches with tombstones."""
    for segment in log.segments:
        for position, header in scan_headers(segment.file, 0, segment.size):
            if not header.has_delete_horizon or header.is_control or not header.record_count:
                continue
            with suppress(CorruptBatch):
                if any(record.value is None for record in iter_records(segment.file.pread(header.size, position))):
                    yield header.base_timestamp
