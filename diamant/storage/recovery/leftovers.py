"""Cleanup of a partition directory after a crash: removes temporary files, completes or undoes swaps.

Source: the first two steps of LogLoader.
"""

from __future__ import annotations

from typing import NamedTuple

from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog
from diamant.storage.segments.segment import scan_headers


def remove_temporary_files(env: Env, path: str) -> None:
    """Delete `.deleted` and `.cleaned` files and the `.swap` files of an unfinished swap (LogLoader, step 1).

    Also deletes the staging directories of cleaning rounds in other processes.
    """
    entries = env.list_dir(path)
    for name in entries:
        if name.startswith(names.STAGING_PREFIX) and env.is_dir(f"{path}/{name}"):
            env.remove_tree(f"{path}/{name}")
    cleaned = [name for name in entries if name.endswith(names.CLEANED_SUFFIX)]
    # Swaps are renamed in descending order of offset: a .cleaned file below a .swap shows that the set is incomplete.
    smallest = min((offset for name in cleaned if (offset := offset_of(name)) >= 0), default=None)
    unfinished = [name for name in _swap_files(entries) if smallest is not None and offset_of(name) >= smallest]
    deleted = [name for name in entries if name.endswith(names.DELETED_SUFFIX)]
    # The .cleaned files go last: after a crash here, a start without them would treat the .swap files as complete.
    for name in [*deleted, *unfinished, *cleaned]:
        env.remove(f"{path}/{name}")


def complete_swaps(env: Env, path: str) -> None:
    """Finish a swap whose `.swap` files are complete: remove the replaced segments, then drop the suffix (step 2).

    `segment_swap` lists the steps that may have been taken. Every step here is idempotent. Differences from Kafka:

    * A segment at a `.swap` file's own base offset is removed with all its indexes, even if the `.swap` is empty.
    * If the lowest `.swap` is empty or torn and no segment was removed yet, it is dropped and the old segments stay: it
      no longer shows which segments it replaces.
    * An empty `.swap` that is not the lowest is the end mark of `segment_swap`: it is removed.
    * The `.log` files are renamed first, so that a `.log` without suffix never has another segment's indexes.
    """
    entries = env.list_dir(path)
    swaps = _swap_files(entries)
    logs = sorted(offset_of(name) for name in swaps if name.endswith(names.LOG_SUFFIX + names.SWAP_SUFFIX))
    if logs:
        inspected = [_inspect_swap(env, names.log_file(path, offset) + names.SWAP_SUFFIX, offset) for offset in logs]
        is_untouched = env.exists(names.log_file(path, logs[0]))
        if is_untouched and not (inspected[0].is_whole and inspected[0].size):
            # In reverse, the lowest .log.swap last: after a crash here, it makes the next start continue.
            for name in reversed(swaps):
                env.remove(f"{path}/{name}")
            return
        end = max(swap.end_offset for swap in inspected)
        for name in entries:
            parsed = names.parse_segment_file(name)
            if parsed is None or parsed.stage or not (logs[0] <= parsed.offset < end or parsed.offset in logs):
                continue
            # The producer state at the start of a segment does not depend on the segment's contents.
            if parsed.suffix != names.SNAPSHOT_SUFFIX or parsed.offset not in logs:
                env.remove(f"{path}/{name}")
        marks = [offset for offset, swap in zip(logs[1:], inspected[1:], strict=True) if not swap.size]
        for name in [name for name in swaps if offset_of(name) in marks]:
            env.remove(f"{path}/{name}")
            swaps.remove(name)
    for name in swaps:
        env.rename(f"{path}/{name}", f"{path}/{name.removesuffix(names.SWAP_SUFFIX)}")
    if swaps:
        env.sync_dir(path)


def _swap_files(entries: list[str]) -> list[str]:
    """Return the `.swap` files of segments, `.log` files first."""
    swaps = [
        name for name in entries if name.endswith(names.SWAP_SUFFIX) and names.parse_segment_file(name) is not None
    ]
    return sorted(swaps, key=lambda name: not name.endswith(names.LOG_SUFFIX + names.SWAP_SUFFIX))


class _Swap(NamedTuple):
    """A `.log.swap` file; `end_offset`, at least its base offset, follows the last offset it covers."""

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
            pass  # the position shows it
        return _Swap(file.size(), end_offset, position == file.size())
    finally:
        file.close()


def offset_of(name: str) -> int:
    """Return the base offset in the name of a segment's file; -1 for other names."""
    parsed = names.parse_segment_file(name)
    return -1 if parsed is None else parsed.offset
