"""Selects the offsets of a request that can be committed, and maps the results to its answer (OffsetCommit, TxnOffsetCommit).

    selection = Selection(broker.topics, request.topics, has_topic_ids=False)
    refused = coordinator.commits.commit(group_id, selection.known, ...)
    selection.refuse(refused, ErrorCode.OFFSET_METADATA_TOO_LARGE)        or refuse_all(code) if it raised
    selection.codes                                                       the refused rows, for the answer

Refusals are reported row by row. All other rows are committed together or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import OPEN, Access
from diamant.broker.topics.topics import Topics
from diamant.protocol.errors import ErrorCode
from diamant.protocol.messages.offset_columns import TopicOffsets

MAX_METADATA_BYTES = 0x7FFF
"""The most that a record's string can hold, regardless of `offset.metadata.max.bytes`."""


def without_long_metadata(
    topics: Sequence[TopicOffsets], limit: int
) -> tuple[Sequence[TopicOffsets], list[tuple[int, int]]]:
    """Return the offsets that `offset.metadata.max.bytes` allows, and the (number, row) in `topics` of the other offsets."""
    for topic in topics:
        if topic.metadata is not None:
            return _without_long_metadata(topics, limit)
    return topics, []


def _without_long_metadata(
    topics: Sequence[TopicOffsets], limit: int
) -> tuple[Sequence[TopicOffsets], list[tuple[int, int]]]:
    fitting = []
    too_long = []
    for number, topic in enumerate(topics):
        long_rows = [row for row, text in enumerate(topic.metadata or ()) if text and _is_too_long(text, limit)]
        if not long_rows:
            fitting.append(topic)
            continue
        too_long += [(number, row) for row in long_rows]
        rows = sorted(set(range(len(topic.partitions))).difference(long_rows))
        if rows:
            fitting.append(topic.rows(rows))
    return fitting, too_long


def _is_too_long(metadata: str, limit: int) -> bool:
    """Return whether a text has too many UTF-16 code units (OffsetMetadataManager.isMetadataInvalid), or does not fit."""
    if metadata.isascii():
        return len(metadata) > min(limit, MAX_METADATA_BYTES)
    return len(metadata.encode("utf-16-be")) // 2 > limit or len(metadata.encode()) > MAX_METADATA_BYTES


CODES = {ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR}
"""Errors of the log that clients see under another code (CoordinatorOperationExceptionHelper)."""


class Selection:
    """The offsets of one request. `known`: the offsets of existing partitions, with the name and id of their topic.

    `codes`: the error codes of refused rows, by number and row in the request.
    """

    __slots__ = ("_places", "codes", "known")

    def __init__(
        self, topics: Topics, requested: Sequence[TopicOffsets], *, has_topic_ids: bool, access: Access = OPEN
    ) -> None:
        """Refuse topics that the client may not READ, whether they exist or not."""
        self.known: list[TopicOffsets] = []
        self.codes: dict[tuple[int, int], int] = {}
        self._places: list[tuple[int, Sequence[int]]] = []  # for each of `known`: number and rows in the request
        is_open = access.is_open
        by_name, by_id, images = topics.by_name, topics.by_id, topics.image.topics
        for number, offsets in enumerate(requested):
            name, topic_id, partitions, values, leader_epochs, metadata = offsets
            rows: Sequence[int] = range(len(partitions))
            if has_topic_ids:
                topic = None if topic_id is None else by_id.get(topic_id)
            else:
                topic = by_name.get(name)
            asked = name if topic is None else topic.name
            if not (is_open or (has_topic_ids and topic is None) or access.allows(permissions.READ_TOPIC, asked)):
                self.codes.update(((number, row), ErrorCode.TOPIC_AUTHORIZATION_FAILED) for row in rows)
                continue
            if topic is None:
                code = ErrorCode.UNKNOWN_TOPIC_ID if has_topic_ids else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                self.codes.update(((number, row), code) for row in rows)
                continue
            existing = images[topic.name].partitions
            if not all(map(existing.__contains__, partitions)):
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                self.codes.update(((number, row), code) for row in rows if partitions[row] not in existing)
                rows = [row for row in rows if partitions[row] in existing]
                _, _, partitions, values, leader_epochs, metadata = offsets.rows(rows)
            if rows:
                self.known.append(TopicOffsets(topic.name, topic.topic_id, partitions, values, leader_epochs, metadata))
                self._places.append((number, rows))

    def refuse(self, places: Iterable[tuple[int, int]], code: int) -> None:
        """Refuse the (number, row) places of `known` with a code."""
        for number, row in places:
            requested, rows = self._places[number]
            self.codes[requested, rows[row]] = code

    def refuse_all(self, code: int) -> None:
        """Refuse all of `known` with a code."""
        self.codes.update(((number, row), code) for number, rows in self._places for row in rows)
