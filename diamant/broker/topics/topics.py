"""The registry of topics in use, which joins the metadata log and the log directory.

Every change is decided and appended to the metadata log in one step of the loop (no `await` between check and
append), applied to the partitions, synced in a thread, and only then answered. The metadata log is authoritative: the next
start creates an empty partition for each one missing on disk, and sets aside partitions that exist only on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.topic_values import log_config, topic_value
from diamant.broker.operation_errors import no_partition, no_topic
from diamant.broker.topics.topic import Topic, TopicListener
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.kraft.records import TOPIC_RESOURCE
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.config_key import LONG_MAX
from diamant.storage.directory.log_directory import LogDirectory, PartitionSource
from diamant.storage.kraft.image import MetadataImage, TopicImage
from diamant.storage.kraft.metadata_log import MetadataLog
from diamant.storage.log.log import Log
from diamant.storage.segments.log_config import LogConfig

if TYPE_CHECKING:
    from diamant.broker.brokers.table import BrokerTable


class Topics:
    """The registry of topics. Belongs to the loop thread.

    `generation` grows with every change, for caches of encoded responses. `on_change(log)` is called after any event that
    fetches may wait for. `listeners` are notified of created and deleted topics. `on_created(log)`, `on_deletion(log)` and
    `on_config_changed(log, config before the change)` notify the cleaner.
    """

    def __init__(
        self, metadata: MetadataLog, directory: LogDirectory, config: BrokerConfig, on_change: Callable[[Log], None]
    ) -> None:
        self.metadata = metadata
        self.directory = directory
        self.config = config
        self.on_change = on_change
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[UUID, Topic] = {}
        self.brokers: BrokerTable | None = None
        """The brokers of this process; None if there is only one."""
        self.generation = 0
        self.in_creation: dict[str, asyncio.Future[None]] = {}
        """Topics in the metadata log whose partitions are not all created yet; each future is done when they are."""
        self.making: set[asyncio.Future[None]] = set()
        """Futures of the partition creations in progress."""
        self.makes_no_logs = False
        """True once the directory is about to be reset to a snapshot."""
        self.timed_logs: set[Log] = set()  # logs with flush.ms
        self.listeners: list[TopicListener] = []
        self.on_refused: Callable[[], object] = lambda: None
        """Called when partitions could not be created or removed, so that `partitions.try_again` may be needed."""
        self.on_created: Callable[[Log], object] | None = None
        self.on_deletion: Callable[[Log], object] | None = None
        self.on_config_changed: Callable[[Log, LogConfig], object] | None = None

    @property
    def image(self) -> MetadataImage:
        """The current metadata."""
        return self.metadata.image

    async def sync(self) -> None:
        """Wait until all records appended to the metadata log are on disk."""
        await asyncio.get_running_loop().run_in_executor(None, self.metadata.sync)

    # -- start ---------------------------------------------------------------------------------------------------

    def expected_partitions(self) -> dict[TopicPartition, PartitionSource]:
        """Return the partitions that the log directory should hold."""
        expected = {}
        for topic in self.image.topics.values():
            source = PartitionSource(topic.topic_id, self.log_config_of(topic.name))
            for partition in topic.partitions:
                expected[topic.name, partition] = source
        return expected

    def adopt_loaded(self) -> None:
        """Register the logs that the directory has loaded."""
        for image in self.image.topics.values():
            topic = Topic(image.name, image.topic_id)
            for partition in image.partitions:
                log = self.directory.logs.get((image.name, partition))
                if log is not None:
                    self.take(topic, log, image)
            self.publish(topic)

    # -- lookups -------------------------------------------------------------------------------------------------

    def log(self, name: str | None, partition: int) -> Log:
        """Return the log of a partition. KafkaError: UNKNOWN_TOPIC_OR_PARTITION; KAFKA_STORAGE_ERROR if it cannot be used."""
        topic = self.by_name.get(name) if name is not None else None
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, no_topic(str(name)))
        return self._log_of(topic, partition)

    def log_by_id(self, topic_id: UUID | None, partition: int) -> Log:
        """Like `log`, but find the topic by its id. KafkaError UNKNOWN_TOPIC_ID if the id is unknown."""
        topic = self.by_id.get(topic_id) if topic_id is not None else None
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
        return self._log_of(topic, partition)

    def configs_of(self, name: str) -> Mapping[str, str]:
        """Return the configurations that are set for the topic itself."""
        return self.image.configs.get((TOPIC_RESOURCE, name), {})

    def log_config_of(self, name: str) -> LogConfig:
        """Return the configuration of the topic's logs: the topic's own values, otherwise the broker's."""
        return log_config(self.configs_of(name), self.config)

    def is_unclean(self, name: str) -> bool:
        """Return whether out-of-sync replicas may lead partitions of the topic (`unclean.leader.election.enable`)."""
        return topic_value("unclean.leader.election.enable", self.configs_of(name), self.config) is True

    async def settled(self, names: Iterable[str]) -> None:
        """Wait until none of these topics is being created."""
        for future in {self.in_creation[name] for name in names if name in self.in_creation}:
            await future

    def _log_of(self, topic: Topic, partition: int) -> Log:
        log = topic.logs.get(partition)
        if log is None:
            image = self.image.topics.get(topic.name)
            if image is not None and partition in image.partitions:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic.name}-{partition} could not be opened")
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                no_partition(topic.name, partition, 0 if image is None else len(image.partitions)),
            )
        return log

    # -- changes -------------------------------------------------------------------------------------------------

    def take(self, topic: Topic, log: Log, image: TopicImage) -> None:
        """Add a log to the topic and make this broker its leader."""
        log.become_leader(image.partitions[log.partition].leader_epoch if log.partition in image.partitions else 0)
        log.on_change.append(lambda: self.on_change(log))
        topic.logs[log.partition] = log
        if log.partition in image.partitions:
            self._hold_end(log)
        self._note_timed(log)

    def publish(self, topic: Topic) -> None:
        """Make a topic usable."""
        self.by_name[topic.name] = topic
        self.by_id[topic.topic_id] = topic
        self.generation += 1
        for listener in self.listeners:
            listener.topic_created(topic)

    def withdraw(self, name: str) -> Topic:
        """Remove a topic from use before its files are deleted."""
        topic = self.by_name.pop(name)
        del self.by_id[topic.topic_id]
        self.generation += 1
        for log in topic.logs.values():
            self.timed_logs.discard(log)
            if self.on_deletion is not None:
                self.on_deletion(log)
        return topic

    def partitions_changed(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Adopt the leader epochs of partitions that the table of brokers has changed, and wake fetches that wait for them."""
        self.generation += 1
        for name, partition in partitions:
            topic = self.by_name.get(name)
            log = None if topic is None else topic.logs.get(partition)
            if log is not None:
                log.become_leader(self.image.topics[name].partitions[partition].leader_epoch)
                self._hold_end(log)
                self.on_change(log)

    def _hold_end(self, log: Log) -> None:
        if self.brokers is not None and self.brokers.hold_end(log):
            self.on_change(log)

    def apply_configs(self, names: Iterable[str] | None = None, *, broker_config: BrokerConfig | None = None) -> None:
        """Refresh the configurations of these topics' logs (None: all topics). `broker_config` replaces the broker's first."""
        if broker_config is not None:
            self.config = broker_config
        self.generation += 1
        for name in list(self.by_name if names is None else names):
            topic = self.by_name.get(name)
            if topic is None:
                continue
            settings = self.log_config_of(name)
            for log in topic.logs.values():
                before = log.config
                log.update_config(settings)
                self._hold_end(log)
                self._note_timed(log)
                if self.on_config_changed is not None:
                    self.on_config_changed(log, before)
        if self.brokers is not None:
            from diamant.broker.brokers.membership import elect_missing_soon

            elect_missing_soon(self.brokers)

    def _note_timed(self, log: Log) -> None:
        (self.timed_logs.discard if log.config.flush_ms == LONG_MAX else self.timed_logs.add)(log)
