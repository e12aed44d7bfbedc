"""The broker as programs use it.

with Broker() as broker:                       # a `BlockingBroker`, whose event loop runs in a thread of its own
    broker.create_topic("users", compact=True)
    broker.produce("users", "value", key="42")
    broker.compact("users")
    print(list(broker.records("users")))

async with Broker() as broker:                 # on the running event loop
    await broker.create_topic("users", compact=True)
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, overload

from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.listeners import Addresses
from diamant.broker.dispatch.services import Services
from diamant.broker.kept import Kept
from diamant.broker.loop_thread import LoopThread
from diamant.broker.node.node import Node
from diamant.broker.operation_errors import as_operation_error
from diamant.broker.operation_methods import (
    BlockingBrokersOperations,
    BlockingOperations,
    BlockingPersonOperations,
    BrokersOperations,
    Operations,
    PersonOperations,
)
from diamant.broker.operations.calls.cross_loop import call, on_loop, waiting
from diamant.broker.running import RunningBroker, start_broker
from diamant.duration import Duration, seconds_of
from diamant.own_thread import in_own_thread, to_its_end
from diamant.storage.env.env import Env, RealEnv

if TYPE_CHECKING:
    from diamant.broker.client.client_config import ClientConfig
    from diamant.broker.faults.installed_faults import Faults
    from diamant.broker.operations.broker_state.broker_clock import BlockingClock, BrokerClock
    from diamant.broker.operations.records.produce_operation import Data, Headers, Produced
    from diamant.broker.operations.records.records_operation import RecordPage
    from diamant.broker.schedules.schedule import Schedule
    from diamant.broker.schedules.schedule_history import History
    from diamant.broker.snapshots.fork_directory import ForkDirectory
    from diamant.broker.snapshots.snapshot_store import BrokerSnapshot
    from diamant.protocol.batches.header import Record

T = TypeVar("T")


SMALL = ("offsets_topic_num_partitions", "transaction_state_log_num_partitions")
"""Settings whose default on a temporary directory is the number of brokers."""


def _small(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Default internal topics to one partition for each broker, as testcontainers does, unless the caller sets the count.

    Kafka's 50 empty partitions make the first group, every fork and every reset several times slower.
    """
    said = {name.replace(".", "_") for name in (*settings, *(settings.get("properties") or ()))}
    count = settings.get("brokers", settings.get("diamant_brokers", 1))
    return {**{name: count for name in SMALL if name not in said}, **settings}


class HasBroker(Protocol):
    """A `Broker` or a `BlockingBroker`."""

    @property
    def awaited(self) -> Broker: ...


class BrokerFacts:
    """Facts about a broker, the same for programs with and without an event loop."""

    @property
    def node(self: HasBroker) -> Node:
        """The parts that know no API, for the broker's own thread. Raises RuntimeError unless the broker runs, as do others."""
        return self.awaited.running.node

    @property
    def services(self: HasBroker) -> Services:
        """The parts that answer requests, for use on the broker's own thread."""
        return self.awaited.running.services

    @property
    def config(self: HasBroker) -> BrokerConfig:
        """The configuration in effect, including values that clients have set."""
        broker = self.awaited
        return broker._static_config if broker._running is None else broker._running.node.config

    @property
    def bootstrap_servers(self: HasBroker) -> str:
        """The value for a client's `bootstrap.servers`, which lists every listener's address."""
        return ",".join(listener.address for listener in self.awaited.addresses.kafka)

    def client_config(
        self: HasBroker,
        user: str | None = None,
        *,
        password: str | None = None,
        mechanism: str | None = None,
        certificate: str | None = None,
    ) -> ClientConfig:
        """Return the configuration of a client that logs in as one of `users`, as another user with a password, or not at all.

        `mechanism`: by default the strongest that the listener offers. `certificate`: with `tls=True`, the name in a certificate
        that is made for the client. Raises ValueError if no listener suits or the password is not known.
        """
        from diamant.broker.security.sasl.client_of_broker import client_of_broker

        broker, tls = self.awaited, self.awaited.node.tls
        config = client_of_broker(broker.config, broker.addresses, user, password, mechanism)
        if tls is not None:
            return tls.completed(config, certificate)
        if certificate is not None:
            raise ValueError("client certificates are made with BrokerConfig(tls=True) only")
        return config

    @property
    def http_url(self: HasBroker) -> str | None:
        """The base URL of `/metrics`, `/health` and `/v1` on this machine, ``http://host:port``; None if HTTP is off."""
        return self.awaited.addresses.http_url

    @property
    def cluster_id(self: HasBroker) -> str:
        """The cluster id in meta.properties. It stays the same for the directory's whole life."""
        return self.awaited.node.cluster_id

    @property
    @as_operation_error()
    def faults(self: HasBroker) -> Faults:
        """Faults on demand, usable from any thread while the broker runs."""
        return self.awaited.services.faults()

    @property
    def loop(self: HasBroker) -> asyncio.AbstractEventLoop:
        """The event loop that owns the broker's state, even after the broker has stopped."""
        loop = self.awaited._loop
        return self.awaited.node.loop if loop is None else loop


