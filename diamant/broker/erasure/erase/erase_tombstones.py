"""Phase `writing` of an erasure: the key is located, and a tombstone is written after its values.

The claim about a partition ends after the tombstone, or, if none was needed, where the log ended when the key was located. If the
scan finds values below the end of a claim, the key is located again in that partition. The claim keeps its end unless another
tombstone is written. A partition that accepts no tombstone gets no claim; this does not affect other partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from diamant.broker import certificate_texts
from diamant.broker.erasure.certification.evidence import DIGEST_THREADS, Evidence
from diamant.broker.erasure.certification.scope import Claims, claims_of, present_of
from diamant.broker.erasure.erase.erase_result import EraseFailed
from diamant.broker.erasure.erase.erase_values import EraseValues
from diamant.broker.erasure.jobs.job_table import JobTable
from diamant.broker.erasure.jobs.removal import Removal
from diamant.broker.operation_errors import BadArgument
from diamant.broker.operations.calls.blocking import in_thread
from diamant.cleaner.erasure_state.intent import REMOVING, Erased, Intent
from diamant.cleaner.erasure_state.locate import LocatedKey, locate_key
from diamant.cleaner.evidence.scan.file_listing import place_named
from diamant.cleaner.evidence.scan.file_names import shown_name
from diamant.cleaner.evidence.search.offset_order import LogEnd
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.node.cleaner import NodeCleaner
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)

TOMBSTONES_PER_TURN = 32


class TombstoneRefused(Exception):
    """A partition accepts no tombstone until an operator acts. The message states the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class LocatedKeys:
    """The records of the key, located before anything is erased."""

    located: list[LocatedKey]
    ends: Mapping[TopicPartition, LogEnd]
    """The end of each log when the key was located."""
    files: Mapping[str, str]
    """The segments that hold the key and have no digest yet: for each file name, the name shown in certificates."""


