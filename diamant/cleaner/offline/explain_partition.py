"""Explains from the files of a partition alone why records are still there, as a broker started on them now would.

The log is opened on an overlay, as at a start: repairs happen there, and the files stay unchanged. The rules are the
broker's (`explain`). All files are read: what a round could not read has the same effect as in a broker that has met it.
Facts of a running broker are missing: pending erasures, timeouts of open transactions, failed
rounds. Memory and disk: those of `explain/scans.py` and of a start of the partition; one file is open
at a time. In mode prompt, missing facts of clean segments are read from their headers, as a broker does after
its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from diamant.cleaner.explain.explainer import Explainer
from diamant.cleaner.explain.explanation import PartitionExplanation
from diamant.cleaner.explain.log_snapshot import LogState
from diamant.cleaner.explain.scans import KeyScan, OpenSegment, scan_key
from diamant.cleaner.facts.facts_file import read_facts
from diamant.cleaner.facts.partition_facts import PartitionFacts
from diamant.cleaner.facts.quarantine import MAX_SEGMENTS, CorruptSegment
from diamant.cleaner.rules.eligibility import cleanable_range
from diamant.cleaner.rules.open_transaction import OpenTransaction
from diamant.cleaner.segments.sound_rows import PieceReader
from diamant.cleaner.segments.tolerant_reader import PartitionFiles, Problem
from diamant.cleaner.segments.transaction_outcomes import TransactionOutcomes
from diamant.cleaner.service.log_picker import look_at_first_timestamps
from diamant.cleaner.service.partition_states import Uncleanable
from diamant.cleaner.service.partition_view import CleanerView
from diamant.storage import names
from diamant.storage.checkpoints import checkpoints
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import Env, parent
from diamant.storage.env.overlay import OverlayEnv
from diamant.storage.errors import CorruptLog
from diamant.storage.log.append_checks import Validation
from diamant.storage.log.log import Log
from diamant.storage.recovery.open_log import load_log
from diamant.storage.segments.log_config import LogConfig
from diamant.storage.uuid_text import ZERO_ID


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
    """Explain a partition as a whole, all records of `key`, or the record at `offset` and those of its key; blocks.

    Also returns the messages that a start would log, and the first damage in each segment. `scratch`: an empty directory for
    what opening the log writes. CorruptLog and other StorageErrors that would stop a start.
    """
    overlay = OverlayEnv(env, env, scratch, SettableClock(now_ms))
    overlay.add_directory(partition.directory)
    log_directory = parent(partition.directory)
    said: list[str] = []
    log = load_log(
        overlay,
        partition.directory,
        partition.topic,
        partition.partition,
        checkpoints.read_partition_metadata(overlay, partition.directory) or ZERO_ID,
        config,
        Validation(),
        recovery_point=checkpoints.read_recovery_point(env, log_directory, (partition.topic, partition.partition)),
        log_start_offset=partition.log_start_offset,
        is_clean=env.exists(f"{log_directory}/{names.CLEAN_SHUTDOWN}"),
        producer_expiration_ms=producer_expiration_ms,
        messages=said,
    )
    try:
        damage = _damage(log, advance)
        look_at_first_timestamps(log.segments)
        if config.is_compacted:
            view = _learned(view, log, damage, now_ms)
        opened = [one for one in log.producers.active_producers if one.current_txn_first_offset >= 0]
        explainer = Explainer(
            LogState.of(
                log,
                now_ms,
                view.checkpoint,
                [OpenTransaction(one.producer_id, one.current_txn_first_offset, one.timestamp) for one in opened],
            ),
            view,
            now_ms,
        )
        outcomes = TransactionOutcomes(
            (one for segment in log.segments for one in segment.txn_index.all()),
            {one.producer_id: one.current_txn_first_offset for one in opened},
        )

        def scan(key: bytes | None, at_offset: int | None) -> KeyScan:
            return scan_key(_files(log), key, outcomes, log.log_start_offset, at_offset=at_offset, advance=advance)

        found = None
        if offset is not None:
            found = scan(None, offset)
            key = found.records[0].key if found.records and not found.records[0].is_control else None
        if key is not None:
            found = scan(key, None)
        problems = tuple(map(str, damage.values()))
        return replace(explainer.partition(found), problems=problems), said, [*damage.values()]
    finally:
        log.close()


def _damage(log: Log, advance: Callable[[int], object]) -> dict[int, Problem]:
    """Return the first problem of each damaged segment, by base offset."""
    found: dict[int, Problem] = {}
    reader = PieceReader(with_records=False)
    for segment in _files(log):
        for _ in segment.pieces(reader, partial(found.setdefault, segment.base_offset)):
            pass
        advance(segment.size)
    return found


def _learned(view: CleanerView, log: Log, damage: Mapping[int, Problem], now_ms: int) -> CleanerView:
    """Return the view of a cleaner whose rounds have met the damage: it leaves the segment out, or the whole log (mode kafka)."""
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
    """Return the due time of a round for expiries in the clean section; None if nothing readable expires."""
    end_offset = cleanable_range(log, checkpoint, now_ms).first_dirty_offset
    facts = PartitionFacts()
    for base_offset, size in facts.unknown(log, end_offset):
        with suppress(CorruptLog):
            facts.add(log, read_facts(log.env, log.path, base_offset, size))
    return facts.next_horizon_ms(log, end_offset)


def _files(log: Log) -> Iterator[OpenSegment]:
    for segment in log.segments:
        if segment.size:
            opened = OpenSegment.of(log.env, segment.path, segment.base_offset, segment.size)
            try:
                yield opened
            finally:
                opened.file.close()
