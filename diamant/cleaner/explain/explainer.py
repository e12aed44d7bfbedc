"""Explains why a record is still in a log, when it is removed, and what would remove it now.

This module has no rules of its own. All times and sizes come from the rules of the cleaner (`eligibility`, `time_based_roll`,
`retention`, by way of `upcoming_rounds`), applied to the log at a later time or with more bytes.

A record is removed by the first round that

    superseded            maps a later record of its key, wherever the record itself is
    aborted, keyless      covers it
    a tombstone           covers it after its horizon; in mode prompt, the horizon itself starts a round

or by retention, together with its segment. Pure, except that explanations of tombstones in old formats read file times. Callable
from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from diamant.cleaner.explain import explanation
from diamant.cleaner.explain.changes import smallest_change
from diamant.cleaner.explain.explanation import Change, Gate, PartitionExplanation, RecordExplanation
from diamant.cleaner.explain.gates import add_hold_gate, cleaner_gates, retention_gates, retention_ms, round_gates
from diamant.cleaner.explain.log_state import LogState
from diamant.cleaner.explain.scans import FoundRecord, KeyScan
from diamant.cleaner.explain.upcoming_rounds import UpcomingRound, course, look, next_round_ms, without_lags
from diamant.cleaner.rules import record_fate
from diamant.cleaner.rules.plan import legacy_horizon_ms
from diamant.cleaner.segments.transaction_outcomes import Outcome
from diamant.cleaner.service.partition_view import CleanerView
from diamant.protocol.batches.header import CURRENT_MAGIC
from diamant.storage import names

_NO_SCAN = KeyScan()
_OF_TOMBSTONES = {explanation.HORIZON, explanation.HELD, explanation.NOT_STAMPED}


class Explainer:
    """Explains one partition as it is at `now_ms`.

    `removals_ms`: the times at which files that the log has released leave the disk, by path.
    `erasure_of`: returns the id of an erasure in progress that covers the record of a key at an offset, if any.
    """

    def __init__(
        self,
        state: LogState,
        view: CleanerView,
        now_ms: int,
        removals_ms: Mapping[str, int] | None = None,
        erasure_of: Callable[[bytes, int], str | None] | None = None,
    ) -> None:
        self.state = state
        self.view = view
        self.now_ms = now_ms
        self._early = course(state, view, now_ms, is_early=True)
        self._late = course(state, view, now_ms, is_early=False)
        self._is_certain = self._early == self._late
        self._removals_ms = removals_ms or {}
        self._erasure_of = erasure_of
        self._bounds = _Bounds([segment.base_offset for segment in state.segments], state.log_end_offset)
        self._corrupt = {segment.base_offset for segment in view.quarantined}
        self._round_gates: dict[int, tuple[Gate, ...]] = {}
        self._retention: dict[int, tuple[tuple[Gate, ...], int | None]] = {}

    # -- the partition -------------------------------------------------------------------------------------------

    def partition(self, scan: KeyScan | None = None) -> PartitionExplanation:
        """Explain the partition as a whole and, if `scan` is given, the records that it found."""
        state, now_ms = self.state, self.now_ms
        cleanable = look(state, self.view, now_ms)
        gates = self._partition_gates()
        scan = _NO_SCAN if scan is None else scan
        return PartitionExplanation(
            topic=state.topic,
            partition=state.partition,
            now_ms=now_ms,
            cleanup_policy=",".join(sorted(state.config.cleanup_policy)),
            log_start_offset=state.log_start_offset,
            log_end_offset=state.log_end_offset,
            last_stable_offset=state.last_stable_offset,
            first_dirty_offset=cleanable.first_dirty_offset,
            first_uncleanable_offset=cleanable.first_uncleanable_offset,
            dirty_ratio=cleanable.dirty_ratio if state.config.is_compacted else 0.0,
            bytes=state.size,
            segments=len(state.segments),
            next_round_ms=next_round_ms(state, self.view, now_ms),
            gates=tuple(gates),
            change=self._change(gates),
            records=tuple(self.record(record, scan) for record in scan.records),
            records_left_out=scan.left_out,
            problems=tuple(str(problem) for problem in scan.problems),
            segments_read=scan.segments_read,
            bytes_read=scan.bytes_read,
        )

    def _partition_gates(self) -> list[Gate]:
        state = self.state
        if not state.config.is_compacted:
            return [_not_compacted(self.state), *self._retention_of(0)[0]]
        last = state.log_end_offset - 1
        cleanable = look(without_lags(state), self.view, self.now_ms)
        gates = (
            list(self._gates_at(last)) if cleanable.cleanable_bytes else cleaner_gates(state, self.view, self.now_ms)
        )
        gates += [_corrupt_gate(self.view, segment.base_offset) for segment in self.view.quarantined]
        # While records are dirty, no round is due for horizons alone: the next round covers dirty and expired records.
        if self.view.horizon_ms is not None and not cleanable.cleanable_bytes:
            text = "the next tombstone or marker of the clean part expires"
            gates.append(Gate(explanation.HORIZON, text, until_ms=max(self.view.horizon_ms, self.now_ms)))
        return gates

    # -- a record ------------------------------------------------------------------------------------------------

    def record(self, record: FoundRecord, scan: KeyScan, groups_behind: tuple[str, ...] = ()) -> RecordExplanation:
        """Explain one record, given the other records of its key."""
        status = self._status(record, scan)
        superseder: int | None = None
        bound = explanation.EXACT
        change: Change | None = None
        if record.is_removed:
            path = names.log_file(self.state.path, record.segment) + names.DELETED_SUFFIX
            removed_ms = self._removals_ms.get(path)
            gates = [
                Gate(explanation.FILE_DELAY, "out of the log; its file stays for file.delete.delay.ms", removed_ms)
            ]
            goes_ms: int | None = self.now_ms
            leaves_ms = removed_ms
        else:
            gates, goes_ms, bound, superseder = self._of_log(record, status, scan)
            leaves_ms = None if goes_ms is None else goes_ms + self.state.config.file_delete_delay_ms
            closed = gates
            if status == explanation.IS_SUPERSEDED and _OF_TOMBSTONES & {gate.kind for gate in gates}:
                # Erasing the key must not be suggested for this record, because the key may be live.
                closed, _, _ = self._superseded(record, scan, self._early)
            change = self._change(closed, record)
        suffix = names.DELETED_SUFFIX if record.is_removed else ""
        return RecordExplanation(
            offset=record.offset,
            timestamp=record.timestamp,
            segment=f"{record.segment:020d}{names.LOG_SUFFIX}{suffix}",
            position=record.position,
            status=status,
            has_value=record.has_value,
            value_bytes=record.value_bytes,
            superseded_by=superseder,
            horizon_ms=record.horizon_ms,
            gates=tuple(gates),
            goes_ms=goes_ms,
            bound=bound,
            leaves_disk_ms=leaves_ms,
            change=change,
            groups_behind=groups_behind,
        )

    def _status(self, record: FoundRecord, scan: KeyScan) -> str:
        if record.is_control:
            return explanation.IS_MARKER
        if record.offset < self.state.log_start_offset:
            return explanation.IS_BELOW_LOG_START
        if record.outcome != Outcome.COMMITTED:
            return explanation.IS_ABORTED if record.outcome == Outcome.ABORTED else explanation.IS_UNDECIDED
        if record.key is None:
            return explanation.IS_KEYLESS
        last = scan.last_offset
        if record.is_removed or (last is not None and record.offset < last):
            return explanation.IS_SUPERSEDED
        return explanation.IS_LIVE if record.has_value else explanation.IS_TOMBSTONE

    def _of_log(
        self, record: FoundRecord, status: str, scan: KeyScan
    ) -> tuple[list[Gate], int | None, str, int | None]:
        """Return the gates, the time of removal, the certainty of that time, and the offset of the superseding record."""
        state = self.state
        kept_gates, kept_ms = self._retention_of(self._bounds.index_of(record.segment))
        if not state.config.is_compacted:
            return [_not_compacted(self.state), *kept_gates], kept_ms, explanation.EXACT, None
        gates, goes_ms, superseder = self._of_compacted(record, status, scan, self._early)
        bound = explanation.EXACT
        if not self._is_certain and self._of_compacted(record, status, scan, self._late)[1] != goes_ms:
            bound = explanation.EARLIEST
        if kept_ms is not None and (goes_ms is None or kept_ms <= goes_ms):
            # A round merges segments, and retention removes a merged segment by the age of its newest record.
            is_merged = any(upcoming.at_ms < kept_ms for upcoming in self._early)
            goes_ms, bound = kept_ms, explanation.EARLIEST if is_merged else explanation.EXACT
        return [*gates, *kept_gates], goes_ms, bound, superseder

    def _of_compacted(
        self, record: FoundRecord, status: str, scan: KeyScan, rounds: Sequence[UpcomingRound]
    ) -> tuple[list[Gate], int | None, int | None]:
        """Return the gates, the time at which one of `rounds` removes the record, and the offset of the superseding record."""
        if record.segment in self._corrupt:
            return [_corrupt_gate(self.view, record.segment)], None, None
        if status == explanation.IS_SUPERSEDED:
            gates, goes_ms, superseder = self._superseded(record, scan, rounds)
            if not record.has_value:
                # The tombstone's own horizon may pass before a round maps the superseding record.
                own_gates, own_ms = self._expiring(record, rounds, is_marker=False)
                if own_ms is not None and (goes_ms is None or own_ms < goes_ms):
                    return own_gates, own_ms, superseder
            return gates, goes_ms, superseder
        if status == explanation.IS_LIVE:
            return [Gate(explanation.LIVE, "latest value of its key")], None, None
        if status == explanation.IS_UNDECIDED:
            return list(self._gates_at(record.offset)), _time_of(_round_over(rounds, record.offset)), None
        if status in (explanation.IS_TOMBSTONE, explanation.IS_MARKER):
            return *self._expiring(record, rounds, is_marker=status == explanation.IS_MARKER), None
        if status == explanation.IS_BELOW_LOG_START and not self.view.is_prompt:
            return [Gate(explanation.LIVE, "kept as long as its segment extends across the log start")], None, None
        return list(self._gates_at(record.offset)), _time_of(_round_over(rounds, record.offset)), None

    def _superseded(
        self, record: FoundRecord, scan: KeyScan, rounds: Sequence[UpcomingRound]
    ) -> tuple[list[Gate], int | None, int | None]:
        first_dirty = look(self.state, self.view, self.now_ms).first_dirty_offset
        superseder = scan.next_offset(
            record.offset, first_dirty, lambda offset: self._bounds.base_of(offset) not in self._corrupt
        )
        if superseder is None:
            later = scan.next_offset(record.offset, 0, lambda offset: True)
            if later is not None and self._bounds.base_of(later) in self._corrupt:
                return [_corrupt_gate(self.view, self._bounds.base_of(later))], None, later
            text = "superseded by a record in the clean part, which no round maps again"
            return [Gate(explanation.BEHIND, text)], None, later
        found = (upcoming for upcoming in rounds if upcoming.first_dirty_offset <= superseder < upcoming.end_offset)
        gates = list(self._gates_at(superseder))
        if record.segment != self._bounds.base_of(superseder):
            gates = [replace(gate, text=_of_later_record(gate)) for gate in gates]
        return gates, _time_of(next(found, None)), superseder

    def _expiring(
        self, record: FoundRecord, rounds: Sequence[UpcomingRound], *, is_marker: bool
    ) -> tuple[list[Gate], int | None]:
        """Return the gates and the time of removal of a marker, or of a tombstone if it leaves because of its own horizon."""
        view, config, offset = self.view, self.state.config, record.offset
        if view.frozen_above is not None and offset > view.frozen_above:
            text = f"nothing expires above offset {view.frozen_above}, where a segment in quarantine begins"
            return [Gate(explanation.QUARANTINED, text)], None
        retention = f"delete.retention.ms={config.delete_retention_ms}"
        what = "marker" if is_marker else "tombstone"
        first_dirty = look(self.state, view, self.now_ms).first_dirty_offset
        is_clean = self._bounds.end_of(record.segment) <= first_dirty
        gates: list[Gate] = []
        first: UpcomingRound | None = None
        if record.horizon_ms is None and is_marker:
            text = f"gets its horizon in the first round that finds no batch of its transaction, then stays for {retention}"
            return [Gate(explanation.NOT_STAMPED, text)], None
        if record.horizon_ms is None or not is_clean:
            # Mode prompt starts rounds for horizons in the clean part only; the next round for dirty records covers both parts.
            gates += self._gates_at(max(offset, first_dirty) if is_clean else offset)
            first = _round_over(rounds, offset)
        if first is not None and not is_marker and self._is_expired_by_file(record, first):
            return gates, first.at_ms
        horizon_ms = record.horizon_ms
        if horizon_ms is None:
            horizon_ms = None if first is None else first.at_ms + config.delete_retention_ms
            text = f"tombstone without a horizon: the first round sets it, {retention} ahead"
            gates.append(Gate(explanation.NOT_STAMPED, text, until_ms=horizon_ms))
        elif horizon_ms > self.now_ms:
            text = f"{what}: stays for consumers, {retention} from its first round on"
            gates.append(Gate(explanation.HORIZON, text, until_ms=horizon_ms))
        if horizon_ms is None or (first is None and not is_clean):
            return gates, None
        horizon_ms = add_hold_gate(gates, view.hold, record, self.now_ms, horizon_ms)
        if not view.is_prompt:
            later = rounds if record.horizon_ms is not None or first is None else rounds[rounds.index(first) + 1 :]
            text = f"once its horizon is over, the next round for another reason removes the {what}"
            gates.append(Gate(explanation.WAITS_FOR_ROUND, text))
            return gates, _time_of(_round_over(later, offset, horizon_ms))
        goes_ms = max(horizon_ms, self.now_ms if first is None else first.at_ms)
        if first is None and (closed := cleaner_gates(self.state, view, self.now_ms)):
            gates += closed
            times = [gate.until_ms for gate in closed]
            return gates, None if None in times else max(goes_ms, *(time for time in times if time is not None))
        if not gates:
            gates.append(Gate(explanation.DUE, f"the {what}'s horizon is over: a round is due", until_ms=goes_ms))
        return gates, goes_ms

    def _is_expired_by_file(self, record: FoundRecord, round_: UpcomingRound) -> bool:
        """Tell whether `round_` removes a tombstone in an old format because of its file's modification time."""
        if record.magic >= CURRENT_MAGIC:
            return False
        clean = [segment.path for segment in self.state.segments if segment.base_offset < round_.first_dirty_offset]
        env = self.state.env
        try:
            modified_ms = env.mtime_ms(self.state.segments[self._bounds.index_of(record.segment)].path)
            clean_ms = env.mtime_ms(clean[-1]) if clean else None
        except OSError:
            return False  # the segment was replaced since
        return record_fate.tombstones_expired(
            magic=record.magic,
            has_horizon=False,
            horizon_ms=0,
            now_ms=round_.at_ms,
            modified_ms=modified_ms,
            legacy_horizon_ms=legacy_horizon_ms(clean_ms, self.state.config.delete_retention_ms),
        )

    def _change(self, gates: Sequence[Gate], record: FoundRecord | None = None) -> Change | None:
        return smallest_change(
            gates,
            self.state,
            self.view,
            self.now_ms,
            erasure=lambda: self._erasure_in_progress(record),
            record=record,
        )

    def _erasure_in_progress(self, record: FoundRecord | None) -> str | None:
        """Return the id of an erasure that will remove this tombstone; None if none will, or if the record is not a tombstone."""
        if record is None or record.is_control or record.has_value or self._erasure_of is None:
            return None
        if not record.key:
            return None  # Most tombstones are found without their keys.
        return self._erasure_of(record.key, record.offset)

    # -- gates ---------------------------------------------------------------------------------------------------

    def _gates_at(self, offset: int) -> tuple[Gate, ...]:
        """Return the gates that keep a round from covering an offset; computed once per segment."""
        index = self._bounds.index_at(offset)
        # All offsets of a segment have the same gates, even if an open transaction begins in the middle of it.
        if index not in self._round_gates:
            gates = round_gates(self.state, self.view, self.now_ms, self._bounds.bases[index])
            if not gates:
                gates = [Gate(explanation.DUE, "nothing: a round is due now", until_ms=self.now_ms)]
            self._round_gates[index] = tuple(gates)
        return self._round_gates[index]

    def _retention_of(self, index: int) -> tuple[tuple[Gate, ...], int | None]:
        if index not in self._retention:
            gates = tuple(retention_gates(self.state, index, self.now_ms))
            self._retention[index] = gates, retention_ms(self.state, index, self.now_ms)
        return self._retention[index]


