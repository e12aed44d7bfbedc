"""The broker: composition root, lifecycle and public facade.

Start: bind the sockets (port 0 becomes a port), lock the directory, read the metadata log, load the partitions,
listen. Stop: the reverse, with requests in progress answered, everything synced and the clean-shutdown mark set.

    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=path)) as broker: ...
    with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=path)) as broker: ...      # an event loop in its own thread
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from diamant.broker.cannot_start import told
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.listeners import Addresses
from diamant.broker.dispatch.services import Services
from diamant.broker.dispatch.table import TABLE, load
from diamant.broker.http.endpoints.table import ENDPOINTS
from diamant.broker.http.serving.server import HttpServer, open_http
from diamant.broker.network.listener_sockets import bound_socket, reachable
from diamant.broker.network.loop_thread import LoopThread
from diamant.broker.node.node import Node, open_clock, open_metadata
from diamant.broker.node.scheduler import ScheduledTask
from diamant.broker.node.topics import GROUP_OFFSETS_TOPIC, INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC
from diamant.broker.operations.cross_loop import call, on_loop
from diamant.storage.env.env import Env, RealEnv
from diamant.storage.recovery.log_directory import LogDirectory

if TYPE_CHECKING:
    from diamant.broker.erasure.erase import Erasure
    from diamant.broker.erasure.redact import Redaction
    from diamant.broker.faults.faults import Faults
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.operations.clock import BrokerClock
    from diamant.broker.operations.count import TopicRecords
    from diamant.broker.operations.explain import Explanation
    from diamant.broker.operations.progress import Progress
    from diamant.broker.transactions.coordinator import TransactionCoordinator
    from diamant.cleaner.on_demand.report import CompactionReport
    from diamant.protocol.batches.header import Record

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 10.0
"""The time that a stop waits for requests in progress before it closes their connections."""

COORDINATORS_HEAD_START_S = 0.2
"""The time that a start waits for transactions and groups to load before it accepts clients."""

NOT_STARTED = "the broker does not run: enter it, or await start(), first"

T = TypeVar("T")


class Broker:
    """A Kafka broker with its controller, on one log directory.

    All state belongs to the thread that runs the event loop: the caller's with `async with`, an own one with `with`.
    `env` replaces the operating system in tests.
    """

    def __init__(self, config: BrokerConfig | None = None, *, env: Env | None = None, **settings: Any) -> None:
        """`settings` are those of a `BrokerConfig` and stand for one: `Broker(listen="127.0.0.1:0", data_dir="data")`."""
        if config is not None and settings:
            raise TypeError(f"Broker got a BrokerConfig and {', '.join(settings)}: give these to the BrokerConfig")
        self._static_config = config if config is not None else BrokerConfig(**settings)
        self.env: Env = env if env is not None else RealEnv()
        self.addresses = Addresses([])
        self._node: Node | None = None
        self._services: Services | None = None
        self._http: HttpServer | None = None
        self._is_started = False
        self._thread: LoopThread | None = None

    @property
    def config(self) -> BrokerConfig:
        """The configuration in effect; what was set over the wire is in it."""
        return self._static_config if self._node is None else self._node.config

    @property
    def node(self) -> Node:
        """The parts that the broker runs on. RuntimeError before the start."""
        if self._node is None:
            raise RuntimeError(NOT_STARTED)
        return self._node

    @property
    def services(self) -> Services:
        """The parts that answer requests. RuntimeError before the start."""
        if self._services is None:
            raise RuntimeError(NOT_STARTED)
        return self._services

    @property
    def bootstrap_servers(self) -> str:
        """The value for a client's `bootstrap.servers`: every listener's address."""
        return ",".join(listener.address for listener in self.addresses.kafka)

    @property
    def http_url(self) -> str | None:
        """The URL of `/metrics` and `/health` for this machine, ``http://host:port``; None if HTTP is off."""
        return self.addresses.http_url

    @property
    def cluster_id(self) -> str:
        """The id in meta.properties, the same for the directory's whole life."""
        return self.node.cluster_id

    @property
    def faults(self) -> Faults:
        """Faults on demand; may be used from any thread while the broker runs."""
        return self.services.faults()

    @property
    def clock(self) -> BrokerClock:
        """The broker's clock: reads it, and moves it if it is manual; may be used from any event loop."""
        return self.services.clock()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that owns the broker's state. RuntimeError before the start."""
        return self.node.loop

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Wait for one of the coroutines below in a thread that is not the broker's: ``broker.call(broker.clock.advance("8d"))``.

        TimeoutError after `timeout_s`.
        """
        return call(self.loop, coroutine, timeout_s)

    # -- operations ----------------------------------------------------------------------------------------------

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
        return await self.services.compactions().compact(
            topic,
            partition,
            until=until,
            timeout_ms=timeout_ms,
            is_forced=is_forced,
            return_at_horizon=return_at_horizon,
            engine=engine,
            progress=progress,
        )

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
        have not passed it. May be awaited in any event loop. Raises VerbError (`client/errors.py`).
        """
        explaining = self.services.explain()
        return await on_loop(
            self.loop,
            lambda: explaining.explain(topic, partition=partition, key=key, offset=offset, is_tombstones=is_tombstones),
        )

    async def count(self, topic: str, partition: int | None = None, *, is_exact: bool = False) -> TopicRecords:
        """Return how many records a topic has: live, superseded, tombstones, others; and markers.

        At once with bounds, or exactly, once every record was read. May be awaited in any event loop. Raises VerbError.
        """
        return await on_loop(self.loop, lambda: self.services.count().count(topic, partition, is_exact=is_exact))

    def latest(
        self, topic: str, partition: int | None = None, *, with_tombstones: bool = False
    ) -> AsyncGenerator[tuple[int, Record], None]:
        """Yield the latest committed record of each key, with its partition: what a log has that is compacted to its end.

        Of one moment for each partition, read as it is asked for. In any event loop; `contextlib.aclosing` for who ends it
        early. Raises VerbError.
        """
        from diamant.broker.operations.latest import records_on_any_loop

        return records_on_any_loop(self.services.latest, self.loop, topic, partition, with_tombstones=with_tombstones)

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
        from diamant.broker.erasure.requests import EraseRequest

        names = tuple(sorted({topics} if isinstance(topics, str) else {*topics}))
        request = EraseRequest(
            bytes(key), names, reason, reference, is_now, is_confirmed, is_forced, engine, timeout_ms
        )
        return await self.services.erasures().erase(request, progress)

    async def erase_now(
        self,
        erasure_id: str,
        *,
        is_confirmed: bool = False,
        timeout_ms: int | None = None,
        progress: Progress | None = None,
    ) -> Erasure:
        """Resume now an erasure that waits for its tombstones' horizon, as if `erase` had had `is_now`.

        It is the same erasure: its certificate for `key-gone` has what it found. If groups are behind the tombstones nothing is
        changed without `is_confirmed`: `is_now_refused` is true then, and `groups_behind` names them. Raises VerbError: NotFound
        (it is over), NotPossible, TimedOut, EraseFailed. From any event loop.
        """
        return await self.services.erasures().erase_now(
            erasure_id, is_confirmed=is_confirmed, timeout_ms=timeout_ms, progress=progress
        )

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

        `where` as in `key == "customer-42"` or `value.customer.email == "ada@example.com"` (docs/how-to/redact.md). All other
        records keep their offsets. On a compacted topic older values of a matched key go, too. `yes_all`: even if every record
        matches. `undecided`: what becomes of values that are no JSON and may be meant: `hold` certifies nothing, `remove`, or
        `keep`.
        Raises VerbError: NotFound, NotPossible, BadArgument, TimedOut, RedactFailed.
        """
        from diamant.broker.erasure.requests import RedactRequest

        request = RedactRequest(topic, where, reason, reference, yes_all, undecided, timeout_ms)
        return await self.services.redactions().redact(request, progress)

    async def cancel(self, job_id: str, *, reason: str) -> Erasure | Redaction:
        """End an erasure or a redaction that is not over, and return its last certificate. From any event loop.

        Finished steps stay, and no more follow. The certificate says `not-certified`, and that it was cancelled, with
        the `reason`. It needs no scan and comes as soon as the attempt in progress has ended. Raises VerbError:
        NotFound, BadArgument, NotPossible, and EraseFailed or RedactFailed if the certificate cannot be written.
        """
        from diamant.broker.erasure.cancel import cancel_job

        found: Erasure | Redaction = await cancel_job(self.services.jobs, job_id, reason=reason)
        return found

    # -- lifecycle -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the directory and listen. Raises CannotStart, and holds nothing then."""
        config, env = self._static_config, self.env
        with told(str(config.data_dir)), contextlib.ExitStack() as undo:
            sockets = []
            for listener in config.listeners:
                with told(listener.address):
                    sockets.append((listener, undo.enter_context(bound_socket(listener))))
            self.addresses = Addresses([reachable(listener, sock) for listener, sock in sockets])
            directory = await asyncio.to_thread(
                LogDirectory.open, env, config.data_dir, producer_expiration_ms=config.producer_id_expiration_ms
            )
            undo.callback(directory.close, is_clean=False)  # as a crash would leave it
            await asyncio.to_thread(open_clock, env, config)
            metadata = await asyncio.to_thread(open_metadata, env, config, self.addresses)
            undo.callback(metadata.close, clean=False)
            node = self._node = Node(config, env, directory, metadata, self.addresses)
            undo.callback(self._abandon_node)
            services = self._services = Services(node, TABLE, load)
            await node.load()
            services.housekeeping.schedule()
            node.scheduler.add(ScheduledTask("erasures", services.next_job_ms, services.run_due_jobs))
            await self._load_coordinators()
            for (listener, sock), told_of in zip(sockets, config.advertised(self.addresses.kafka), strict=True):
                services.server.listen(sock, listener.name, told_of.host, told_of.port)
            # In the same turn of the loop: a client that the Kafka port answers finds HTTP there.
            node.started_s = time.monotonic()
            self._http = open_http(services, ENDPOINTS)
            undo.callback(self._abandon_http)
            await services.start()
            self._is_started = True
            undo.pop_all()
        logger.info("started with %s in %s", _partitions_text(directory), config.data_dir)
        await services.resume_jobs()

    async def stop(self) -> None:
        """Answer requests in progress, flush everything, release the directory. Stopping twice is harmless."""
        if not self._is_started:
            return
        node, services = self.node, self.services
        self._is_started = False
        node.is_stopping = True
        services.server.stop_accepting()
        node.purgatory.close()
        await services.stop()
        await services.server.close(STOP_TIMEOUT_S)
        http, self._http, self.addresses.http = self._http, None, None
        if http is not None:
            await http.close()
        await node.scheduler.stop()
        await services.cleaning.stop()
        await node.stop()
        try:
            await asyncio.to_thread(node.close)
        finally:
            for message in node.directory.messages:
                logger.warning("%s", message)
        logger.info("stopped")

    async def _load_coordinators(self) -> None:
        """Load the state of groups and transactions that there is from before, in the background if it takes long.

        Most have little, and members that hear of a loading group wait for seconds before they ask again.
        """
        coordinators: list[TransactionCoordinator | GroupCoordinator] = []
        if TRANSACTION_STATE_TOPIC in self.node.topics.by_name:
            coordinators.append(self.services.transactions())
        if GROUP_OFFSETS_TOPIC in self.node.topics.by_name:
            coordinators.append(self.services.groups())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COORDINATORS_HEAD_START_S):
                for coordinator in coordinators:
                    await coordinator.loaded()

    def _abandon_node(self) -> None:
        """Drop it after a start that failed: what needs a running broker says so again."""
        self.node.batch_checkers.shutdown()
        self._node = self._services = None

    def _abandon_http(self) -> None:
        """Release it after a failed start."""
        http, self._http, self.addresses.http = self._http, None, None
        if http is not None:
            http.abandon()

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


def _partitions_text(directory: LogDirectory) -> str:
    internal = sum(topic in INTERNAL_TOPICS for topic, _ in directory.logs)
    count = len(directory.logs) - internal
    text = f"{count} partition{'s' * (count != 1)}"
    return f"{text} (and {internal} of internal topics)" if internal else text
