"""Describes an open transaction of a log in words. Nothing after its first record is cleaned until it ends."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from diamant.words import moment

_TOOL = "kafka-transactions.sh --bootstrap-server HOST:PORT"


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction in one partition."""

    producer_id: int | None
    """None if it is unknown."""
    first_offset: int
    since_ms: int | None = None
    """Start time of the transaction; None if it is unknown."""
    abort_ms: int | None = None
    """The time by which its coordinator will abort it; None if no known coordinator will."""
    transactional_id: str | None = None
    """None if no coordinator knows the transaction."""

    @property
    def text(self) -> str:
        """Whose transaction it is, and since when it has been open, in words."""
        which = "a transaction" if self.transactional_id is None else f"transaction {self.transactional_id!r}"
        which += "" if self.producer_id is None else f" of producer {self.producer_id}"
        since = "" if self.since_ms is None else f"{moment(self.since_ms)}, "
        return f"{which}, open since {since}offset {self.first_offset:,}"

    @property
    def end_text(self) -> str:
        """When the transaction will end by itself, in words."""
        return (
            "no known coordinator will end it"
            if self.abort_ms is None
            else f"it is aborted at {moment(self.abort_ms)} at the latest"
        )

    def abort_command(self, topic: str, partition: int) -> str:
        """Return the Kafka command that aborts the transaction now.

        For a known transaction this is not `abort`, which only writes a marker; the coordinator could still commit the rest.
        """
        if self.transactional_id is not None:
            return f"{_TOOL} forceTerminateTransaction --transactionalId {shlex.quote(self.transactional_id)}"
        return f"{_TOOL} abort --topic {topic} --partition {partition} --start-offset {self.first_offset}"
