"""The topics that the members of a classic group's generation read."""

from __future__ import annotations

from diamant.protocol.errors import ProtocolError
from diamant.protocol.internal_topics.consumer_protocol import subscribed_topics


class SubscribedTopics:
    """The topics in the metadata of members, parsed on first use. `metadata` None: not known."""

    __slots__ = ("_metadata", "_topics")

    def __init__(self, metadata: tuple[bytes, ...] | None) -> None:
        self._metadata = metadata
        self._topics: frozenset[str] | None = None

    @property
    def topics(self) -> frozenset[str] | None:
        """The topics; None if not known: another protocol type, no generation yet, or unreadable metadata."""
        metadata, self._metadata = self._metadata, None
        if metadata is not None:
            try:
                self._topics = frozenset().union(*map(subscribed_topics, metadata))
            except ProtocolError:
                self._topics = None
        return self._topics
