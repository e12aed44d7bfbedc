"""The claims of an erasure in one turn of the loop: what of them is there still, and what is missing."""

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
    """The partitions of an erasure that are there still."""

    present: Present
    ends: Mapping[TopicPartition, int]
    """Where the claims about them end."""
    unclaimed: tuple[TopicPartition, ...]
    """Those without a claim: all at first, later those that could not be opened."""
    affected: tuple[TopicPartition, ...]
    """Those in which the key was found."""


def claims_of(intent: Intent, topics: Topics) -> Claims:
    """Return the claims of an erasure as far as they are about partitions of these topics."""
    present = present_of(topics, intent.topics, intent.scope)
    there = set(present.partitions)
    return Claims(
        present,
        {one: end for one, end in intent.claims.items() if one in there},
        tuple(one for one in present.partitions if one not in intent.claims),
        tuple(one for one in present.partitions if one in intent.found),
    )
