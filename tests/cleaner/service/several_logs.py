"""Several logs in memory and their cleaner, for tests of which log is cleaned, when, and with which events during a round.

logs = SeveralLogs()
log = logs.filthy("t", 20)                  20 batches of one record, five to a segment
await logs.settled(backoff_ms=1000)         a cleaner that has started, and has nothing to do any more
"""

from __future__ import annotations

from collections.abc import ItemsView
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from diamant.cleaner.facts.prompt_state import PromptLogs
from diamant.cleaner.rules.modes import KAFKA
from diamant.cleaner.runners.contract import MAX_INLINE_BYTES
from diamant.cleaner.service.log_picker import LogPicker
from diamant.cleaner.service.metrics import CleanerMetrics
from diamant.cleaner.service.partition_states import PartitionStates
from diamant.cleaner.service.service import CleanerService
from diamant.cleaner.service.service_settings import ServiceSettings
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import iter_records
from diamant.storage.checkpoints.checkpoints import read_offset_checkpoint, write_offset_checkpoint
from diamant.storage.env.clocks import SettableClock
from diamant.storage.log.log import Log
from diamant.storage.segments.log_config import LogConfig
from tests.builder import make_batch, make_marker
from tests.cleaner import timeline
from tests.memory_env import MemoryEnv
from tests.storage.one_log import create_one

HOUR_MS = 3_600_000
START_MS = 1_400_000_000_000
CHECKPOINT = "/data/cleaner-offset-checkpoint"


class WatchedLogs(dict[tuple[str, int], Log]):
    """A table of logs that counts its iterations; the next one raises `error`, if set."""

    def __init__(self) -> None:
        super().__init__()
        self.scans = 0
        self.error: Exception | None = None

    def items(self) -> ItemsView[tuple[str, int], Log]:
        """Count."""
        self.scans += 1
        error, self.error = self.error, None
        if error is not None:
            raise error
        return super().items()


class _Writing(NamedTuple):
    """Writes events to one of the logs."""

    logs: SeveralLogs
    log: Log

    def add_batch(self, words: list[str], producer: int | None, is_transactional: bool) -> None:
        fields = {} if producer is None else {
            "producer_id": producer, "producer_epoch": 0, "base_sequence": self._next_sequence(producer)
        }  # fmt: skip
        self.logs.data(self.log, *words, is_transactional=is_transactional, **fields)

    def _next_sequence(self, producer: int) -> int:
        state = self.log.producers.state_of(producer)
        return 0 if state is None else state.last_sequence + 1

    def add_marker(self, producer: int, is_commit: bool) -> None:
        self.logs.marker(self.log, producer, is_commit=is_commit)

    def roll(self) -> None:
        self.log.roll()


