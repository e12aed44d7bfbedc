"""Finds a key, and writes a tombstone behind each of its values: the step of an erasure before values are removed.

A claim ends behind the tombstone; if none was needed, at the end that the log had when the key was located. If the scan
finds values in a partition in spite of its claim, the key is located there once more: the claim keeps its end, unless a
tombstone is written. A partition that takes no tombstone gets no claim; others are not affected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from diamant.broker.erasure.erase.claims import refusals_of, steps_of, to_locate
from diamant.broker.erasure.erase.tombstones import TombstoneRefused, write_tombstone
from diamant.broker.erasure.evidence.evidence import Evidence
from diamant.broker.erasure.evidence.scope import ended_topics
from diamant.broker.operations.blocking import in_thread
from diamant.broker.operations.progress import Progress
from diamant.cleaner.erasure.intent import REMOVING, Claim, Intent
from diamant.cleaner.erasure.locate import Located, locate_key
from diamant.cleaner.evidence.scan.file_listing import place_named
from diamant.cleaner.evidence.scan.file_names import shown_name
from diamant.cleaner.evidence.scan.scan import LogEnd
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.storage.checkpoints.checkpoints import TopicPartition

if TYPE_CHECKING:
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)

TOMBSTONES_PER_TURN = 32


class EraseTombstones:
    """Locates keys and writes tombstones."""

    def __init__(self, node: Node, evidence: Evidence) -> None:
        """`node`: whose logs take the tombstones."""
        self._node = node
        self._evidence = evidence

    async def locate(
        self, intent: Intent, subject: Subject, progress: Progress
    ) -> tuple[list[Located], dict[TopicPartition, LogEnd]]:
        """Find the key in the partitions that have no claim yet, or have values in spite of it; also up to where each log was
        there then.

        Filters are asked at first only: a value that is left after that may be one that they hide.
        """
        progress.begin("locating the key", unit="bytes")
        ends, partitions = self._evidence.ends(), to_locate(intent, self._evidence.topics)
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
        intent.needles = [needle.to_fields() for needle in subject.needles]
        # Findings of an earlier attempt are reported as they were then.
        known = {(one["topic"], one["partition"]) for one in intent.found}
        new = [one for one in located if (one.topic, one.partition) not in known]
        # From here on files are called what they are in certificates.
        shown = {name: shown_name(place_named(name), subject.needles) for one in new for name in one.files}
        intent.found += [{**one.to_fields(), "files": sorted(shown[name] for name in one.files)} for one in new]
        digested = {one["file"] for one in intent.before}
        files = sorted(name for name in shown if shown[name] not in digested)
        digests = await asyncio.to_thread(self._evidence.digests, files, ends)
        intent.before += [{**one, "file": shown[one["file"]]} for one in digests]
        return located, ends

    async def write(self, intent: Intent, located: Sequence[Located], ends: Mapping[TopicPartition, LogEnd]) -> None:
        """Write a tombstone where one is needed, and note the claims: the values are removed next."""
        by_partition = {(one.topic, one.partition): one for one in located}
        told, intent.refused = refusals_of(intent), []
        steps, claims = steps_of(intent), {one.place: one for one in intent.claims}
        for count, partition in enumerate(to_locate(intent, self._evidence.topics), start=1):
            log, end = self._evidence.log(partition), ends.get(partition)
            if log is None or end is None or ended_topics(self._evidence.topics, [log.topic], intent.scope):
                continue
            one = by_partition.get(partition)
            # What lies behind the tombstone was written after it; without one, what was written since the key was located.
            below = claims[partition].below_offset if partition in claims else end.log_end_offset
            if one is not None:
                # What was written behind a claim is not to be erased; it supersedes what is below as well.
                is_needed = one.needs_tombstone and one.last_said_offset < below
                try:
                    offset = write_tombstone(self._node, log, intent.key) if is_needed else None
                except TombstoneRefused as refusal:
                    # The others need not wait for it.
                    intent.refused.append([*partition, str(refusal)])
                    if told.get(partition) != str(refusal):
                        logger.warning("erasure %s: %s-%d: %s", intent.id, *partition, refusal)
                    continue
                below = below if offset is None else offset + 1
                if offset is not None or partition not in steps:
                    known = steps.get(partition, {}).items()
                    kept = {name: value for name, value in known if not name.startswith("tombstone")}
                    steps[partition] = {**kept, **_step(one, offset)}
            claims[partition] = Claim(log.topic, log.partition, below)
            if count % TOMBSTONES_PER_TURN == 0:
                await asyncio.sleep(0)
        intent.claims, intent.done = [*claims.values()], [*steps.values()]
        intent.missed = []
        intent.phase = REMOVING


def _step(one: Located, offset: int | None) -> dict[str, Any]:
    step: dict[str, Any] = {"topic": one.topic, "partition": one.partition}
    if offset is not None:
        step["tombstone_offset"] = offset
    elif one.last_tombstone_offset >= 0:
        step["tombstone"] = f"one was there already, at offset {one.last_tombstone_offset}"
        step["tombstone_found_at"] = one.last_tombstone_offset
    else:
        step["tombstone"] = "none was needed: no value is the last thing that the log says of the key"
    return step
