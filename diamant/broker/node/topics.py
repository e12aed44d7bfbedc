"""The topics of the broker: the metadata log says which there are, the log directory holds them, this joins the two.

Every change is decided and appended to the metadata log in one step of the loop (no `await` between check and
append), applied to the partitions, synced in a thread, and only then answered. The metadata come first: a partition
that they name and the disk does not have is made empty at the next start, one that only the disk has is set aside.

Fencing by leader epoch (KIP-320) checks that a client talks to the leader that it means.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.topic_values import log_config, validate_topic_configs
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.kraft.records import ConfigRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.errors import StorageError
from diamant.storage.kraft.image import MetadataImage, TopicImage
from diamant.storage.kraft.metadata_log import MetadataLog
from diamant.storage.log.log import Log
from diamant.storage.recovery.log_directory import LogDirectory, PartitionSource
from diamant.storage.recovery.open_log import create_log
from diamant.storage.segments.log_config import LONG_MAX, LogConfig
from diamant.storage.uuid_text import random_id

logger = logging.getLogger(__name__)

GROUP_OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC})
METADATA_TOPIC = "__cluster_metadata"
RESOURCE_TOPIC = 2
"""ResourceType of a topic in ConfigRecord."""

MAX_PARTITIONS_PER_REQUEST = 10_000
"""As Kafka's controller: more in one request is refused."""

LOGS_AT_ONCE = 32
"""Partitions that are created at once: their fsyncs share the work of the file system's journal."""

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)


class Topic:
    """A topic that is in use: its id and its open logs by partition. A partition that could not be opened is missing
    from `logs`.
    """

    __slots__ = ("logs", "name", "topic_id")

    def __init__(self, name: str, topic_id: UUID) -> None:
        self.name = name
        self.topic_id = topic_id
        self.logs: dict[int, Log] = {}


class NewTopic(NamedTuple):
    """A topic to be created, checked by `Topics.check_new`."""

    name: str
    topic_id: UUID
    partition_count: int
    configs: Mapping[str, str]


class TopicListener(Protocol):
    """A listener for created and deleted topics; called on the loop thread, in the same turn of the loop."""

    def topic_created(self, topic: Topic) -> None:
        """A topic can be used from now on."""
        ...

    def topic_deleted(self, topic: Topic) -> Coroutine[Any, Any, None] | None:
        """A topic is gone, whatever else of its deletion may fail. What is to follow, and takes its time, is a coroutine,
        which runs to its end.
        """
        ...


