"""From the offsets in a request to those that can be committed, and back to its answer (OffsetCommit, TxnOffsetCommit).

    selection = Selection(broker.topics, request.topics, has_topic_ids=False)
    refused = broker.groups.commit(group_id, selection.known, ...)
    selection.refuse(refused, ErrorCode.OFFSET_METADATA_TOO_LARGE)        or refuse_all(code) if it raised
    selection.codes                                                       of what is refused, for the answer

What is refused is told row by row. Everything else is committed together or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from diamant.broker.node.topics import Topics
from diamant.protocol.errors import ErrorCode
from diamant.protocol.messages.offset_columns import TopicOffsets


class Selection:
    """The offsets of one request. `known`: those for partitions that exist, with name and id of their topic.

    `codes`: of what is refused, by number and row in the request.
    """

    __slots__ = ("_places", "codes", "known")

    def __init__(self, topics: Topics, requested: Sequence[TopicOffsets], *, has_topic_ids: bool) -> None:
        self.known: list[TopicOffsets] = []
        self.codes: dict[tuple[int, int], int] = {}
        self._places: list[tuple[int, Sequence[int]]] = []  # number and rows in the request of each of `known`
        by_name, by_id, images = topics.by_name, topics.by_id, topics.image.topics
        for number, offsets in enumerate(requested):
            name, topic_id, partitions, values, leader_epochs, metadata = offsets
            rows: Sequence[int] = range(len(partitions))
            if has_topic_ids:
                topic = None if topic_id is None else by_id.get(topic_id)
            else:
                topic = by_name.get(name)
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
        """Give a code to (number, row) of `known`."""
        for number, row in places:
            requested, rows = self._places[number]
            self.codes[requested, rows[row]] = code

    def refuse_all(self, code: int) -> None:
        """Give a code to all of `known`."""
        self.codes.update(((number, row), code) for number, rows in self._places for row in rows)
