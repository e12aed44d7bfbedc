"""The committed offsets of all groups, for callers that must not miss any, such as a check that all groups have read a tombstone.

After the broker starts, groups are loaded in the background, except those in unreadable partitions of `__consumer_offsets`.
So a caller first waits until the readable partitions are loaded, and learns which partitions are missing:

    unknown = await groups_not_known(groups, topics)    if empty, `offsets_of` and `all_offsets` know every group

Loaded groups stay loaded, so `offsets_of` and `all_offsets` may be called in later turns of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from diamant.broker.groups.store.offsets import committed_offset_of
from diamant.broker.topics.internal_names import GROUP_OFFSETS_TOPIC
from diamant.broker.topics.topics import Topics
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.groups.store.group import Group
    from diamant.broker.node.lazy import Lazy

GROUPS_PER_TURN = 1_000
LOADING_TIMEOUT_S = 60.0
"""The default time to wait for groups to be loaded."""
MAX_TOLD = 10
"""The maximum number of partitions to list; the others are only counted."""


async def groups_not_known(
    groups: Lazy[GroupCoordinator], topics: Topics, timeout_s: float = LOADING_TIMEOUT_S
) -> list[str]:
    """Wait until the readable groups are loaded. Return each partition that is not loaded, with the reason.

    Waits at most `timeout_s`, or not at all if it is 0. Lists at most `MAX_TOLD` partitions, then the number of the others.
    """
    if GROUP_OFFSETS_TOPIC not in topics.by_name:
        return []
    try:
        async with asyncio.timeout(timeout_s):
            # This does not wait for the retries of unreadable partitions.
            await groups().loaded()
    except TimeoutError:
        pass
    not_loaded = groups().loading.not_loaded()
    told = [f"{GROUP_OFFSETS_TOPIC}-{partition}: {why}" for partition, why in list(not_loaded.items())[:MAX_TOLD]]
    return told if len(not_loaded) <= MAX_TOLD else [*told, f"{len(not_loaded) - MAX_TOLD} more partitions"]


async def offsets_of(groups: Lazy[GroupCoordinator], topic: str, partition: int) -> list[tuple[int, str]]:
    """Return a sorted list of (committed offset, group id) of the loaded groups that have committed an offset of a partition."""
    offsets = []
    async for group in _groups(groups):
        stored = group.offsets.get(topic, partition)
        if stored is not None:
            offsets.append((committed_offset_of(stored[0]), group.group_id))
    return sorted(offsets)


async def all_offsets(groups: Lazy[GroupCoordinator]) -> dict[tuple[str, int], list[int]]:
    """Return the committed offsets of all groups by topic and partition."""
    offsets: dict[tuple[str, int], list[int]] = {}
    async for group in _groups(groups):
        for topic, partitions in group.offsets.committed.items():
            for partition, stored in partitions.items():
                offsets.setdefault((topic, partition), []).append(committed_offset_of(stored[0]))
    return offsets


async def _groups(groups: Lazy[GroupCoordinator]) -> AsyncIterator[Group]:
    """Yield all loaded groups, letting the loop run in between."""
    if groups.made is None:
        return
    for count, group in enumerate(list(groups.made.groups.values()), start=1):
        yield group
        if count % GROUPS_PER_TURN == 0:
            await asyncio.sleep(0)


async def groups_of(groups: Lazy[GroupCoordinator], log: Log) -> list[tuple[int, str]]:
    """Return what `offsets_of` returns for the partition of `log`."""
    return await offsets_of(groups, log.topic, log.partition)
