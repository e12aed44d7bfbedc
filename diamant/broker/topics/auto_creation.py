"""Automatic creation of topics that clients request by name, in Metadata, FindCoordinator, and `broker.produce`.

A creation runs in the background, so the request that starts it can be answered first. Later requests for the topic wait until it
is created, so a client's first retry finds the topic, however slow the disk is.

Source: DefaultAutoTopicCreationManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from diamant.broker.operation_errors import no_topic
from diamant.broker.topics.creation import create_topics
from diamant.broker.topics.creation_checks import check_new_topic
from diamant.broker.topics.internal_names import INTERNAL_TOPICS
from diamant.broker.topics.topics import Topics
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.errors import StorageError

logger = logging.getLogger(__name__)

MAX_PENDING = 1000
"""How many topics may be created at the same time. Further topics stay unknown until the client retries."""


class AutoCreation:
    """Creates missing topics. Belongs to the loop thread.

    `internal`: the functions that create the internal topics of this broker, by topic name.
    """

    def __init__(self, topics: Topics, internal: Mapping[str, Callable[[], Awaitable[None]]]) -> None:
        self._topics = topics
        self._internal = internal
        self._pending: dict[str, asyncio.Task[None]] = {}

    def is_pending(self, name: str) -> bool:
        """Return whether a topic is being created, either here or by CreateTopics."""
        return name in self._pending or name in self._topics.in_creation

    def begin(
        self, names: Iterable[str], created: Callable[[tuple[str, ...]], Awaitable[object]] | None = None
    ) -> None:
        """Start to create the topics that are not pending yet. `created` is called with the names of the created topics."""
        new = [name for name in names if not self.is_pending(name)][: MAX_PENDING - len(self._pending)]
        if not new:
            return
        task = asyncio.create_task(self._create(new, created))
        for name in new:
            self._pending[name] = task
        task.add_done_callback(lambda done: self._forget(new, done))

    async def settled(self, names: Iterable[str]) -> None:
        """Wait until none of these topics is pending."""
        wanted = tuple(names)
        tasks = {self._pending[name] for name in wanted if name in self._pending}
        if tasks:
            await asyncio.wait(tasks)
        await self._topics.settled(wanted)

    async def stop(self) -> None:
        """Wait for all pending creations."""
        await self.settled(tuple(self._pending))

    async def ensure(self, names: Iterable[str]) -> dict[str, KafkaError]:
        """Create missing topics with the broker's defaults; return when they are usable, with the errors of those that failed."""
        errors: dict[str, KafkaError] = {}
        wanted = [name for name in names if name not in self._topics.by_name]
        new = []
        for name in wanted:
            if name in self._topics.in_creation:
                continue
            try:
                if name in self._internal:
                    await self._internal[name]()
                elif name in INTERNAL_TOPICS:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, no_topic(name))
                else:
                    new.append(check_new_topic(self._topics, name))
            except KafkaError as error:
                errors[name] = error
            except (StorageError, OSError) as error:
                errors[name] = _storage_error(name, error)
        try:
            await create_topics(self._topics, new, " (auto.create.topics.enable)")
        except (StorageError, OSError) as error:
            errors.update((topic.name, _storage_error(topic.name, error)) for topic in new)
        await self._topics.settled(wanted)
        return errors

    async def _create(self, names: list[str], created: Callable[[tuple[str, ...]], Awaitable[object]] | None) -> None:
        errors = await self.ensure(names)
        for name, error in errors.items():
            logger.warning("topic %s was requested but could not be created: %s", name, error.detail)
        done = tuple(name for name in names if name not in errors)
        if created is not None and done:
            await created(done)

    def _forget(self, names: Iterable[str], task: asyncio.Task[None]) -> None:
        for name in names:
            del self._pending[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("topics %s could not be created", ", ".join(names), exc_info=error)


def _storage_error(name: str, error: Exception) -> KafkaError:
    logger.error("topic %s could not be created: %s", name, error)
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory failed, see the broker's log")