@dataclass(frozen=True, slots=True)
class EraseTombstones:
    """The part of an erasure that locates keys and writes tombstones. `node`: the owner of the logs."""

    node: Node
    evidence: Evidence
    table: JobTable[Intent]
    cleaning: NodeCleaner
    values: EraseValues

    async def write_and_remove(self, intent: Intent, claims: Claims, removal: Removal[Subject]) -> Intent:
        """Write tombstones, remove values, and return the updated intent.

        The digests of the segments are computed concurrently; no segment is replaced before its digest is on disk.
        """
        intent, location = await self.locate(intent, claims, removal)
        await self.table.save(intent, removal.key, intent.due_ms)
        if removal.is_new:
            await self._check_values_unsaid(intent, removal)
        intent = await self._write(intent, location)
        holds = (await self.cleaning.service()).rounds.swap_holds

        async def digest() -> Intent:
            with holds.held([(one.topic, one.partition) for one in location.located]):
                digested = await self._digest(intent, location)
                await self.table.save(digested, removal.key, digested.due_ms)
                return digested

        try:
            async with asyncio.TaskGroup() as group:
                digesting = group.create_task(digest())
                if len(location.files) > DIGEST_THREADS:
                    # Digests of many files take long. Rounds that wait for them would delay the rounds of other logs.
                    await digesting
                removed = await self.values.remove(intent, removal)
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return replace(removed, before=digesting.result().before)

    async def locate(self, intent: Intent, claims: Claims, removal: Removal[Subject]) -> tuple[Intent, LocatedKeys]:
        """Find the key in partitions without a claim, or with values below the claim's end; return the intent with the findings.

        Only the first attempt uses filters: if a value is left after that attempt, a wrong filter may have hidden it.
        """
        subject, progress = removal.subject, removal.progress
        progress.begin("locating the key", unit="bytes")
        ends, partitions = self.evidence.ends(), _to_locate(intent, claims)
        if intent.engine is None:
            warmth = (await self.cleaning.service()).warmth
            for log in filter(None, map(self.evidence.logs.get, partitions)):
                warmth.expect_request(log)
        located, _ = await in_thread(
            lambda check: locate_key(
                self.evidence.env,
                self.evidence.directory,
                subject,
                ends,
                partitions,
                uses_filters=not intent.retries,
                advance=progress.move_to,
                check=check,
            )
        )
        for one in located:
            removal.add_holders(self.evidence.holders((one.topic, one.partition), one.seen.__contains__))
            one.seen.clear()
        # Do not overwrite the findings of earlier attempts.
        new = {(one.topic, one.partition): one for one in located if (one.topic, one.partition) not in intent.found}
        # In the intent, files have the names that certificates show.
        shown = {name: shown_name(place_named(name), subject.needles) for one in located for name in one.files}
        found = {**intent.found, **{partition: one.shown(shown) for partition, one in new.items()}}
        known = {name for one in found.values() for name in one.files} - {one.file for one in intent.before}
        files = {name: shown[name] for name in sorted(shown) if shown[name] in known}
        return replace(intent, needles=tuple(subject.needles), found=found), LocatedKeys(located, ends, files)

    async def _check_values_unsaid(self, intent: Intent, removal: Removal[Subject]) -> None:
        """Refuse an erasure whose reason or reference contains a value just located. Drops its intent, and raises BadArgument."""
        said = [intent.reason, intent.reference]
        try:
            certificate_texts.check_unsaid("reason and reference", said, [intent.key], removal.subject.needles)
        except BadArgument:
            await self.table.drop(intent.id)
            raise

    async def _digest(self, intent: Intent, location: LocatedKeys) -> Intent:
        """Return the intent with the digests of the segments that hold the key, as far as they still exist."""
        files = location.files
        digests = await asyncio.to_thread(self.evidence.digests, [*files], location.ends)
        return replace(intent, before=(*intent.before, *(replace(one, file=files[one.file]) for one in digests)))

    async def _write(self, intent: Intent, location: LocatedKeys) -> Intent:
        """Write a tombstone to each partition that needs one, and record the claims. The next step removes the values."""
        by_partition, ends = {(one.topic, one.partition): one for one in location.located}, location.ends
        refused, steps, claims = {}, {**intent.done}, {**intent.claims}
        known = claims_of(intent, self.evidence.topics)
        there = frozenset(known.present.partitions)
        for count, partition in enumerate(_to_locate(intent, known), start=1):
            if count % TOMBSTONES_PER_TURN == 0:
                await asyncio.sleep(0)
                there = frozenset(present_of(self.evidence.topics, intent).partitions)
            log, end = self.evidence.logs.get(partition), ends.get(partition)
            if log is None or end is None or partition not in there:
                continue
            one = by_partition.get(partition)
            # The claim ends after the tombstone or, if none is written, where the log ended when the key was located.
            below = claims.get(partition, end.log_end_offset)
            if one is not None:
                # A value beyond the claim's end stays, but it supersedes earlier values, as a tombstone would.
                is_needed = one.needs_tombstone and one.last_said_offset < below
                try:
                    offset = write_tombstone(self.node, log, intent.key) if is_needed else None
                except TombstoneRefused as refusal:
                    # Continue with the other partitions.
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
    """Return the partitions that have no claim, and those that have values below the end of their claim."""
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


def write_tombstone(node: Node, log: Log, key: bytes) -> int:
    """Append a tombstone on the loop thread; return its offset. Raises TombstoneRefused, EraseFailed, OSError (a full disk)."""
    batch = build_batch([Record(0, node.env.clock.now_ms(), key, None)])
    try:
        appended = log.append_as_leader(memoryview(batch))
    except KafkaError as error:
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR and log.write_failure is None:
            raise EraseFailed(f"{log.topic}-{log.partition}: the tombstone cannot be written: {error}") from None
        raise TombstoneRefused(_why_refused(log, len(batch), error)) from None
    return appended.base_offset


def _why_refused(log: Log, size: int, error: KafkaError) -> str:
    if log.write_failure is not None:
        return (
            "no tombstone can be written: the partition refuses writes after a failed one. See the broker's log, repair the "
            "disk, and restart the broker"
        )
    limits = {
        ErrorCode.MESSAGE_TOO_LARGE: ("max.message.bytes", log.config.max_message_bytes),
        ErrorCode.RECORD_LIST_TOO_LARGE: ("segment.bytes", log.config.segment_bytes),
    }
    if error.code not in limits:
        return f"no tombstone can be written: {error}"
    name, limit = limits[error.code]
    return (
        f"the tombstone would have {size} bytes, and {name} of the topic allows {limit}: raise it, and the erasure continues "
        "automatically"
    )
