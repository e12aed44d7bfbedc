"""Facts about a closed segment that make reading it again unnecessary: expiry times and kinds of batches (mode prompt).

A tombstone or marker may be removed once its delete horizon has passed, but only a round removes it. Kafka starts no round for
that alone, so in a log without traffic it stays forever. Here the earliest horizons of each segment are remembered, and a round
is due when one of them has passed (`partition_facts.py`). Facts are kept in memory: a few hundred bytes per segment, and 150
bytes per transaction step in it, at most 1.5 MB (`MAX_STEPS`). Facts of larger segments are also in files (`facts_file.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from diamant.protocol.batches.batch import crc_is_valid
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.batches.control import ControlType, parse_control_type
from diamant.protocol.batches.header import BatchHeader
from diamant.protocol.errors import CorruptBatch
from diamant.storage.env.env import File
from diamant.storage.errors import CorruptLog

MAX_HORIZONS = 64
"""Maximum number of different horizons to keep for a segment. The earliest are kept; later rounds find the others."""
MAX_STEPS = 10_000
"""Maximum number of transaction steps to keep for a segment. If it has more, nothing is known about its markers."""
MAX_EMPTIED = 64

# Kinds of steps.
DATA = 0
"""Consecutive batches of one transaction of the producer."""
MARKER = 1
STAMPED_MARKER = 2
"""A marker that has its horizon."""
OTHER = 3
"""A control batch that ends no transaction, or has lost its record."""


class Step(NamedTuple):
    """An event of a transaction in a segment."""

    kind: int
    producer_id: int
    offset: int


class Horizon(NamedTuple):
    """A delete horizon, and the base offset of the segment's first batch that has it and contains something to remove."""

    horizon_ms: int
    offset: int


class Emptied(NamedTuple):
    """A data batch without records, kept for its producer's sequence."""

    producer_id: int
    producer_epoch: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """Facts that are known only after all records were read. The filter itself is in the file (`key_filter.load_filter`)."""

    hash_id: int
    """Identifies the secret key with which record keys were hashed (`key_filter.hash_id`)."""
    key_count: int
    has_keyless: bool
    has_unstamped: bool
    """True if there may be a tombstone without a horizon."""


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """The facts of one segment (see the module docstring)."""

    base_offset: int
    size: int
    modified_ms: int
    birth_ms: int | None
    first_offset: int
    """Offset of the first batch; the base offset if there is none."""
    horizons: tuple[Horizon, ...] = ()
    """Delete horizons, ascending."""
    steps: tuple[Step, ...] | None = ()
    """None if there are too many."""
    emptied: tuple[Emptied, ...] | None = ()
    """None if there are too many."""
    has_old_format: bool = False
    """True if there are batches of magic 0 or 1, which a round would rewrite."""
    keys: KeyFacts | None = None

    @property
    def has_transactions(self) -> bool:
        """True if a round must read this segment to decide about markers."""
        return self.steps is None or bool(self.steps)

    def is_due(self, now_ms: int, frozen_above: int | None = None) -> bool:
        """Return whether a horizon in the segment has passed, ignoring horizons above `frozen_above`."""
        return any(
            horizon.horizon_ms <= now_ms and (frozen_above is None or horizon.offset <= frozen_above)
            for horizon in self.horizons
        )


class FactsCollector:
    """Collects the facts of a segment from its batches, in order."""

    def __init__(self, *, max_steps: int = MAX_STEPS) -> None:
        self._max_steps = max_steps
        self._first_offset: int | None = None
        self._horizons: dict[int, int] = {}
        self._steps: list[Step] | None = []
        self._emptied: list[Emptied] | None = []
        self._has_old_format = False

    def add(self, header: BatchHeader, file: File, position: int) -> None:
        """Add a batch at its position in the file."""
        if self._first_offset is None:
            self._first_offset = header.base_offset
        if header.magic < 2:
            self._has_old_format = True
        elif header.is_control:
            self._add_control(header, file, position)
        else:
            if header.is_transactional:
                self._add_step(DATA, header)
            if not header.record_count:
                self._add_emptied(header)
            elif (
                header.has_delete_horizon
                and self.is_horizon_new(header)
                and any(record.value is None for record in _records(file, position, header))
            ):
                self.add_horizon(header.base_timestamp, header.base_offset)

    def add_old_format(self) -> None:
        """Record that there is a batch of magic 0 or 1."""
        self._has_old_format = True

    def is_horizon_new(self, header: BatchHeader) -> bool:
        """Return whether a batch's horizon is new, so that it is worth searching the batch for tombstones."""
        return header.base_timestamp not in self._horizons

    def add_horizon(self, horizon_ms: int, offset: int) -> None:
        """Record the horizon and base offset of a batch that contains something to remove."""
        self._horizons.setdefault(horizon_ms, offset)
        if len(self._horizons) > MAX_HORIZONS:
            del self._horizons[max(self._horizons)]

    def facts(self, base_offset: int, size: int, modified_ms: int, birth_ms: int | None) -> SegmentFacts:
        """Return the facts of the segment, after all its batches have been added."""
        return SegmentFacts(
            base_offset,
            size,
            modified_ms,
            birth_ms,
            first_offset=base_offset if self._first_offset is None else self._first_offset,
            horizons=tuple(Horizon(*pair) for pair in sorted(self._horizons.items())),
            steps=None if self._steps is None else tuple(self._steps),
            emptied=None if self._emptied is None else tuple(self._emptied),
            has_old_format=self._has_old_format,
        )

    def _add_control(self, header: BatchHeader, file: File, position: int) -> None:
        if not header.record_count:
            # Depending on the producer, a round either can drop the batch or has to keep it to preserve the producer epoch.
            # Only a round that reads the segment can tell.
            self._add_step(OTHER, header)
            return
        if header.has_delete_horizon:
            self.add_horizon(header.base_timestamp, header.base_offset)
            self._add_step(STAMPED_MARKER, header)
            return
        key = next((record.key for record in _records(file, position, header)), None)
        try:
            is_marker = parse_control_type(key) in (ControlType.ABORT, ControlType.COMMIT)
        except CorruptBatch as error:
            raise CorruptLog(file.path, position, error.reason) from error
        self._add_step(MARKER if is_marker else OTHER, header)

    def _add_step(self, kind: int, header: BatchHeader) -> None:
        steps = self._steps
        if steps is None or (steps and kind == DATA and steps[-1][:2] == (DATA, header.producer_id)):
            return
        steps.append(Step(kind, header.producer_id, header.base_offset))
        if len(steps) > self._max_steps:
            self._steps = None

    def _add_emptied(self, header: BatchHeader) -> None:
        if self._emptied is not None:
            self._emptied.append(Emptied(header.producer_id, header.producer_epoch, header.last_offset))
            if len(self._emptied) > MAX_EMPTIED:
                self._emptied = None


def _records(file: File, position: int, header: BatchHeader) -> Iterator[Any]:
    data = file.pread(header.size, position)
    if not crc_is_valid(data, 0, header.size):
        raise CorruptLog(file.path, position, "the batch's CRC is wrong")
    try:
        yield from iter_records(data)
    except CorruptBatch as error:
        raise CorruptLog(file.path, position, error.reason) from error
