"""The segments that a log would have if other settings had been in force when it was written.

Every batch is appended again, in order and unchanged, to segments that are closed by the rules of `Segment.should_roll`:
`segment.bytes`, `segment.index.bytes`, and, by the timestamps in the batches, `segment.ms` and
`max.compaction.lag.ms`. Batches that were removed do not come back, so a log that was cleaned may get fewer
segments than it would have had.

Unknown facts are assumed: each batch was appended on its own, without jitter, and a batch without timestamp when its segment was
last written. An empty last segment is left out: only an append could have closed the one before it.

Source: Kafka's LogSegment.shouldRoll and UnifiedLog.maybeRoll.
"""

from __future__ import annotations

from collections.abc import Callable

from diamant.cleaner.segments.strict_reader import read_chunks
from diamant.protocol.batches.header import BatchHeader
from diamant.storage import names
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import Env
from diamant.storage.log.log import Log
from diamant.storage.segments.log_config import LogConfig
from diamant.storage.segments.segment import Segment
from diamant.storage.segments.txn_index import AbortedTxn

READ_BYTES = 1024 * 1024


def lay_out_anew(
    log: Log, env: Env, clock: SettableClock, config: LogConfig, *, advance: Callable[[int], object] | None = None
) -> None:
    """Replace the segment files of `log`'s directory in `env`, a copy that `log` does not have open, by those for `config`.

    `clock` is that of `env`; it is moved to the time of each source's last write, and left there. `advance` takes the number
    of bytes copied. Blocks; CorruptLog for bytes outside batches. Memory: `READ_BYTES`, or one batch.
    """
    for name in env.list_dir(log.path):
        parsed = names.parse_segment_file(name)
        if parsed is not None and parsed.suffix != names.SNAPSHOT_SUFFIX:
            env.remove(f"{log.path}/{name}")
    layout = _Layout(log, env, config)
    for source in log.segments:
        modified_ms = log.env.mtime_ms(source.path)
        clock.set_ms(modified_ms)
        for chunk in read_chunks(source.file, 0, source.size, READ_BYTES):
            with memoryview(chunk.data) as view:
                for at, header in chunk.headers:
                    layout.add(view[at : at + header.size], header, modified_ms)
            if advance is not None:
                advance(chunk.size)
    layout.finish(log.log_end_offset)


class _Layout:
    """The segments being written."""

    def __init__(self, log: Log, env: Env, config: LogConfig) -> None:
        self._env = env
        self._config = config
        self._directory = log.path
        entries = [aborted for segment in log.segments for aborted in segment.txn_index.all()]
        self._aborted: list[AbortedTxn] = sorted(entries, key=lambda one: -one.last_offset)
        """Entries whose markers are still to come, the next one last."""
        self._segment = self._new_segment(log.segments[0].base_offset)
        self._modified_ms = log.env.mtime_ms(log.segments[0].path)
        self._next_offset = log.segments[0].base_offset

    def _new_segment(self, base_offset: int) -> Segment:
        return Segment(self._env, self._directory, base_offset, self._config, create=True)

    def add(self, batch: memoryview, header: BatchHeader, modified_ms: int) -> None:
        config = self._config
        last_offset, max_timestamp = header.last_offset, header.max_timestamp
        if self._segment.should_roll(len(batch), last_offset, max_timestamp, config, modified_ms):
            self._close()
            self._segment = self._new_segment(header.base_offset)
        segment = self._segment
        segment.append(batch, last_offset, max_timestamp, modified_ms, config.index_interval_bytes)
        while self._aborted and self._aborted[-1].last_offset <= last_offset:
            segment.txn_index.append(self._aborted.pop())
        self._modified_ms = modified_ms
        self._next_offset = header.next_offset

    def finish(self, log_end_offset: int) -> None:
        """Close the files. If the last offsets have no batch, an empty segment keeps them from being assigned twice."""
        if self._next_offset < log_end_offset and self._segment.base_offset < log_end_offset:
            self._close()
            self._segment = self._new_segment(log_end_offset)
        self._close()

    def _close(self) -> None:
        segment = self._segment
        segment.on_inactive()
        segment.close()
        for path in segment.file_paths():
            if self._env.exists(path):
                self._env.set_mtime_ms(path, self._modified_ms)
