"""Selects which offsets of an OffsetCommit or TxnOffsetCommit can be committed, and maps the results to rows of the answer.

    selection = Selection(broker.topics, request.topics, has_topic_ids=False)
    refused = coordinator.commits.commit(group_id, selection.known, ...)
    selection.refuse(refused, ErrorCode.OFFSET_METADATA_TOO_LARGE)        or refuse_all(code) if it raised
    selection.codes                                                       the refused rows, for the answer

Each refused row is reported with its own code. All other rows are committed together or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import OPEN, Access
from diamant.broker.topics.topics import Topics
from diamant.protocol.errors import ErrorCode
from diamant.protocol.messages.offset_columns import TopicOffsets

MAX_METADATA_BYTES = 0x7FFF
"""The maximum size of a string in a record. Applies even if `offset.metadata.max.bytes` is larger."""


def without_long_metadata(
    topics: Sequence[TopicOffsets], limit: int
) -> tuple[Sequence[TopicOffsets], list[tuple[int, int]]]:
    """Return the offsets whose metadata is within `limit`, and the (topic number, row) in `topics` of each of the others."""
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
    """Return whether metadata exceeds `limit` UTF-16 units (OffsetMetadataManager.isMetadataInvalid) or MAX_METADATA_BYTES."""
    if metadata.isascii():
        return len(metadata) > min(limit, MAX_METADATA_BYTES)
    return len(metadata.encode("utf-16-be")) // 2 > limit or len(metadata.encode()) > MAX_METADATA_BYTES


CODES = {ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR}
"""Errors of the log that are reported to clients under another code (CoordinatorOperationExceptionHelper)."""


class Selection:
    """The offsets of one request. `known` holds those of existing partitions, with the names and ids of their topics.

    `codes` holds the error code of each refused row, by the number of its topic and its row in the request.
    """

    __slots__ = ("_places", "codes", "known")

    def __init__(
        self, topics: Topics, requested: Sequence[TopicOffsets], *, has_topic_ids: bool, access: Access = OPEN
    ) -> None:
        """Refuse missing partitions, and topics that the client may not READ, whether they exist or not."""
        self.known: list[TopicOffsets] = []
        self.codes: dict[tuple[int, int], int] = {}
        self._places: list[tuple[int, Sequence[int]]] = []  # the topic number and rows of each item of `known`
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
        """Refuse offsets, given by (number, row) in `known`, with an error code."""
        for number, row in places:
            requested, rows = self._places[number]
            self.codes[requested, rows[row]] = code

    def refuse_all(self, code: int) -> None:
        """Refuse all offsets in `known` with an error code."""
        self.codes.update(((number, row), code) for number, rows in self._places for row in rows)
