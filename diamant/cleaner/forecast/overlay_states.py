"""The states of one partition in which `partition_forecast.py` tries out events: each is an overlay over the same files.

A state is never changed. To continue from one, take a fork of it and work on that: this makes the next one. States shared by
several scenarios are kept, as long as the log written for them has room (`max_kept_bytes`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b

from diamant.cleaner.forecast.forecast import Contents, Scenario
from diamant.cleaner.forecast.resegmentation import lay_out_anew
from diamant.cleaner.offline.partition_stats import read_stats
from diamant.cleaner.queries.key_counts import DEFAULT_MAX_BYTES
from diamant.cleaner.rules.result import CleanResult
from diamant.cleaner.segments.tolerant_reader import OpenLogDirectory, PartitionFiles, Problem, SegmentFile
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
from diamant.storage.uuid_text import ZERO_ID

DEFAULT_MAX_KEPT_BYTES = 1024 * 1024 * 1024
"""Limit of the log kept in the scratch directory for rounds that several scenarios share."""


@dataclass(frozen=True, slots=True)
class State:
    """The partition at one time. Never changed: to continue from it, take a fork."""

    env: OverlayEnv
    checkpoint: int | None
    log_start_offset: int
    key: bytes
    """Identifies the steps that led to it."""

    def extent(self, directory: str) -> tuple[int, int]:
        """Return the size of the `.log` files in bytes, and their number."""
        logs = [name for name in self.env.list_dir(directory) if name.endswith(names.LOG_SUFFIX)]
        return sum(self.env.file_size(f"{directory}/{name}") for name in logs), len(logs)


class OverlayStates:
    """Makes and keeps states; see the module. `env` has the partition; `scratch`, a directory of `scratch_env`, takes the output.

    `advance` takes the approximate number of bytes read or written, `report` takes problems in the files.
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
        """Set the clock to `now_ms` and return the partition at that time, as it is or with a new layout."""
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
        """Open the partition as a starting broker does, on its own fork."""
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
        """Count the records by kind."""
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
        """Return what `keep` stored for a key."""
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0], found[1]

    def keep(self, key: bytes, state: State, result: CleanResult | None, size: int) -> None:
        """Keep the result of a step that wrote `size` bytes, until later results need the room."""
        self._kept[key] = (state, result, size)
        while self._kept and sum(size for _, _, size in self._kept.values()) > self._max_kept_bytes:
            self._kept.popitem(last=False)

    def demand_space(self, env: OverlayEnv, size: int) -> None:
        """Raise StorageError if the scratch directory has no room for `size` bytes."""
        free = env.free_bytes()
        if size > free:
            raise StorageError(
                f"{env.scratch}: trying out {self.partition.name} takes up to {size} bytes, {free} are free; "
                "set TMPDIR, or spark.local.dir for a task of Spark, to a directory with more room"
            )


def next_key(key: bytes, *step: object) -> bytes:
    """Return the key of the state after `step`, from the state with `key`."""
    return blake2b(key + repr(step).encode(), digest_size=16).digest()