def _not_compacted(state: LogState) -> Gate:
    policy = ",".join(sorted(state.config.cleanup_policy)) or "empty"
    return Gate(explanation.NOT_COMPACTED, f"cleanup.policy is {policy}, not compact: no key matters here")


def _corrupt_gate(view: CleanerView, base_offset: int) -> Gate:
    corrupt = next(segment for segment in view.quarantined if segment.base_offset == base_offset)
    text = (
        f"the segment at {base_offset} cannot be read (position {corrupt.position}: {corrupt.reason}) and is left out"
    )
    return Gate(
        explanation.QUARANTINED,
        text,
        detail={"segment": base_offset, "position": corrupt.position, "reason": corrupt.reason},
    )


def _of_later_record(gate: Gate) -> str:
    return f"the later record is in the {gate.text}" if gate.kind == explanation.ACTIVE_SEGMENT else gate.text


class _Bounds(NamedTuple):
    """The offsets at which the segments of a log begin and end."""

    bases: list[int]
    log_end_offset: int

    def index_at(self, offset: int) -> int:
        return max(0, sum(base <= offset for base in self.bases) - 1)

    def base_of(self, offset: int) -> int:
        return self.bases[self.index_at(offset)]

    def index_of(self, base_offset: int) -> int:
        return self.bases.index(base_offset)

    def end_of(self, base_offset: int) -> int:
        index = self.index_of(base_offset)
        return self.bases[index + 1] if index + 1 < len(self.bases) else self.log_end_offset + 1


def _round_over(rounds: Sequence[UpcomingRound], offset: int, from_ms: int = 0) -> UpcomingRound | None:
    """Return the first round at `from_ms` or later that rewrites an offset."""
    return next((upcoming for upcoming in rounds if upcoming.end_offset > offset and upcoming.at_ms >= from_ms), None)


def _time_of(found: UpcomingRound | None) -> int | None:
    return None if found is None else found.at_ms


def of_tombstone(explainer: Explainer, record: FoundRecord, groups: Sequence[tuple[int, str]]) -> RecordExplanation:
    """Explain a tombstone that is the latest record of its key. `groups`: committed offset and id of each group, ascending."""
    scan = KeyScan()
    scan.offsets.append(record.offset)
    behind = tuple(group_id for committed, group_id in groups if committed <= record.offset)
    return replace(explainer.record(record, scan), groups_behind=behind)
