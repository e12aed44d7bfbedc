"""Opening a partition directory: leftovers of a crash, recovery of segments, producer state.

The order of steps is Kafka's (LogLoader): temporary files, swaps, segments, recovery above the recovery point, log start,
producer state. After an unclean stop only segments at or above the recovery point are scanned; a torn or corrupt tail is cut
off and later segments go. A corrupt file that recovery may not touch raises CorruptLog with path and position: no whole batch is
removed after an orderly stop, below the recovery point, or if the recovery point is unknown.

Without a mark of an orderly stop the directory may be a copy of one that was in use. What is taken out of such a log (a torn end
below the recovery point, segments that were cleaned into another one) is kept beside it as `.aside`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from diamant.storage import names
from diamant.storage.checkpoints import checkpoints
from diamant.storage.checkpoints.checkpoints import LeaderEpochs
from diamant.storage.env.env import Env, parent
from diamant.storage.errors import CorruptLog
from diamant.storage.log.append_checks import Validation
from diamant.storage.log.log import Log
from diamant.storage.producers.producer_state import ProducerStateManager
from diamant.storage.recovery.recovery import TornEnd, check_synced, load_producers, rebuild_producers, recover_segment
from diamant.storage.recovery.soundness import is_time_index_whole, sound_end
from diamant.storage.recovery.stale_segments import Stale, find_stale
from diamant.storage.recovery.torn_end import aside_paths, keep_aside
from diamant.storage.segments.log_config import LogConfig
from diamant.storage.segments.segment import Segment, scan_headers

MAX_OFFSET = 2**63 - 1


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
    """Make the directory of a new, empty partition with everything that Kafka expects in it."""
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
    """Open the partition directory `path`; may run in a worker thread, the result then belongs to the loop thread.

    `recovery_point` and `log_start_offset` come from the checkpoints; 0 if they say nothing of the partition. None is a
    recovery point that is lost: all is scanned, and no whole batch is cut off. CUT_NOTHING is that of a log that was refused:
    nothing is cut off. What recovery did that a person should know is appended to `messages`. `is_of_one_moment` says whether a
    broker left the files so; else segments are looked for that were cleaned into others. None: it did if it stopped in order.
    """
    said = messages if messages is not None else []
    epochs = LeaderEpochs.load(env, path)
    _remove_temporary_files(env, path)
    _complete_swaps(env, path)
    producers = ProducerStateManager(env, path, topic, partition, expiration_ms=producer_expiration_ms)
    segments, missing_index = _open_segments(env, path, config, said)
    stale = [] if is_of_one_moment or (is_of_one_moment is None and is_clean) else _find_stale(segments, config)
    for one in stale:
        segments.remove(one.segment)
    dead = [] if is_clean else _below(segments, log_start_offset)
    del segments[: len(dead)]
    for segment in segments:
        if segment.is_index_damaged:  # as was found just now
            missing_index.add(segment.base_offset)
            said.append(f"{segment.path}: its indexes are those of other content; they are rebuilt")
    log_end_offset = None
    if is_clean and segments:
        log_end_offset = sound_end(segments[-1])
        if log_end_offset is None:
            missing_index.add(segments[-1].base_offset)
    is_refused = recovery_point == checkpoints.CUT_NOTHING
    synced_end = MAX_OFFSET if is_clean or recovery_point is None else recovery_point
    known_point = 0 if is_refused or recovery_point is None else recovery_point
    first = len(segments) if is_clean else _floor(segments, known_point)
    # If recovery begins where a segment ends, that one was synced to its end, but maybe not what it got when it was rolled.
    is_at_roll = 0 < first < len(segments) and segments[first].base_offset == known_point
    if is_at_roll and not is_time_index_whole(segments[first - 1]):
        missing_index.add(segments[first - 1].base_offset)
    recovered = [
        index for index, segment in enumerate(segments) if index >= first or segment.base_offset in missing_index
    ]
    torn: dict[int, TornEnd] = {}
    for index in recovered:
        may_end = not is_clean and not is_refused and not any(later.size for later in segments[index + 1 :])
        end = check_synced(segments[index], synced_end, may_end=may_end)
        if end is not None:
            torn[index] = end
            synced_end = end.next_offset
    _set_aside(env, path, stale, said)
    for segment in dead:
        _remove_segment(env, segment, path)
    if dead:
        env.sync_dir(path)
    if is_clean and segments and log_end_offset is None:
        said.append(f"{segments[-1].path}: its indexes are damaged; they are rebuilt")
    has_removed = False
    for index in recovered:
        segment = segments[index]
        rebuild_producers(producers, segments[:index], segment.base_offset, env)
        # Behind a segment whose end was compacted away there is none yet.
        producers.take_snapshot(segment.base_offset)
        kept = keep_aside(env, segment, *torn[index]) if index in torn else None
        found = recover_segment(segment, config, epochs, producers, synced_end=synced_end, is_last_scan=index < first)
        producers.take_snapshot(segment.next_offset())
        if found.reason is None:
            continue
        are_kept = f". They are kept in {kept}" if kept else ""
        said.append(
            f"{segment.path}: {found.reason}; cut off {found.truncated_bytes} bytes, the log now ends at "
            f"offset {segment.next_offset()}{are_kept}"
        )
        for later in segments[index + 1 :]:
            said.append(f"{later.path}: removed, it lies behind the corruption")
            _remove_segment(env, later, path)
        has_removed = index + 1 < len(segments)
        del segments[index + 1 :]
        break
    if log_end_offset is None:
        log_end_offset = segments[-1].next_offset() if segments else log_start_offset
    if log_start_offset <= log_end_offset < known_point:
        said.append(
            f"{path}: the log ends at offset {log_end_offset}, though it was on disk up to offset {known_point} when "
            f"{names.RECOVERY_POINT_CHECKPOINT} was written: up to {known_point - log_end_offset} records are missing at "
            "its end, as in a copy that was made while a broker ran"
        )
    if segments and log_end_offset < log_start_offset:
        said.append(
            f"{path}: the log ends at offset {log_end_offset}, before its start offset {log_start_offset}; "
            f"its segments are removed and it starts empty at {log_start_offset}"
        )
        for segment in segments:
            _remove_segment(env, segment, path)
        segments.clear()
        epochs.clear()
        epochs.sync()
        has_removed = True
    if has_removed:
        # Segments that another loss of power brings back would overlap what is appended from here on.
        env.sync_dir(path)
    if not segments:
        log_end_offset = log_start_offset
        segments.append(Segment(env, path, log_start_offset, config, create=True))
    epochs.truncate_from_end(log_end_offset)
    epochs.truncate_from_start(log_start_offset)
    start = max(log_start_offset, segments[0].base_offset)
    producers.snapshots.remove_strays([segment.base_offset for segment in segments])
    load_producers(producers, segments, start, log_end_offset, env, is_clean=is_clean)
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


def _remove_temporary_files(env: Env, path: str) -> None:
    """Delete `.deleted` and `.cleaned` files and the `.swap` files of an unfinished swap (LogLoader, step 1).

    And what a round of the cleaner elsewhere has left in a directory of its own.
    """
    entries = env.list_dir(path)
    for name in entries:
        if name.startswith(names.STAGING_PREFIX) and env.is_dir(f"{path}/{name}"):
            env.remove_tree(f"{path}/{name}")
    cleaned = [name for name in entries if name.endswith(names.CLEANED_SUFFIX)]
    # Swaps are renamed in descending order of offset: a .cleaned file below a .swap shows that the set is not complete.
    smallest = min((offset for name in cleaned if (offset := _offset_of(name)) >= 0), default=None)
    unfinished = [name for name in _swap_files(entries) if smallest is not None and _offset_of(name) >= smallest]
    deleted = [name for name in entries if name.endswith(names.DELETED_SUFFIX)]
    # The .cleaned files go last: without them a start that follows a crash in here would take the .swap files for whole.
    for name in [*deleted, *unfinished, *cleaned]:
        env.remove(f"{path}/{name}")


def _complete_swaps(env: Env, path: str) -> None:
    """Finish a swap whose `.swap` files are complete: what they replace goes, then they lose their suffix (step 2).

    See `segment_swap` for the steps that may have been taken. Each of these here may be interrupted and done again. Beyond Kafka:

    * A segment at a `.swap` file's own base offset goes even if the `.swap` is empty, with all its indexes.
    * If the lowest `.swap` is empty or torn and nothing was taken away yet, it is dropped, and the old segments stay: it
      does not tell what it replaces, and may have been whole once.
    * An empty `.swap` that is not the lowest is the end mark of `segment_swap`: it goes.
    * The `.log` files are renamed first, so that a `.log` without suffix never has indexes of another one.
    """
    entries = env.list_dir(path)
    swaps = _swap_files(entries)
    logs = sorted(_offset_of(name) for name in swaps if name.endswith(names.LOG_SUFFIX + names.SWAP_SUFFIX))
    if logs:
        found = [_inspect_swap(env, names.log_file(path, offset) + names.SWAP_SUFFIX, offset) for offset in logs]
        is_untouched = env.exists(names.log_file(path, logs[0]))
        if is_untouched and not (found[0].is_whole and found[0].size):
            # From behind, the lowest .log.swap last: it is what tells a start that follows a crash in here to go on.
            for name in reversed(swaps):
                env.remove(f"{path}/{name}")
            return
        end = max(swap.end_offset for swap in found)
        for name in entries:
            parsed = names.parse_segment_file(name)
            if parsed is None or parsed.stage or not (logs[0] <= parsed.offset < end or parsed.offset in logs):
                continue
            # The state up to the beginning of a segment does not depend on what the segment holds.
            if parsed.suffix != names.SNAPSHOT_SUFFIX or parsed.offset not in logs:
                env.remove(f"{path}/{name}")
        marks = [offset for offset, swap in zip(logs[1:], found[1:], strict=True) if not swap.size]
        for name in [name for name in swaps if _offset_of(name) in marks]:
            env.remove(f"{path}/{name}")
            swaps.remove(name)
    for name in swaps:
        env.rename(f"{path}/{name}", f"{path}/{name.removesuffix(names.SWAP_SUFFIX)}")
    if swaps:
        env.sync_dir(path)


def _swap_files(entries: list[str]) -> list[str]:
    """The `.swap` files of segments, those of `.log` files first."""
    swaps = [
        name for name in entries if name.endswith(names.SWAP_SUFFIX) and names.parse_segment_file(name) is not None
    ]
    return sorted(swaps, key=lambda name: not name.endswith(names.LOG_SUFFIX + names.SWAP_SUFFIX))


class _Swap(NamedTuple):
    """A `.log.swap` file: what it covers ends before `end_offset`, at least at its base offset."""

    size: int
    end_offset: int
    is_whole: bool


def _inspect_swap(env: Env, path: str, base_offset: int) -> _Swap:
    file = env.open(path, read_only=True)
    try:
        end_offset = base_offset
        position = 0
        try:
            for start, header in scan_headers(file, 0, file.size()):
                end_offset = header.next_offset
                position = start + header.size
        except CorruptLog:
            pass  # told by the position
        return _Swap(file.size(), end_offset, position == file.size())
    finally:
        file.close()


def _offset_of(name: str) -> int:
    parsed = names.parse_segment_file(name)
    return -1 if parsed is None else parsed.offset


def _find_stale(segments: list[Segment], config: LogConfig) -> list[Stale]:
    return find_stale(segments) if config.is_compacted else []


def _below(segments: list[Segment], log_start_offset: int) -> list[Segment]:
    """Return those segments that end below the log start: retention had removed them, or would.

    After a loss of power they may be there again, with holes where nothing was synced, and no recovery needs them.
    """
    return [segment for segment, following in pairwise(segments) if following.base_offset <= log_start_offset]


def _set_aside(env: Env, path: str, stale: list[Stale], said: list[str]) -> None:
    """Rename the `.log` files of segments that were cleaned into another one; their indexes go.

    The last one first, and each durably before the next: what a crash leaves is then found to be stale again, since the segment
    that it was cleaned into still has as many batches behind the first of them.
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
    """All segments in order and the base offsets of those whose indexes must be rebuilt even after a clean stop."""
    entries = set(env.list_dir(path))
    segments = []
    missing_index = set()
    for name in sorted(entries):
        if name.endswith(names.LOG_SUFFIX):
            segment = Segment(env, path, _offset_of(name), config)
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
                        f"{path}/{name}: removed, as there is no {stem}{names.LOG_SUFFIX}; if that was to be here, its "
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
