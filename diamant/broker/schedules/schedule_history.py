"""The history of a schedule: the fetches and compactions of each partition, and messages about records that a consumer missed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeAlias

from diamant.duration import duration_text

VALUE, TOMBSTONE, MARKER = "value", "tombstone", "transaction marker"
MAX_EVENTS = 10_000
"""The maximum number of events to keep; later events are dropped."""
MAX_NAMED = 12
"""The maximum number of records to list for a compaction, and of offsets to list for successive fetches."""
MAX_KEY_CHARS = 40


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record in a partition, without its value."""

    offset: int
    key: bytes | None
    kind: str
    """VALUE, TOMBSTONE or MARKER."""

    def __str__(self) -> str:
        if self.kind == MARKER:
            return f"the transaction marker at offset {self.offset}"
        return f"the {self.kind} of {key_text(self.key)} at offset {self.offset}"


@dataclass(frozen=True, slots=True)
class Fetched:
    """A fetch of a partition."""

    partition: str
    offset: int


@dataclass(frozen=True, slots=True)
class Compacted:
    """A run of the cleaner over a partition below `end_offset`."""

    partition: str
    end_offset: int
    passed_ms: int
    """How far the cleaner's clock was advanced before the run."""
    removed: Sequence[StoredRecord]
    error: str | None = None
    """The reason for a failure; None if the run succeeded."""


@dataclass(frozen=True, slots=True)
class Marked:
    """The marker of an empty, aborted transaction, which was appended before a compaction of all records."""

    partition: str
    offset: int


Event: TypeAlias = Fetched | Compacted | Marked


@dataclass(slots=True)
class History:
    """The events, in order. Belongs to the broker's thread until the broker has stopped."""

    events: list[Event] = field(default_factory=list)
    topics: dict[str, bool] = field(default_factory=dict)
    """The topics in use by clients, with True for a compacted topic."""

    def add(self, event: Event) -> None:
        """Add an event, unless there are `MAX_EVENTS` already."""
        if len(self.events) < MAX_EVENTS:
            self.events.append(event)

    @property
    def fetches(self) -> int:
        """The number of fetches of the partition with the most fetches."""
        counts = Counter(event.partition for event in self.events if isinstance(event, Fetched))
        return max(counts.values(), default=0)

    def why_untried(self) -> str | None:
        """Return a message that the test has tested nothing, with the reason; None if a client fetched from a compacted topic."""
        if self.fetches:
            return None
        policies = (f"{name} ({'compact' if is_compacted else 'delete'})" for name, is_compacted in self.topics.items())
        return (
            "no client has fetched from a compacted topic, so nothing was tried. Topics in use, with their cleanup.policy: "
            f"{', '.join(sorted(policies)) or 'none'}. Expected a client that reads a topic with cleanup.policy=compact"
        )

    def lines(self) -> Iterator[str]:
        """Yield lines about the events of each partition, then lines about records that a consumer cannot have seen."""
        missed: list[str] = []
        for partition in sorted({event.partition for event in self.events}):
            events = [event for event in self.events if event.partition == partition]
            if not any(isinstance(event, Compacted) for event in events):
                continue
            yield f"{partition}:"
            for is_fetch, group in groupby(events, key=lambda event: isinstance(event, Fetched)):
                if is_fetch:
                    offsets = [str(event.offset) for event in group if isinstance(event, Fetched)]
                    rest = f" and {len(offsets) - MAX_NAMED} more" if len(offsets) > MAX_NAMED else ""
                    where = "offset" if len(offsets) == 1 else "offsets"
                    yield f"  the consumer fetches from {where} {', '.join(offsets[:MAX_NAMED])}{rest}"
                else:
                    for event in group:
                        if isinstance(event, Compacted):
                            yield from _compaction_lines(event)
                        elif isinstance(event, Marked):
                            yield f"  a transaction that is aborted at once leaves its marker at offset {event.offset}"
            found = list(_missed(events)) or list(_ended(events))
            missed += found
        yield from missed


def _compaction_lines(event: Compacted) -> Iterator[str]:
    before = f"{duration_text(event.passed_ms)} later " if event.passed_ms else ""
    if event.error is not None:
        yield f"  {before}the cleaner fails: {event.error}"
    elif not event.removed:
        yield f"  {before}the cleaner runs below offset {event.end_offset} and removes nothing"
    else:
        yield f"  {before}the cleaner runs below offset {event.end_offset} and removes"
        yield from (f"    {record}" for record in event.removed[:MAX_NAMED])
        if len(event.removed) > MAX_NAMED:
            yield f"    and {len(event.removed) - MAX_NAMED} more"


def _ended(events: Sequence[Event]) -> Iterator[str]:
    """Yield a line if the consumer has reached a marker at the end of the log, where it waits for a record in vain."""
    marker = next((event.offset for event in reversed(events) if isinstance(event, Marked)), None)
    last = next((event.offset for event in reversed(events) if isinstance(event, Fetched)), -1)
    if marker is not None and last >= marker:
        yield (
            f"{events[0].partition} ends with the transaction marker at offset {marker}, which no consumer receives: one that "
            "waits for a record at the last offset waits for ever."
        )


def _missed(events: Sequence[Event]) -> Iterator[str]:
    """Yield a line for each removed tombstone that the consumer has not fetched, although it has fetched a value of the key."""
    values: dict[bytes | None, int] = {}
    for position, event in enumerate(events):
        if not isinstance(event, Compacted):
            continue
        for record in event.removed:
            if record.kind == VALUE:
                values[record.key] = min(record.offset, values.get(record.key, record.offset))
        before = next((fetched.offset for fetched in reversed(events[:position]) if isinstance(fetched, Fetched)), None)
        after = next((fetched.offset for fetched in events[position:] if isinstance(fetched, Fetched)), None)
        if before is None or after is None:
            continue
        for record in event.removed[:MAX_NAMED]:
            if record.kind == TOMBSTONE and record.offset >= after > values.get(record.key, after):
                yield (
                    f"The tombstone of {key_text(record.key)} at offset {record.offset} was removed between the consumer's "
                    f"fetches from offsets {before} and {after} of {event.partition}."
                )


def key_text(key: bytes | None) -> str:
    """Format a key for people, truncated if it is long."""
    if key is None:
        return "no key"
    try:
        text = key.decode()
        shown = text if text.isprintable() else repr(key)
    except UnicodeDecodeError:
        shown = repr(key)
    return shown if len(shown) <= MAX_KEY_CHARS else f"{shown[:MAX_KEY_CHARS]}..."
