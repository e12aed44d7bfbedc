"""The claims and steps of an erasure by partition, as its intent has them."""

from __future__ import annotations

from typing import Any

from diamant.broker.erasure.evidence.scope import Topics, partitions_of
from diamant.cleaner.erasure.intent import Claim, Intent
from diamant.storage.checkpoints.checkpoints import TopicPartition


def steps_of(intent: Intent) -> dict[TopicPartition, dict[str, Any]]:
    """Return what was done, by partition."""
    return {(one["topic"], one["partition"]): one for one in intent.done}


def refusals_of(intent: Intent) -> dict[TopicPartition, str]:
    """Return why partitions take no tombstone."""
    return {(topic, partition): reason for topic, partition, reason in intent.refused}


def claim_ends(intent: Intent) -> dict[TopicPartition, int]:
    """Return the ends of all claims."""
    return {one.place: one.below_offset for one in intent.claims}


def unclaimed(intent: Intent, topics: Topics) -> list[TopicPartition]:
    """Return the partitions without a claim: all at first, later those that could not be opened."""
    claimed = {one.place for one in intent.claims}
    return [one for one in partitions_of(topics, intent.topics, intent.scope) if one not in claimed]


def claims_there(intent: Intent, topics: Topics) -> list[Claim]:
    """Return the claims about partitions that are there still."""
    there = set(partitions_of(topics, intent.topics, intent.scope))
    return [one for one in intent.claims if one.place in there]


def affected(intent: Intent, topics: Topics) -> list[TopicPartition]:
    """Return the partitions in which the key was found, as far as they are there still."""
    found = {(one["topic"], one["partition"]) for one in intent.found}
    return [one for one in partitions_of(topics, intent.topics, intent.scope) if one in found]


def to_locate(intent: Intent, topics: Topics) -> list[TopicPartition]:
    """Return the partitions without a claim, and those that have values in spite of theirs."""
    missed = {(topic, partition) for topic, partition in intent.missed}
    claimed = (one.place for one in claims_there(intent, topics))
    return [*unclaimed(intent, topics), *(one for one in claimed if one in missed)]
