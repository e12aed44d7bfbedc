"""The result of a round of the cleaner: the finished output files, the figures, and the ways a round ends early.

An engine is a function `(env, plan, *, on_output, check_done, throttle) -> CleanResult`. It calls `on_output` for each group
of segments as its files are complete, `check_done` before each segment and each chunk it reads, and `throttle` with the bytes of
each chunk read or written.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from diamant.storage.errors import StorageError
from diamant.storage.segments.segment_outline import SegmentOutline, outline_from

SUPERSEDED = "superseded"
"""A later record has the same key."""
ABORTED = "aborted"
"""The record's transaction was aborted."""
TOMBSTONE = "tombstone"
"""A deletion whose delete horizon is over."""
MARKER = "marker"
"""A transaction marker whose delete horizon is over, and none of whose transaction's batches is left; or below the log start."""
KEYLESS = "keyless"
"""A record without a key, written before the topic was compacted."""
BELOW_LOG_START = "below_log_start"
"""The log begins after the record (mode prompt)."""

REASONS = (SUPERSEDED, ABORTED, TOMBSTONE, MARKER, KEYLESS, BELOW_LOG_START)


class CleaningAborted(Exception):
    """The round was told to stop; what it had not handed over is thrown away. Raised by `check_done`."""


class OutputOverflow(StorageError):
    """An output segment cannot hold what belongs into it; nothing of its group was changed.

    Kafka ends so too: it marks the partition uncleanable.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True, slots=True)
class OutputSegment:
    """A segment that takes the place of its sources. Its files are on disk, synced, with the suffix `.cleaned`."""

    base_offset: int
    source_base_offsets: tuple[int, ...]
    size: int
    """Bytes of the `.log` file."""
    modified_ms: int
    """Modification time of the files: that of the last source."""
    has_txn_index: bool
    """True if there is a `.txnindex` file."""
    crc32c: int
    """CRC-32C of the `.log` file."""
    outline: SegmentOutline | None = field(default=None, compare=False)
    """What its files hold, if the runner is another process that has looked: the broker need not then."""


@dataclass(slots=True)
class CleanStats:
    """Figures of a round, counted as Kafka's CleanerStats counts them. An engine adds to them as it goes."""

    start_s: float = 0.0
    """The three times are of a monotonic clock: only differences mean something."""
    map_complete_s: float = 0.0
    end_s: float = 0.0
    map_bytes_read: int = 0
    """Bytes of whole chunks; the chunk in which the map was full does not count."""
    map_messages_read: int = 0
    bytes_read: int = 0
    """Of whole segments, with the stretches that need not be read (`batch_notes.Stretches`)."""
    messages_read: int = 0
    """Records looked at; those of batches that go unread do not count."""
    invalid_messages_read: int = 0
    """Records without a key."""
    bytes_written: int = 0
    messages_written: int = 0
    map_utilization: float = 0.0
    """Fill of the map at the end, 0 to 1."""
    removed: dict[str, int] = field(default_factory=dict)
    """Records removed, by reason (`REASONS`)."""
    removed_bytes: dict[str, int] = field(default_factory=dict)
    """Their bytes as encoded in the batch, before compression. A batch removed unread counts what follows its header."""

    def remove(self, reason: str, count: int, size: int) -> None:
        """Count `count` records with `size` bytes as removed."""
        self.removed[reason] = self.removed.get(reason, 0) + count
        self.removed_bytes[reason] = self.removed_bytes.get(reason, 0) + size

    def add(self, other: CleanStats) -> None:
        """Add what was counted elsewhere; times and the fill of the map stay."""
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
        """Return the result that `to_json` wrote. ValueError, KeyError or TypeError for anything else."""
        fields: dict[str, Any] = json.loads(text)
        return cls(
            end_offset=fields["end_offset"],
            outputs=tuple(output_from_fields(output) for output in fields["outputs"]),
            stats=CleanStats(**fields["stats"]),
            runner=fields["runner"],
        )


def output_from_fields(fields: dict[str, Any]) -> OutputSegment:
    """Return the output that `dataclasses.asdict` took apart."""
    outline = fields.get("outline")
    return OutputSegment(
        **{
            **fields,
            "source_base_offsets": tuple(fields["source_base_offsets"]),
            "outline": None if outline is None else outline_from(outline),
        }
    )


OnOutput: TypeAlias = Callable[[OutputSegment], None]
"""Takes over the files of a finished output: swaps them in, or passes the news on."""

CheckDone: TypeAlias = Callable[[], None]
"""Raises CleaningAborted if the round is to stop."""

Throttle: TypeAlias = Callable[[int], None]
"""Waits as long as so many bytes read or written cost."""


def no_output(_output: OutputSegment) -> None:
    """Leave the output's files as they are."""


def never_done() -> None:
    """Let the round run to its end."""


def no_throttle(_count: int) -> None:
    """Wait for nothing."""
