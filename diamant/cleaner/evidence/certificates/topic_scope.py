"""A topic as it was when an erasure or redaction was requested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TopicScope:
    """The part of a topic that a job is about."""

    topic_id: str
    """As text; another topic of that name has another one."""
    partitions: int
    """Number of partitions: those that are added later are not meant."""


def scopes_of(fields: Mapping[str, Mapping[str, Any]]) -> dict[str, TopicScope]:
    """Return the scope that an intent has as JSON, by topic. TypeError for names that it does not have, or lacks."""
    return {name: TopicScope(**one) for name, one in fields.items()}
