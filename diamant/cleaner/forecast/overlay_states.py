"""The states of one partition in which `partition_forecast.py` tries out events. Each state is an overlay over the same files.

A state is never changed: the next state is made by working on a fork of it. States are kept so that several scenarios can share
them, until the segments written for them exceed `max_kept_bytes`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b

from diamant.cleaner.forecast.forecast import Contents, Scenario
from diamant.cleaner.offline.partition_stats import read_stats
from diamant.cleaner.queries.key_counts import DEFAULT_MAX_BYTES
from diamant.cleaner.rules.result import CleanResult
from diamant.cleaner.segments.strict_reader import read_chunks
from diamant.cleaner.segments.tolerant_reader import OpenLogDirectory, PartitionFiles, Problem, SegmentFile
from diamant.protocol.batches.header import BatchHeader
from diamant.storage import names
from diamant.storage.checkpoints import checkpoints
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import Env, parent
from diamant.storage.env.overlay import OverlayEnv
from diamant.storage.errors import StorageError
from diamant.storage.log.append_checks import Validation
from diamant.storage.log.log import Log
from diamant.storage.recovery.open_log import load_log
from diamant.storage.recovery.segment_recovery import SyncedDamage
from diamant.storage.segments.log_config import LogConfig
from diamant.storage.segments.segment import Segment
from diamant.storage.segments.txn_index import AbortedTxn
from diamant.storage.uuid_text import ZERO_ID

DEFAULT_MAX_KEPT_BYTES = 1024 * 1024 * 1024
"""Limit for the segments that are kept in the scratch directory so that several scenarios can share them."""
READ_BYTES = 1024 * 1024


def lay_out_anew(
    log: Log, env: Env, clock: SettableClock, config: LogConfig, *, advance: Callable[[int], object] | None = None
) -> None:
    """Replace the segment files of `log` in `env`, a copy that `log` does not have open, with the segments under `config`.

    Every batch is appended again, in order and unchanged. `Segment.should_roll` decides when a segment is closed: by
    `segment.bytes`, `segment.index.bytes`, and the batches' timestamps with `segment.ms` and `max.compaction.lag.ms`. Removed
    batches do not come back, so a log that was cleaned may get fewer segments than it would have had. Assumptions: each batch was
    appended on its own, without jitter; a batch without timestamp was appended when its segment was last written. An empty last
    segment is left out, because only an append could have closed the segment before it. Source: Kafka's LogSegment.shouldRoll,
    UnifiedLog.maybeRoll.

    `clock` is the clock of `env`; it is moved to the time of each source's last write, and left there. `advance` is called with
    the number of bytes copied. Blocking. Raises CorruptLog for bytes outside batches. Memory: `READ_BYTES`, or one batch.
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
    """Writes the segments of a new layout."""

    def __init__(self, log: Log, env: Env, config: LogConfig) -> None:
        self._env = env
        self._config = config
        self._directory = log.path
        entries = [aborted for segment in log.segments for aborted in segment.txn_index.all()]
        self._aborted: list[AbortedTxn] = sorted(entries, key=lambda one: -one.last_offset)
        """Entries whose markers have not been appended yet, the next entry last."""
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
        """Close the files. If the last offsets have no batch, add an empty segment, so that they are not assigned again."""
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


@dataclass(frozen=True, slots=True)
class State:
    """A snapshot of the partition. It must not be changed; continue on a fork of `env`."""

    env: OverlayEnv
    checkpoint: int | None
    log_start_offset: int
    key: bytes
    """Identifies the steps that led to this state."""

    def extent(self, directory: str) -> tuple[int, int]:
        """Return the size of the `.log` files in bytes, and their number."""
        logs = [name for name in self.env.list_dir(directory) if name.endswith(names.LOG_SUFFIX)]
        return sum(self.env.file_size(f"{directory}/{name}") for name in logs), len(logs)


