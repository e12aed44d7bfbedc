"""Reports of the operations on brokers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from diamant.broker.brokers.table import Changes, LeaderMove

BrokerState: TypeAlias = Literal["up", "fenced", "down", "silent"]
"""`fenced`: the broker answers, but is in no ISR. `silent`: its port is open, but it does not answer."""


@dataclass(frozen=True, slots=True)
class LeaderReport:
    """The effect of an operation on leaders, in-sync replicas and clients."""

    moved: tuple[LeaderMove, ...] = ()
    """The partitions whose leader or leader epoch has changed. A leader of -1 means that no in-sync replica is up."""
    changed_isr_count: int = 0
    """The number of partitions whose in-sync replicas have changed."""
    cut_connection_count: int = 0

    def to_fields(self) -> dict[str, object]:
        """Return the fields of the JSON object."""
        return {
            "moved": [move._asdict() for move in self.moved],
            "changed_isr_count": self.changed_isr_count,
            "cut_connection_count": self.cut_connection_count,
        }

    @classmethod
    def of(cls, *changes: Changes, cut_connection_count: int = 0) -> LeaderReport:
        """Return one report on all these changes."""
        return cls(
            tuple(move for change in changes for move in change.moves),
            len(frozenset().union(*(change.changed_isr for change in changes))),
            cut_connection_count,
        )


@dataclass(frozen=True, slots=True)
class UncleanReport(LeaderReport):
    """The effect of an unclean leader election, including the records that were lost."""

    end_offset: int = 0
    """The new end offset of the partition's log, which was the base offset of the first removed batch."""
    lost_record_count: int = 0
    """The number of removed records, including transaction markers."""

    def to_fields(self) -> dict[str, object]:
        """Return the fields of the JSON object."""
        lost = {"end_offset": self.end_offset, "lost_record_count": self.lost_record_count}
        return {**LeaderReport.to_fields(self), **lost}


@dataclass(frozen=True, slots=True)
class OneBroker:
    """One broker of the process."""

    id: int
    state: BrokerState
    rack: str | None
    addresses: tuple[str, ...]
    leader_count: int
    """The number of partitions that the broker leads."""
    in_sync_count: int
    """The number of partitions whose ISR contains the broker."""
    replica_count: int
    is_controller: bool
    until_in_sync_ms: int
    """The remaining time until the broker is in sync after `up --lag`, on its clock; 0 if it is not catching up."""
    lag: str | None
    """How far the broker lags behind the leaders that it follows; None if it does not lag."""
    delay_ms: int
    """The delay of each request to the broker."""

    def to_fields(self) -> dict[str, object]:
        """Return the fields of the JSON object."""
        return {**asdict(self), "addresses": list(self.addresses)}


@dataclass(frozen=True, slots=True)
class BrokersReport:
    """All brokers of the process."""

    brokers: tuple[OneBroker, ...]

    def __iter__(self) -> Iterator[OneBroker]:
        """Return the brokers."""
        return iter(self.brokers)

    def to_fields(self) -> dict[str, object]:
        """Return the fields of the JSON object."""
        return {"brokers": [one.to_fields() for one in self.brokers]}