class SeveralLogs:
    """Logs of topics with one partition each, or more, under /data; a clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.clock = SettableClock(START_MS)
        self.env = MemoryEnv(self.clock)
        self.env.make_dirs("/data")
        self.logs = WatchedLogs()
        self.max_inline_bytes = MAX_INLINE_BYTES
        """Larger plans are for the process runner."""
        self.service: CleanerService | None = None
        self.cleaned: list[str] = []
        """Topic of each round that was finished."""

    # -- logs --------------------------------------------------------------------------------------------------------

    def add(self, topic: str, text: str = "", *, partition: int = 0, **config: Any) -> Log:
        """Add a log with these events (see `timeline`), compacted by default."""
        config.setdefault("cleanup_policy", frozenset({"compact"}))
        config.setdefault("file_delete_delay_ms", 0)
        log = create_one(self.env, LogConfig(**config), path=f"/data/{topic}-{partition}")
        self.logs[topic, partition] = log
        self.write(log, text)
        return log

    def write(self, log: Log, text: str) -> None:
        """Write the events of a line to a log: see `timeline`."""
        timeline.write(_Writing(self, log), text)

    def data(self, log: Log, *words: str, **fields: Any) -> int:
        """Append one batch stamped with the clock's time; its base offset."""
        return log.append_internal(make_batch(*words, timestamp=self.clock.now_ms(), **fields)).base_offset

    def marker(self, log: Log, producer: int, *, is_commit: bool) -> int:
        """End a producer's transaction; the marker's offset."""
        batch = make_marker(producer, is_commit=is_commit, timestamp=self.clock.now_ms())
        return log.append_internal(batch).base_offset

    def fill(self, log: Log, batches: int, *, keys: int = 3, size: int = 1) -> Log:
        """Add batches of one record, a new segment after every fifth, and one at the end."""
        for index in range(batches):
            self.data(log, f"k{index % keys}=" + "v" * size)
            if index % 5 == 0:
                log.roll()
        log.roll()
        return log

    def filthy(self, topic: str, batches: int, partition: int = 0, **config: Any) -> Log:
        """Return a log with many segments and few keys."""
        config.setdefault("min_cleanable_dirty_ratio", 0.05)
        return self.fill(self.add(topic, partition=partition, **config), batches)

    def delete(self, log: Log) -> None:
        """Delete a log as a broker does."""
        del self.logs[log.topic, log.partition]
        if self.service is not None:
            self.service.forget(log)
        log.is_deleted = True
        for segment in log.segments:
            segment.is_deleted = True
        self.env.rename(log.path, f"{log.path}.0-delete")

    def change(self, log: Log, **config: Any) -> None:
        """Give a log another configuration."""
        before = log.config
        fields = {name: getattr(before, name) for name in LogConfig.__dataclass_fields__}
        log.update_config(LogConfig(**(fields | config)))
        if self.service is not None:
            self.service.config_changed(log, before)

    def values(self, log: Log) -> list[tuple[int, str]]:
        """(offset, key) of every remaining record that is not a marker."""
        found = []
        for segment in log.segments:
            data = self.env.read_bytes(segment.path)[: segment.size]
            for position, header in iter_headers(data):
                if not header.is_control:
                    batch = data[position : position + header.size]
                    found += [(record.offset, (record.key or b"").decode()) for record in iter_records(batch)]
        return found

    def is_clean(self, log: Log) -> bool:
        """Return whether the cleanable part has no key twice."""
        keys = [key for offset, key in self.values(log) if offset < log.active.base_offset]
        return len(keys) == len(set(keys))

    # -- the cleaner -------------------------------------------------------------------------------------------------

    def due(self, states: PartitionStates, mode: str = KAFKA) -> LogPicker:
        """Return the next log, given the states and checkpoints of `states`."""
        blocking = ThreadPoolExecutor(1)
        prompt = None if mode == KAFKA else PromptLogs(self.env, blocking)
        return LogPicker(self.env, self.logs, states, CleanerMetrics(), prompt, blocking)

    async def start(self, **settings: Any) -> CleanerService:
        """Start a cleaner with these settings; stop it with `stop`."""
        runners = {
            name: settings.pop(name)
            for name in ("new_process_runner", "new_offload_runner", "offload_from_bytes", "on_retained")
            if name in settings
        }
        self.service = CleanerService(
            self.env,
            "/data",
            self.logs,
            ServiceSettings(**settings),
            **runners,
            max_inline_bytes=self.max_inline_bytes,
            on_cleaned=lambda log: self.cleaned.append(log.topic),
        )
        await self.service.start()
        return self.service

    async def settled(self, **settings: Any) -> CleanerService:
        """Start a cleaner, and wait until it has nothing to do at present."""
        service = await self.start(**settings)
        await service.settled()
        return service

    async def stop(self) -> None:
        """Stop the cleaner."""
        if self.service is not None:
            await self.service.stop()
        self.service = None

    @property
    def checkpoints(self) -> dict[tuple[str, int], int]:
        """Return the content of the checkpoint file."""
        return read_offset_checkpoint(self.env, CHECKPOINT)

    def write_checkpoints(self, **offsets: int) -> None:
        """Write the checkpoint file, for partitions 0 of topics."""
        write_offset_checkpoint(self.env, CHECKPOINT, {(topic, 0): offset for topic, offset in offsets.items()})