class OverlayStates:
    """Makes and keeps states; see the module. `env` has the partition; output goes to `scratch`, a directory of `scratch_env`.

    `advance` is called with the approximate number of bytes read or written, `report` with problems in the files.
    """

    def __init__(
        self,
        env: Env,
        partition: PartitionFiles,
        checkpoint: int | None,
        now_ms: int,
        scratch_env: Env,
        scratch: str,
        *,
        max_key_bytes: int = DEFAULT_MAX_BYTES,
        max_kept_bytes: int = DEFAULT_MAX_KEPT_BYTES,
        advance: Callable[[int], None] = lambda _count: None,
        report: Callable[[Problem], object] = lambda _problem: None,
    ) -> None:
        self.partition = partition
        self.now_ms = now_ms
        self.clock = SettableClock(now_ms)
        self.advance = advance
        self._report = report
        self._max_key_bytes = max_key_bytes
        self._max_kept_bytes = max_kept_bytes
        overlay = OverlayEnv(env, scratch_env, scratch, self.clock)
        overlay.add_directory(partition.directory)
        self._is_orderly = env.exists(f"{parent(partition.directory)}/{names.CLEAN_SHUTDOWN}")
        self._origin = State(overlay, checkpoint, partition.log_start_offset, b"")
        self._kept: OrderedDict[bytes, tuple[State, CleanResult | None, int]] = OrderedDict()
        self._counted: dict[bytes, Contents] = {}
        self._reported: set[Problem] = set()

    def beginning(self, scenario: Scenario) -> State:
        """Set the clock to `now_ms` and return the partition at that time, in its present layout or the scenario's."""
        self.clock.set_ms(self.now_ms)
        if not scenario.is_laid_out_anew:
            return self._origin
        config = scenario.config
        limits = (
            config.segment_bytes, config.max_segment_ms, config.segment_index_bytes, config.index_interval_bytes
        )  # fmt: skip
        key = next_key(self._origin.key, "layout", *limits)
        if (kept := self.kept(key)) is not None:
            return kept[0]
        log, env = self.load(self._origin, scenario)
        try:
            self.demand_space(env, log.size)
            target = self._origin.env.fork()
            lay_out_anew(log, target, self.clock, config, advance=self.advance)
        finally:
            log.close()
            self.clock.set_ms(self.now_ms)
        state = replace(self._origin, env=target, key=key)
        self.keep(key, state, None, log.size)
        return state

    def load(self, state: State, scenario: Scenario) -> tuple[Log, OverlayEnv]:
        """Open the partition as a starting broker does, on a fork of the state."""
        try:
            return self._load(state, scenario, is_clean=True)
        except SyncedDamage:
            if self._is_orderly:
                raise
            # The end may be torn, as in a copy of a running broker's files.
            return self._load(state, scenario, is_clean=False)

    def _load(self, state: State, scenario: Scenario, *, is_clean: bool) -> tuple[Log, OverlayEnv]:
        env = state.env.fork()
        partition = self.partition
        log = load_log(
            env,
            partition.directory,
            partition.topic,
            partition.partition,
            checkpoints.read_partition_metadata(env, partition.directory) or ZERO_ID,
            scenario.config,
            Validation(),
            recovery_point=None,
            log_start_offset=state.log_start_offset,
            is_clean=is_clean,
            producer_expiration_ms=scenario.producer_expiration_ms,
            is_of_one_moment=self._is_orderly,
        )
        return log, env

    def count(self, state: State, scenario: Scenario) -> Contents:
        """Count the records of a state by kind."""
        if (known := self._counted.get(state.key)) is not None:
            return known
        log, env = self.load(state, scenario)
        try:
            files = PartitionFiles(
                self.partition.topic,
                self.partition.partition,
                self.partition.directory,
                tuple(SegmentFile(segment.path, segment.base_offset, segment.size) for segment in log.segments),
                log.log_start_offset,
            )
            opened = OpenLogDirectory(self.partition.directory, (files,))
            (topic,) = read_stats(env, opened, max_bytes=self._max_key_bytes, advance=self.advance)
        finally:
            log.close()
        (stats,) = topic.partitions
        for problem in stats.problems:
            if problem not in self._reported:
                self._reported.add(problem)
                self._report(problem)
        found = self._counted[state.key] = Contents(stats.bytes, stats.segments, stats.batches, stats.kinds)
        return found

    # -- sharing between scenarios -------------------------------------------------------------------------------

    def kept(self, key: bytes) -> tuple[State, CleanResult | None] | None:
        """Return what `keep` stored for a key; None if it is no longer stored."""
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0], found[1]

    def keep(self, key: bytes, state: State, result: CleanResult | None, size: int) -> None:
        """Keep the result of a step that wrote `size` bytes, until later results need the space."""
        self._kept[key] = (state, result, size)
        while self._kept and sum(size for _, _, size in self._kept.values()) > self._max_kept_bytes:
            self._kept.popitem(last=False)

    def demand_space(self, env: OverlayEnv, size: int) -> None:
        """Raise StorageError if the scratch directory has no room for `size` bytes."""
        free = env.free_bytes()
        if size > free:
            raise StorageError(
                f"{env.scratch}: trying out {self.partition.name} takes up to {size} bytes, but only {free} are free; "
                "set TMPDIR, or spark.local.dir for a Spark task, to a directory with more room"
            )


def next_key(key: bytes, *step: object) -> bytes:
    """Return the key of the state that follows the state with `key` after `step`."""
    return blake2b(key + repr(step).encode(), digest_size=16).digest()
