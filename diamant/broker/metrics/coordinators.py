"""The figures for the coordinators' metrics: groups by state, the lag of each group, transactions and their age.

They are collected on the loop thread for each scrape. The collection yields to other tasks, so groups and partitions may change
while it is in progress. For a million committed offsets, it takes about a second of loop time.

Bounds: the figures contain the `MAX_LAGS` greatest lags and the `MAX_OPEN_TRANSACTIONS` oldest open transactions; separate
metrics count those that are left out.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from diamant.broker.groups.membership.description import owners
from diamant.broker.groups.store.offsets import committed_offset_of
from diamant.broker.topics.topics import Topics

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.groups.store.group import Group
    from diamant.broker.transactions.coordinator import TransactionCoordinator
    from diamant.storage.env.clocks import Clock

MAX_LAGS = 10_000
MAX_OPEN_TRANSACTIONS = 1_000
OFFSETS_PER_TURN = 2_000
CLASSIC = "classic"


class Lag(NamedTuple):
    """The lag of a group in one partition, in offsets. Lags are ordered by `lag`, their first field."""

    lag: int
    group_id: str
    topic: str
    partition: int
    committed_offset: int


class TransactionAge(NamedTuple):
    age_ms: int
    transactional_id: str


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """The figures of all groups. `states`: the number of groups for each (type, state), named as in ListGroups."""

    states: tuple[tuple[tuple[str, str], int], ...] = ()
    offset_count: int = 0
    lags: tuple[Lag, ...] = ()
    lags_left_out: int = 0
    uncommitted: tuple[tuple[str, int], ...] = ()
    """Up to `MAX_LAGS` groups whose members own partitions without a committed offset: (group, number of such partitions)."""

    def classic(self, state: str | None = None) -> int:
        """Return the number of classic groups, or of those in a given state, which has Kafka's name."""
        return sum(count for (kind, own), count in self.states if kind == CLASSIC and state in (None, own))


@dataclass(frozen=True, slots=True)
class TransactionFigures:
    """The figures of all transactions. `states`: transactional IDs, counted by state. `open`: open transactions, oldest first."""

    states: tuple[tuple[str, int], ...] = ()
    open: tuple[TransactionAge, ...] = ()
    open_count: int = 0


async def take_groups(
    groups: GroupCoordinator | None, topics: Topics, *, max_lags: int = MAX_LAGS
) -> GroupFigures | None:
    """Collect the figures of all groups; None without a group coordinator."""
    if groups is None:
        return None
    counts: Counter[tuple[str, str]] = Counter()
    lags: list[Lag] = []  # a heap with the smallest lag first
    uncommitted: list[tuple[str, int]] = []
    offset_count = seen = shown = 0
    for group in list(groups.groups.values()):
        counts[group.group_type, group.state] += 1
        offset_count += group.offsets.count
        for lag in _lags(group, topics):
            shown += 1
            if len(lags) < max_lags:
                heapq.heappush(lags, lag)
            else:
                heapq.heappushpop(lags, lag)
        owned = owners(group, topics.image)
        count = sum(partition not in group.offsets.committed.get(topic, ()) for topic, partition in owned)
        if count and len(uncommitted) < max_lags:
            uncommitted.append((group.group_id, count))
        seen += 1 + group.offsets.count + len(owned)
        if seen >= OFFSETS_PER_TURN:
            seen = 0
            await asyncio.sleep(0)
    return GroupFigures(
        tuple(sorted(counts.items())), offset_count, tuple(sorted(lags)), shown - len(lags), tuple(uncommitted)
    )


def _lags(group: Group, topics: Topics) -> list[Lag]:
    found = []
    for name, partitions in group.offsets.committed.items():
        topic = topics.by_name.get(name)
        for partition, (value, _) in partitions.items() if topic is not None else ():
            assert topic is not None
            log = topic.logs.get(partition)
            if log is not None:
                offset = committed_offset_of(value)
                found.append(Lag(max(log.high_watermark - offset, 0), group.group_id, name, partition, offset))
    return found


def take_transactions(coordinator: TransactionCoordinator | None, clock: Clock) -> TransactionFigures | None:
    """Collect the figures of all transactions; None without a transaction coordinator."""
    if coordinator is None:
        return None
    now_ms = clock.now_ms()
    opened = coordinator.store.open_transactions
    return TransactionFigures(
        tuple(sorted(Counter(txn.state.label for txn in coordinator.store.transactions.values()).items())),
        tuple(
            TransactionAge(max(now_ms - txn.start_ms, 0), txn.transactional_id)
            for txn in opened[:MAX_OPEN_TRANSACTIONS]
        ),
        len(opened),
    )
