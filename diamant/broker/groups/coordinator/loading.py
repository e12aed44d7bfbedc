"""Loads groups from `__consumer_offsets` in the background when the broker starts (`coordinators/partition_loader.py`).

Until a partition is loaded, requests about its groups are refused, but move the partition to the front of the queue.

Bounds: the contents of the topic, which the cleaner compacts to one record per key. For the reader's memory, see
`partition_scan.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from diamant.broker.coordinators.partition_loader import PartitionLoader
from diamant.broker.groups.coordinator.offset_commits import OffsetCommits
from diamant.broker.groups.coordinator.offset_removal import GROUPS_PER_TURN, OffsetRemoval
from diamant.broker.groups.coordinator.partition_scan import PartitionScan, finished, left_behind, scanned
from diamant.broker.groups.store.group import Group
from diamant.broker.groups.store.group_store import GroupStore
from diamant.broker.groups.store.log import GroupLog
from diamant.broker.topics.topic import Topic
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.group_records import GroupRecordKey
from diamant.protocol.internal_topics.other_group_keys import OtherGroupKey

if TYPE_CHECKING:
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)

OFFSET_GROUPS_PER_TURN = 2_000
"""The number of groups that are registered with their offsets in one turn of the loop. Registering a group is cheap."""


class GroupLoading:
    """Loads the groups of the topic in use. Belongs to the loop thread."""

    def __init__(
        self,
        node: Node,
        store: GroupStore,
        log: GroupLog,
        commits: OffsetCommits,
        removal: OffsetRemoval,
        restore: Callable[[Group, GroupRecordKey | OtherGroupKey, Any], None],
    ) -> None:
        """`restore(group, key, value)` applies any record other than an offset commit."""
        self._node = node
        self._store = store
        self._log = log
        self._commits = commits
        self._removal = removal
        self._restore = restore
        self._in_use: Topic | None = None
        self._loader = self._loader_of(None)
        self._topic_ids: dict[str, UUID] = {}  # topics that existed when loading began

    def use(self, topic: Topic | None) -> None:
        """Stop loading the previous topic, and load the groups of `topic` unless it is None."""
        self._loader.cancel()
        self._in_use = topic
        self._loader = self._loader_of(topic)
        if not self._loader.is_complete:
            # The current ids suffice: partitions that are not loaded accept no commits, so they have none for later topics.
            self._topic_ids = {name: image.topic_id for name, image in self._node.topics.image.topics.items()}
            self._loader.start()

    def _loader_of(self, topic: Topic | None) -> PartitionLoader[PartitionScan]:
        buffer_size = self._node.config.offsets_load_buffer_size
        return PartitionLoader(
            topic, self._log.topic.partition_count, "groups", lambda log: scanned(log, buffer_size), self._take_over
        )

    async def stop(self) -> None:
        """Stop loading."""
        await self._loader.stop()

    def check(self, group_id: str) -> None:
        """Raise KafkaError NOT_COORDINATOR if there is no topic, or the group's partition cannot be used. Raise
        COORDINATOR_LOAD_IN_PROGRESS if the partition is not loaded yet, and move it to the front of the queue.
        """
        if self._in_use is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"{self._log.topic.name} does not exist yet")
        if not self._loader.is_complete:
            self._loader.check(self._log.partition_of(group_id))
        elif self._topic_ids:
            self._topic_ids = {}

    async def loaded(self) -> None:
        """Wait until every readable partition is loaded."""
        await self._loader.done()

    @property
    def is_loading(self) -> bool:
        """Whether there are partitions that have neither been loaded nor failed."""
        return not self._loader.is_done

    def not_loaded(self) -> dict[int, str]:
        """Return the partitions whose groups are currently unknown, with the reasons."""
        return self._loader.not_loaded()

    def when_read(self, partition: int, apply: Callable[[], None]) -> None:
        """Call `apply` for a record just appended, once its partition is loaded. No effect if the scan will read the record."""
        self._loader.when_read(partition, apply)

    def when_loaded(self, apply: Callable[[], None]) -> None:
        """Call `apply` once for each partition that is not loaded yet, as soon as it is loaded."""
        for partition in self._loader.missing_partitions():
            self._loader.when_loaded(partition, apply)

    async def _take_over(self, partition: int, scan: PartitionScan) -> None:
        loaded = await finished(scan)
        left = await left_behind(loaded, self._topic_ids)
        strangers = set()
        for count, (group_id, group) in enumerate(loaded.groups.items(), start=1):
            if self._log.partition_of(group_id) == partition:
                self._store.adopt(group)
            else:
                strangers.add(group_id)
            if count % OFFSET_GROUPS_PER_TURN == 0:
                await asyncio.sleep(0)
        for group_id, producer_id in loaded.open_transactions:
            if group_id not in strangers:
                self._commits.open_transaction(partition, producer_id, group_id)
        self._remove_left_behind([place for place in left if place[0].group_id not in strangers])
        for count, (key, value) in enumerate(loaded.records, start=1):
            if self._log.partition_of(key.group_id) != partition:
                strangers.add(key.group_id)
                continue
            group = self._store.group_or_new(key.group_id)
            self._restore(group, key, value)
            if count % GROUPS_PER_TURN == 0:
                await asyncio.sleep(0)
        if strangers:
            # Partitions were added to the topic. Later records of these groups are in other partitions and take precedence.
            logger.warning(
                "%s-%d: %d groups that belong to other partitions are skipped",
                self._log.topic.name,
                partition,
                len(strangers),
            )

    def _remove_left_behind(self, places: Sequence[tuple[Group, str, int]]) -> None:
        if places:
            logger.info("removing %d offsets of topics that were deleted before the broker last stopped", len(places))
            try:
                self._removal.remove(places)
            except KafkaError as error:
                logger.error("offsets of deleted topics could not be removed: %s", error)
