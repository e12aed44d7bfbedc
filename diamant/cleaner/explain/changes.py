"""The smallest change that makes a record removable now."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

from diamant.cleaner.explain import explanation
from diamant.cleaner.explain.explanation import Change, Gate
from diamant.cleaner.explain.log_state import LogState
from diamant.cleaner.explain.scans import FoundRecord
from diamant.cleaner.explain.upcoming_rounds import look, without_lags
from diamant.cleaner.service.partition_view import CleanerView

_MAX_KEY_BYTES = 200
"""Longer keys are replaced by a placeholder, so that commands are short enough to paste."""


def smallest_change(
    gates: Sequence[Gate],
    state: LogState,
    view: CleanerView,
    now_ms: int,
    *,
    erasure: Callable[[], str | None],
    record: FoundRecord | None,
) -> Change | None:
    """Return the smallest change that opens the gates of `record`, or of the partition if `record` is None.

    Returns None if no gate is closed or no change opens them. A change for a partition never removes a key's latest value.
    `erasure` returns the id of an erasure in progress that will remove `record`, if this is a tombstone; else None.
    """
    by_kind = {gate.kind: gate for gate in gates}
    compact = f"compact {state.topic} --partition {state.partition}"
    erase = f"erase {state.topic} --key KEY --reason REASON"
    if explanation.LIVE in by_kind:
        return Change("write a later record of the key, or a tombstone, and compact; or have the key erased", erase)
    if explanation.NOT_COMPACTED in by_kind:
        policy = ",".join(sorted({*state.config.cleanup_policy, "compact"}))
        if record is None:
            return Change("compact the topic, which removes superseded records", None, {"cleanup.policy": policy})
        redact = f"redact {state.topic} --where WHERE --reason REASON"
        text = "redact the records that match; or add compact to cleanup.policy, and compact the topic"
        return Change(text, redact, {"cleanup.policy": policy})
    if explanation.QUARANTINED in by_kind:
        return Change("repair or restore the segment's file; the broker checks it before each scan")
    if explanation.OPEN_TRANSACTION in by_kind:
        abort = by_kind[explanation.OPEN_TRANSACTION].detail.get("abort_command")
        how = "" if abort is None else f", or abort it: {abort}"
        return Change(f"end the transaction{how}; then compact", compact)
    if explanation.BROKEN in by_kind or explanation.PAUSED in by_kind:
        return None
    if (explanation.HORIZON in by_kind or explanation.NOT_STAMPED in by_kind) and (found := erasure()):
        return Change("its erasure waits for the horizon; end the wait", f"erase-now {found}")
    if explanation.HELD in by_kind and explanation.HORIZON not in by_kind:
        return Change("let the group catch up, or delete it if it is no longer used; then the tombstone is removed")
    if explanation.HORIZON in by_kind:
        if record is None or record.is_control:
            return None
        erase = erase.replace("--key KEY", _key_option(record.key))
        return Change("erase the key with --now, which removes the tombstone before its horizon", f"{erase} --now")
    if explanation.NOT_STAMPED in by_kind:
        return Change("compact, and wait for the horizon", f"{compact} --until tombstones-gone")
    if explanation.BEHIND in by_kind:
        return Change("write a later record of the key, or a tombstone, and compact", compact)
    if explanation.MIN_LAG in by_kind:
        age_ms = max(0, now_ms - int(by_kind[explanation.MIN_LAG].detail["youngest_ms"]))
        configs = {"min.compaction.lag.ms": str(age_ms)} if len(_round_kinds(by_kind)) == 1 else {}
        return Change("compact without regard to the lag", f"{compact} --force", configs)
    return Change("compact it now", compact, _configs(by_kind, state, view, now_ms)) if by_kind else None


def _key_option(key: bytes | None) -> str:
    """Return a command's option for a key, with a placeholder if the key is long or, as for most tombstones, unknown."""
    if not key or len(key) > _MAX_KEY_BYTES:
        return "--key KEY"
    text = key.decode(errors="replace")
    is_text = text.encode() == key and text.isprintable() and not text.startswith("-")
    return f"--key {shlex.quote(text)}" if is_text else f"--key-hex {key.hex()}"


def _configs(by_kind: Mapping[str, Gate], state: LogState, view: CleanerView, now_ms: int) -> dict[str, str]:
    """Return topic configurations that open the closed gate; empty if several gates are closed or no configuration helps."""
    closed = _round_kinds(by_kind)
    if closed == {explanation.DIRTY_RATIO}:
        ratio = float(by_kind[explanation.DIRTY_RATIO].detail["dirty_ratio"])
        lower = int(ratio * 1000 - 1) / 1000 if ratio * 1000 >= 1 else 0.0
        changed = state.with_config({"min_cleanable_dirty_ratio": lower})
        is_enough = look(without_lags(changed), view, now_ms).is_eligible
        return {"min.cleanable.dirty.ratio": f"{lower:g}"} if is_enough else {}
    if closed == {explanation.ACTIVE_SEGMENT} and view.is_prompt:
        first_ms = state.active.first_append_ms
        return {} if first_ms is None else {"segment.ms": str(max(1, now_ms - first_ms - 1))}
    return {}


def _round_kinds(by_kind: Mapping[str, Gate]) -> set[str]:
    return {*by_kind} - {explanation.RETENTION_TIME, explanation.RETENTION_SIZE, explanation.DUE}
