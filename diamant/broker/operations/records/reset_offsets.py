"""Resets the committed offsets of a group that has no members. `diamant group reset` does the same through Kafka's protocol."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diamant.broker.groups.store.offsets import committed_offset_of
from diamant.broker.operation_errors import BadArgument, NotFound, NotPossible, no_group
from diamant.broker.partition_places import offset_at
from diamant.broker.topics.internal_names import GROUP_OFFSETS_TOPIC
from diamant.duration import parse_time_ms
from diamant.protocol.errors import CorruptBatch, KafkaError
from diamant.protocol.messages.offset_columns import NO_LEADER_EPOCH, TopicOffsets
from diamant.storage.errors import StorageError
from diamant.storage.log.time_search import at_or_after

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.groups.store.group import Group
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node
    from diamant.broker.operations.records.explain_operation import ExplainOperation
    from diamant.broker.operations.records.record_requests import ResetOffsetsRequest
    from diamant.progress import Progress
    from diamant.storage.log.log import Log


@dataclass(frozen=True, slots=True)
class ResetOffsets:
    """The offsets of a group in a topic, before and after."""

    group: str
    topic: str
    offsets: tuple[tuple[int, int | None, int], ...]
    """For each partition: its number, the old offset (None if there was none), and the new offset."""
    is_changed: bool

    def to_fields(self) -> dict[str, object]:
        """Return the fields for JSON."""
        names = ("partition", "before", "after")
        rows = [dict(zip(names, one, strict=True)) for one in self.offsets]
        return {"group": self.group, "topic": self.topic, "offsets": rows, "is_changed": self.is_changed}


async def reset_offsets(
    node: Node,
    coordinator: Lazy[GroupCoordinator],
    explaining: ExplainOperation,
    request: ResetOffsetsRequest,
    _: Progress,
) -> ResetOffsets:
    """Commit a new offset for each partition, or only determine it (`validate_only`); return the old and the new offsets.

    Raises BadArgument, NotFound, NotPossible.
    """
    group_id, where = request.group, request.to
    logs = explaining.logs(request.topic, request.partition)
    if GROUP_OFFSETS_TOPIC not in node.topics.by_name:
        raise NotFound(no_group(group_id))
    groups = coordinator()
    group = _idle(groups, group_id)
    found = []
    for log in logs:
        stored = group.offsets.get(log.topic, log.partition)
        before = None if stored is None else committed_offset_of(stored[0])
        try:
            if where.startswith("@"):
                after = await _at(log, parse_time_ms(where[1:]))
            else:
                name, ends = f"{log.topic}-{log.partition}", (log.log_start_offset, log.high_watermark)
                after = offset_at(where, *ends, committed=before, name=name)
        except ValueError as error:
            raise BadArgument(f"to: {error}") from None
        found.append((log.partition, before, after))
    if not request.validate_only:
        _idle(groups, group_id)
        offsets = TopicOffsets(
            logs[0].topic,
            None,
            [partition for partition, _, _ in found],
            [after for _, _, after in found],
            [NO_LEADER_EPOCH] * len(found),
            None,
        )
        try:
            groups.commits.commit(group_id, [offsets], member_id="", instance_id=None, generation=-1, version=9)
        except KafkaError as error:
            raise NotPossible(f"the offsets of group {group_id!r} cannot be reset: {error.detail or error}") from None
    return ResetOffsets(group_id, logs[0].topic, tuple(found), not request.validate_only)


def _idle(groups: GroupCoordinator, group_id: str) -> Group:
    group = groups.groups.get(group_id)
    if group is None:
        raise NotFound(no_group(group_id))
    if group.has_members:
        raise NotPossible(f"group {group_id!r} has active members (state {group.state}): stop them first")
    return group


async def _at(log: Log, time_ms: int) -> int:
    try:
        for step in at_or_after(log, max(0, time_ms)):
            if (found := await asyncio.to_thread(step.run)) is not None:
                return found.offset
    except (CorruptBatch, StorageError) as error:
        raise NotPossible(f"{log.topic}-{log.partition} cannot be searched for a time: {error}") from None
    return log.high_watermark
