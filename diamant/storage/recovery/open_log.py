"""Opens a partition directory: handles leftovers of a crash, recovers segments and restores the producer state.

The order of steps is Kafka's (LogLoader): temporary files, swaps, segments, recovery above the recovery point, log start,
producer state. After an unclean stop, only segments at or above the recovery point are scanned; a torn or corrupt tail is cut
off, and later segments are removed. No whole batch is removed after a clean stop, below the recovery point, or if the recovery
point is unknown: corruption then raises CorruptLog with path and position. Segments whose offsets exceed the range of their
indexes are divided.

If there is no clean-shutdown mark, the directory may be a copy of one in use. Data removed from such a log (a torn end below
the recovery point, segments that were cleaned into another one) is kept in `.aside` files next to the segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from diamant.protocol.batches.header import MAX_OFFSET
from diamant.storage import names
from diamant.storage.checkpoints import checkpoints
from diamant.storage.checkpoints.checkpoints import LeaderEpochs
from diamant.storage.env.env import Env, parent
from diamant.storage.errors import CorruptLog
from diamant.storage.log.append_checks import Validation
from diamant.storage.log.log import Log
from diamant.storage.producers.producer_state import ProducerStateManager
from diamant.storage.recovery.damaged_tail import aside_paths, keep_aside
from diamant.storage.recovery.leftovers import Stale, complete_swaps, find_stale, offset_of, remove_temporary_files
from diamant.storage.recovery.overflow_split import refuse_overflow, split_segment
from diamant.storage.recovery.segment_recovery import (
    SegmentOverflow,
    TornEnd,
    check_synced,
    load_producers,
    rebuild_producers,
    recover_segment,
)
from diamant.storage.segments.first_appends import load_first_appends
from diamant.storage.segments.log_config import LogConfig
from diamant.storage.segments.segment import Segment, scan_at_entry


def create_log(
    env: Env,
    path: str,
    topic: str,
    partition: int,
    topic_id: UUID,
    config: LogConfig,
    validation: Validation,
    *,
    producer_expiration_ms: int,
) -> Log:
    """Create the directory of an empty partition, with all files that Kafka expects."""
    env.make_dirs(path)
    env.sync_dir(parent(path))
    checkpoints.write_partition_metadata(env, path, topic_id)
    return load_log(
        env,
        path,
        topic,
        partition,
        topic_id,
        config,
        validation,
        recovery_point=0,
        log_start_offset=0,
        is_clean=True,
        producer_expiration_ms=producer_expiration_ms,
    )


def load_log(
    env: Env,
    path: str,
    topic: str,
    partition: int,
    topic_id: UUID,
    config: LogConfig,
    validation: Validation,
    *,
    recovery_point: int | None,
    log_start_offset: int,
    is_clean: bool,
    producer_expiration_ms: int,
    messages: list[str] | None = None,
    is_of_one_moment: bool | None = None,
) -> Log:
    """Open the partition directory `path`. May run in a worker thread; the loop thread then owns the result.

    `recovery_point` and `log_start_offset` come from the checkpoints; 0 if the partition has no entry. If the checkpoint is lost,
    `recovery_point` is None: everything is scanned, and no whole batch is cut off. If an earlier start refused the log, it is
    CUT_NOTHING: nothing is cut off. Recovery adds notable actions to `messages`. `is_of_one_moment` (default: `is_clean`) is True
    if a broker left the files in this state; if False, the log is searched for segments that were cleaned into others.
    """
    said = messages if messages is not None else []
    if is_of_one_moment is None:
        is_of_one_moment = is_clean
    while True:
        producers = ProducerStateManager(env, path, topic, partition, expiration_ms=producer_expiration_ms)
        opened = _open(env, path, config, producers, said)
        present = tuple(opened.segments)
        try:
            end_offset, known_point = _recovered(
                opened, recovery_point, log_start_offset, is_clean=is_clean, is_of_one_moment=is_of_one_moment
            )
        except SegmentOverflow as overflow:
            parts = split_segment(env, overflow.segment)
            for segment in present:
                if segment is not overflow.segment:
                    segment.close()
            said.append(
                f"{overflow.segment.path}: its offsets exceed the 31 bits of its indexes, as brokers before Kafka 2.0 left "
                f"them; its records are now in segments that begin at {', '.join(map(str, parts))}"
            )
            continue
        return _log_of(
            opened, topic, partition, topic_id, validation, log_start_offset, end_offset, known_point, is_clean=is_clean
        )


def _open(env: Env, path: str, config: LogConfig, producers: ProducerStateManager, said: list[str]) -> _Opened:
    epochs = LeaderEpochs.load(env, path)
    remove_temporary_files(env, path)
    complete_swaps(env, path)
    return _Opened(env, path, config, *_open_segments(env, path, config, said), epochs, producers, said)


def _recovered(
    opened: _Opened, recovery_point: int | None, log_start_offset: int, *, is_clean: bool, is_of_one_moment: bool
) -> tuple[int, int]:
    """Recover the segments; return the log end offset, and the recovery point (0 if it is unknown).

    Raises SegmentOverflow if a segment must be divided first.
    """
    env, path, config, segments, missing_index, _, _, said = opened
    stale = [] if is_of_one_moment else _find_stale(segments, config)
    for stale_segment in stale:
        segments.remove(stale_segment.segment)
    dead = [] if is_clean else _below(segments, log_start_offset)
    del segments[: len(dead)]
    for segment in segments:
        if segment.is_index_damaged:  # set by the scans above
            missing_index.add(segment.base_offset)
            said.append(f"{segment.path}: its indexes do not match its content; they are rebuilt")
    log_end_offset = sound_end(segments[-1]) if is_clean and segments else None
    refuse_overflow(segments, log_end_offset)
    is_end_unsound = is_clean and bool(segments) and log_end_offset is None
    if is_end_unsound:
        missing_index.add(segments[-1].base_offset)
    is_refused = recovery_point == checkpoints.CUT_NOTHING
    synced_end = MAX_OFFSET if is_clean or recovery_point is None else recovery_point
    known_point = 0 if is_refused or recovery_point is None else recovery_point
    first = len(segments) if is_clean else _floor(segments, known_point)
    missing_index |= _unfinished_roll(segments, first, known_point)
    recovered = [
        index for index, candidate in enumerate(segments) if index >= first or candidate.base_offset in missing_index
    ]
    torn, synced_end = _torn_ends(segments, recovered, synced_end, may_cut=not is_clean and not is_refused)
    _set_aside(env, path, stale, said)
    _remove_segments(opened, dead)
    if dead:
        env.sync_dir(path)
    if is_end_unsound:
        said.append(f"{segments[-1].path}: its indexes are damaged; they are rebuilt")
    has_removed = _recover(opened, recovered, torn, synced_end, first)
    if log_end_offset is None:
        log_end_offset = segments[-1].next_offset() if segments else log_start_offset
    if log_start_offset <= log_end_offset < known_point:
        said.append(_missing_text(path, log_end_offset, known_point))
    if segments and log_end_offset < log_start_offset:
        _empty(opened, log_start_offset, log_end_offset)
        has_removed = True
    if has_removed:
        # Otherwise, another power failure could bring the segments back, and they would overlap new appends.
        env.sync_dir(path)
    return log_end_offset, known_point


class _Opened(NamedTuple):
    """The open files of a partition, before its log is built."""

    env: Env
    path: str
    config: LogConfig
    segments: list[Segment]
    missing_index: set[int]
    """Base offsets of the segments whose indexes must be rebuilt even after a clean stop."""
    epochs: LeaderEpochs
    producers: ProducerStateManager
    said: list[str]


def _unfinished_roll(segments: Sequence[Segment], first: int, known_point: int) -> set[int]:
    """Return the base offset of the segment before the first one to recover, if its time index is incomplete.

    Recovery begins at that segment's end: its data is synced, but perhaps not the index entries that its roll added.
    """
    is_at_roll = 0 < first < len(segments) and segments[first].base_offset == known_point
    return {segments[first - 1].base_offset} if is_at_roll and not is_time_index_whole(segments[first - 1]) else set()


def _torn_ends(
    segments: Sequence[Segment], recovered: Sequence[int], synced_end: int, *, may_cut: bool
) -> tuple[dict[int, TornEnd], int]:
    """Return the torn ends by segment index, and the offset below which whole batches are surely synced. Raises CorruptLog."""
    torn: dict[int, TornEnd] = {}
    for index in recovered:
        may_end = may_cut and not any(later.size for later in segments[index + 1 :])
        end = check_synced(segments[index], synced_end, may_end=may_end)
        if end is not None:
            torn[index] = end
            synced_end = end.next_offset
    return torn, synced_end


def _recover(
    opened: _Opened, recovered: Sequence[int], torn: Mapping[int, TornEnd], synced_end: int, first: int
) -> bool:
    """Recover segments up to the first corrupt one, and remove later ones; return whether any were removed."""
    env, _, config, segments, _, epochs, producers, said = opened
    for index in recovered:
        segment = segments[index]
        rebuild_producers(producers, segments[:index], segment.base_offset, env)
        # There is no snapshot yet after a segment whose end was compacted away.
        producers.take_snapshot(segment.base_offset)
        kept = keep_aside(env, segment, *torn[index]) if index in torn else None
        outcome = recover_segment(segment, config, epochs, producers, synced_end=synced_end, is_last_scan=index < first)
        producers.take_snapshot(segment.next_offset())
        if outcome.reason is None:
            continue
        are_kept = f". They are kept in {kept}" if kept else ""
        said.append(
            f"{segment.path}: {outcome.reason}; cut off {outcome.truncated_bytes} bytes, the log now ends at "
            f"offset {segment.next_offset()}{are_kept}"
        )
        later = segments[index + 1 :]
        said += [f"{removed.path}: removed, since it follows the corruption" for removed in later]
        _remove_segments(opened, later)
        del segments[index + 1 :]
        return bool(later)
    return False


def _log_of(
    opened: _Opened,
    topic: str,
    partition: int,
    topic_id: UUID,
    validation: Validation,
    log_start_offset: int,
    log_end_offset: int,
    known_point: int,
    *,
    is_clean: bool,
) -> Log:
    """Build the log from its recovered files; an empty log gets an empty segment at its start offset."""
    env, path, config, segments, _, epochs, producers, _ = opened
    if not segments:
        log_end_offset = log_start_offset
        segments.append(Segment(env, path, log_start_offset, config, create=True))
    epochs.truncate_from_end(log_end_offset)
    epochs.truncate_from_start(log_start_offset)
    start = max(log_start_offset, segments[0].base_offset)
    producers.snapshots.remove_strays([segment.base_offset for segment in segments])
    load_producers(producers, segments, start, log_end_offset, env, is_clean=is_clean)
    load_first_appends(env, path, segments, config)
    return Log(
        env,
        path,
        topic,
        partition,
        topic_id,
        config,
        segments=segments,
        epochs=epochs,
        producers=producers,
        log_start_offset=start,
        log_end_offset=log_end_offset,
        recovery_point=log_end_offset if is_clean else max(min(known_point, log_end_offset), start),
        validation=validation,
    )


def _missing_text(path: str, log_end_offset: int, known_point: int) -> str:
    return (
        f"{path}: the log ends at offset {log_end_offset}, though it was on disk up to offset {known_point} when "
        f"{names.RECOVERY_POINT_CHECKPOINT} was written: up to {known_point - log_end_offset} records are missing at "
        "its end, as in a copy that was made while a broker ran"
    )


def _empty(opened: _Opened, log_start_offset: int, log_end_offset: int) -> None:
    """Remove all segments of a log that ends before its start."""
    opened.said.append(
        f"{opened.path}: the log ends at offset {log_end_offset}, before its start offset {log_start_offset}; "
        f"its segments are removed and it starts empty at {log_start_offset}"
    )
    _remove_segments(opened, opened.segments)
    opened.segments.clear()
    opened.epochs.clear()
    opened.epochs.sync()


def _remove_segments(opened: _Opened, segments: Iterable[Segment]) -> None:
    for segment in segments:
        _remove_segment(opened.env, segment, opened.path)


def _find_stale(segments: list[Segment], config: LogConfig) -> list[Stale]:
    return find_stale(segments) if config.is_compacted else []


def _below(segments: list[Segment], log_start_offset: int) -> list[Segment]:
    """Return the segments that end below the log start, which retention has removed or would remove.

    A power failure may bring such segments back with unsynced gaps; recovery does not need them.
    """
    return [segment for segment, following in pairwise(segments) if following.base_offset <= log_start_offset]


def _set_aside(env: Env, path: str, stale: list[Stale], said: list[str]) -> None:
    """Rename the `.log` files of segments that were cleaned into another one, and remove their indexes.

    The last segment is renamed first, and each rename is synced before the next one. After a crash, the remaining ones are again
    recognized as stale, because the cleaned segment still has as many batches at or above the first of them.
    """
    for segment, cleaned_into in reversed(stale):
        if segment.size:
            kept = next(name for name in aside_paths(path, segment.base_offset) if not env.exists(name))
            segment.close()
            env.rename(segment.path, kept)
            said.append(
                f"{segment.path}: set aside as {kept}: its records were cleaned into {cleaned_into.path}, as in a copy that "
                "was made while a broker ran"
            )
        _remove_segment(env, segment, path)
        env.sync_dir(path)


def _open_segments(env: Env, path: str, config: LogConfig, said: list[str]) -> tuple[list[Segment], set[int]]:
    """Return all segments in order, and `_Opened.missing_index`."""
    entries = set(env.list_dir(path))
    segments = []
    missing_index = set()
    for name in sorted(entries):
        if name.endswith(names.LOG_SUFFIX):
            if offset_of(name) < 0:
                raise CorruptLog(
                    f"{path}/{name}",
                    0,
                    "the name does not begin with an offset of at most 2^63-1, so this is not a segment; move the file away",
                )
            segment = Segment(env, path, offset_of(name), config)
            segments.append(segment)
            stem = name.removesuffix(names.LOG_SUFFIX)
            if segment.size and stem + names.INDEX_SUFFIX not in entries:
                missing_index.add(segment.base_offset)
            elif stem + names.TXN_INDEX_SUFFIX in entries:
                try:
                    segment.txn_index.sanity_check()
                except CorruptLog:
                    missing_index.add(segment.base_offset)
        elif name.endswith((names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX, names.TXN_INDEX_SUFFIX)):
            stem = name.rsplit(".", 1)[0]
            if stem + names.LOG_SUFFIX not in entries:
                env.remove(f"{path}/{name}")
                is_aside = stem + names.LOG_SUFFIX + names.ASIDE_SUFFIX in entries
                if name.endswith(names.INDEX_SUFFIX) and not is_aside:
                    said.append(
                        f"{path}/{name}: removed, as there is no {stem}{names.LOG_SUFFIX}; if that file is lost, its "
                        "records are missing"
                    )
    return segments, missing_index


def _remove_segment(env: Env, segment: Segment, path: str) -> None:
    segment.close()
    for file_path in [*segment.file_paths(), names.snapshot_file(path, segment.base_offset)]:
        env.remove(file_path, missing_ok=True)


def _floor(segments: list[Segment], offset: int) -> int:
    index = 0
    for position, segment in enumerate(segments):
        if segment.base_offset <= offset:
            index = position
    return index


def sound_end(segment: Segment) -> int | None:
    """Return the offset after the last batch, from which appends can continue; None if something is damaged.

    A sound segment contains the positions of both indexes' last entries, and after them only whole batches, the last of which
    has the highest offset.
    """
    offset, position = segment.offset_index.last_entry
    timed_offset = segment.time_index.last_entry[1]
    try:
        if position and scan_at_entry(segment.file, segment.size, offset, position) is None:
            return None
        end, next_offset, highest = 0, segment.base_offset, segment.base_offset
        for at, header in segment.scan_from(offset):
            end, next_offset = at + header.size, header.next_offset
            highest = max(highest, next_offset)
    except CorruptLog:
        return None
    if next_offset < highest or highest > MAX_OFFSET:
        return None
    has_entries = position or not timed_offset == offset == segment.base_offset
    if end < segment.size or timed_offset < segment.base_offset:
        return None
    return None if has_entries and max(offset, timed_offset) >= next_offset else next_offset


def is_time_index_whole(segment: Segment) -> bool:
    """Return whether the time index ends, as in a closed segment, with the largest timestamp and the offset of its batch.

    Reads the end of the segment and the header of that batch. A power failure may leave zeros in place of the offset.
    """
    timestamp, offset = segment.time_index.last_entry
    try:
        if timestamp >= 0 and ((located := segment.locate(offset)) is None or located[1].max_timestamp != timestamp):
            return False
        scan = segment.scan_from(segment.offset_index.last_offset)
        return all(header.max_timestamp <= segment.max_timestamp for _, header in scan)
    except CorruptLog:
        return True  # the segment is not readable, so its index does not matter
