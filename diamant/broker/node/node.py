"""The node: the components that a broker runs on. It does not depend on any API, coordinator or HTTP.

`LogEvents` reports each change of a log: appends, truncations, cleanings, and any other change that a fetch may wait for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING

from diamant.broker.config.authorization_table import ALLOW_EVERYONE, AUTHORIZER, SUPER_USERS, super_users_of
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.broker_table import SYSTEM_CLOCK
from diamant.broker.config.listeners import SECURITY_PROTOCOLS, Addresses
from diamant.broker.config.security_table import kept_for_kafka
from diamant.broker.network.api import BrokerAddress, ConnectionInfo
from diamant.broker.node.flusher import Flusher
from diamant.broker.node.index_repair import IndexRepair
from diamant.broker.node.lazy import Lazy
from diamant.broker.node.producer_ids import ProducerIds
from diamant.broker.node.purgatory import Purgatory
from diamant.broker.node.scheduler import Scheduler
from diamant.broker.node.topic_metrics import BrokerTopicMetrics
from diamant.broker.topics.topics import Topics
from diamant.protocol.kraft.records import BROKER_RESOURCE, Endpoint, ProducerIdsRecord
from diamant.storage import names
from diamant.storage.directory.log_directory import Deletions, LogDirectory
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError
from diamant.storage.kraft.features import MIN_INSYNC_REPLICAS, RELEASES
from diamant.storage.kraft.metadata_log import MetadataLog
from diamant.storage.kraft.opening import OtherBroker, open_metadata_log
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.node.fetch_sessions import FetchSessions
    from diamant.broker.security.authorization.acl_store import AclStore
    from diamant.broker.security.authorization.authorizer import Authorizer
    from diamant.broker.security.tls.tls_listeners import TlsListeners

logger = logging.getLogger(__name__)

BATCH_CHECKERS = 2
"""The number of threads that check large batches; each may hold `append_checks.MAX_DECOMPRESSED_BYTES`."""


class Node:
    """The foundation of a broker. Belongs to the thread of the event loop that creates it."""

    def __init__(
        self, config: BrokerConfig, env: Env, directory: LogDirectory, metadata: MetadataLog, addresses: Addresses
    ) -> None:
        """`config`: the static configuration. `self.config` also has the dynamic configurations in the metadata log.

        The directory and the metadata log must be open; `close` closes them.
        """
        self.loop = asyncio.get_running_loop()
        self._static_config = config
        self.env = env
        self.directory = directory
        self.metadata = metadata
        self.addresses = addresses
        self.config = self._dynamic_config()
        self.is_stopping = False
        self.authorizer, self.acls = _open_authorizer(self.config, metadata)
        """Both are None if `authorizer.class.name` is not set; every client may then do everything."""
        self.tls: TlsListeners | None = None
        """None if there is no TLS listener."""
        self.started_s: float | None = None
        """The time at which the node became ready, on the monotonic clock."""
        self.on_reconfigured: list[Callable[[BrokerConfig], None]] = []
        self.scheduler = Scheduler(env.clock)
        self.purgatory = Purgatory(self.loop)
        self.flusher = Flusher(self.loop)
        self.batch_checkers = ThreadPoolExecutor(BATCH_CHECKERS, "check-batch")
        self.log_events = LogEvents()
        self.topics = Topics(metadata, directory, self.config, self.log_events.changed)
        if len(metadata.broker_ids) > 1:
            from diamant.broker.brokers.lags import Lags
            from diamant.broker.brokers.membership import elect_missing
            from diamant.broker.brokers.table import BrokerTable

            told, lags = self.config.advertised(addresses.kafka), Lags(env.clock)
            self.topics.brokers = brokers = BrokerTable(
                metadata, told, self.topics.partitions_changed, lags, self.topics.is_unclean
            )
            list(elect_missing(brokers))
            self.log_events.subscribe(lags.changed)
        self.topic_metrics = BrokerTopicMetrics(self.topics.by_name.__contains__)
        self.producer_ids = ProducerIds(lambda: metadata.image.next_producer_id, self._commit_producer_ids)
        self.index_repair = IndexRepair()
        self.fetch_sessions: Lazy[FetchSessions] = Lazy(self._make_fetch_sessions)
        self.log_events.subscribe(self.purgatory.wake)
        directory.validation.is_header_only = self.config.diamant_produce_validation == "header"
        directory.on_flush_due = self._flush_due
        directory.on_index_damaged = self.index_repair.request

    @property
    def cluster_id(self) -> str:
        """The id in meta.properties, which never changes for a directory."""
        return self.metadata.cluster_id

    def broker_id(self, connection: ConnectionInfo) -> int:
        """Return the broker that a client has connected to."""
        return self.config.node_id if self.topics.brokers is None else connection.broker_id

    def config_of(self, broker_id: int) -> BrokerConfig:
        """Return the configuration of one of the brokers of this process."""
        if self.topics.brokers is None:
            return self.config
        configs = self.metadata.image.configs
        own, of_all = configs.get((BROKER_RESOURCE, str(broker_id)), {}), configs.get((BROKER_RESOURCE, ""), {})
        return self._static_config.of_broker(broker_id - self.config.node_id).with_dynamic(of_all, own)

    @property
    def controller_id(self) -> int:
        """The broker that is reported to clients as the controller."""
        brokers = self.topics.brokers
        return self.config.node_id if brokers is None else brokers.controller_id

    def brokers_for(self, connection: ConnectionInfo, *, has_fenced: bool = False) -> list[BrokerAddress]:
        """Return the brokers that are up (with `has_fenced`, all), with their addresses on the connection's listener.

        The broker of this connection comes first, since only it can describe its configurations.
        """
        brokers = self.topics.brokers
        host = connection.advertised_host
        if brokers is None:
            return [BrokerAddress(self.config.node_id, host, connection.advertised_port, self.config.broker_rack)]
        shown = brokers.broker_ids if has_fenced else brokers.live
        broker_ids = sorted(shown, key=lambda broker_id: broker_id != connection.broker_id)
        return [brokers.address(broker_id, connection.listener_name, host) for broker_id in broker_ids]

    async def load(self) -> None:
        """Open the partitions in threads, recover them if needed, and log the problems found."""
        expected, metadata = self.topics.expected_partitions(), self.metadata
        deletions = Deletions(metadata.removed_topics, metadata.written_before_ms)
        threads = self.config.num_recovery_threads
        await asyncio.to_thread(self.directory.load_logs, expected, threads=threads, deletions=deletions)
        metadata.removed_topics = frozenset()
        self.adopt_loaded()

    def load_now(self) -> None:
        """Open partitions that need no recovery, and log the problems found. Blocks the calling thread."""
        self.directory.load_logs(self.topics.expected_partitions(), threads=1)
        self.adopt_loaded()

    def adopt_loaded(self) -> None:
        """Adopt the opened partitions, and log the problems found."""
        of_kafka = kept_for_kafka(
            self.metadata.image,
            self.config.node_id,
            self.config.listeners,
            has_authorizer=self.authorizer is not None,
        )
        for message in (*self.metadata.messages, *self.directory.messages, *of_kafka):
            logger.warning("%s", message)
        self.directory.messages.clear()
        if self.directory.logs and not self.directory.was_clean:
            logger.warning("the last shutdown was not clean: %d logs were checked", len(self.directory.logs))
        for failure in self.directory.failures:
            error = failure.error
            trace = None if isinstance(error, StorageError | OSError) else error
            logger.error("%s-%d is not served: %s", failure.topic, failure.partition, error, exc_info=trace)
        self.topics.adopt_loaded()

    async def stop(self) -> None:
        """End all background work. Call this after the scheduler has been stopped."""
        await self.flusher.stop()
        await self.index_repair.stop()
        self.batch_checkers.shutdown(wait=False)

    def close(self, *, is_kept: bool = True, is_settled: bool = True) -> None:
        """Flush everything if the data is to be kept, and release the directory. Blocks the calling thread.

        `is_settled`: False if a thread may still change files; the stop is then not marked as clean.
        """
        if not is_kept:
            self.metadata.close(clean=False)
            self.directory.close(is_clean=False)
            return
        try:
            self.metadata.close()
        except OSError as error:
            # Closing fences our registration in the metadata log. Kafka's next start replaces it anyway, so continue.
            self.directory.messages.append(f"the metadata log could not be closed cleanly: {error}")
        if self.config.clock != SYSTEM_CLOCK:
            from diamant.storage.checkpoints.manual_clock_file import keep_clock

            try:
                keep_clock(self.env, self.config.data_dir)
            except OSError as error:
                self.directory.messages.append(
                    f"the clock's time could not be written, an earlier time is kept: {error}"
                )
        epoch, threads = self.metadata.broker_epoch, self.config.num_recovery_threads
        self.directory.close(is_settled=is_settled, broker_epoch=epoch, threads=threads)

    def apply_dynamic_config(self) -> None:
        """Apply broker configurations that clients have changed."""
        self.config = self._dynamic_config()
        self.topics.apply_configs(broker_config=self.config)
        for listener in self.on_reconfigured:
            listener(self.config)

    def config_with(self, resource_name: str, texts: Mapping[str, str]) -> BrokerConfig:
        """Return the configuration as if a client had set these values for this broker, or for all brokers ("")."""
        configs, static = self.metadata.image.configs, self._static_config
        if resource_name:
            return static.with_dynamic(configs.get((BROKER_RESOURCE, ""), {}), texts)
        return static.with_dynamic(texts, configs.get((BROKER_RESOURCE, str(static.node_id)), {}))

    def _make_fetch_sessions(self) -> FetchSessions:
        from diamant.broker.node.fetch_sessions import MAX_CACHED_PARTITIONS, FetchSessions

        return FetchSessions(self.purgatory, monotonic, MAX_CACHED_PARTITIONS)

    def _dynamic_config(self) -> BrokerConfig:
        configs, static = self.metadata.image.configs, self._static_config
        return static.with_dynamic(
            configs.get((BROKER_RESOURCE, ""), {}), configs.get((BROKER_RESOURCE, str(static.node_id)), {})
        )

    def _flush_due(self, log: Log) -> None:
        """Flush a log that has rolled a segment or reached `flush.messages`."""
        self.flusher.request(log)
        self.log_events.rolled(log)

    async def _commit_producer_ids(self, next_producer_id: int) -> None:
        self.metadata.append(
            [
                ProducerIdsRecord(
                    broker_id=self.config.node_id,
                    broker_epoch=self.metadata.broker_epoch,
                    next_producer_id=next_producer_id,
                )
            ]
        )
        await self.topics.sync()


def _open_authorizer(config: BrokerConfig, metadata: MetadataLog) -> tuple[Authorizer | None, AclStore | None]:
    if not config[AUTHORIZER]:
        return None, None
    from diamant.broker.security.authorization.acl_store import AclStore
    from diamant.broker.security.authorization.authorizer import Authorizer
    from diamant.broker.security.authorization.denial_log import DenialLog

    authorizer = Authorizer(super_users_of(str(config[SUPER_USERS])), allows_by_default=bool(config[ALLOW_EVERYONE]))
    authorizer.on_denial = DenialLog()
    return authorizer, AclStore(metadata, authorizer)


def open_clock(env: Env, config: BrokerConfig) -> None:
    """Open a manual clock at the last time stored in the directory; for the system clock, warn if a manual one was used before.

    Blocks the calling thread.
    """
    directory = config.data_dir
    if config.clock == SYSTEM_CLOCK:
        if env.exists(f"{directory}/{names.MANUAL_CLOCK}"):
            logger.warning(
                "%s was used with a manual clock, whose time may differ from the system's, so records may have timestamps in the "
                "future. Use --clock manual to continue with that clock",
                directory,
            )
        return
    from diamant.storage.checkpoints.manual_clock_file import open_clock

    env.clock = open_clock(env, directory)
    logger.info("the clock is manual and shows %d ms since the epoch", env.clock.now_ms())


def open_metadata(env: Env, config: BrokerConfig, addresses: Addresses) -> MetadataLog:
    """Open the metadata log and register the brokers of this process in it. Blocks the calling thread."""
    endpoints: dict[int, list[Endpoint]] = {broker_id: [] for broker_id in config.broker_ids}
    for listener, told in zip(addresses.kafka, config.advertised(addresses.kafka), strict=True):
        protocol = SECURITY_PROTOCOLS.index(listener.security_protocol)
        endpoint = Endpoint(listener.name, told.host or listener.host, told.port, protocol)
        endpoints[config.node_id + listener.broker].append(endpoint)
    own, *others = (
        OtherBroker(broker_id, tuple(endpoints[broker_id]), rack)
        for broker_id, rack in zip(config.broker_ids, config.racks, strict=True)
    )
    return open_metadata_log(
        env,
        config.data_dir,
        node_id=config.node_id,
        endpoints=own.endpoints,
        rack=own.rack,
        others=others,
        features=RELEASES[config.diamant_release_version],
        min_insync_replicas=str(config.topic_default(MIN_INSYNC_REPLICAS)),
        snapshot_bytes=config.metadata_log_max_record_bytes_between_snapshots,
        snapshot_interval_ms=config.metadata_log_max_snapshot_interval_ms,
    )


Listener = Callable[[Log], object]


class LogEvents:
    """The listeners for changes of logs. They are called on the loop thread in order of subscription, at every Produce."""

    def __init__(self) -> None:
        self._on_change: tuple[Listener, ...] = ()
        self._on_roll: tuple[Listener, ...] = ()

    def subscribe(self, on_change: Listener, on_roll: Listener | None = None) -> None:
        """Call `on_change` with each changed log from now on, and `on_roll` with each log that has closed a segment."""
        self._on_change = (*self._on_change, on_change)
        if on_roll is not None:
            self._on_roll = (*self._on_roll, on_roll)

    def changed(self, log: Log) -> None:
        """Notify every listener of a changed log."""
        for listener in self._on_change:
            listener(log)

    def rolled(self, log: Log) -> None:
        """Notify the listeners of a log that has closed a segment or must be flushed."""
        for listener in self._on_roll:
            listener(log)
