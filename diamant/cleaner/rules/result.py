"""The result of a cleaning round: the finished output files, the statistics, and the errors that end a round early.

An engine is a function `(env, plan, *, on_output, check_done, throttle) -> CleanResult`. It calls `on_output` for each output
whose files are complete, `check_done` before each segment and each chunk, and `throttle` with the size of each chunk read or
written.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import TypeAlias

from diamant.cleaner.rules.record_kinds import ABORTED, BELOW_LOG_START, KEYLESS, MARKERS, SUPERSEDED, TOMBSTONES
from diamant.json_types import JsonObject
from diamant.storage.errors import StorageError
from diamant.storage.segments.segment_outline import SegmentOutline, outline_from

REASONS = (SUPERSEDED, ABORTED, TOMBSTONES, MARKERS, KEYLESS, BELOW_LOG_START)
"""The kinds of records that rounds remove: tombstones only after their delete horizon, markers only below the log start or after
their horizon if no batch of their transaction is left, and other records below the log start only in mode prompt."""


class CleaningAborted(Exception):
    """The round was asked to stop; outputs not yet handed over are discarded. Raised by `check_done`."""


class OutputOverflow(StorageError):
    """An output segment would exceed a limit; its group is unchanged.

    In this case Kafka, too, ends the round and marks the partition uncleanable.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True, slots=True)
class OutputSegment:
    """A segment that replaces its sources. Its files are on disk, synced, with the suffix `.cleaned`."""

    base_offset: int
    source_base_offsets: tuple[int, ...]
    size: int
    """Bytes of the `.log` file."""
    modified_ms: int
    """Modification time of the files, taken from the last source."""
    has_txn_index: bool
    """True if there is a `.txnindex` file."""
    crc32c: int
    """CRC-32C of the `.log` file."""
    outline: SegmentOutline | None = field(default=None, compare=False)
    """Outline of the files if a runner in another process has read them, so that the broker need not do so."""
    facts: str | None = field(default=None, compare=False)
    """The segment's facts as JSON (`facts.facts_file`), so that the broker need not read them."""


@dataclass(slots=True)
class CleanStats:
    """Statistics of a round, counted like Kafka's CleanerStats. An engine updates them while it works."""

    start_s: float = 0.0
    """This and the other two times come from a monotonic clock, so only their differences have a meaning."""
    map_complete_s: float = 0.0
    end_s: float = 0.0
    map_bytes_read: int = 0
    """Bytes of whole chunks, excluding the chunk in which the map became full."""
    map_messages_read: int = 0
    bytes_read: int = 0
    """Bytes of whole segments, including skipped stretches (`batch_notes.Stretches`)."""
    messages_read: int = 0
    """Records judged, except those of batches that were removed unread."""
    invalid_messages_read: int = 0
    """Records without a key."""
    bytes_written: int = 0
    messages_written: int = 0
    map_utilization: float = 0.0
    """The final fill level of the map, 0 to 1."""
    removed: dict[str, int] = field(default_factory=dict)
    """Records removed, by reason (`REASONS`)."""
    removed_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes of the removed records as encoded in their batches, before compression; for a batch removed unread, its bytes after
    the header."""

    def remove(self, reason: str, count: int, size: int) -> None:
        """Add `count` removed records of `size` bytes."""
        self.removed[reason] = self.removed.get(reason, 0) + count
        self.removed_bytes[reason] = self.removed_bytes.get(reason, 0) + size

    def take(self) -> CleanStats:
        """Return a copy, and reset the counts."""
        taken = replace(self)
        for name in _COUNTS:
            setattr(self, name, 0)
        self.removed, self.removed_bytes = {}, {}
        return taken

    def add(self, other: CleanStats) -> None:
        """Add the counts of another part of the round; times and map utilization are unchanged."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, count in other.removed.items():
            self.remove(reason, count, other.removed_bytes[reason])


_COUNTS = (
    "map_bytes_read",
    "map_messages_read",
    "bytes_read",
    "messages_read",
    "invalid_messages_read",
    "bytes_written",
    "messages_written",
)


@dataclass(frozen=True, slots=True)
class CleanResult:
    """A finished round."""

    end_offset: int
    """The next round's first dirty offset."""
    outputs: tuple[OutputSegment, ...]
    stats: CleanStats
    runner: str
    """The runner: `inline`, `process`, ..."""

    def to_json(self) -> str:
        """Return the result as one line of JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> CleanResult:
        """Parse the output of `to_json`. Raises ValueError, KeyError or TypeError for anything else."""
        fields: JsonObject = json.loads(text)
        return cls(
            end_offset=fields["end_offset"],
            outputs=tuple(output_from_fields(output) for output in fields["outputs"]),
            stats=CleanStats(**fields["stats"]),
            runner=fields["runner"],
        )


def output_from_fields(fields: JsonObject) -> OutputSegment:
    """Return the output from which `dataclasses.asdict` made these fields."""
    outline = fields.get("outline")
    return OutputSegment(
        **{
            **fields,
            "source_base_offsets": tuple(fields["source_base_offsets"]),
            "outline": None if outline is None else outline_from(outline),
        }
    )


OnOutput: TypeAlias = Callable[[OutputSegment], None]
"""Takes over the files of a finished output: swaps them in, or reports them to the owner of the log."""

CheckDone: TypeAlias = Callable[[], None]
"""Raises CleaningAborted if the round must stop."""

Throttle: TypeAlias = Callable[[int], None]
"""Waits as long as the limit requires after this number of bytes was read or written."""


def no_output(_output: OutputSegment) -> None:
    """Leave the output's files where they are."""


def never_done() -> None:
    """Let the round run to its end."""


def no_throttle(_count: int) -> None:
    """Do not wait."""
