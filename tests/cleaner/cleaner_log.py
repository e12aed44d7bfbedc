"""A compacted log in memory for tests of the cleaner: filled from a few words, rolled and cleaned by hand.

    log = CleanerLog("a b a= | t1: c | commit 1 | roll")
    log.clean()

A batch with values of a and b and a tombstone for a, one in a transaction of producer 1, the marker that ends it, a new segment.

`first_dirty` goes on by itself from round to round. The clock stands still until a test moves `log.now_ms`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from diamant.cleaner.engines import plain_round
from diamant.cleaner.rules.modes import KAFKA, KAFKA_4_4
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.plan_of_log import CleanerSettings, make_plan
from diamant.cleaner.rules.result import CleanResult, OutputSegment
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import build_batch, iter_records
from diamant.protocol.batches.header import BatchHeader, Record
from diamant.storage.env.clocks import SettableClock
from diamant.storage.log.log import Log
from diamant.storage.log.segment_swap import replace_segments
from diamant.storage.segments.log_config import LogConfig
from tests.builder import make_marker, make_record
from tests.cleaner import timeline
from tests.memory_env import MemoryEnv
from tests.storage.one_log import create_one, load_one

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
DIRECTORY = "/data/topic-0"


class StoredBatch(NamedTuple):
    """A batch as it lies in the log."""

    segment: int
    """Base offset of its segment."""
    position: int
    header: BatchHeader
    records: tuple[Record, ...]
    data: bytes


class CleanerLog:
    """One partition of topic `topic` in a `MemoryEnv`, cleaned by `engine`; `text` is written, `config` goes to its LogConfig."""

    def __init__(
        self, text: str = "", *, engine: Callable[..., CleanResult] = plain_round.clean, **config: Any
    ) -> None:
        self.engine = engine
        config.setdefault("cleanup_policy", frozenset({"compact"}))
        config.setdefault("file_delete_delay_ms", 0)
        self.clock = SettableClock(START_MS)
        self.env = MemoryEnv(self.clock)
        self.config = LogConfig(**config)
        self.log: Log = create_one(self.env, self.config, path=DIRECTORY)
        self.first_dirty = 0
        self.sequences: dict[int, int] = {}
        self.write(text)

    # -- writing -----------------------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    @now_ms.setter
    def now_ms(self, value: int) -> None:
        self.clock.set_ms(value)

    def records(self, words: Sequence[Any], timestamp: int | None = None) -> list[Record]:
        """Records from "key" (a value is made up), "key=value", "key=" (tombstone) or (key, value), 1 ms apart; or Records."""
        start = self.log.log_end_offset
        timestamp = self.now_ms if timestamp is None else timestamp
        records = []
        for index, word in enumerate(words):
            if isinstance(word, str) and "=" not in word:
                word = f"{word}=v{start + index}"
            records.append(make_record(word, offset=start + index, timestamp=timestamp + index))
        return records

    def write(self, text: str) -> None:
        """Have happen what a line says: see `timeline`."""
        timeline.write(self, text)

    def add_batch(self, words: list[str], producer: int | None, is_transactional: bool) -> None:
        """A part of `write`."""
        self.data(*words, producer=-1 if producer is None else producer, txn=is_transactional)

    def add_marker(self, producer: int, is_commit: bool) -> None:
        """A part of `write`."""
        self.marker(producer, "commit" if is_commit else "abort")

    def data(
        self,
        *words: Any,
        producer: int = -1,
        epoch: int = 0,
        txn: bool = False,
        timestamp: int | None = None,
        sequence: int | None = None,
        **fields: Any,
    ) -> int:
        """Append one batch and return its base offset."""
        base_sequence = -1
        if producer >= 0:
            base_sequence = self.sequences.get(producer, 0) if sequence is None else sequence
            self.sequences[producer] = base_sequence + len(words)
            fields |= {"producer_id": producer, "producer_epoch": epoch, "base_sequence": base_sequence}
        records = self.records(words, timestamp)
        batch = build_batch(records, base_offset=records[0].offset, is_transactional=txn, **fields)
        return self.log.append_internal(batch).base_offset

    def marker(self, producer: int, kind: str, *, epoch: int = 0) -> int:
        """Append the marker that ends a producer's transaction: "commit" or "abort"; return its offset."""
        batch = make_marker(producer, is_commit=kind == "commit", producer_epoch=epoch, timestamp=self.now_ms)
        return self.log.append_internal(batch).base_offset

    def roll(self) -> int:
        """Start a new segment; return its base offset."""
        return self.log.roll().base_offset

    def in_another_machine(self) -> CleanerLog:
        """Return a copy of its files, opened there; a cached log stays as it is."""
        log = copy.copy(self)
        log.clock = SettableClock(self.now_ms)
        log.env = self.env.copy(log.clock)
        log.recover(1 << 40)
        return log

    def recover(self, recovery_point: int) -> None:
        """Open the log as after a crash."""
        self.log = load_one(self.env, self.config, path=DIRECTORY, recovery_point=recovery_point)

    def reload(self) -> None:
        """Close the log as a broker does that stops, and open it again."""
        self.log.close()
        self.log = load_one(
            self.env, self.config, path=DIRECTORY, log_start_offset=self.log.log_start_offset, is_clean=True
        )

    # -- cleaning ----------------------------------------------------------------------------------------------------

    def plan(
        self,
        *,
        first_dirty: int | None = None,
        end: int | None = None,
        mode: str = KAFKA,
        version: str = KAFKA_4_4,
        max_keys: int = 1_000_000,
        **fields: Any,
    ) -> CleanPlan:
        """Return the plan of a round up to the active segment, or to `end`."""
        plan = make_plan(
            self.log,
            self.first_dirty if first_dirty is None else first_dirty,
            self.log.active.base_offset if end is None else end,
            self.now_ms,
            CleanerSettings(mode=mode, kafka_version=version, map_max_entries=max_keys),
        )
        return replace(plan, **fields)

    def clean(self, **fields: Any) -> CleanResult:
        """Carry out a round as `plan` makes it, and go on from its end."""
        result = self.engine(self.env, self.plan(**fields), on_output=self.swap)
        self.first_dirty = result.end_offset
        return result

    def swap(self, output: OutputSegment) -> None:
        """Put an output in its place."""
        replace_segments(self.log, output.base_offset, output.source_base_offsets, size=output.size)

    # -- reading -----------------------------------------------------------------------------------------------------

    def stored(self) -> list[StoredBatch]:
        """Every batch of the log."""
        found = []
        for segment in self.log.segments:
            data = self.env.read_bytes(segment.path)[: segment.size]
            for position, header in iter_headers(data):
                whole = data[position : position + header.size]
                found.append(StoredBatch(segment.base_offset, position, header, tuple(iter_records(whole)), whole))
        return found

    def batch(self, base_offset: int) -> StoredBatch:
        """Return the batch that begins at `base_offset`."""
        return next(batch for batch in self.stored() if batch.header.base_offset == base_offset)

    def bases(self) -> list[int]:
        """Base offset of every batch, header-only ones too."""
        return [batch.header.base_offset for batch in self.stored()]

    def lasts(self) -> list[int]:
        """Last offset of every batch, header-only ones too."""
        return [batch.header.last_offset for batch in self.stored()]

    def offsets(self) -> list[int]:
        """Offset of every record with key and value; markers are such."""
        return [record.offset for batch in self.stored() for record in batch.records if record.value is not None]

    def keys(self) -> list[str]:
        """Key of every record that is not a marker."""
        return [
            (record.key or b"").decode()
            for batch in self.stored()
            if not batch.header.is_control
            for record in batch.records
        ]

    def aborted(self) -> list[tuple[int, int, int]]:
        """(producer, first offset, marker's offset) of every entry in the indexes of aborted transactions."""
        return [tuple(entry[:3]) for segment in self.log.segments for entry in segment.txn_index.all()]

    def horizon(self, base_offset: int) -> int | None:
        """Delete horizon of a batch, None if it has none."""
        header = self.batch(base_offset).header
        return header.base_timestamp if header.has_delete_horizon else None

    def files(self) -> dict[str, bytes]:
        """Content of every file in the directory."""
        return {name: self.env.read_bytes(f"{DIRECTORY}/{name}") for name in self.env.list_dir(DIRECTORY)}

    def segment_files(self) -> dict[str, bytes]:
        """Content of every file of inactive segments; no empty index of aborted transactions."""
        active = f"{self.log.active.base_offset:020d}"
        return {
            name: content
            for name, content in self.files().items()
            if name.endswith((".log", ".index", ".timeindex", ".txnindex"))
            and not name.startswith(active)
            and (content or not name.endswith(".txnindex"))
        }
