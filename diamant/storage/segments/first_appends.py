"""The time of the first append to each segment of a partition, in the file `diamant-first-appends`, which Kafka ignores.

Kafka's files do not contain this time, and the file of a segment may be much older, as in an idle log with an empty last
segment. So a clean stop of a log with `max.compaction.lag.ms` notes the times that differ, in the format of a checkpoint:

    0                       version
    1                       number of lines that follow
    42 1700000000000        base offset of a segment, time of its first append in ms

A noted time is never later than the first append, even after a crash, because anything that replaces the beginning of a segment
is appended later. The file is not synced. If it is missing or damaged, the times are estimated.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import format_checkpoint, read_entries
from diamant.storage.config_key import LONG_MAX
from diamant.storage.env.env import Env, latest_write_ms
from diamant.storage.errors import CorruptLog
from diamant.storage.segments.log_config import LogConfig
from diamant.storage.segments.segment import Segment

MIN_DIFFERENCE_MS = 1000
"""A first append is noted only if it came at least this long after the creation of the file."""


def load_first_appends(env: Env, directory: str, segments: Iterable[Segment], config: LogConfig) -> None:
    """Set `first_append_ms` of segments to the noted times, unless they are later than the file's last write. Raises OSError."""
    if not _are_noted(config):
        return
    noted: dict[int, int] = {}
    with suppress(CorruptLog, ValueError):
        entries = read_entries(env, f"{directory}/{names.FIRST_APPENDS}", 2)
        noted = {int(fields[0]): int(fields[1]) for _, fields in entries}
    for segment in segments:
        time_ms = noted.get(segment.base_offset)
        if segment.size and time_ms is not None and time_ms <= latest_write_ms(env, segment.path):
            segment.first_append_ms = time_ms


def note_first_appends(env: Env, directory: str, segments: Iterable[Segment], config: LogConfig) -> None:
    """Note the times that cannot be derived from the segments' files; if there are none, remove the file. Ignores errors."""
    if not _are_noted(config):
        return
    path = f"{directory}/{names.FIRST_APPENDS}"
    with suppress(OSError):
        lines = [f"{segment.base_offset} {segment.first_append_ms}\n" for segment in segments if _differs(env, segment)]
        if lines:
            env.write_atomically(path, format_checkpoint(lines), sync=False)
        else:
            env.remove(path, missing_ok=True)


def _are_noted(config: LogConfig) -> bool:
    return config.is_compacted and config.max_compaction_lag_ms < LONG_MAX


def _differs(env: Env, segment: Segment) -> bool:
    if not segment.size or segment.first_append_ms is None:
        return False
    birth_ms = env.birth_ms(segment.path)
    return birth_ms is None or segment.first_append_ms - birth_ms >= MIN_DIFFERENCE_MS
