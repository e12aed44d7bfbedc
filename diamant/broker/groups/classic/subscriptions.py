"""The topics that the members of a classic group's generation read."""

from __future__ import annotations

from diamant.protocol.errors import ProtocolError
from diamant.protocol.internal_topics.consumer_protocol import subscribed_topics


class SubscribedTopics:
    """The topics of some members' metadata, parsed with their first use. `metadata` None: they are not known."""

    __slots__ = ("_metadata", "_topics")

    def __init__(self, metadata: tuple[bytes, ...] | None) -> None:
        self._metadata = metadata
        self._topics: frozenset[str] | None = None

    @property
    def topics(self) -> frozenset[str] | None:
        """None if that is not known: another protocol type, no generation yet, or metadata that cannot be read."""
        metadata, self._metadata = self._metadata, None
        if metadata is not None:
            try:
                self._topics = frozenset().union(*map(subscribed_topics, metadata))
            except ProtocolError:
                self._topics = None
        return self._topics
