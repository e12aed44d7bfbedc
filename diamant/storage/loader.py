"""Opening a partition directory: leftovers of a crash, recovery of segments, producer state.

The order of steps is Kafka's (LogLoader): temporary files, swaps, segments, recovery above the recovery point, log start,
producer state. After an unclean stop only segments at or above the recovery point are scanned; a torn or corrupt tail is cut
off and later segments go. A corrupt file that recovery may not touch raises CorruptLog with path and position.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from diamant.protocol.batch import BatchHeader, crc_is_valid
from diamant.protocol.control import parse_control_type
from diamant.protocol.errors import CorruptBatch
from diamant.protocol.records import iter_records
from diamant.storage import checkpoints, names
from diamant.storage.checkpoints import LeaderEpochs
from diamant.storage.env import Env, File, parent
from diamant.storage.errors import CorruptLog
from diamant.storage.leader_batch import Validation
from diamant.storage.log import Log, _coordinator_epoch
from diamant.storage.log_config import LogConfig
from diamant.storage.producer_state import ProducerStateManager
from diamant.storage.segment import MAX_RELATIVE_OFFSET, Segment, scan_headers
from diamant.storage.txn_index import AbortedTxn

# Recovery reads a segment in pieces of this size; a larger batch is read whole.
RECOVERY_READ_BYTES = 4 * 1024 * 1024


class RecoveredSegment(NamedTuple):
    """Result of recovering one segment: bytes cut off, and why (None if the segment was whole)."""

    truncated_bytes: int
    reason: str | None


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
    recovery_point: int,
    log_start_offset: int,
    is_clean: bool,
    producer_expiration_ms: int,
    messages: list[str] | None = None,
) -> Log:
    """Open the partition directory `path`; may run in a worker thread, the result then belongs to the loop thread.

    `recovery_point` and `log_start_offset` come from the checkpoints (0 without). What recovery did that a person should
    know is appended to `messages`.
    """
    said = messages if messages is not None else []
    epochs = LeaderEpochs.load(env, path)
    _remove_temporary_files(env, path)
    _complete_swaps(env, path)
    producers = ProducerStateManager(env, path, topic, partition, expiration_ms=producer_expiration_ms)
    segments, missing_index = _open_segments(env, path, config)
    has_removed = False
    if is_clean and segments and not segments[-1].indexes_fit_end():
        said.append(f"{segments[-1].path}: its indexes are damaged; they are made anew")
        missing_index.add(segments[-1].base_offset)
    if not is_clean or missing_index:
        first = _floor(segments, recovery_point) if not is_clean else len(segments)
        for index, segment in enumerate(list(segments)):
            if index < first and segment.base_offset not in missing_index:
                continue
            _rebuild_producers(producers, segments[:index], segment.base_offset, env)
            # Behind a segment whose end was compacted away there is none yet.
            producers.take_snapshot(segment.base_offset)
            recovered = recover_segment(segment, config, epochs, producers)
            producers.take_snapshot(segment.next_offset())
            if recovered.reason is None:
                continue
            said.append(
                f"{segment.path}: {recovered.reason}; cut off {recovered.truncated_bytes} bytes, the log now ends at "
                f"offset {segment.next_offset()}"
            )
            for later in segments[index + 1 :]:
                said.append(f"{later.path}: removed, it lies behind the corruption")
                _remove_segment(env, later, path)
            has_removed = index + 1 < len(segments)
            del segments[index + 1 :]
            break
    log_end_offset = segments[-1].next_offset() if segments else log_start_offset
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
    producers.remove_stray_snapshots([segment.base_offset for segment in segments])
    _load_producers(producers, segments, start, log_end_offset, env, is_clean=is_clean)
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
        recovery_point=log_end_offset if is_clean else max(min(recovery_point, log_end_offset), start),
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

    See `replace` for the steps that may have been taken. Each of these here may be interrupted and done again. Beyond Kafka:

    * A segment at a `.swap` file's own base offset goes even if the `.swap` is empty, with all its indexes.
    * If the lowest `.swap` is empty or torn and nothing was taken away yet, it is dropped, and the old segments stay: it
      does not tell what it replaces, and may have been whole once.
    * An empty `.swap` that is not the lowest is the end mark of `replace`: it goes.
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


def _open_segments(env: Env, path: str, config: LogConfig) -> tuple[list[Segment], set[int]]:
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
    return segments, missing_index


def _remove_segment(env: Env, segment: Segment, path: str) -> None:
    segment.close()
    for file_path in [*segment.file_paths(), names.snapshot_file(path, segment.base_offset)]:
        if env.exists(file_path):
            env.remove(file_path)


def _floor(segments: list[Segment], offset: int) -> int:
    index = 0
    for position, segment in enumerate(segments):
        if segment.base_offset <= offset:
            index = position
    return index


def recover_segment(
    segment: Segment, config: LogConfig, epochs: LeaderEpochs, producers: ProducerStateManager
) -> RecoveredSegment:
    """Check every batch (framing and CRC), rebuild the indexes, cut off what follows the first bad one (LogSegment.recover).

    Records are not parsed, apart from control records. `producers` must hold the state at the segment's base offset.
    """
    segment.reset_indexes()
    last_indexed = 0
    valid_bytes = 0
    reason: str | None = None
    file = segment.file
    size = segment.size
    window = b""
    window_start = 0
    previous_offset = segment.base_offset - 1
    try:
        for position, header in scan_headers(file, 0, size):
            at = position - window_start
            if at + header.size > len(window):
                window = file.pread(min(max(RECOVERY_READ_BYTES, header.size), size - position), position)
                window_start, at = position, 0
            if header.magic == 2 and not crc_is_valid(window, at, header.size):
                raise CorruptLog(segment.path, position, f"CRC mismatch in the batch at offset {header.base_offset}")
            if not previous_offset < header.last_offset <= segment.base_offset + MAX_RELATIVE_OFFSET:
                raise CorruptLog(
                    segment.path, position, f"last offset {header.last_offset} after {previous_offset} is out of order"
                )
            last_indexed = segment.rebuild_entry(header, position, last_indexed, config.index_interval_bytes)
            if header.magic == 2:
                if header.partition_leader_epoch > epochs.latest_epoch:
                    epochs.assign(header.partition_leader_epoch, header.base_offset)
                if header.producer_id >= 0:
                    _replay(producers, header, memoryview(window)[at : at + header.size], segment)
            previous_offset = header.last_offset
            valid_bytes = position + header.size
    except CorruptLog as error:
        reason = error.reason
    if reason is None and valid_bytes < size:
        reason = f"{size - valid_bytes} bytes at the end are no whole batch"
    if valid_bytes < size:
        segment.truncate_bytes(valid_bytes)
    segment.on_inactive()
    return RecoveredSegment(size - valid_bytes, reason)


def _replay(producers: ProducerStateManager, header: BatchHeader, batch: memoryview, segment: Segment | None) -> None:
    """Bring the producer state past one stored batch; aborted transactions go to the segment's index if one is given."""
    if not header.is_control:
        producers.replay(header)
        return
    try:
        record = next(iter_records(batch), None)
    except CorruptBatch:
        record = None
    if record is None or record.key is None:
        return
    completed = producers.append_marker(
        header, parse_control_type(record.key), _coordinator_epoch(record.value), header.base_offset, is_replay=True
    )
    if completed is None:
        return
    stable = producers.last_stable_offset_after(completed)
    if completed.is_aborted and segment is not None:
        segment.txn_index.append(
            AbortedTxn(completed.producer_id, completed.first_offset, completed.last_offset, stable)
        )
    producers.complete_txn(completed)