class Broker(BrokerFacts, Operations):
    """A Kafka broker with its controller, on one log directory.

    All state belongs to the thread that runs the event loop. That is the caller's thread with `async with`, and a new thread with
    `with`, which returns a `BlockingBroker`. Operations may be awaited in any event loop. They raise OperationError
    (`operation_errors.py`). `env` replaces the operating system in tests.
    """

    def __init__(self, config: BrokerConfig | None = None, *, env: Env | None = None, **settings: Any) -> None:
        """`settings` are those of a `BrokerConfig`. By default, `listen` is a free port and `data_dir` a temporary directory.

        In a temporary directory, internal topics have one partition for each broker unless the settings say otherwise.
        """
        if config is not None and settings:
            raise TypeError(f"Broker got a BrokerConfig and {', '.join(settings)}: give these to the BrokerConfig")
        self._temporary_directory: str | None = None
        if config is None:
            if settings.get("data_dir") is None:
                from tempfile import gettempdir  # its imports would delay each start that does not need it

                self._temporary_directory = os.path.join(gettempdir(), f"diamant-{os.urandom(8).hex()}")
                settings = {"data_dir": self._temporary_directory, **_small(settings)}
            config = BrokerConfig(**{"listen": "127.0.0.1:0", **settings})
        self._static_config = config
        self.env: Env = env if env is not None else RealEnv()
        self.addresses = Addresses([])
        self._running: RunningBroker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Lock()
        """A lock by which starts and stops wait for each other."""
        self._kept = Kept()
        self._giving_up: weakref.finalize[..., Broker] | None = None
        """For a stopped broker: gives up its ports and temporary directory, at the latest when it is garbage-collected."""
        self._thread: LoopThread | None = None
        self._fork: ForkDirectory | None = None
        """The directory of a fork; None for any other broker."""

    @property
    def awaited(self) -> Broker:
        """This broker, whose operations are awaited."""
        return self

    @property
    def running(self) -> RunningBroker:
        """The parts of the running broker. Raises RuntimeError before the start and after a stop."""
        if self._running is None:
            raise RuntimeError("the broker is not running: use it inside `with`, or call start() first")
        return self._running

    @property
    @as_operation_error()
    def clock(self) -> BrokerClock:
        """The broker's clock, to read and, if it is manual, to move; usable from any event loop."""
        return self.services.clock()

    @property
    def brokers(self) -> BrokersOperations:
        """The brokers of this process, to take down and bring up; usable from any event loop."""
        return BrokersOperations(self)

    @property
    def person(self) -> PersonOperations:
        """The operations on a person's data in all topics; usable from any event loop."""
        return PersonOperations(self)

    def call(self, coroutine: Coroutine[Any, Any, T], timeout: Duration | None = None) -> T:
        """Run a coroutine on the broker's loop, wait for it on another thread and return its result. Raises TimeoutError.

        ``broker.call(broker.clock.advance("8d"))``
        """
        return call(self.loop, coroutine, None if timeout is None else seconds_of(timeout))

    async def create_topic(
        self, topic: str, /, partitions: int | None = None, *, compact: bool = False, **configs: object
    ) -> None:
        """Create a topic: `create_topic("users", 3, compact=True, segment_ms=60_000)`.

        `configs` are Kafka's topic configurations with underscores; `compact` is `cleanup_policy="compact"`. Raises KafkaError.
        """
        if compact:
            configs["cleanup_policy"] = "compact"
        with as_operation_error():
            await on_loop(self.loop, self.services.produce().create_topic(topic, partitions, configs))

    async def produce(
        self,
        topic: str,
        value: Data,
        key: Data = None,
        *,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> Produced:
        """Write one record and return its location. A value of None is a tombstone. See `ProduceOperation`."""
        with as_operation_error():
            producing = self.services.produce()
            return await on_loop(self.loop, producing.produce(topic, value, key, partition, headers, timestamp_ms))

    @as_operation_error()
    def records(self, topic: str, partition: int | None = None) -> AsyncGenerator[tuple[int, Record], None]:
        """Yield each committed record that a consumer would read now, with its partition. On closing, see `latest`."""
        operation = self.services.records()
        return operation.records(operation.pages(topic, partition))

    @as_operation_error()
    def latest(
        self, topic: str, partition: int | None = None, *, tombstones: bool = False
    ) -> AsyncGenerator[tuple[int, Record], None]:
        """Yield the latest committed record of each key, with its partition, as if the log were compacted to its end.

        Each partition is read as of one moment, page by page. A caller that may stop early closes this (`contextlib.aclosing`).
        """
        operation = self.services.records()
        return operation.records(operation.latest_pages(topic, partition, tombstones=tombstones))

    async def reset(self, snapshot: BrokerSnapshot | str, *, seamless: bool = False) -> None:
        """Restore a snapshot, given as an object or by its id. To clients this looks like a restart. See `ResetRequest`."""
        snapshot_id = snapshot if isinstance(snapshot, str) else snapshot.id
        with as_operation_error():
            await on_loop(self.loop, self.running.reset(snapshot_id, seamless))

    async def play(self, schedule: Schedule) -> History:
        """Run the cleaner between clients' fetches by a schedule (`diamant.schedules`); return the history, which grows."""
        with as_operation_error():
            from diamant.broker.schedules.play import play

            return await on_loop(self.loop, play(self.node, schedule))

    async def fork(self, /, **settings: Any) -> Broker:
        """Return another broker with a copy of this broker's present data. It starts when it is entered, on free ports.

        Closed segments are hard links, so a fork takes little time and disk space. The copy is beside the data directory and is
        removed when the fork ends. `settings`: changes to the `BrokerConfig`. An OperationError leaves nothing behind.
        """
        with as_operation_error():
            from diamant.broker.snapshots.fork_directory import make_fork, new_fork_of

            directory = new_fork_of(self.config.data_dir)
            env = RealEnv() if isinstance(self.env, RealEnv) else self.env
            fork = Broker(self._static_config.elsewhere(directory, **settings), env=env)
            fork._fork = await on_loop(self.loop, make_fork(self.node, directory, self.running.remove_later))
            return fork

    async def start(self) -> None:
        """Open the directory and listen. Starting twice is harmless. Raises CannotStart, and then holds nothing.

        After `stop`, the broker starts with the same data on the same ports.
        """
        async with self._turn:
            if self._running is None:
                await self._start()

    async def _start(self) -> None:
        self._loop, is_first = asyncio.get_running_loop(), self._giving_up is None
        self.addresses = Addresses([] if is_first else self.addresses.kafka)
        if self._temporary_directory is not None and is_first:
            os.mkdir(self._temporary_directory, 0o700)
        if self._fork is not None:
            self._fork.lock.release()  # the start locks it again
        try:
            self._running = await start_broker(self._static_config, self.env, self.addresses, self._kept)
        except BaseException:
            if is_first:
                self._give_up()
            elif self._fork is not None:
                self._fork.lock_again()
            raise

    async def stop(self) -> None:
        """Answer requests in progress, flush everything, release the directory. Stopping twice is harmless.

        The ports stay reserved, and a temporary directory stays, until `start`, the end of `with`, or the end of the last
        reference to the broker. Faults and schedules of compactions end.
        """
        async with self._turn:
            if self._running is None:
                return
            if self._giving_up is None:
                paths = _paths(self._temporary_directory)
                self._giving_up = weakref.finalize(self, _give_up, os.getpid(), self._kept, paths)
            try:
                await to_its_end(self._running.stop(self._kept))
            finally:
                self._running = None
                if self._fork is not None:
                    self._fork.lock_again()

    async def _end(self) -> None:
        """Stop without keeping the ports or a temporary directory."""
        async with self._turn:
            running, self._running = self._running, None
            try:
                if running is not None:
                    await to_its_end(running.stop(has_next=self._temporary_directory is None and self._fork is None))
            finally:
                await in_own_thread(self._give_up)

    def _give_up(self) -> None:
        if self._fork is not None:
            self._fork.lock.release()
            self._fork.remove()
        if self._giving_up is not None:
            self._giving_up.detach()
            self._giving_up = None
        _give_up(os.getpid(), self._kept, _paths(self._temporary_directory))

    async def __aenter__(self) -> Self:
        self._check_not_entered()
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    def __enter__(self) -> BlockingBroker:
        self._check_not_entered()
        self._thread = LoopThread(self.start, self._end)
        self._thread.start_broker()
        return BlockingBroker(self)

    def __exit__(self, *_: object) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop_broker()

    def _check_not_entered(self) -> None:
        if self._running is not None:
            raise RuntimeError("this broker is running already")


def _paths(temporary_directory: str | None) -> list[str]:
    return [] if temporary_directory is None else [temporary_directory, f"{temporary_directory}.snapshots"]


def _give_up(process_id: int, kept: Kept, paths: Sequence[str]) -> None:
    """Close the kept ports and remove a temporary directory, but do nothing in a forked process."""
    if os.getpid() != process_id:
        return
    kept.close()
    if paths:
        import shutil

        for path in paths:
            shutil.rmtree(path, ignore_errors=True)


class BlockingBroker(BrokerFacts, BlockingOperations):
    """A running broker for programs without an event loop: each operation of `Broker` blocks until it is done.

    Usable from any thread but the broker's own.
    """

    def __init__(self, awaited: Broker) -> None:
        self.awaited = awaited

    @property
    def addresses(self) -> Addresses:
        """All addresses at which the broker listens."""
        return self.awaited.addresses

    @property
    def env(self) -> Env:
        """The broker's access to the operating system."""
        return self.awaited.env

    @property
    @as_operation_error()
    def clock(self) -> BlockingClock:
        """The broker's clock, to read and, if it is manual, to move."""
        from diamant.broker.operations.broker_state.broker_clock import BlockingClock

        return BlockingClock(self.awaited.clock, self.loop)

    @property
    def brokers(self) -> BlockingBrokersOperations:
        """The brokers of this process, to take down and bring up."""
        return BlockingBrokersOperations(self.awaited.brokers, self.loop)

    @property
    def person(self) -> BlockingPersonOperations:
        """The operations on a person's data in all topics."""
        return BlockingPersonOperations(self.awaited.person, self.loop)

    start = waiting(Broker.start)
    stop = waiting(Broker.stop)
    create_topic = waiting(Broker.create_topic)
    produce = waiting(Broker.produce)
    reset = waiting(Broker.reset)
    fork = waiting(Broker.fork)
    play = waiting(Broker.play)

    @as_operation_error()
    def records(self, topic: str, partition: int | None = None) -> Generator[tuple[int, Record]]:
        """Yield each committed record that a consumer would read now, with its partition."""
        return self._each(self.services.records().pages(topic, partition))

    @as_operation_error()
    def latest(
        self, topic: str, partition: int | None = None, *, tombstones: bool = False
    ) -> Generator[tuple[int, Record]]:
        """Yield the latest committed record of each key of a topic, with its partition."""
        return self._each(self.services.records().latest_pages(topic, partition, tombstones=tombstones))

    @overload
    def call(self, coroutine: Coroutine[Any, Any, T], timeout: Duration | None = None) -> T: ...

    @overload
    def call(self, coroutine: T, timeout: Duration | None = None) -> T: ...

    def call(self, coroutine: Any, timeout: Duration | None = None) -> Any:
        """Run a coroutine of your own on the broker's loop, wait for it and return its result. Raises TimeoutError.

        Any other value is returned as it is, so that ``broker.call(broker.compact("users"))``, once needed, still works.
        """
        return self.awaited.call(coroutine, timeout) if isinstance(coroutine, Coroutine) else coroutine

    def _each(self, pages: AsyncGenerator[RecordPage, None]) -> Generator[tuple[int, Record]]:
        async def next_page() -> RecordPage | None:
            return await anext(pages, None)

        async def close() -> None:
            await pages.aclose()

        try:
            while (page := self.call(next_page())) is not None:
                yield from ((page.partition, record) for record in page.records)
        finally:
            self.call(close())
