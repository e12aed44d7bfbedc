"""Requests for erasures and redactions: made where they come in, handed down unchanged."""

from __future__ import annotations

from dataclasses import dataclass

from diamant.cleaner.redaction.where import HOLD


@dataclass(frozen=True, slots=True)
class EraseRequest:
    """A request to erase a key from compacted topics."""

    key: bytes
    topics: tuple[str, ...]
    """Names, ascending, each once."""
    reason: str
    """Stands in the certificate, as does `reference`: neither may hold a key or a value."""
    reference: str = ""
    is_now: bool = False
    """Remove the tombstones before their horizon as well."""
    is_confirmed: bool = False
    """With `is_now`: the requester accepts that groups may miss the tombstone."""
    is_forced: bool = False
    """Pass over `min.compaction.lag.ms`."""
    engine: str | None = None
    """The engine that compacts, whatever the size (`service.cleaner_slot.ENGINES`)."""
    timeout_ms: int | None = None
    """The time that the caller waits; None: `job_queue.DEFAULT_TIMEOUT_MS`."""


@dataclass(frozen=True, slots=True)
class RedactRequest:
    """A request to remove the records of a topic that match."""

    topic: str
    where: str
    reason: str
    """Stands in the certificate, as does `reference`: neither may hold a key or a value."""
    reference: str = ""
    is_all_agreed: bool = False
    """The requester accepts that every record of the topic may go."""
    undecided: str = HOLD
    """The fate of undecided records (`redaction/where.py`)."""
    timeout_ms: int | None = None
    """The time that the caller waits; None: `job_queue.DEFAULT_TIMEOUT_MS`."""
