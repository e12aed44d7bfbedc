"""A topic in use, and the contract of topic listeners."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol
from uuid import UUID

from diamant.storage.log.log import Log


class Topic:
    """A topic in use: its id, and its open logs by partition. Partitions that could not be opened are missing in `logs`."""

    __slots__ = ("logs", "name", "topic_id")

    def __init__(self, name: str, topic_id: UUID) -> None:
        self.name = name
        self.topic_id = topic_id
        self.logs: dict[int, Log] = {}


class TopicListener(Protocol):
    """A listener for created and deleted topics. It is called on the loop thread, in the turn in which a topic changes."""

    def topic_created(self, topic: Topic) -> None:
        """Called when a topic becomes usable."""
        ...

    def topic_deleted(self, topic: Topic) -> Coroutine[Any, Any, None] | None:
        """Called when a topic is deleted, even if later steps of its deletion fail. May return a coroutine for slow clean-up,
        which is then run to its end.
        """
        ...
