"""Explains from a partition's files alone why records are still in them, as a broker started on these files now would.

The log is opened by `opened_partition`. The rules are the broker's (`explain`). All files are read, so unreadable parts have the
same effect as in a broker whose rounds have come across them. Memory: that of `explain/scans.py`. In mode prompt, facts that are
missing for clean segments are read from their batch headers, as a broker does after its start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from diamant.cleaner.explain.explanation import PartitionExplanation
from diamant.cleaner.explain.opened_partition import OpenedPartition, opened_partition
from diamant.cleaner.explain.scans import KeyScan, scan_key
from diamant.cleaner.facts.facts_file import read_facts
from diamant.cleaner.facts.partition_facts import PartitionFacts
from diamant.cleaner.facts.quarantine import MAX_SEGMENTS, CorruptSegment
from diamant.cleaner.rules.eligibility import cleanable_range
from diamant.cleaner.segments.sound_rows import PieceReader
from diamant.cleaner.segments.tolerant_reader import PartitionFiles, Problem
from diamant.cleaner.service.partition_states import Uncleanable
from diamant.cleaner.service.partition_view import CleanerView
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog
from diamant.storage.log.log import Log
from diamant.storage.segments.log_config import LogConfig


def explain_partition(
    env: Env,
    partition: PartitionFiles,
    config: LogConfig,
    view: CleanerView,
    now_ms: int,
    scratch: str,
    *,
    producer_expiration_ms: int,
    key: bytes | None = None,
    offset: int | None = None,
    advance: Callable[[int], object] = lambda _count: None,
) -> tuple[PartitionExplanation, list[str], list[Problem]]:
    """Explain a partition and, if given, all records of `key`, or the record at `offset` and all records of its key. Blocking.

    Also returns the messages that a broker would log while it starts, and the first problem in each damaged segment. `scratch`:
    an empty directory for files written while the log is opened. Raises CorruptLog or another StorageError if a broker could
    not start.
    """
    with opened_partition(
        env, partition, config, now_ms, scratch, producer_expiration_ms=producer_expiration_ms
    ) as opened:
        log = opened.log
        damage = _damage(opened, advance)
        if config.is_compacted:
            view = _learned(view, log, damage, now_ms)

        def scan(key: bytes | None, at_offset: int | None) -> KeyScan:
            return scan_key(opened, key, opened.outcomes, log.log_start_offset, at_offset=at_offset, advance=advance)

        found = None
        if offset is not None:
            found = scan(None, offset)
            key = found.records[0].key if found.records and not found.records[0].is_control else None
        if key is not None:
            found = scan(key, None)
        problems = tuple(map(str, damage.values()))
        explained = opened.explainer(view).partition(found)
        return replace(explained, problems=problems), [*opened.messages], [*damage.values()]


def _damage(opened: OpenedPartition, advance: Callable[[int], object]) -> dict[int, Problem]:
    """Return the first problem of each damaged segment, by base offset."""
    found: dict[int, Problem] = {}
    reader = PieceReader(with_records=False)
    for segment in opened:
        for _ in segment.pieces(reader, partial(found.setdefault, segment.base_offset)):
            pass
        advance(segment.size)
    return found


def _learned(view: CleanerView, log: Log, damage: Mapping[int, Problem], now_ms: int) -> CleanerView:
    """Return the view of a cleaner that knows of the damage: it leaves out these segments or, in mode kafka, the whole log."""
    if view.is_prompt:
        view = replace(view, horizon_ms=_next_horizon_ms(log, view.checkpoint, now_ms))
    closed = {one.base_offset: one for one in log.segments[:-1] if one.base_offset in damage}
    if not closed:
        return view
    if not view.is_prompt or len(closed) > MAX_SEGMENTS:
        return replace(view, uncleanable=Uncleanable(str(damage[min(closed)]), now_ms, 0, None))
    corrupt = (
        CorruptSegment(
            base_offset,
            modified_ms=now_ms,
            birth_ms=None,
            position=damage[base_offset].position or 0,
            reason=damage[base_offset].reason,
            since_ms=now_ms,
            clean_to=base_offset,
            size=segment.size,
        )
        for base_offset, segment in closed.items()
    )
    return replace(view, quarantined=tuple(corrupt), frozen_above=min(closed))


def _next_horizon_ms(log: Log, checkpoint: int | None, now_ms: int) -> int | None:
    """Return the time of the next round for expired records of the clean section; None if no readable record expires."""
    end_offset = cleanable_range(log, checkpoint, now_ms).first_dirty_offset
    facts = PartitionFacts()
    for base_offset, size in facts.unknown(log, end_offset):
        with suppress(CorruptLog):
            facts.add(log, read_facts(log.env, log.path, base_offset, size))
    return facts.next_horizon_ms(log, end_offset)
