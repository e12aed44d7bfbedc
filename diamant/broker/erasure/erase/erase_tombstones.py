"""Locates a key and writes a tombstone after its values: the step of an erasure before the values are removed.

A claim ends after the tombstone. If none was needed, it ends at the log end offset at the time the key was located. If the
scan finds values below a claim, the key is located there again: the claim keeps its end unless another tombstone is
written. A partition that takes no tombstone gets no claim; other partitions are not affected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from diamant.broker.erasure.erase.claims import Claims, claims_of
from diamant.broker.erasure.erase.tombstones import TombstoneRefused, write_tombstone
from diamant.broker.erasure.evidence.evidence import Evidence
from diamant.broker.erasure.evidence.scope import present_of
from diamant.broker.operations.calls.blocking import in_thread
from diamant.broker.operations.calls.progress import Progress
from diamant.cleaner.erasure.intent import REMOVING, Erased, Intent
from diamant.cleaner.erasure.locate import LocatedKey, locate_key
from diamant.cleaner.evidence.scan.file_listing import place_named
from diamant.cleaner.evidence.scan.file_names import shown_name
from diamant.cleaner.evidence.scan.scan import LogEnd
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.storage.checkpoints.checkpoints import TopicPartition

if TYPE_CHECKING:
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)

TOMBSTONES_PER_TURN = 32


@dataclass(frozen=True, slots=True)
class LocatedKeys:
    """The locations of the key before anything is erased."""

    located: list[LocatedKey]
    ends: Mapping[TopicPartition, LogEnd]
    """The end of each log at that time."""
    files: Mapping[str, str]
    """Segments that hold the key and have no digest yet: from file name to the name shown in certificates."""

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that hold the key."""
        return [(one.topic, one.partition) for one in self.located]


class EraseTombstones:
    """Locates keys and writes tombstones."""

    def __init__(self, node: Node, evidence: Evidence) -> None:
        """`node`: the owner of the logs that take the tombstones."""
        self._node = node
        self._evidence = evidence

    async def locate(
        self, intent: Intent, claims: Claims, subject: Subject, progress: Progress
    ) -> tuple[Intent, LocatedKeys]:
        """Find the key in partitions that have no claim yet, or that have values below it.

        Only the first attempt uses filters: a value left after it may be hidden by a wrong filter.
        """
        progress.begin("locating the key", unit="bytes")
        ends, partitions = self._evidence.ends(), _to_locate(intent, claims)
        filter_key = None if intent.retries else self._evidence.filter_key()
        located, _ = await in_thread(
            lambda check: locate_key(
                self._evidence.env,
                self._evidence.directory,
                subject,
                ends,
                partitions,
                hash_key=filter_key,
                advance=progress.move_to,
                check=check,
            )
        )
        # Findings of earlier attempts are kept as they were.
        new = {(one.topic, one.partition): one for one in located if (one.topic, one.partition) not in intent.found}
        # From here on, files have the names shown in certificates.
        shown = {name: shown_name(place_named(name), subject.needles) for one in located for name in one.files}
        found = {**intent.found, **{partition: one.shown(shown) for partition, one in new.items()}}
        known = {name for one in found.values() for name in one.files} - {one.file for one in intent.before}
        files = {name: shown[name] for name in sorted(shown) if shown[name] in known}
        return replace(intent, needles=tuple(subject.needles), found=found), LocatedKeys(located, ends, files)

    async def digest(self, intent: Intent, location: LocatedKeys) -> Intent:
        """Add the digests of the existing segments that hold the key."""
        files = location.files
        digests = await asyncio.to_thread(self._evidence.digests, [*files], location.ends)
        return replace(intent, before=(*intent.before, *(replace(one, file=files[one.file]) for one in digests)))

    async def write(self, intent: Intent, location: LocatedKeys) -> Intent:
        """Write a tombstone where one is needed, and record the claims. The values are removed next."""
        by_partition, ends = {(one.topic, one.partition): one for one in location.located}, location.ends
        refused, steps, claims = {}, {**intent.done}, {**intent.claims}
        known = claims_of(intent, self._evidence.topics)
        there = frozenset(known.present.partitions)
        for count, partition in enumerate(_to_locate(intent, known), start=1):
            if count % TOMBSTONES_PER_TURN == 0:
                await asyncio.sleep(0)
                there = frozenset(present_of(self._evidence.topics, intent.topics, intent.scope).partitions)
            log, end = self._evidence.logs.get(partition), ends.get(partition)
            if log is None or end is None or partition not in there:
                continue
            one = by_partition.get(partition)
            # The claim ends after the tombstone; without one, at the log end when the key was located.
            below = claims.get(partition, end.log_end_offset)
            if one is not None:
                # A value written after the claim's end is not erased; it supersedes the values below as a tombstone would.
                is_needed = one.needs_tombstone and one.last_said_offset < below
                try:
                    offset = write_tombstone(self._node, log, intent.key) if is_needed else None
                except TombstoneRefused as refusal:
                    # Other partitions continue.
                    refused[partition] = str(refusal)
                    if intent.refused.get(partition) != str(refusal):
                        logger.warning("erasure %s: %s-%d: %s", intent.id, *partition, refusal)
                    continue
                below = below if offset is None else offset + 1
                if offset is not None or partition not in steps:
                    steps[partition] = _with_tombstone(steps.get(partition, Erased()), one, offset)
            claims[partition] = below
        return replace(intent, phase=REMOVING, claims=claims, done=steps, missed=(), refused=refused)


def _to_locate(intent: Intent, claims: Claims) -> list[TopicPartition]:
    """Return the partitions without a claim, and those with values below their claim."""
    missed = set(intent.missed)
    return [*claims.unclaimed, *(one for one in claims.ends if one in missed)]


def _with_tombstone(step: Erased, one: LocatedKey, offset: int | None) -> Erased:
    there = one.last_tombstone_offset
    if offset is not None:
        return replace(step, tombstone_offset=offset, tombstone=None, tombstone_found_at=None)
    if there >= 0:
        reason = f"one was there already, at offset {there}"
        return replace(step, tombstone_offset=None, tombstone=reason, tombstone_found_at=there)
    reason = "none was needed: no value is the last thing that the log says of the key"
    return replace(step, tombstone_offset=None, tombstone=reason, tombstone_found_at=None)
