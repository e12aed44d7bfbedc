"""Committed offsets of all groups, for answers that must not miss a group, such as which groups have not passed a tombstone.

After a start, groups are loaded in the background, and an unreadable partition of `__consumer_offsets` is left out. So a
caller first waits until the readable partitions are loaded, and learns which are not:

    unknown = await groups_not_known(groups, topics)    empty: `offsets_of` and `all_offsets` know every group

Loaded groups stay loaded, so the calls may be in different turns of the loop, in this order.
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
"""The most partitions that are listed; the others are only counted."""


async def groups_not_known(
    groups: Lazy[GroupCoordinator], topics: Topics, timeout_s: float = LOADING_TIMEOUT_S
) -> list[str]:
    """Wait until the readable groups are loaded; return the reason for each partition that is not loaded.

    Waits at most `timeout_s`, or not at all if it is 0. Returns at most `MAX_TOLD` texts and a count of the others.
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
    """Return the committed offset and the id of each group with a commit for a partition, ascending."""
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
    """Return the committed offset and the id of each loaded group with a commit for a partition, ascending."""
    return await offsets_of(groups, log.topic, log.partition)