class Topics:
    """Registry of topics; the loop thread owns it.

    `generation` grows with every change, for caches of encoded answers. `on_change(log)` is called after anything that
    fetches may wait for. `listeners` are notified of topics. The attributes `on_...` tell the cleaner of a log that is
    new, about to be deleted, or has another configuration than the given one now.
    """

    def __init__(
        self, metadata: MetadataLog, directory: LogDirectory, config: BrokerConfig, on_change: Callable[[Log], None]
    ) -> None:
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[UUID, Topic] = {}
        self.generation = 0
        self._metadata = metadata
        self._directory = directory
        self._config = config
        self._on_change = on_change
        self.timed_logs: set[Log] = set()  # those with flush.ms
        self._in_creation: dict[str, asyncio.Future[None]] = {}
        self.listeners: list[TopicListener] = []
        self.on_created: Callable[[Log], object] | None = None
        self.on_deletion: Callable[[Log], object] | None = None
        self.on_config_changed: Callable[[Log, LogConfig], object] | None = None

    @property
    def image(self) -> MetadataImage:
        """The metadata as of now."""
        return self._metadata.image

    # -- start ---------------------------------------------------------------------------------------------------

    def expected_partitions(self) -> dict[TopicPartition, PartitionSource]:
        """The partitions that the log directory should hold."""
        expected = {}
        for topic in self.image.topics.values():
            source = PartitionSource(topic.topic_id, log_config(self.configs_of(topic.name), self._config))
            for partition in topic.partitions:
                expected[topic.name, partition] = source
        return expected

    def adopt_loaded(self) -> None:
        """Take over the logs that the directory has loaded."""
        for image in self.image.topics.values():
            topic = Topic(image.name, image.topic_id)
            for partition in image.partitions:
                log = self._directory.logs.get((image.name, partition))
                if log is not None:
                    self._take(topic, log, image)
            self._publish(topic)

    # -- lookups -------------------------------------------------------------------------------------------------

    def log(self, name: str | None, partition: int) -> Log:
        """The log of a partition; raises UNKNOWN_TOPIC_OR_PARTITION, or KAFKA_STORAGE_ERROR if it could not be
        opened.
        """
        topic = self.by_name.get(name) if name is not None else None
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
        return self._log_of(topic, partition)

    def log_by_id(self, topic_id: UUID | None, partition: int) -> Log:
        """As `log`, by the topic's id; raises UNKNOWN_TOPIC_ID if there is none such."""
        topic = self.by_id.get(topic_id) if topic_id is not None else None
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
        return self._log_of(topic, partition)

    def is_in_creation(self, name: str) -> bool:
        """True while a topic is in the metadata log but its partitions are not all there."""
        return name in self._in_creation

    def configs_of(self, name: str) -> Mapping[str, str]:
        """The topic's own configurations."""
        return self.image.configs.get((RESOURCE_TOPIC, name), {})

    def _log_of(self, topic: Topic, partition: int) -> Log:
        log = topic.logs.get(partition)
        if log is None:
            image = self.image.topics.get(topic.name)
            if image is not None and partition in image.partitions:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic.name}-{partition} could not be opened")
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has no partition {partition}")
        return log

    # -- creation ------------------------------------------------------------------------------------------------

    def check_new(
        self,
        name: str,
        partition_count: int = -1,
        replication_factor: int = -1,
        assignments: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, str | None] | None = None,
    ) -> NewTopic:
        """The topic that CreateTopics would create; -1 stands for the broker's default. Raises KafkaError
        (ReplicationControlManager.createTopic).
        """
        check_name(name)
        if name in self.image.topics:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        self._check_collision(name)
        if assignments:
            partition_count = self._check_assignments(assignments, partition_count, replication_factor)
        else:
            partition_count = self._config.num_partitions if partition_count == -1 else partition_count
            if partition_count < 1:
                raise KafkaError(
                    ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
                )
            self._check_replication_factor(replication_factor)
        if partition_count > MAX_PARTITIONS_PER_REQUEST:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                "Excessively large number of partitions per request.",
            )
        overrides = dict(configs or {})
        if overrides:  # a topic that sets nothing is not held against the broker's defaults (ReplicationControlManager)
            validate_topic_configs(overrides, self._config)
        return NewTopic(
            name, random_id(), partition_count, {key: value for key, value in overrides.items() if value is not None}
        )

    async def create(self, topics: Sequence[NewTopic], reason: str = "") -> None:
        """Create topics that `check_new` has passed in this same turn of the loop; returns when they are durable and
        usable. `reason` is for the log.
        """
        if not topics:
            return
        self._metadata.append([record for topic in topics for record in self._creation_records(topic)])
        done = asyncio.get_running_loop().create_future()
        for topic in topics:
            self._in_creation[topic.name] = done
        try:
            synced = asyncio.ensure_future(self.sync())
            try:
                for new in topics:
                    await self._open_new(new)
            finally:
                await synced
        finally:
            for topic in topics:
                del self._in_creation[topic.name]
            done.set_result(None)
        for topic in topics:
            count = topic.partition_count
            logger.info("topic %s created, %d partition%s%s", topic.name, count, "s" * (count != 1), reason)

    async def ensure(self, names: Iterable[str]) -> dict[str, KafkaError]:
        """Create those topics that do not exist, with the broker's defaults; what could not be created and why."""
        errors: dict[str, KafkaError] = {}
        new = []
        for name in names:
            if name in self.by_name or name in self._in_creation:
                continue
            try:
                if name in INTERNAL_TOPICS or name == METADATA_TOPIC:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
                new.append(self.check_new(name))
            except KafkaError as error:
                errors[name] = error
        waiting = {self._in_creation[name] for name in names if name in self._in_creation}
        try:
            await self.create(new, " (auto.create.topics.enable)")
        except (StorageError, OSError) as error:
            logger.error("topics could not be created: %s", error)
            failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the metadata log failed")
            errors.update((topic.name, failure) for topic in new)
        for future in waiting:
            await future
        return errors

    async def add_partitions(self, name: str, count: int) -> None:
        """Grow a topic to `count` partitions, checked by `check_partition_count` in this same turn of the loop."""
        image = self.image.topics[name]
        first = len(image.partitions)
        self._metadata.append([self._partition_record(image.topic_id, partition) for partition in range(first, count)])
        synced = asyncio.ensure_future(self.sync())
        topic = self.by_name[name]
        try:
            await self._create_logs(topic, image, log_config(self.configs_of(name), self._config), range(first, count))
        finally:
            self.generation += 1
            await synced

    def check_partition_count(self, name: str, count: int, assignments: Sequence[Sequence[int]] | None) -> None:
        """Check that a topic may grow to `count` partitions (ReplicationControlManager.createPartitions); raises
        KafkaError.
        """
        image = self.image.topics.get(name)
        if image is None or name not in self.by_name:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        present = len(image.partitions)
        if count == present:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
        if count < present:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {name} currently has {present} partition(s); {count} would not be an increase.",
            )
        if count - present > MAX_PARTITIONS_PER_REQUEST:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"Excessively large number of partitions per request: {count - present}, "
                f"at most {MAX_PARTITIONS_PER_REQUEST}",
            )
        if assignments is not None:
            if len(assignments) != count - present:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Attempted to add {count - present} additional partition(s), but only {len(assignments)} "
                    "assignment(s) were specified.",
                )
            for replicas in assignments:
                self.check_replicas(replicas)

    # -- deletion ------------------------------------------------------------------------------------------------

    async def delete(self, names: Collection[str]) -> None:
        """Delete topics that are in use; returns when that is durable. Wakes pending fetches, notifies listeners.

        StorageError, OSError: if the metadata log takes no record nothing has happened; after that the topics are gone in any
        case, though a directory of theirs may be left, which the next start sets aside.
        """
        self._metadata.append([RemoveTopicRecord(topic_id=self.by_name[name].topic_id) for name in names])
        self.generation += 1
        failure: OSError | None = None
        following: list[asyncio.Future[None]] = []
        for name in names:
            topic = self.by_name.pop(name)
            del self.by_id[topic.topic_id]
            for log in topic.logs.values():
                self.timed_logs.discard(log)
                if self.on_deletion is not None:
                    self.on_deletion(log)
                try:
                    self._directory.delete_log(log)
                except OSError as error:
                    failure = error
                    self._on_change(log)  # pending fetches of its data must end as well
            try:
                self._directory.delete_unopened(name)
            except OSError as error:
                failure = error
            told = [listener.topic_deleted(topic) for listener in self.listeners]
            following += [asyncio.ensure_future(coroutine) for coroutine in told if coroutine is not None]
        try:
            await self.sync()
        finally:
            for future in following:
                await asyncio.shield(future)
        if failure is not None:
            raise failure
        for name in names:
            logger.info("topic %s deleted", name)

    async def settled(self, names: Iterable[str]) -> None:
        """Wait until none of these topics is being created."""
        for future in {self._in_creation[name] for name in names if name in self._in_creation}:
            await future

    # -- configurations ------------------------------------------------------------------------------------------

    def apply_configs(self, names: Iterable[str] | None = None, *, broker_config: BrokerConfig | None = None) -> None:
        """Refresh the settings of the logs of these topics (default: all); `broker_config` replaces the broker's."""
        if broker_config is not None:
            self._config = broker_config
        self.generation += 1
        for name in list(self.by_name if names is None else names):
            topic = self.by_name.get(name)
            if topic is None:
                continue
            settings = log_config(self.configs_of(name), self._config)
            for log in topic.logs.values():
                before = log.config
                log.update_config(settings)
                self._note_timed(log)
                if self.on_config_changed is not None:
                    self.on_config_changed(log, before)

    async def sync(self) -> None:
        """Wait until what has been appended to the metadata log is on disk."""
        await asyncio.get_running_loop().run_in_executor(None, self._metadata.sync)

    # -- parts of the above --------------------------------------------------------------------------------------

    async def _open_new(self, new: NewTopic) -> None:
        topic = Topic(new.name, new.topic_id)
        image = self.image.topics[new.name]
        config = log_config(new.configs, self._config)
        try:
            await self._create_logs(topic, image, config, range(new.partition_count))
        finally:
            self._publish(topic)

    async def _create_logs(self, topic: Topic, image: TopicImage, config: LogConfig, partitions: range) -> None:
        """Make empty partitions: files and fsyncs in threads, several at once, the rest here."""
        made = [(topic.name, partition) for partition in partitions]
        self._directory.take_away_left(made)
        await asyncio.to_thread(self._directory.checkpoint_files.forget, made)
        for start in range(partitions.start, partitions.stop, LOGS_AT_ONCE):
            some = range(start, min(start + LOGS_AT_ONCE, partitions.stop))
            created = await asyncio.gather(
                *(asyncio.to_thread(self._create_log, topic, partition, config) for partition in some),
                return_exceptions=True,
            )
            for log in created:
                if isinstance(log, BaseException):
                    raise log
                if self.image.topics.get(topic.name) is not image:
                    return  # deleted since
                self._directory.adopt(log)
                self._take(topic, log, image)
                if self.on_created is not None:
                    self.on_created(log)

    def _create_log(self, topic: Topic, partition: int, config: LogConfig) -> Log:
        directory = self._directory
        return create_log(
            directory.env,
            f"{directory.path}/{topic.name}-{partition}",
            topic.name,
            partition,
            topic.topic_id,
            config,
            directory.validation,
            producer_expiration_ms=self._config.producer_id_expiration_ms,
        )

    def _publish(self, topic: Topic) -> None:
        self.by_name[topic.name] = topic
        self.by_id[topic.topic_id] = topic
        self.generation += 1
        for listener in self.listeners:
            listener.topic_created(topic)

    def _take(self, topic: Topic, log: Log, image: TopicImage) -> None:
        log.become_leader(image.partitions[log.partition].leader_epoch if log.partition in image.partitions else 0)
        log.on_change.append(lambda: self._on_change(log))
        topic.logs[log.partition] = log
        self._note_timed(log)

    def _note_timed(self, log: Log) -> None:
        (self.timed_logs.discard if log.config.flush_ms == LONG_MAX else self.timed_logs.add)(log)

    def _creation_records(self, new: NewTopic) -> list[TopicRecord | ConfigRecord | PartitionRecord]:
        """In the order in which Kafka's controller writes them: the topic, its configurations, its partitions."""
        records: list[TopicRecord | ConfigRecord | PartitionRecord] = [
            TopicRecord(name=new.name, topic_id=new.topic_id)
        ]
        records += [
            ConfigRecord(resource_type=RESOURCE_TOPIC, resource_name=new.name, name=key, value=value)
            for key, value in new.configs.items()
        ]
        records += [self._partition_record(new.topic_id, partition) for partition in range(new.partition_count)]
        return records

    def _partition_record(self, topic_id: UUID, partition: int) -> PartitionRecord:
        node_id = self._config.node_id
        return PartitionRecord(
            partition_id=partition,
            topic_id=topic_id,
            replicas=(node_id,),
            isr=(node_id,),
            leader=node_id,
            leader_epoch=0,
            partition_epoch=0,
            directories=(self._metadata.directory_id,),
        )

    def _check_collision(self, name: str) -> None:
        """Topics that differ in '.' and '_' only would share the names of metrics: refused, as Kafka does."""
        if "." not in name and "_" not in name:
            return
        form = name.replace(".", "_")
        colliding = [other for other in self.image.topics if other.replace(".", "_") == form]
        if colliding:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{name}' collides with existing topic: {', '.join(colliding)}",
            )

    def _check_assignments(
        self, assignments: Mapping[int, Sequence[int]], partition_count: int, replication_factor: int
    ) -> int:
        for value, what in ((partition_count, "numPartitions"), (replication_factor, "replication factor")):
            if value != -1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"A manual partition assignment was specified, but {what} was not set to -1.",
                )
        if sorted(assignments) != list(range(len(assignments))):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
            )
        for replicas in assignments.values():
            self.check_replicas(replicas)
        return len(assignments)

    def check_replicas(self, replicas: Sequence[int]) -> None:
        """Check that a partition can have these replicas (ReplicationControlManager.validateManualPartitionAssignment);
        raises KafkaError.
        """
        reason = ""
        if not replicas:
            reason = "an empty replica list."
        for broker_id in sorted(replicas):
            if broker_id != self._config.node_id:
                reason = f"broker {broker_id}, but no such broker is registered."
                break
            if list(replicas).count(broker_id) > 1:
                reason = f"the broker {broker_id} more than once."
        if reason:
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment includes {reason}")

    def _check_replication_factor(self, replication_factor: int) -> None:
        if replication_factor == -1:
            replication_factor = self._config.default_replication_factor
        if replication_factor < 1:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if replication_factor > 1:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
                f"{replication_factor} cannot be reached because only 1 broker(s) are registered or some brokers have "
                "all their log directories cordoned.",
            )


def check_name(name: str) -> None:
    """Check the name of a topic; raises INVALID_TOPIC_EXCEPTION (`common.internals.Topic.validate`)."""
    reason = ""
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > 249:
        reason = f"the length of '{name}' is longer than the max allowed length 249"
    elif _NAME.fullmatch(name) is None:
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    elif name == METADATA_TOPIC:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
    if reason:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def check_leader_epoch(log: Log, current_leader_epoch: int) -> None:
    """Raise FENCED_LEADER_EPOCH for an old epoch, UNKNOWN_LEADER_EPOCH for one ahead of ours; -1 is not checked."""
    if current_leader_epoch < 0 or current_leader_epoch == log.leader_epoch:
        return
    code = ErrorCode.FENCED_LEADER_EPOCH if current_leader_epoch < log.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
    raise KafkaError(
        code,
        f"{log.topic}-{log.partition} has leader epoch {log.leader_epoch}, the request says {current_leader_epoch}",
    )
