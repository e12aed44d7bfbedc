"""Background work for consumer groups: target assignments of large groups, and the topics that regular expressions match.

Threads compute both. No request waits for them: members receive their partitions in a later heartbeat. If the group has changed
since a computation began, the next heartbeat starts another one.

Changes of topics are noticed by the next heartbeat of any member, through `Topics.generation`.

Deviation: regular expressions are resolved at most once per PATTERN_INTERVAL_S, and at most every 10 s in Kafka.

Bound: for each group, one resolution of regular expressions and one target assignment at a time.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from diamant.broker.groups.consumer.consumer_group import ConsumerGroup, ResolvedRegularExpression
from diamant.broker.groups.consumer.metadata_hash import metadata_hash
from diamant.broker.groups.decisions.change import GroupChange
from diamant.broker.groups.decisions.subscriptions import take_resolved
from diamant.broker.groups.decisions.target_assignment import TargetTask
from diamant.broker.groups.decisions.targets import finish_targets, take_targets
from diamant.broker.groups.decisions.topic_patterns import matching_topics
from diamant.broker.network.api import REQUEST_ERRORS
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import Access, allowed_names

if TYPE_CHECKING:
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)

PATTERN_INTERVAL_S = 1.0


class _GroupTasks:
    """A group's tasks in progress, and when its last tasks ended."""

    __slots__ = (
        "assigned_at_s",
        "assigning",
        "resolved_at_s",
        "resolved_generation",
        "resolving",
        "topics_generation",
    )

    def __init__(self) -> None:
        self.topics_generation = -1
        """`Topics.generation` when the group last checked its topics."""
        self.assigned_at_s = -math.inf
        self.assigning: asyncio.Task[None] | None = None
        self.resolved_at_s = -math.inf
        self.resolved_generation = -1
        self.resolving: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Cancel the group's tasks in progress. A thread that is running finishes, but its result is dropped."""
        for task in (self.assigning, self.resolving):
            if task is not None:
                task.cancel()


class ConsumerBackground:
    """Runs the background work of all consumer groups. Belongs to the loop thread, which must create it."""

    def __init__(
        self, node: Node, change: Callable[[ConsumerGroup], GroupChange], commit: Callable[[GroupChange], None]
    ) -> None:
        """`change` begins a decision about a group, and `commit` carries it out."""
        self._node = node
        self._change = change
        self._commit = commit
        self._loop = asyncio.get_running_loop()
        self._progress: WeakKeyDictionary[ConsumerGroup, _GroupTasks] = WeakKeyDictionary()

    def has_metadata_changed(self, group: ConsumerGroup) -> bool:
        """Return whether the group's topics have changed since its group epoch was written."""
        progress = self._progress.get(group)
        topics = self._node.topics
        if progress is not None and progress.topics_generation == topics.generation:
            return False
        if metadata_hash(group.subscribed_topics(), topics.image) != group.metadata_hash:
            return True
        if progress is not None:
            progress.topics_generation = topics.generation
        return False

    def may_assign(self, group: ConsumerGroup, interval_ms: int) -> bool:
        """Return whether a target assignment may begin: none is in progress, and the last one is at least `interval_ms` old."""
        progress = self._progress.get(group)
        if progress is None:
            return True
        return progress.assigning is None and (self._loop.time() - progress.assigned_at_s) * 1000 >= interval_ms

    def follow(self, change: GroupChange) -> None:
        """Record a decision that was carried out, and start its heavy task, if any."""
        progress = self._progress.get(change.group)
        if progress is None:
            progress = self._progress[change.group] = _GroupTasks()
        if change.has_computed_target:
            progress.assigned_at_s = self._loop.time()
        if change.has_checked_metadata:
            progress.topics_generation = self._node.topics.generation
        if change.heavy_task is not None:
            progress.assigning = self._loop.create_task(self._assign(change.group, progress, change.heavy_task))

    def release(self, group: ConsumerGroup) -> None:
        """Cancel a group's tasks and forget it."""
        progress = self._progress.pop(group, None)
        if progress is not None:
            progress.cancel()

    def stop(self) -> None:
        """Cancel the tasks of all groups and forget them."""
        for progress in self._progress.values():
            progress.cancel()
        self._progress.clear()

    async def _assign(self, group: ConsumerGroup, progress: _GroupTasks, task: TargetTask) -> None:
        try:
            for part in await asyncio.to_thread(task.run_in_parts):
                change = self._change(group)
                take_targets(change, part, task)
                self._commit(change)
                await asyncio.sleep(0)
            change = self._change(group)
            finish_targets(change, task)
            self._commit(change)
        except REQUEST_ERRORS as error:
            logger.warning("group %s: the target assignment could not be written: %s", group.group_id, error)
        finally:
            progress.assigning = None

    def resolve_if_due(self, group: ConsumerGroup, access: Access) -> None:
        """Resolve the group's regular expressions if expressions are new, topics have changed, or the last resolution is too old.

        As in Kafka (TopicRegexResolver), expressions match only topics that the client of this heartbeat may DESCRIBE.
        """
        regexes = group.subscriptions.regexes
        if not regexes:
            return
        progress = self._progress[group]
        if progress.resolving is not None:
            return
        age_s = self._loop.time() - progress.resolved_at_s
        is_new = any(regex not in group.resolved for regex in regexes)
        if (
            is_new
            or progress.resolved_generation != self._node.topics.generation
            or age_s * 1000 >= self._node.config.group_consumer_regex_refresh_interval_ms
        ):
            delay_s = max(PATTERN_INTERVAL_S - age_s, 0)
            progress.resolving = self._loop.create_task(self._resolve(group, access, progress, delay_s))

    async def _resolve(self, group: ConsumerGroup, access: Access, progress: _GroupTasks, delay_s: float) -> None:
        try:
            await asyncio.sleep(delay_s)
            topics = self._node.topics
            generation = topics.generation
            version = self._node.metadata.end_offset
            now_ms = self._node.env.clock.now_ms()
            regexes = list(group.subscriptions.regexes)
            visible = list(allowed_names(access, permissions.DESCRIBE_TOPIC, topics.image.topics, is_asked=False))
            matches = await asyncio.to_thread(matching_topics, regexes, visible)
            progress.resolved_at_s = self._loop.time()
            progress.resolved_generation = generation
            if self._progress.get(group) is not progress:
                return  # the group was deleted or converted since
            change = self._change(group)
            take_resolved(
                change, {regex: ResolvedRegularExpression(names, version, now_ms) for regex, names in matches.items()}
            )
            self._commit(change)
        except REQUEST_ERRORS as error:
            logger.warning("group %s: regular expressions could not be resolved: %s", group.group_id, error)
        finally:
            progress.resolving = None