def _rebuild_producers(producers: ProducerStateManager, earlier: list[Segment], offset: int, env: Env) -> None:
    """Bring the producer state exactly to `offset`, from what was recovered before or else the newest snapshot below it.

    Snapshots above `offset` are of a time before the recovery and go.
    """
    if not producers.is_loaded or producers.map_end_offset > offset:
        producers.load(env.clock.now_ms(), offset, log_start_offset=earlier[0].base_offset if earlier else offset)
    _scan_producers(producers, earlier, offset)


def _scan_producers(producers: ProducerStateManager, segments: list[Segment], end: int) -> None:
    for index, segment in enumerate(segments):
        following = segments[index + 1].base_offset if index + 1 < len(segments) else end
        if following <= producers.map_end_offset:
            continue
        found = segment.locate(producers.map_end_offset)
        if found is None:
            continue
        file: File = segment.file
        for position, header in scan_headers(file, found[0], segment.size):
            if header.base_offset >= end:
                break
            if header.magic == 2 and header.producer_id >= 0 and header.base_offset >= producers.map_end_offset:
                data = file.pread(header.size, position) if header.is_control else b""
                _replay(producers, header, memoryview(data), None)
    producers.map_end_offset = max(end, producers.map_end_offset)


def _load_producers(
    producers: ProducerStateManager, segments: list[Segment], start: int, end: int, env: Env, *, is_clean: bool
) -> None:
    """Producer state at the log end, as UnifiedLog.rebuildProducerState does it."""
    if is_clean and not producers.has_snapshots and end == segments[0].base_offset:
        producers.map_end_offset = end
        return
    # After a recovery the state is there already, with all five batches per producer; a snapshot would know only one. It
    # would not know the expired ones either, which the cleaner must not take for active.
    if producers.map_end_offset != end:
        producers.load(env.clock.now_ms(), end, log_start_offset=start)
        _scan_producers(producers, segments, end)
    else:
        producers.expire(env.clock.now_ms())
    producers.on_high_watermark(end)
    producers.take_snapshot(end)
