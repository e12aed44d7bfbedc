"""The broker as programs use it.

async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=path)) as broker: ...
with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=path)) as broker: ...      # an event loop in its own thread
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.listeners import Addresses
from diamant.broker.dispatch.services import Services
from diamant.broker.network.loop_thread import LoopThread
from diamant.broker.node.node import Node
from diamant.broker.operations.cross_loop import call, on_loop
from diamant.broker.running import RunningBroker, start_broker
from diamant.storage.env.env import Env, RealEnv

if TYPE_CHECKING:
    from diamant.broker.erasure.erase.erase_result import Erasure
    from diamant.broker.erasure.redact.redact_result import Redaction
    from diamant.broker.faults.faults import Faults
    from diamant.broker.operations.clock import BrokerClock
    from diamant.broker.operations.count import TopicRecords
    from diamant.broker.operations.explain import Explanation
    from diamant.broker.operations.progress import Progress
    from diamant.cleaner.on_demand.report import CompactionReport
    from diamant.protocol.batches.header import Record

T = TypeVar("T")


class Broker:
    """A Kafka broker with its controller, on one log directory.

    All state belongs to the thread that runs the event loop: the caller's with `async with`, an own one with `with`. The
    operations below may be awaited in any event loop, and raise VerbError (`client/errors.py`). `env` replaces the operating
    system in tests.
    """

    def __init__(self, config: BrokerConfig | None = None, *, env: Env | None = None, **settings: Any) -> None:
        """`settings` are those of a `BrokerConfig` and stand for one: `Broker(listen="127.0.0.1:0", data_dir="data")`."""
        if config is not None and settings:
            raise TypeError(f"Broker got a BrokerConfig and {', '.join(settings)}: give these to the BrokerConfig")
        self._static_config = config if config is not None else BrokerConfig(**settings)
        self.env: Env = env if env is not None else RealEnv()
        self.addresses = Addresses([])
        self._running: RunningBroker | None = None
        self._thread: LoopThread | None = None

    @property
    def running(self) -> RunningBroker:
        """The parts that it runs on. RuntimeError before the start, as for those below."""
        if self._running is None:
            raise RuntimeError("the broker does not run: enter it, or await start(), first")
        return self._running

    @property
    def node(self) -> Node:
        """The parts that know no API."""
        return self.running.node

    @property
    def services(self) -> Services:
        """The parts that answer requests."""
        return self.running.services

    @property
    def config(self) -> BrokerConfig:
        """The configuration in effect; what was set over the wire is in it."""
        return self._static_config if self._running is None else self._running.node.config

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
        """The event loop that owns the broker's state."""
        return self.node.loop

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Wait in a thread that is not the broker's: ``broker.call(broker.clock.advance("8d"))``. Raises TimeoutError."""
        return call(self.loop, coroutine, timeout_s)

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
        """Clean a topic, or one partition, now, and return what was done; `CompactRequest` says what the arguments mean."""
        from diamant.cleaner.on_demand.request import CompactRequest

        request = CompactRequest(topic, partition, until, timeout_ms, is_forced, return_at_horizon, engine)
        services = self.services
        return await on_loop(services.node.loop, lambda: services.compactions().compact(request, progress))

    async def explain(
        self,
        topic: str,
        *,
        partition: int | None = None,
        key: bytes | str | None = None,
        offset: int | None = None,
        is_tombstones: bool = False,
    ) -> Explanation:
        """Say what keeps records on the disk, and when they go; `ExplainRequest` says what the arguments mean."""
        from diamant.broker.operations.explain import ExplainRequest

        request = ExplainRequest(topic, partition, key, offset, is_tombstones)
        return await on_loop(self.loop, lambda: self.services.explain().explain(request))

    async def count(self, topic: str, partition: int | None = None, *, is_exact: bool = False) -> TopicRecords:
        """Return how many records a topic has, by kind: at once with bounds, or exactly, once every record was read."""
        return await on_loop(self.loop, lambda: self.services.count().count(topic, partition, is_exact=is_exact))

    def latest(
        self, topic: str, partition: int | None = None, *, with_tombstones: bool = False
    ) -> AsyncGenerator[tuple[int, Record], None]:
        """Yield the latest committed record of each key, with its partition: what a log has that is compacted to its end.

        Of one moment for each partition, read as it is asked for; `contextlib.aclosing` for who ends it early.
        """
        return self.services.latest().records(topic, partition, with_tombstones=with_tombstones)

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
        """Erase a key from compacted topics, and return a signed certificate; `EraseRequest` says what the arguments mean."""
        from diamant.broker.erasure.jobs.requests import EraseRequest

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

        If groups are behind the tombstones nothing is changed without `is_confirmed`: `is_now_refused` is true then, and
        `groups_behind` names them.
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
        """Remove the records that match, and return a signed certificate; `RedactRequest` says what the arguments mean."""
        from diamant.broker.erasure.jobs.requests import RedactRequest

        request = RedactRequest(topic, where, reason, reference, yes_all, undecided, timeout_ms)
        return await self.services.redactions().redact(request, progress)

    async def cancel(self, job_id: str, *, reason: str) -> Erasure | Redaction:
        """End an erasure or a redaction that is not over, and return its last certificate, which has the `reason`."""
        from diamant.broker.erasure.jobs.cancel import cancel_job

        found: Erasure | Redaction = await cancel_job(self.services.jobs, job_id, reason=reason)
        return found

    async def start(self) -> None:
        """Open the directory and listen. Raises CannotStart, and holds nothing then."""
        self.addresses = Addresses([])
        self._running = await start_broker(self._static_config, self.env, self.addresses)
        await self.services.resume_jobs()

    async def stop(self) -> None:
        """Answer requests in progress, flush everything, release the directory. Stopping twice is harmless."""
        if self._running is not None:
            await self._running.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __enter__(self) -> Self:
        self._thread = LoopThread(self.start, self.stop)
        self._thread.start_broker()
        return self

    def __exit__(self, *_: object) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop_broker()
