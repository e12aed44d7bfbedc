"""Requests for erasures and redactions: made where they come in, handed down unchanged."""

from __future__ import annotations

from dataclasses import dataclass

from diamant.cleaner.redaction.where import HOLD


@dataclass(frozen=True, slots=True)
class EraseRequest:
    """A request to erase a key from compacted topics.

    It is answered once no value is left, with the time of the certificate for the tombstone's end, which follows by itself.
    Errors: NotFound, NotPossible (not compacted), BadArgument, TimedOut, EraseFailed.
    """

    key: bytes
    topics: tuple[str, ...]
    """Names, ascending, each once."""
    reason: str
    """Stands in the certificate, as does `reference`: neither may hold a key or a value."""
    reference: str = ""
    is_now: bool = False
    """Remove the tombstones before their horizon as well, before consumers that are behind have seen them."""
    is_confirmed: bool = False
    """With `is_now`: the requester accepts that groups may miss the tombstone."""
    is_forced: bool = False
    """Pass over `min.compaction.lag.ms`."""
    engine: str | None = None
    """The engine that compacts, whatever the size (`rules.modes.ENGINES`)."""
    timeout_ms: int | None = None
    """The time that the caller waits; None: `job_queue.DEFAULT_TIMEOUT_MS`."""


@dataclass(frozen=True, slots=True)
class RedactRequest:
    """A request to remove the records that match from a topic, compacted or not. All other records keep their offsets.

    On a compacted topic older values of a matched key go, too. Errors: NotFound, NotPossible, BadArgument, TimedOut,
    RedactFailed.
    """

    topic: str
    where: str
    """As in `key == "customer-42"` or `value.customer.email == "ada@example.com"` (`redaction/where.py`)."""
    reason: str
    """Stands in the certificate, as does `reference`: neither may hold a key or a value."""
    reference: str = ""
    is_all_agreed: bool = False
    """The requester accepts that every record of the topic may go."""
    undecided: str = HOLD
    """The fate of undecided records (`redaction/where.py`)."""
    timeout_ms: int | None = None
    """The time that the caller waits; None: `job_queue.DEFAULT_TIMEOUT_MS`."""
