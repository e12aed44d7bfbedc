"""Outputs of a cleaning, written by the tests, and the segments of a log."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from diamant.protocol.batches.header import parse_header
from diamant.storage import names
from diamant.storage.log.log import Log
from diamant.storage.segments.segment import Segment


def batches(log: Log, segment: Segment) -> list[bytes]:
    """Return the batches of a segment, one by one."""
    data = log.env.read_bytes(segment.path)
    found = []
    position = 0
    while position < len(data):
        size = parse_header(data, position).size
        found.append(data[position : position + size])
        position += size
    return found


def write_cleaned(
    log: Log,
    bases: Iterable[int],
    keep: Callable[[int], bool],
    *,
    keep_aborted: bool = True,
    change: Callable[[bytes], bytes] = bytes,
) -> int:
    """Write a `.cleaned` segment of the batches whose base offsets `keep` accepts, each one changed; return its size."""
    sources = [segment for segment in log.segments if segment.base_offset in set(bases)]
    suffix = names.CLEANED_SUFFIX
    cleaned = Segment(log.env, log.path, sources[0].base_offset, log.config, suffix=suffix, create=True)
    for source in sources:
        for data in map(change, batches(log, source)):
            header = parse_header(data)
            if keep(header.base_offset):
                now_ms, interval_bytes = log.env.clock.now_ms(), log.config.index_interval_bytes
                cleaned.append(data, header.last_offset, header.max_timestamp, now_ms, interval_bytes)
        for aborted in source.txn_index.all() if keep_aborted else ():
            cleaned.txn_index.append(aborted)
    cleaned.on_inactive()
    cleaned.sync()
    cleaned.close()
    log.env.set_mtime_ms(cleaned.path, log.env.mtime_ms(sources[-1].path))
    return cleaned.size


def is_even(offset: int) -> bool:
    return offset % 2 == 0


def bases_of(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def text(offsets: Iterable[int]) -> list[bytes | None]:
    return [b"%d" % offset for offset in offsets]
