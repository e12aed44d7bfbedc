"""The claims of an erasure in one turn of the loop: the partitions that still exist, and those without a claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diamant.broker.erasure.evidence.scope import Present, present_of
from diamant.cleaner.erasure.intent import Intent
from diamant.storage.checkpoints.checkpoints import TopicPartition

if TYPE_CHECKING:
    from diamant.broker.topics.topics import Topics


@dataclass(frozen=True, slots=True)
class Claims:
    """The partitions of an erasure that still exist."""

    present: Present
    ends: Mapping[TopicPartition, int]
    """The end offset of each claim."""
    unclaimed: tuple[TopicPartition, ...]
    """The partitions without a claim: first all of them, later those that could not be opened."""
    affected: tuple[TopicPartition, ...]
    """The partitions in which the key was found."""


def claims_of(intent: Intent, topics: Topics) -> Claims:
    """Return the claims of an erasure that concern existing partitions of its topics."""
    present = present_of(topics, intent.topics, intent.scope)
    there = set(present.partitions)
    return Claims(
        present,
        {one: end for one, end in intent.claims.items() if one in there},
        tuple(one for one in present.partitions if one not in intent.claims),
        tuple(one for one in present.partitions if one in intent.found),
    )
