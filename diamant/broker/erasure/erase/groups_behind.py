"""The groups that would miss a tombstone removed before its horizon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diamant.broker.operation_errors import NotPossible
from diamant.cleaner.erasure_state.intent import Erased, Intent
from diamant.cleaner.evidence.search.findings import MAX_LISTED
from diamant.progress import Progress
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.topics.topics import Topics


@dataclass(frozen=True, slots=True)
class GroupsBehind:
    """Finds the groups whose committed offsets are not past the tombstones, and tells whether all groups are known."""

    logs: Mapping[TopicPartition, Log]
    groups: Lazy[GroupCoordinator]
    topics: Topics
    """All topics of the broker, including `__consumer_offsets`."""

    async def not_known(self) -> list[str]:
        """Wait until the groups are loaded. Returns a reason for each partition of `__consumer_offsets` that cannot be loaded."""
        from diamant.broker.groups.coordinator.committed_offsets import groups_not_known

        return await groups_not_known(self.groups, self.topics)

    async def check_known(self, progress: Progress) -> None:
        """Wait until the groups are loaded. Raises NotPossible if it is not known which groups would miss a tombstone."""
        progress.begin("waiting for the groups to be loaded")
        unknown = await self.not_known()
        if unknown:
            raise NotPossible(
                "the tombstone cannot be removed before its horizon, because it is not known which groups have not read it: "
                f"{'; '.join(unknown)}. Nothing was changed. Without --now (now=false) it is removed at its horizon. To remove "
                "it now, find the partition's problem in the broker's log, repair it and restart the broker"
            )

    async def behind(self, intent: Intent, affected: Iterable[TopicPartition]) -> dict[str, list[str]]:
        """Return the groups that have not committed past the tombstones of `affected` partitions, by partition (`users-0`)."""
        from diamant.broker.groups.coordinator.committed_offsets import groups_of

        found = {}
        for partition in affected:
            log = self.logs.get(partition)
            if log is None:
                continue
            mark = intent.done.get(partition, Erased()).tombstone_at
            # Intents of earlier versions lack the offset of a tombstone that was there before. It is below the claim's end.
            end = intent.claims.get(partition, 0) if mark is None else mark + 1
            behind = sorted(group for committed, group in await groups_of(self.groups, log) if committed < end)
            if behind:
                found[names.partition_dir_name(log.topic, log.partition)] = behind[:MAX_LISTED]
        return found
