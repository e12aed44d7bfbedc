"""The broker: everything joined together, started and stopped in order.

Start: bind the sockets (port 0 becomes a port), lock the directory, read the metadata log, load the partitions,
listen. Stop: the reverse, with requests under way answered, everything synced and the clean-shutdown mark set.

    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=path)) as broker: ...
    with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=path)) as broker: ...      # an event loop in its own thread
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import time
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from diamant.broker.cannot_start import told
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.broker_table import SYSTEM_CLOCK
from diamant.broker.config.listeners import META_ADDRESSES, Listener
from diamant.broker.config.security_table import kept_for_kafka
from diamant.broker.dispatch.dispatcher import Dispatcher
from diamant.broker.dispatch.table import MODULES, load_api
from diamant.broker.handlers.topics.metadata import MetadataCache
from diamant.broker.http.serving.server import HttpServer
from diamant.broker.network.api import frame_header
from diamant.broker.network.listener_sockets import bound_socket, reachable
from diamant.broker.network.loop_thread import LoopThread
from diamant.broker.network.request_metrics import RequestMetrics
from diamant.broker.network.server import Server, ServerLimits
from diamant.broker.node.cleaner import Cleaning
from diamant.broker.node.flusher import Flusher
from diamant.broker.node.housekeeping import Housekeeping
from diamant.broker.node.producer_ids import ProducerIds
from diamant.broker.node.purgatory import Purgatory
from diamant.broker.node.scheduler import Job, Scheduler
from diamant.broker.node.topic_metrics import BrokerTopicMetrics
from diamant.broker.node.topics import GROUP_OFFSETS_TOPIC, INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC, Topics
from diamant.broker.node.validation_loader import CompiledWalk
from diamant.protocol.kraft.records import BROKER_RESOURCE, Endpoint, ProducerIdsRecord
from diamant.storage import names
from diamant.storage.env.env import Env, RealEnv
from diamant.storage.errors import StorageError
from diamant.storage.kraft.metadata_log import MetadataLog
from diamant.storage.log.log import Log
from diamant.storage.recovery.log_directory import LogDirectory
from diamant.storage.segments.log_config import LONG_MAX
from diamant.storage.segments.segment import Segment

if TYPE_CHECKING:
    from diamant.broker.erasure.cancel import Cancelling
    from diamant.broker.erasure.erase import Erasure, Erasures
    from diamant.broker.erasure.redact import Redaction, Redactions
    from diamant.broker.faults.faults import Faults
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.fetch_sessions import FetchSessions
    from diamant.broker.node.index_repair import IndexMender
    from diamant.broker.operations.clock import BrokerClock
    from diamant.broker.operations.compact import Compactions
    from diamant.broker.operations.compact_by_config import CompactByConfig
    from diamant.broker.operations.count import Counting, TopicRecords
    from diamant.broker.operations.explain import Explaining, Explanation
    from diamant.broker.operations.latest import LatestReading
    from diamant.broker.operations.progress import Progress
    from diamant.broker.transactions.coordinator import TransactionCoordinator
    from diamant.cleaner.on_demand.report import CompactionReport
    from diamant.protocol.batches.header import Record

logger = logging.getLogger(__name__)

PLAINTEXT_PROTOCOL = 0
"""SecurityProtocol of a listener in the metadata log."""

STOP_TIMEOUT_S = 10.0
"""How long a stop waits for requests under way before it closes their connections."""

BATCH_CHECKERS = 2
"""Threads that check large batches; each may hold `leader_batch.MAX_DECOMPRESSED_BYTES`."""

COORDINATORS_HEAD_START_S = 0.2
"""How long a start waits for transactions and groups to be loaded before clients may come."""


T = TypeVar("T")


class Broker:
    """A Kafka broker with its controller, on one log directory.

    All state belongs to the thread that runs the event loop: the caller's with `async with`, an own one with `with`.
    `env` replaces the operating system in tests.
    """

    topics: Topics
    metadata: MetadataLog
    directory: LogDirectory
    purgatory: Purgatory
    flusher: Flusher
    scheduler: Scheduler
    housekeeping: Housekeeping
    cleaning: Cleaning
    producer_ids: ProducerIds
    server: Server
    topic_metrics: BrokerTopicMetrics
    batch_checkers: ThreadPoolExecutor

    def __init__(self, config: BrokerConfig | None = None, *, env: Env | None = None, **settings: Any) -> None:
        """`settings` are those of a `BrokerConfig` and stand for one: `Broker(listen="127.0.0.1:0", data_dir="data")`."""
        if config is not None and settings:
            raise TypeError(f"Broker got a BrokerConfig and {', '.join(settings)}: give these to the BrokerConfig")
        self._static_config = config if config is not None else BrokerConfig(**settings)
        self.config = self._static_config
        self.env: Env = env if env is not None else RealEnv()
        self.metadata_cache = MetadataCache()
        self.api_versions_cache: dict[int, bytes] = {}
        self.served_keys = frozenset(MODULES)
        self.addresses: list[Listener] = []
        self.http_address: Listener | None = None
        self._http: HttpServer | None = None
        self.index_mender: IndexMender | None = None
        self._is_started = False
        self.started_s: float | None = None
        """When it was ready, on the monotonic clock."""
        self._thread: LoopThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def bootstrap_servers(self) -> str:
        """What a client's `bootstrap.servers` should say: every listener's address."""
        return ",".join(listener.address for listener in self.addresses)

    @property
    def http_url(self) -> str | None:
        """Where `/metrics` and `/health` are for this machine, as ``http://host:port``; None if HTTP is off."""
        return f"http://{self.http_address.address}" if self.http_address is not None else None

    @property
    def http_bound(self) -> Listener | None:
        """Where HTTP listens: the host is that of `diamant.http.listen`, perhaps every interface. None if HTTP is off."""
        listener, reached = self.config.http_listener, self.http_address
        return None if listener is None or reached is None else listener._replace(port=reached.port)

    @property
    def cluster_id(self) -> str:
        """The id in meta.properties, the same for the directory's whole life."""
        return self.metadata.cluster_id

    @cached_property
    def groups(self) -> GroupCoordinator:
        """The group coordinator, loaded with the first request that concerns a group."""
        from diamant.broker.groups.coordinator.coordinator import GroupCoordinator

        return GroupCoordinator(self)

    @cached_property
    def transactions(self) -> TransactionCoordinator:
        """The transaction coordinator, loaded with the first request that concerns a transaction."""
        from diamant.broker.transactions.coordinator import TransactionCoordinator

        return TransactionCoordinator(self)

    @cached_property
    def faults(self) -> Faults:
        """What the broker is to do wrong on demand; may be used from any thread while the broker runs."""
        from diamant.broker.faults.faults import Faults

        if self._loop is None:
            raise RuntimeError("the broker does not run: faults are added once it does")
        return Faults(self, self._loop)

    @cached_property
    def clock(self) -> BrokerClock:
        """What the broker's clock shows, and moving it if it can be moved; may be used from any event loop."""
        from diamant.broker.operations.clock import BrokerClock

        return BrokerClock(self, self.loop)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that owns the broker's state. RuntimeError before the start."""
        if self._loop is None:
            raise RuntimeError("the broker does not run: enter it, or await start(), first")
        return self._loop

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Wait for one of the coroutines above in a thread that is not the broker's: ``broker.call(broker.clock.advance("8d"))``.

        TimeoutError after `timeout_s`.
        """
        from diamant.broker.operations.cross_loop import call

        return call(self.loop, coroutine, timeout_s)

    @property
    def has_faults(self) -> bool:
        """True once `faults` is there."""
        return "faults" in self.__dict__

    @cached_property
    def fetch_sessions(self) -> FetchSessions:
        """The fetch sessions, loaded with the first client that asks for one."""
        from diamant.broker.node.fetch_sessions import MAX_CACHED_PARTITIONS, FetchSessions

        loop = asyncio.get_running_loop()
        return FetchSessions(self.purgatory, lambda: int(loop.time() * 1000), MAX_CACHED_PARTITIONS)

    @cached_property
    def explaining(self) -> Explaining:
        """Who answers `explain`, loaded with the first question."""
        from diamant.broker.operations.explain import Explaining

        return Explaining(self)

    async def explain(
        self,
        topic: str,
        *,
        partition: int | None = None,
        key: bytes | str | None = None,
        offset: int | None = None,
        is_tombstones: bool = False,
    ) -> Explanation:
        """Say of every record of `key` that is on the disk, or of the one at `offset`, what keeps it and when it goes.

        Without either: the same of the topic's partitions as a whole; `is_tombstones`: of every tombstone, and which groups
        have not passed it. May be awaited in any event loop. Raises VerbError (`verbs/errors.py`).
        """

        async def explain() -> Explanation:
            return await self.explaining.explain(
                topic, partition=partition, key=key, offset=offset, is_tombstones=is_tombstones
            )

        from diamant.broker.operations.cross_loop import on_loop

        if self._loop is None:
            raise RuntimeError("the broker does not run")
        return await on_loop(self._loop, explain)

    @cached_property
    def counting(self) -> Counting:
        """Who answers `count`, loaded with the first question."""
        from diamant.broker.operations.count import Counting

        return Counting(self)

    async def count(self, topic: str, partition: int | None = None, *, is_exact: bool = False) -> TopicRecords:
        """Return how many records a topic has: live, superseded, tombstones, others; and markers.

        At once with bounds, or exactly, once every record was read. May be awaited in any event loop. Raises VerbError.
        """
        from diamant.broker.operations.cross_loop import on_loop

        return await on_loop(self.loop, lambda: self.counting.count(topic, partition, is_exact=is_exact))

    @cached_property
    def latest_reading(self) -> LatestReading:
        """Who answers `latest`, loaded with the first question."""
        from diamant.broker.operations.latest import LatestReading

        return LatestReading(self)

    def latest(
        self, topic: str, partition: int | None = None, *, with_tombstones: bool = False
    ) -> AsyncGenerator[tuple[int, Record], None]:
        """Yield the latest committed record of each key, with its partition: what a log has that is compacted to its end.

        Of one moment for each partition, read as it is asked for. In any event loop; `contextlib.aclosing` for who ends it
        early. Raises VerbError.
        """
        from diamant.broker.operations.latest import records_on_any_loop

        return records_on_any_loop(self, topic, partition, with_tombstones=with_tombstones)

    @property
    def has_erasures(self) -> bool:
        """True once `erasures` is there."""
        return "erasures" in self.__dict__

    @property
    def has_redactions(self) -> bool:
        """True once `redactions` is there."""
        return "redactions" in self.__dict__

    @property
    def has_groups(self) -> bool:
        """True once `groups` is there."""
        return "groups" in self.__dict__

    @property
    def has_transactions(self) -> bool:
        """True once `transactions` is there."""
        return "transactions" in self.__dict__

    @cached_property
    def compactions(self) -> Compactions:
        """The calls of `compact`, loaded with the first one."""
        from diamant.broker.operations.compact import Compactions

        return Compactions(self, self.loop)

    @cached_property
    def erasures(self) -> Erasures:
        """The calls of `erase`, loaded with the first one, or at the start if one is unfinished."""
        from diamant.broker.erasure.erase import Erasures

        return Erasures(self, self.loop)

    async def erase(
        self,
        key: bytes,
        topics: str | Sequence[str],
        *,
        reason: str,
        reference: str = "",
        timeout_ms: int | None = None,
        is_now: bool = False,
        is_confirmed: bool = False,
        is_forced: bool = False,
        engine: str | None = None,
        progress: Progress | None = None,
    ) -> Erasure:
        """Erase a key from a compacted topic, or several, and return a signed certificate of what is gone. From any event loop.

        It comes back once no value is left, with the time of the certificate for the tombstone's end, which follows by itself;
        with `is_now` the tombstone goes at once, before consumers that are behind have seen it. `is_forced` passes over
        `min.compaction.lag.ms`, `engine` names the runner that compacts, as for `compact`. Raises VerbError: NotFound,
        NotPossible (not compacted), BadArgument, TimedOut, EraseFailed.
        """
        return await self.erasures.erase(
            key,
            [topics] if isinstance(topics, str) else topics,
            reason=reason,
            reference=reference,
            timeout_ms=timeout_ms,
            is_now=is_now,
            is_confirmed=is_confirmed,
            is_forced=is_forced,
            engine=engine,
            progress=progress,
        )

    async def erase_now(
        self,
        erasure_id: str,
        *,
        is_confirmed: bool = False,
        timeout_ms: int | None = None,
        progress: Progress | None = None,
    ) -> Erasure:
        """Go on at once with an erasure that waits for its tombstones' horizon, as if `erase` had had `is_now`.

        It is the same erasure: its certificate for `key-gone` has what it found. If groups are behind the tombstones nothing is
        changed without `is_confirmed`: `is_now_refused` is true then, and `groups_behind` names them. Raises VerbError: NotFound
        (it is over), NotPossible, TimedOut, EraseFailed. From any event loop.
        """
        return await self.erasures.erase_now(
            erasure_id, is_confirmed=is_confirmed, timeout_ms=timeout_ms, progress=progress
        )

    @cached_property
    def redactions(self) -> Redactions:
        """The calls of `redact`, loaded with the first one, or at the start if one is unfinished."""
        from diamant.broker.erasure.redact import Redactions

        return Redactions(self, self.loop, self.erasures.lock)

    async def redact(
        self,
        topic: str,
        *,
        where: str,
        reason: str,
        reference: str = "",
        yes_all: bool = False,
        undecided: str = "hold",
        timeout_ms: int | None = None,
        progress: Progress | None = None,
    ) -> Redaction:
        """Remove the records that match from a topic, compacted or not, and return a signed certificate. From any event loop.

        `where` as in `key == "customer-42"` or `value.customer.email == "ada@example.com"` (docs/redact.md). All other records
        keep their offsets. On a compacted topic older values of a matched key go, too. `yes_all`: even if every record matches.
        `undecided`: what becomes of values that are no JSON and may be meant: `hold` certifies nothing, `remove`, or `keep`.
        Raises VerbError: NotFound, NotPossible, BadArgument, TimedOut, RedactFailed.
        """
        return await self.redactions.redact(
            topic,
            where=where,
            reason=reason,
            reference=reference,
            yes_all=yes_all,
            undecided=undecided,
            timeout_ms=timeout_ms,
            progress=progress,
        )

    async def cancel(self, undertaking_id: str, *, reason: str) -> Erasure | Redaction:
        """End an erasure or a redaction that is not over, and return its last certificate. From any event loop.

        What was done stays done, and nothing more is: the certificate says `not-certified`, and that it was cancelled, with the
        `reason`. Without a scan it comes at once, when the attempt that is under way has ended. Raises VerbError: NotFound,
        BadArgument, NotPossible, and EraseFailed or RedactFailed if the certificate cannot be written.
        """
        for undertakings in self.undertakings():
            found: Erasure | Redaction | None = await undertakings.cancel(undertaking_id, reason=reason)
            if found is not None:
                return found

        from diamant.broker.client.errors import NotFound

        raise NotFound(
            f"there is no erasure or redaction {undertaking_id[:64]!r} under way, so nothing was cancelled: it is over, or has "
            "another id. GET /v1/certificates lists those that are unfinished"
        )

    @cached_property
    def compact_by_config(self) -> CompactByConfig:
        """What `diamant.compact=now` has begun, loaded with the first such request."""
        from diamant.broker.operations.compact_by_config import CompactByConfig

        return CompactByConfig(self)

    async def compact(
        self,
        topic: str,
        partition: int | None = None,
        *,
        until: str = "clean",
        timeout_ms: int | None = None,
        is_forced: bool = False,
        return_at_horizon: bool = False,
        engine: str | None = None,
        progress: Progress | None = None,
    ) -> CompactionReport:
        """Clean a topic, or one partition, now, and return what was done. From any event loop.

        All that was appended before the call is covered: active segments are closed, and rounds follow until nothing
        superseded is left that may go. Dirty ratios do not matter; open transactions and `min.compaction.lag.ms` do (the
        report says what they hold back), the lag not if `is_forced`. With `until="tombstones-gone"` it comes back when the
        tombstones' horizons are over on the broker's clock and they are gone, or with `return_at_horizon` at once, with
        that time. `engine` names the runner ("inline", "process", "spark") in place of one chosen by size. Raises VerbError:
        NotFound, NotPossible (not a compacted topic), CompactionFailed, TimedOut after `timeout_ms`, BrokerStopping.
        """
        return await self.compactions.compact(
            topic,
            partition,
            until=until,
            timeout_ms=timeout_ms,
            is_forced=is_forced,
            return_at_horizon=return_at_horizon,
            engine=engine,
            progress=progress,
        )

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the directory and listen. Raises CannotStart, and holds nothing then."""
        loop = asyncio.get_running_loop()
        with told(str(self.config.data_dir)), contextlib.ExitStack() as undo:
            sockets = []
            for listener in self.config.listeners:
                with told(listener.address):
                    sockets.append((listener, undo.enter_context(bound_socket(listener))))
            self.addresses = [reachable(listener, sock) for listener, sock in sockets]
            self.directory = await asyncio.to_thread(self._open_directory)
            undo.callback(self._abandon)
            await asyncio.to_thread(self._open_clock)
            self.metadata = await asyncio.to_thread(self._open_metadata)
            undo.callback(self.metadata.close, clean=False)
            self.config = self._dynamic_config()
            self.scheduler = Scheduler(self.env.clock)
            self.housekeeping = Housekeeping(self)
            self.purgatory = Purgatory(loop)
            self.flusher = Flusher(loop)
            self.directory.validation.is_header_only = self.config.diamant_produce_validation == "header"
            self.batch_checkers = ThreadPoolExecutor(BATCH_CHECKERS, "check-batch")
            undo.callback(self.batch_checkers.shutdown)
            self.compiled_walk = CompiledWalk(self.directory.validation)
            self.directory.on_flush_due = self._flush_due
            self.directory.on_index_damaged = self._index_damaged
            self.producer_ids = ProducerIds(lambda: self.metadata.image.next_producer_id, self._commit_producer_ids)
            self.topics = Topics(self.metadata, self.directory, self.config, self.log_changed)
            self.topic_metrics = BrokerTopicMetrics(self.topics.by_name.__contains__)
            self.cleaning = Cleaning(self)
            await self._load()
            self.housekeeping.schedule()
            self.scheduler.add(Job("erasures", self._undertakings_due_ms, self._go_on_with_undertakings))
            dispatch = Dispatcher(self, self.served_keys, load_api)
            self.server = Server(dispatch, frame_header, self._limits(), RequestMetrics())
            await self._start_coordinators()
            for (listener, sock), advertised in zip(sockets, self._advertised(), strict=True):
                self.server.listen(sock, listener.name, advertised.host, advertised.port)
            # In the same turn of the loop: whoever is answered by the Kafka port finds HTTP there.
            self.started_s = time.monotonic()
            self._loop = loop
            self._start_http()
            undo.callback(self._abandon_http)
            await self.cleaning.start()
            self.scheduler.start()
            self._is_started = True
            undo.pop_all()
        logger.info("started with %s in %s", self._partitions_text(), self.config.data_dir)
        if self._has_unfinished("diamant-erasure-"):
            await self.erasures.start()
        if self._has_unfinished("diamant-redaction-"):
            await self.redactions.start()

    async def stop(self) -> None:
        """Answer what is under way, write everything down, let go of the directory. Stopping twice is harmless."""
        if not self._is_started:
            return
        self._is_started = False
        self.server.stop_accepting()
        self.purgatory.close()
        for undertakings in self.undertakings():
            await undertakings.stop()
        if "compactions" in self.__dict__:
            self.compactions.stop()
        if self.has_faults:
            self.faults.clear()
        if self.has_groups:
            await self.groups.stop()
        if self.has_transactions:
            await self.transactions.stop()
        await self.server.close(STOP_TIMEOUT_S)
        http, self._http, self.http_address = self._http, None, None
        if http is not None:
            await http.close()
        await self.scheduler.stop()
        await self.cleaning.stop()
        await self.flusher.stop()
        if self.index_mender is not None:
            await self.index_mender.stop()
        self.batch_checkers.shutdown(wait=False)
        try:
            await asyncio.to_thread(self._close_storage)
        finally:
            for message in self.directory.messages:
                logger.warning("%s", message)
        logger.info("stopped")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def __enter__(self) -> Self:
        self._thread = LoopThread(self.start, self.stop)
        self._thread.start_broker()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop_broker()

    # -- start, step by step -------------------------------------------------------------------------------------

    def _open_directory(self) -> LogDirectory:
        return LogDirectory.open(
            self.env, self.config.data_dir, producer_expiration_ms=self.config.producer_id_expiration_ms
        )

    def _open_clock(self) -> None:
        """Have a manual clock go on where it stood in this directory, and say so if another clock was used here."""
        directory = self.config.data_dir
        if self.config.clock == SYSTEM_CLOCK:
            if self.env.exists(f"{directory}/{names.MANUAL_CLOCK}"):
                logger.warning(
                    "%s was used with a manual clock, whose time may differ from the system's: records may lie in the future. "
                    "--clock manual goes on with it",
                    directory,
                )
            return
        from diamant.storage.checkpoints.manual_clock_file import open_clock

        self.env.clock = open_clock(self.env, directory)
        logger.info("the clock is manual and shows %d ms since the epoch", self.env.clock.now_ms())

    def _open_metadata(self) -> MetadataLog:
        return MetadataLog.open(
            self.env,
            self.config.data_dir,
            node_id=self.config.node_id,
            endpoints=[
                Endpoint(listener.name, advertised.host or listener.host, advertised.port, PLAINTEXT_PROTOCOL)
                for listener, advertised in zip(self.addresses, self._advertised(), strict=True)
            ],
            rack=self.config.broker_rack,
            snapshot_bytes=self.config.metadata_log_max_record_bytes_between_snapshots,
            snapshot_interval_ms=self.config.metadata_log_max_snapshot_interval_ms,
        )

    def _dynamic_config(self) -> BrokerConfig:
        configs = self.metadata.image.configs
        return self._static_config.with_dynamic(
            configs.get((BROKER_RESOURCE, ""), {}), configs.get((BROKER_RESOURCE, str(self._static_config.node_id)), {})
        )

    async def _load(self) -> None:
        expected = self.topics.expected_partitions()
        await asyncio.to_thread(self.directory.load_logs, expected, threads=self.config.num_recovery_threads)
        of_kafka = kept_for_kafka(self.metadata.image, self.config.node_id, self.config.listeners)
        for message in (*self.metadata.messages, *self.directory.messages, *of_kafka):
            logger.warning("%s", message)
        self.directory.messages.clear()
        if self.directory.logs and not self.directory.was_clean:
            logger.warning("the last stop was not orderly: %d logs were checked", len(self.directory.logs))
        for failure in self.directory.failures:
            error = failure.error
            trace = None if isinstance(error, StorageError | OSError) else error
            logger.error("%s-%d is not served: %s", failure.topic, failure.partition, error, exc_info=trace)
        self.topics.adopt_loaded()

    def _partitions_text(self) -> str:
        internal = sum(topic in INTERNAL_TOPICS for topic, _ in self.directory.logs)
        count = len(self.directory.logs) - internal
        text = f"{count} partition{'s' * (count != 1)}"
        return f"{text} (and {internal} of internal topics)" if internal else text

    def _limits(self) -> ServerLimits:
        return ServerLimits(
            max_frame_bytes=self.config.socket_request_max_bytes,
            max_connections=self.config.max_connections,
            max_idle_ms=self.config.connections_max_idle_ms,
            backlog=self.config.socket_listen_backlog_size,
            send_buffer_bytes=self.config.socket_send_buffer_bytes,
            receive_buffer_bytes=self.config.socket_receive_buffer_bytes,
            max_request_memory_bytes=self.config.queued_max_request_bytes,
        )

    def _advertised(self) -> Iterator[Listener]:
        """What clients are told; an empty host stands for the address at which they arrived."""
        is_explicit = self.config["advertised.listeners"] is not None
        for bound, advertised, actual in zip(
            self.config.listeners, self.config.advertised_listeners, self.addresses, strict=True
        ):
            host = "" if not is_explicit and bound.host in META_ADDRESSES else advertised.host
            yield advertised._replace(host=host, port=advertised.port or actual.port)

    def _start_http(self) -> None:
        """Answer HTTP if it is wanted and possible: what only looks on does not keep a broker from its work."""
        listener = self.config.http_listener
        if listener is None:
            return
        try:
            with contextlib.ExitStack() as undo:
                sock = undo.enter_context(bound_socket(listener))
                http = HttpServer(self, sock)
                http.start()
                undo.pop_all()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                logger.warning(
                    "no HTTP (/metrics, /health, /v1): %s is in use, perhaps by another Diamant; "
                    "--set diamant.http.listen=127.0.0.1:0 takes a free port",
                    listener.address,
                )
            else:
                reason = error.strerror or error
                logger.warning("no HTTP (/metrics, /health, /v1): diamant.http.listen=%s: %s", listener.address, reason)
            return
        self._http = http
        self.http_address = reachable(listener, sock)
        logger.info(
            "HTTP at %s, metrics at %s/metrics", listener._replace(port=self.http_address.port).address, self.http_url
        )

    def _abandon_http(self) -> None:
        """Let go of it after a start that failed."""
        http, self._http, self.http_address = self._http, None, None
        if http is not None:
            http.abandon()

    async def _start_coordinators(self) -> None:
        """Load the state of groups and transactions that there is from before, in the background if it takes long.

        Most have little, and members who are told that it is being loaded wait for seconds before they ask again.
        """
        coordinators: list[TransactionCoordinator | GroupCoordinator] = []
        if TRANSACTION_STATE_TOPIC in self.topics.by_name:
            coordinators.append(self.transactions)
        if GROUP_OFFSETS_TOPIC in self.topics.by_name:
            coordinators.append(self.groups)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COORDINATORS_HEAD_START_S):
                for coordinator in coordinators:
                    await coordinator.loaded()

    # -- what happens while it runs ------------------------------------------------------------------------------

    def apply_dynamic_config(self) -> None:
        """Take over broker configurations that were changed over the wire."""
        self.config = self._dynamic_config()
        self.server.limits = self._limits()
        self.topics.apply_configs(broker_config=self.config)
        self.cleaning.reconfigure()

    def log_changed(self, log: Log) -> None:
        """After every append and whatever else a fetch may wait for."""
        self.housekeeping.saw_change()
        if log.config.flush_ms != LONG_MAX:
            self.housekeeping.saw_timed_append(log)
        self.purgatory.wake(log)
        if log.config.is_compacted:
            self.cleaning.saw_append(log)

    def _flush_due(self, log: Log) -> None:
        """A segment was rolled, or `flush.messages` is reached."""
        self.flusher.request(log)
        self.cleaning.rolled(log)

    def _index_damaged(self, log: Log, segment: Segment) -> None:
        if self.index_mender is None:
            from diamant.broker.node.index_repair import IndexMender

            self.index_mender = IndexMender()
        self.index_mender.request(log, segment)

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

    # -- erasures and redactions -----------------------------------------------------------------------------------

    def _has_unfinished(self, prefix: str) -> bool:
        found = self.env.list_dir(self.config.data_dir)
        return any(name.startswith(prefix) and not name.endswith(".json") for name in found)

    def undertakings(self) -> list[Cancelling]:
        """Erasures and redactions, as far as they are loaded."""
        return [self.__dict__[name] for name in ("erasures", "redactions") if name in self.__dict__]

    def _undertakings_due_ms(self) -> int | None:
        due = (undertakings.next_due_ms() for undertakings in self.undertakings())
        return min((due_ms for due_ms in due if due_ms is not None), default=None)

    async def _go_on_with_undertakings(self) -> None:
        for undertakings in self.undertakings():
            await undertakings.go_on()

    # -- stop ----------------------------------------------------------------------------------------------------

    def _close_storage(self) -> None:
        try:
            self.metadata.close()
        except OSError as error:
            # It fences our registration in the log, which Kafka's next start replaces anyway: no reason to stop here.
            self.directory.messages.append(f"the metadata log could not be closed in order: {error}")
        if self.config.clock != SYSTEM_CLOCK:
            from diamant.storage.checkpoints.manual_clock_file import keep_clock

            try:
                keep_clock(self.env, self.config.data_dir)
            except OSError as error:
                self.directory.messages.append(
                    f"where the clock stands could not be written, an earlier time is kept: {error}"
                )
        self.directory.close(broker_epoch=self.metadata.broker_epoch, threads=self.config.num_recovery_threads)

    def _abandon(self) -> None:
        """After a failed start: leave the directory as a crash would."""
        self.directory.close(is_clean=False)
