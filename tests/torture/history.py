"""What clients have sent, and what was answered: all that the check needs to know."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Self

Partition = tuple[str, int]


class Finding(Exception):
    """The broker has broken a promise."""


@dataclass(slots=True)
class Sent:
    """A record that was sent; its value is unique."""

    key: bytes | None
    value: bytes
    number: int
    """Its place among all records that its producer sent to the partition."""
    producer: str
    offset: int = -1
    """Where it was acknowledged; -1: it was not."""


@dataclass(slots=True)
class Transaction:
    """One transaction: the values that it sent, and its end."""

    producer: str
    values: dict[Partition, list[bytes]] = field(default_factory=dict)
    offset: int = -1
    """That it committed for the group of its producer; -1: none."""
    wants_commit: bool = False
    is_answered: bool = False


@dataclass(slots=True)
class Offsets:
    """The offset of one group in one partition: the last answered one, and what was asked since."""

    answered: int = -1
    asked: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Topic:
    """A topic that was asked for."""

    is_compacted: bool = False
    partitions: int = 1
    is_created: bool = False
    """Answered; before, it may be there or not. `is_deleted` is None if a deletion was asked for and not answered."""
    is_deleted: bool | None = False
    configs: dict[str, set[str]] = field(default_factory=dict)
    """Possible values: one, or more if a change was not answered."""


@dataclass(slots=True)
class History:
    """All of it; a copy at a snapshot is what a reset has to bring back."""

    topics: dict[str, Topic] = field(default_factory=dict)
    sent: dict[Partition, dict[bytes, Sent]] = field(default_factory=dict)
    transactions: list[Transaction] = field(default_factory=list)
    offsets: dict[tuple[str, str], Offsets] = field(default_factory=dict)
    """By group and topic, of its partition 0."""
    forgotten: dict[str, bytes] = field(default_factory=dict)
    """Keys whose erasure or redaction was asked for, by the reference in its certificates."""
    certified: dict[str, str] = field(default_factory=dict)
    """Answered: the state of the certificate, by reference."""

    read: dict[tuple[str, str, int], dict[int, bytes]] = field(default_factory=dict)
    """What a group of real clients has read, by group, topic and partition: values by offset."""
    committed: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """The last offset that it has committed."""
    accepted: set[int] = field(default_factory=set)
    """Offsets that the share group has acknowledged: they are never delivered again."""

    planted: set[str] = field(default_factory=set)
    """Files of the data directory that hold values of forgotten keys, put there to be found."""

    def copy(self) -> Self:
        """Return a copy that shares nothing."""
        return copy.deepcopy(self)

    def send(self, partition: Partition, producer: str, key: bytes | None, value: bytes) -> None:
        """Note a record before it is sent. ValueError if the program has sent that value before."""
        there = self.sent.setdefault(partition, {})
        if value in there:
            raise ValueError(f"{producer} sends {value!r} to {partition}, which {there[value].producer} has sent")
        there[value] = Sent(key, value, len(there), producer)

    def acknowledge(self, partition: Partition, values: list[bytes], base_offset: int) -> None:
        """Note that a batch was acknowledged."""
        for delta, value in enumerate(values):
            self.sent[partition][value].offset = base_offset + delta

    def bytes_sent(self, partition: Partition) -> int:
        """Return the bytes of all values sent to a partition."""
        return sum(map(len, self.sent.get(partition, ())))

    def is_acknowledged(self) -> int:
        """Return how many records were acknowledged."""
        return sum(sent.offset >= 0 for there in self.sent.values() for sent in there.values())


def as_known_at(mark: History, final: History) -> History:
    """Return what a copy made after `mark` has to hold: what was answered before; all that was ever sent may be there."""
    known = final.copy()
    for partition, there in known.sent.items():
        for value, one in there.items():
            answered = mark.sent.get(partition, {}).get(value)
            one.offset = -1 if answered is None else answered.offset
    for name, topic in known.topics.items():
        then = mark.topics.get(name, Topic())
        topic.is_created, topic.partitions = then.is_created, then.partitions
        if topic.is_deleted != then.is_deleted:
            topic.is_deleted = None
    # Of a transaction whose end was not answered, a part of the markers may be lost, as in Kafka.
    known.transactions = [one for one in mark.transactions if one.is_answered]
    known.certified = dict(mark.certified)
    for at, offsets in known.offsets.items():
        asked = set(range(offsets.answered + 1)) | offsets.asked
        known.offsets[at] = Offsets(mark.offsets[at].answered if at in mark.offsets else -1, asked)
    return known
