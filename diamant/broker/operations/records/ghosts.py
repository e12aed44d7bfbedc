"""Detection of ghosts: keys whose tombstone was removed before some consumer group had read it.

Before a round, the tombstones that slow groups have not read are collected; after it, those that the round removed are recorded.
A group whose committed offset is not past a tombstone has not read that deletion, and cannot read it once the tombstone is gone.
If the group has read a value of the key, it keeps that value until the key is written again or the group rereads the topic.

Only offsets that the slowest group has not read are scanned, and only if a tombstone there may have reached its delete horizon:
about once per `delete.retention.ms`. If no group is behind, nothing is read.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from diamant.broker.groups.coordinator.committed_offsets import groups_not_known, groups_of
from diamant.broker.groups.store.offsets import committed_offset_of
from diamant.broker.operation_errors import OperationError
from diamant.broker.record_json import key_fields
from diamant.cleaner.explain.scans import FoundRecord, scan_tombstones
from diamant.storage.errors import StorageError

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.operations.records.explain_operation import ExplainOperation
    from diamant.broker.operations.records.record_requests import GhostsRequest
    from diamant.broker.operations.records.records_operation import RecordPage, RecordsOperation
    from diamant.broker.topics.topics import Topics
    from diamant.cleaner.erasure_state.pending_erasures import PendingErasures
    from diamant.cleaner.rules.plan import CleanPlan
    from diamant.progress import Progress
    from diamant.storage.log.log import Log

logger = logging.getLogger(__name__)

LOADING_S = 5.0
"""The longest time that a round waits for groups to be loaded."""
EARLY_MS = 60_000
"""A horizon that is less than this time ahead counts as passed, since the round starts a little after the scan."""


MAX_GHOSTS = 10_000
MAX_KEY_BYTES = 1024
"""The longest key that is recorded, so that a ledger takes at most about 15 MB."""


class Ghost(NamedTuple):
    """A key whose tombstone was removed before some groups had read it."""

    key: bytes
    offset: int
    """The offset of the tombstone."""
    removed_ms: int
    groups: Mapping[str, int]
    """The groups, with their committed offsets when the tombstone was removed."""


class GhostReport(NamedTuple):
    """The ghosts of a topic, in order of partition and offset. `left_out`: the number that did not fit into the ledger."""

    topic: str
    ghosts: tuple[tuple[int, Ghost], ...]
    left_out: int

    def to_fields(self) -> dict[str, object]:
        """Return the fields of the JSON object."""
        return {
            "topic": self.topic,
            "ghosts": [
                {
                    "partition": partition,
                    "key": key_fields(ghost.key),
                    "offset": ghost.offset,
                    "removed_ms": ghost.removed_ms,
                    "groups": sorted(ghost.groups),
                }
                for partition, ghost in self.ghosts
            ],
            "left_out": self.left_out,
        }


class GhostLedger:
    """The deletions that groups have missed, at most `MAX_GHOSTS`. Further deletions are only counted, by topic.

    The ledger is never written to a file, since an erasure would not remove a key from it. Topics are identified by id, so a
    recreated topic has no ghosts.
    """

    def __init__(self) -> None:
        self._by_partition: dict[tuple[UUID, int], dict[bytes, Ghost]] = {}
        self._count = 0
        self.left_out: dict[UUID, int] = {}

    def add(self, topic_id: UUID, partition: int, ghost: Ghost) -> None:
        """Add a ghost, replacing an earlier one with the same key."""
        keys = self._by_partition.setdefault((topic_id, partition), {})
        if ghost.key not in keys:
            if self._count >= MAX_GHOSTS or len(ghost.key) > MAX_KEY_BYTES:
                self.left_out[topic_id] = self.left_out.get(topic_id, 0) + 1
                return
            self._count += 1
        keys[ghost.key] = ghost

    def of(self, topic_id: UUID) -> dict[int, dict[bytes, Ghost]]:
        """Return copies of the ghosts of a topic, by partition and key."""
        return {
            partition: dict(keys) for (one, partition), keys in self._by_partition.items() if keys and one == topic_id
        }

    def discard(self, topic_id: UUID, partition: int, key: bytes) -> None:
        """Remove a ghost if it exists."""
        if self._by_partition.get((topic_id, partition), {}).pop(key, None) is not None:
            self._count -= 1

    def forget_key(self, key: bytes) -> None:
        """Remove an erased key from all topics."""
        for topic_id, partition in self._by_partition:
            self.discard(topic_id, partition, key)


class _Looked(NamedTuple):
    """The result of reading a log."""

    topic_id: UUID
    start: int
    """The first offset read."""
    now_ms: int
    next_ms: int | None
    """The earliest horizon of the tombstones that the round kept; None if it kept none that have a horizon."""

    def is_enough(self, log: Log, start: int, now_ms: int) -> bool:
        """Return whether no tombstone from `start` on can have reached its horizon since the reading."""
        stamped_ms = self.now_ms + log.config.delete_retention_ms
        due_ms = stamped_ms if self.next_ms is None else min(stamped_ms, self.next_ms)
        return self.topic_id == log.topic_id and start >= self.start and now_ms + EARLY_MS < due_ms


class Ghosts:
    """The ghosts of one broker since its start. Belongs to the loop thread."""

    def __init__(
        self,
        topics: Topics,
        groups: Lazy[GroupCoordinator],
        explaining: ExplainOperation,
        records: RecordsOperation,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._explaining = explaining
        self._records = records
        self._ledger = GhostLedger()
        self._looked: dict[tuple[str, int], _Looked] = {}
        """The result of the last scan of each partition with a slow group."""

    def forget_key(self, key: bytes) -> None:
        """Drop a key that is being erased, so that nothing names it any longer."""
        self._ledger.forget_key(key)

    # -- rounds ----------------------------------------------------------------------------------------------------------

    async def watch(self, log: Log, now_ms: int) -> Callable[[CleanPlan, int], object] | None:
        """Scan a log before a round if necessary; return a function to call after the round, or None. Errors are only logged."""
        await groups_not_known(self._groups, self._topics, LOADING_S)
        behind = [(offset, name) for offset, name in await groups_of(self._groups, log) if offset < log.log_end_offset]
        if not behind:
            return None
        start = max(behind[0][0], log.log_start_offset)
        looked = self._looked.get((log.topic, log.partition))
        if looked is not None and looked.is_enough(log, start, now_ms):
            return None
        try:
            tombstones = await self._tombstones(log, start)
        except (OperationError, StorageError, OSError, TimeoutError) as error:
            logger.warning("%s-%d: deletions missed by groups are not recorded: %s", log.topic, log.partition, error)
            return None
        return partial(self._note, log, behind, tombstones, start, now_ms)

    async def _tombstones(self, log: Log, start: int) -> Sequence[FoundRecord]:
        taken, files = await self._explaining.open(log)
        bases = [segment.base_offset for segment in taken.state.segments]
        first = bases[max(0, bisect_right(bases, start) - 1)]
        with files:

            def read() -> Sequence[FoundRecord]:
                segments = (segment for segment in files.present() if segment.base_offset >= first)
                keeps_key = partial(_is_kept, taken.erasures)
                return scan_tombstones(
                    segments, taken.outcomes, start, check_done=self._explaining.check, keeps_key=keeps_key
                ).tombstones

            return await self._explaining.read(read)

    def _note(
        self,
        log: Log,
        behind: Sequence[tuple[int, str]],
        tombstones: Sequence[FoundRecord],
        start: int,
        looked_ms: int,
        plan: CleanPlan,
        end_offset: int,
    ) -> None:
        """Record the tombstones removed by a round that ended at an offset."""
        next_ms = None
        for tombstone in tombstones:
            if tombstone.horizon_ms is None or tombstone.offset >= end_offset:
                continue
            if not plan.lets_expire(tombstone.segment, tombstone.offset, tombstone.horizon_ms):
                next_ms = tombstone.horizon_ms if next_ms is None else min(next_ms, tombstone.horizon_ms)
                continue
            missed = {
                name: offset
                for offset, name in behind
                if offset <= tombstone.offset
                and self._committed(name, log.topic, log.partition, offset) <= tombstone.offset
            }
            if missed and tombstone.key is not None:
                self._ledger.add(
                    log.topic_id, log.partition, Ghost(tombstone.key, tombstone.offset, plan.now_ms, missed)
                )
        self._looked[log.topic, log.partition] = _Looked(log.topic_id, start, looked_ms, next_ms)

    def _committed(self, group: str, topic: str, partition: int, otherwise: int) -> int:
        found = self._groups().groups.get(group)
        stored = None if found is None else found.offsets.get(topic, partition)
        return otherwise if stored is None else committed_offset_of(stored[0])

    # -- the answer ------------------------------------------------------------------------------------------------------

    async def of(self, request: GhostsRequest, _progress: Progress | None = None) -> GhostReport:
        """Return the ghosts of a topic, or of one group in it. Reads the topic if it has ghosts. Raises OperationError.

        Keys that were written again are left out, and so are groups that were deleted or reset to earlier offsets.
        """
        topic, group = request.topic, request.group
        (log, *_) = self._explaining.logs(topic, None)
        found: list[tuple[int, Ghost]] = []
        for partition, keys in sorted(self._ledger.of(log.topic_id).items()):
            await self._discard_written(log, partition, keys)
            for ghost in keys.values():
                left = {
                    name: offset
                    for name, offset in ghost.groups.items()
                    if group in (None, name) and self._committed(name, topic, partition, -1) >= offset
                }
                if left:
                    found.append((partition, ghost._replace(groups=left)))
        found.sort(key=lambda one: (one[0], one[1].offset))
        return GhostReport(topic, tuple(found), self._ledger.left_out.get(log.topic_id, 0))

    async def _discard_written(self, log: Log, partition: int, keys: dict[bytes, Ghost]) -> None:
        """Drop keys that have been written again since the removed tombstone."""
        pages: AsyncGenerator[RecordPage, None] = self._records.latest_pages(log.topic, partition, tombstones=True)
        async with aclosing(pages):
            async for page in pages:
                for record in page.records:
                    ghost = None if record.key is None else keys.get(record.key)
                    if ghost is not None and record.offset > ghost.offset:
                        del keys[ghost.key]
                        self._ledger.discard(log.topic_id, partition, ghost.key)


def _is_kept(erasures: PendingErasures | None, key: bytes) -> bool:
    """Return whether a key may be recorded: it is short enough and is not being erased."""
    return len(key) <= MAX_KEY_BYTES and (erasures is None or not erasures.has(key))
