"""Requests for erasures and redactions. Every entry point builds one and passes it on unchanged."""

from __future__ import annotations

from dataclasses import dataclass

from diamant.cleaner.redaction.where import HOLD


@dataclass(frozen=True, slots=True)
class EraseRequest:
    """A request to erase a key from compacted topics.

    The answer comes once no value is left. It states the due time of the certificate for `key-gone`, which follows automatically.
    Errors: NotFound, NotPossible (not compacted), BadArgument, TimedOut, EraseFailed.
    """

    key: bytes
    topics: tuple[str, ...]
    """Unique names, ascending."""
    reason: str
    """Stands in the certificate, as does `reference`: neither may hold a key or a value."""
    reference: str = ""
    is_now: bool = False
    """Remove the tombstones before their horizon, too: consumers that are behind may miss them."""
    is_confirmed: bool = False
    """The requester accepts that groups may miss the tombstone. With `is_now`."""
    is_forced: bool = False
    """Ignore `min.compaction.lag.ms`."""
    engine: str | None = None
    """The engine that compacts, regardless of the log's size (`rules.modes.ENGINES`)."""
    timeout_ms: int | None = None
    """The time that the caller waits; None: `job_queue.DEFAULT_TIMEOUT_MS`."""


@dataclass(frozen=True, slots=True)
class RedactRequest:
    """A request to remove the matching records of a topic, compacted or not. All other records keep their offsets.

    On a compacted topic, older values of a matched key are removed, too. Errors: NotFound, NotPossible, BadArgument,
    TimedOut, RedactFailed.
    """

    topic: str
    where: str
    """A condition such as `key == "customer-42"` or `value.customer.email == "ada@example.com"` (`redaction/where.py`)."""
    reason: str
    """Stands in the certificate, as does `reference`: neither may hold a key or a value."""
    reference: str = ""
    is_all_agreed: bool = False
    """The requester accepts that every record of the topic may be removed."""
    undecided: str = HOLD
    """The fate of undecided records (`redaction/where.py`)."""
    timeout_ms: int | None = None
    """The time that the caller waits; None: `job_queue.DEFAULT_TIMEOUT_MS`."""
