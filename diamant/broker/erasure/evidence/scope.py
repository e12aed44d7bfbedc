"""The scope of an erasure or redaction: the topics and partitions that existed at the time of the request.

A topic is known by its id: one that was deleted and created again under its name is another one, and stays untouched. A
partition that was added later held no record at the time of the request, so it is out of scope, too.

Intents of earlier versions have no scope: then names count, and all partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from diamant.cleaner.evidence.certificates.topic_scope import TopicScope
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.kraft.image import TopicImage
from diamant.storage.uuid_text import uuid_to_text

Scope: TypeAlias = Mapping[str, TopicScope]
Topics: TypeAlias = Mapping[str, TopicImage]

DELETED = "topic-deleted"
RECREATED = "topic-recreated"
"""Deleted, and created again under its name."""


def scope_of(topics: Topics, names: Iterable[str]) -> dict[str, TopicScope]:
    """Return the scope of a job that is requested now."""
    return {name: TopicScope(uuid_to_text(topics[name].topic_id), len(topics[name].partitions)) for name in names}


def ended_as(topics: Topics, name: str, scope: Scope) -> str | None:
    """Return what became of a topic that is there no more: `DELETED` or `RECREATED`; None if it is there."""
    image, known = topics.get(name), scope.get(name)
    if image is None:
        return DELETED
    if known is not None and uuid_to_text(image.topic_id) != known.topic_id:
        return RECREATED
    return None


def partitions_of(topics: Topics, names: Iterable[str], scope: Scope) -> list[TopicPartition]:
    """Return those partitions of a job that still exist, by topic, ascending."""
    found = []
    for name in names:
        if ended_as(topics, name, scope) is None:
            known = scope.get(name)
            indexes = sorted(topics[name].partitions)
            found += [(name, one) for one in indexes if known is None or one < known.partitions]
    return found


def later_partitions(topics: Topics, names: Iterable[str], scope: Scope) -> list[TopicPartition]:
    """Return the partitions of these topics that were added after the request."""
    wanted = list(names)
    every = partitions_of(topics, [name for name in wanted if ended_as(topics, name, scope) is None], {})
    known = set(partitions_of(topics, wanted, scope))
    return [one for one in every if one not in known]


def ended_topics(topics: Topics, names: Iterable[str], scope: Scope) -> list[dict[str, Any]]:
    """Return, for a certificate, the topics that are there no more."""
    found = []
    for name in names:
        what = ended_as(topics, name, scope)
        if what is not None:
            found.append({"topic": name, "topic_id": scope[name].topic_id if name in scope else "", "what": what})
    return found
