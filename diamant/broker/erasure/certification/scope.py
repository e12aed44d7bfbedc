"""The scope of an erasure or redaction: the topics and partitions at the time of the request, and the claims about them.

Topics are identified by ID, so a topic that was deleted and created again under the same name is out of scope. So is a partition
that was added after the request: it held no records at that time.

Intents of earlier versions have no scope. Their topics are identified by name, and all partitions are in scope.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from diamant.cleaner.erasure_state.intent import Intent
from diamant.cleaner.evidence.certificates.intent_parts import RemovalIntent, TopicScope
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.uuid_text import uuid_to_text

if TYPE_CHECKING:
    from diamant.broker.topics.topics import Topics

Scope: TypeAlias = Mapping[str, TopicScope]

DELETED = "topic-deleted"
RECREATED = "topic-recreated"
"""The topic was deleted and created again under the same name."""


@dataclass(frozen=True, slots=True)
class TopicEnd:
    """A topic that no longer exists, as a certificate records it."""

    topic: str
    topic_id: str
    what: str
    """`DELETED` or `RECREATED`."""


@dataclass(frozen=True, slots=True)
class Present:
    """The topics and partitions of a job that still exist, all as of one turn of the loop."""

    topics: frozenset[str]
    ended: tuple[TopicEnd, ...]
    partitions: tuple[TopicPartition, ...]
    """The partitions in scope, in ascending order within each topic."""
    later: tuple[TopicPartition, ...]
    """The partitions that were added to the topics after the request."""


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of an erasure about partitions that still exist, all as of one turn of the loop."""

    present: Present
    ends: Mapping[TopicPartition, int]
    """The end offset of each claim."""
    unclaimed: tuple[TopicPartition, ...]
    """The partitions without a claim: at first all of them, later those that could not be opened or accept no tombstone."""
    affected: tuple[TopicPartition, ...]
    """The partitions in which the key was found."""


def scope_of(topics: Topics, names: Iterable[str]) -> dict[str, TopicScope]:
    """Return the scope of a job that is being requested."""
    images = {name: topics.image.topics[name] for name in names}
    return {name: TopicScope(uuid_to_text(one.topic_id), len(one.partitions)) for name, one in images.items()}


def present_of(topics: Topics, intent: RemovalIntent) -> Present:
    """Return the topics and partitions of a job that still exist."""
    there: list[str] = []
    ended: list[TopicEnd] = []
    partitions: list[TopicPartition] = []
    later: list[TopicPartition] = []
    images = topics.image.topics
    for name in intent.topic_names():
        image, known = images.get(name), intent.scope.get(name)
        if image is None:
            ended.append(TopicEnd(name, "" if known is None else known.topic_id, DELETED))
        elif known is not None and uuid_to_text(image.topic_id) != known.topic_id:
            ended.append(TopicEnd(name, known.topic_id, RECREATED))
        else:
            there.append(name)
            for index in sorted(image.partitions):
                (partitions if known is None or index < known.partitions else later).append((name, index))
    return Present(frozenset(there), tuple(ended), tuple(partitions), tuple(later))


def claims_of(intent: Intent, topics: Topics) -> Claims:
    """Return the claims of an erasure about those of its partitions that still exist."""
    present = present_of(topics, intent)
    there = set(present.partitions)
    return Claims(
        present,
        {one: end for one, end in intent.claims.items() if one in there},
        tuple(one for one in present.partitions if one not in intent.claims),
        tuple(one for one in present.partitions if one in intent.found),
    )
