"""Leftovers of a crash in a partition directory: temporary files are removed, swaps are completed or undone.

Source: LogLoader, the first two of its steps.
"""

from __future__ import annotations

from typing import NamedTuple

from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog
from diamant.storage.segments.segment import scan_headers


def remove_temporary_files(env: Env, path: str) -> None:
    """Delete `.deleted` and `.cleaned` files and the `.swap` files of an unfinished swap (LogLoader, step 1).

    And what a round of the cleaner elsewhere has left in a directory of its own.
    """
    entries = env.list_dir(path)
    for name in entries:
        if name.startswith(names.STAGING_PREFIX) and env.is_dir(f"{path}/{name}"):
            env.remove_tree(f"{path}/{name}")
    cleaned = [name for name in entries if name.endswith(names.CLEANED_SUFFIX)]
    # Swaps are renamed in descending order of offset: a .cleaned file below a .swap shows that the set is not complete.
    smallest = min((offset for name in cleaned if (offset := offset_of(name)) >= 0), default=None)
    unfinished = [name for name in _swap_files(entries) if smallest is not None and offset_of(name) >= smallest]
    deleted = [name for name in entries if name.endswith(names.DELETED_SUFFIX)]
    # The .cleaned files go last: without them a start that follows a crash in here would take the .swap files for whole.
    for name in [*deleted, *unfinished, *cleaned]:
        env.remove(f"{path}/{name}")


def complete_swaps(env: Env, path: str) -> None:
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
    logs = sorted(offset_of(name) for name in swaps if name.endswith(names.LOG_SUFFIX + names.SWAP_SUFFIX))
    if logs:
        found = [_inspect_swap(env, names.log_file(path, offset) + names.SWAP_SUFFIX, offset) for offset in logs]
        is_untouched = env.exists(names.log_file(path, logs[0]))
        if is_untouched and not (found[0].is_whole and found[0].size):
            # From behind, the lowest .log.swap last: it tells a start that follows a crash in here to continue.
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
        for name in [name for name in swaps if offset_of(name) in marks]:
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


def offset_of(name: str) -> int:
    """Return the base offset in the name of a segment's file; -1 if it is none."""
    parsed = names.parse_segment_file(name)
    return -1 if parsed is None else parsed.offset
