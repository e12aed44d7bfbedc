"""A running broker: its node, its services and its HTTP port, from the start to the stop.

Start: bind the sockets (port 0 becomes a free port), lock the directory, read the metadata log, load the partitions,
listen. Stop: the reverse, with requests in progress answered, everything synced and the clean-shutdown mark set.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from diamant.broker.brokers.ports import BrokerPorts
from diamant.broker.cannot_start import CannotStart, as_cannot_start
from diamant.broker.config.authorization_table import ACLS, acls_of
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.listeners import SASL_PROTOCOLS, TLS_PROTOCOLS, Addresses, Listener
from diamant.broker.config.sasl_table import USERS, parse_users
from diamant.broker.config.security_table import unprotected_ports
from diamant.broker.dispatch.api_table import ERRORS, load
from diamant.broker.dispatch.services import Services
from diamant.broker.http.serving.server import HttpServer, open_http
from diamant.broker.kept import Kept
from diamant.broker.network.listener_sockets import reachable
from diamant.broker.node.node import Node, open_clock, open_metadata
from diamant.broker.node.scheduler import ScheduledTask
from diamant.broker.operation_errors import NotPossible, OperationError
from diamant.broker.topics.internal_names import INTERNAL_TOPICS
from diamant.kernels import ARE_COMPILED, WITHOUT_KERNELS
from diamant.own_thread import in_own_thread, to_its_end, wait_in_spite_of_cancelling
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage import names
from diamant.storage.config_key import ConfigError
from diamant.storage.directory.log_directory import LogDirectory
from diamant.storage.env.clocks import ManualClock, SystemClock
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError
from diamant.storage.kraft.features import METADATA_VERSION, RELEASES

if TYPE_CHECKING:
    from diamant.broker.erasure.jobs.pending_jobs import AnyQueue
    from diamant.broker.security.sasl.sasl_listeners import SaslListeners
    from diamant.broker.security.tls.throw_away import ThrowAwayCa
    from diamant.broker.security.tls.tls_listeners import TlsListeners
    from diamant.broker.snapshots.snapshot_store import SnapshotFiles
    from diamant.storage.kraft.metadata_log import MetadataLog

logger = logging.getLogger("diamant.broker.broker")
"""The logger keeps this name because it is in users' logs."""

_TAKEN_OVER = (
    "the last broker on %s was not Diamant's: its logs are now cleaned by the rules of diamant.cleaner.mode=%s (kafka: Kafka's, "
    "byte for byte; prompt: Diamant's, which remove records as soon as Kafka's guarantees allow)"
)

STOP_TIMEOUT_S = 10.0
"""The time that a stop waits for requests in progress before it closes their connections."""
STUCK_TIMEOUT_S = 30.0
"""The time that a stop waits for threads before the last flush. A thread that waits for a dead disk or a pipe may never end."""
MIN_WAIT_S = 1.0
"""The least time that a stop waits for each part."""


class RunningBroker:
    """The parts of a broker between its start and its stop."""

    def __init__(self, config: BrokerConfig, node: Node, services: Services) -> None:
        self._config = config
        self.node = node
        self.services = services
        self.http: HttpServer | None = None
        services.reset = self.reset
        services.ports = BrokerPorts(services.server)
        self._resetting: asyncio.Task[None] | None = None
        self._removing: asyncio.Task[None] | None = None
        """The removal of the data that the last reset has replaced."""
        self._left_behind: list[str] = []
        """Parts of the stop that failed or that a stuck thread held up."""
        self._stuck_at_s = 0.0
        """The time on the loop's clock from which the stop waits only `MIN_WAIT_S` for a part."""

    async def start(self, sockets: Iterable[socket.socket], kept: Kept) -> None:
        """Load the data, and listen at the bound sockets, one for each of the node's addresses. If this fails, call `stop`."""
        node, services = self.node, self.services
        node.tls = await open_tls(node.config, services.server.refused.log, kept.authority)
        await node.load()
        await _put_users(node)
        await _put_acls(node)
        await _prepare(services)
        self._listen(sockets)
        _follow_table(services)
        # Open HTTP in the same turn of the loop, so that a client that reaches Kafka can also reach HTTP.
        node.started_s = time.monotonic()
        http_tls = None if node.tls is None else node.tls.http
        self.http = open_http(services, node.config.http_listener, bind=kept.bound, tls=http_tls)
        await services.start()
        logger.info("started with %s in %s", _partitions_text(node.directory), self._config.data_dir)
        if not ARE_COMPILED:
            logger.warning(WITHOUT_KERNELS)
        await services.resume_jobs()

    def _listen(self, sockets: Iterable[socket.socket]) -> None:
        addresses, tls = self.node.addresses.kafka, self.node.tls
        for sock, actual, told_of in zip(sockets, addresses, self._config.advertised(addresses), strict=True):
            broker_id = self._config.node_id + actual.broker
            listen = partial(
                self.services.server.listen,
                listener_name=actual.name,
                advertised_host=told_of.host,
                advertised_port=told_of.port,
                security_protocol=actual.security_protocol,
                tls=None if tls is None else tls.by_name.get(actual.name),
                broker_id=broker_id,
            )
            with as_cannot_start(_place(self._config, actual)):
                self.services.ports.add(broker_id, sock, actual, listen)

    async def stop(self, kept: Kept | None = None, *, has_next: bool = True) -> None:
        """Answer requests in progress, flush everything, release the directory. Stopping twice is harmless.

        `kept` receives the parts for the next start of this broker. Without `has_next`, nothing is flushed: the directory
        is about to be removed, or the start has failed, and the next one recovers.
        """
        for task in filter(None, (self._resetting, self._removing)):
            await asyncio.wait({task})
        node, services = self.node, self.services
        if node.is_stopping:
            return
        node.is_stopping = True
        self._stuck_at_s = asyncio.get_running_loop().time() + STUCK_TIMEOUT_S
        services.server.stop_accepting()
        services.ports.close_all()
        if kept is not None:
            for listener, actual in zip(self._config.all_listeners, node.addresses.kafka, strict=True):
                kept.keep(listener, actual.port)
        if node.tls is not None:
            node.tls.close()
            if kept is not None:
                kept.authority = node.tls.authority
        node.purgatory.close()
        await self._wait_for(services.stop(), "jobs and coordinators")
        await self._wait_for(services.server.close(STOP_TIMEOUT_S), "connections")
        http, self.http = self.http, None
        if http is not None:
            await self._wait_for(http.close(), "HTTP requests")
            if kept is not None and self._config.http_listener is not None and node.addresses.http is not None:
                kept.keep(self._config.http_listener, node.addresses.http.port)
        node.addresses.http = None
        if services.audit.made is not None:
            await self._wait_for(in_own_thread(services.audit.made.close), "the audit log")
        await self._wait_for(node.scheduler.stop(), "due work")
        await self._wait_for(services.cleaning.stop(), "the cleaner")
        await self._wait_for(node.stop(), "flushes")
        try:
            await in_own_thread(partial(node.close, is_kept=has_next, is_settled=not self._left_behind))
        finally:
            for message in node.directory.messages:
                logger.warning("%s", message)
        logger.info("stopped")

    def remove_later(self, path: str) -> None:
        """Let the housekeeping remove what a fork has left; after the stop, the next start does. Callable from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.node.loop.call_soon_threadsafe(self._remove_later, path)

    def _remove_later(self, path: str) -> None:
        self.node.directory.deletions.add([path])
        self.node.scheduler.poke()

    async def _wait_for(self, work: Coroutine[Any, Any, object], what: str) -> None:
        """Wait for a part of the stop, but not forever: a thread may wait for a disk or a pipe that never answers.

        After an error, the stop continues with the other parts, but is not clean.
        """
        task = asyncio.create_task(work)
        left_s = self._stuck_at_s - asyncio.get_running_loop().time()
        if not (await asyncio.wait({task}, timeout=max(MIN_WAIT_S, left_s)))[0]:
            self._left_behind.append(what)
            logger.error(
                "the shutdown no longer waits for %s: a thread is stuck. The next start recovers the logs", what
            )
            return
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            self._left_behind.append(what)
            logger.error(
                "the shutdown of %s has failed: %s. The next start recovers the logs", what, error, exc_info=error
            )

    async def reset(self, snapshot_id: str, seamless: bool) -> None:
        """Restore the state of a snapshot. The sockets stay; connections are closed unless the reset is `seamless`.

        The reset continues if its caller is cancelled. Raises NotFound; NotPossible during an erasure; OperationError if the
        disk refuses: the broker then answers nothing until its next start, which finishes the reset.
        """
        snapshots = self.services.snapshots()
        copy = snapshots.find(snapshot_id)
        snapshots.check_not_erasing()
        if self.node.is_stopping:
            raise NotPossible("the broker is stopping or is being reset already")
        self.node.is_stopping = True
        self._resetting = asyncio.create_task(self._reset(snapshots.files, copy, seamless))
        await asyncio.shield(self._resetting)

    async def _reset(self, files: SnapshotFiles, copy: str, seamless: bool) -> None:
        from diamant.storage.directory.directory_copy import restore_directory

        if self._removing is not None:
            await asyncio.wait({self._removing})
        await self._wind_down()
        # No await from here until the new services are in place, so no client sees a half-replaced state.
        old, trash = self.node, files.new_trash()
        server, ports = self.services.server, self.services.ports
        if not seamless:
            server.abort_all()
        old.metadata.close(clean=False)
        directory = old.directory.give_up()
        try:
            restore_directory(old.env, copy, files.data_dir, trash, files.mark)
            if isinstance(old.env.clock, ManualClock):
                old.env.clock = SystemClock()
            open_clock(old.env, self._config)
            metadata = open_metadata(old.env, self._config, old.addresses)
            node = Node(self._config, old.env, directory, metadata, old.addresses)
            node.load_now()
            old.env.remove(files.mark)
        except Exception as error:
            server.abort_all()
            server.stop_accepting()
            old.directory, old.is_stopping = directory, False
            raise OperationError(
                f"the reset to {copy} has failed: {error}. Stop the broker; its next start tries again"
            ) from error
        node.started_s, node.tls = old.started_s, old.tls
        self.node, self.services = node, Services(node, ERRORS, load, server, server.sasl, self.services.audit)
        self.services.reset, self.services.ports = self.reset, ports
        _follow_table(self.services)
        if self.http is not None:
            self.http.hand_over(self.services)
        await _prepare(self.services)
        await self.services.start()
        self._removing = asyncio.create_task(files.discard(node, trash))
        logger.info("reset to %s", copy)

    async def _wind_down(self) -> None:
        """End all work in progress without syncing data, which is about to be replaced."""
        node, services = self.node, self.services
        node.topics.makes_no_logs = True
        node.purgatory.close()
        try:
            await services.stop()
        except Exception as error:  # its data on disk is about to be replaced
            logger.error(
                "a job or a coordinator has not stopped cleanly: %s. The reset continues", error, exc_info=error
            )
        await node.scheduler.stop()
        await services.cleaning.stop()
        await node.stop()
        # A thread that is still creating a partition would create it in the new state.
        if node.topics.making:
            await asyncio.wait(set(node.topics.making))
        await services.server.settled(STOP_TIMEOUT_S)


async def start_broker(config: BrokerConfig, env: Env, addresses: Addresses, kept: Kept) -> RunningBroker:
    """Open the directory and listen; fill `addresses`. Raises CannotStart, and then holds nothing.

    `kept`: the parts that the last stop kept. A cancelled start first runs to its end, because its threads cannot be
    interrupted: they would go on writing after the directory's lock was released.
    """
    starting = asyncio.create_task(_start_broker(config, env, addresses, kept))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await wait_in_spite_of_cancelling(starting)
        if starting.exception() is None:
            await to_its_end(starting.result().stop(has_next=False))
        raise


async def _start_broker(config: BrokerConfig, env: Env, addresses: Addresses, kept: Kept) -> RunningBroker:
    has_token = bool(config.diamant_http_token_file)
    for line in unprotected_ports(config.listeners, config.http_listener, has_token=has_token):
        logger.warning("%s", line)
    with as_cannot_start(str(config.data_dir)), contextlib.ExitStack() as undo:
        sasl = await asyncio.to_thread(open_sasl, config)
        sockets = []
        for listener in config.all_listeners:
            with as_cannot_start(_place(config, listener)):
                sockets.append(undo.enter_context(kept.bound(listener)))
        addresses.kafka = [reachable(*pair) for pair in zip(config.all_listeners, sockets, strict=True)]
        directory, metadata = await asyncio.to_thread(_open_data, config, env, addresses)
        if metadata.is_taken_over:
            logger.info(_TAKEN_OVER, config.data_dir, config.diamant_cleaner_mode)
        node = Node(config, env, directory, metadata, addresses)
        running = RunningBroker(config, node, Services(node, ERRORS, load, sasl=sasl))
        try:
            await running.start(sockets, kept)
        except BaseException:
            await running.stop(has_next=False)  # the files stay as a crash would leave them
            raise
        undo.pop_all()
    return running


def _open_data(config: BrokerConfig, env: Env, addresses: Addresses) -> tuple[LogDirectory, MetadataLog]:
    """Lock the directory and read the metadata log. Blocking."""
    with contextlib.ExitStack() as undo:
        directory = LogDirectory.open(env, config.data_dir, producer_expiration_ms=config.producer_id_expiration_ms)
        undo.callback(directory.close, is_clean=False)
        _tidy_up(directory)
        open_clock(env, config)
        _check_acls_of_new(env, config)
        metadata = open_metadata(env, config, addresses)
        undo.pop_all()
    return directory, metadata


async def open_tls(
    config: BrokerConfig, log_refusal: Callable[[str, str], None], authority: ThrowAwayCa | None
) -> TlsListeners | None:
    """Open TLS for the listeners and the HTTP port that have it. Return None if none has TLS. Raises ConfigError.

    `authority`: the throw-away CA of the last start.
    """
    secured = [listener for listener in config.listeners if listener.security_protocol in TLS_PROTOCOLS]
    http = config.http_listener
    if http is not None and http.security_protocol not in TLS_PROTOCOLS:
        http = None
    if not secured and http is None:
        return None
    from diamant.broker.security.tls.tls_listeners import TlsListeners

    tls = TlsListeners(log_refusal, authority)
    try:
        for listener in secured:
            await asyncio.to_thread(tls.open, config, listener)
        if http is not None:
            await asyncio.to_thread(tls.open_http, config)
    except BaseException:
        tls.close()
        raise
    return tls


def _follow_table(services: Services) -> None:
    """Listen for the brokers that are up, and only for them."""
    brokers = services.node.topics.brokers
    if brokers is not None:
        for broker_id in brokers.broker_ids:
            (services.ports.open if brokers.is_up(broker_id) else services.ports.close)(broker_id)


async def _prepare(services: Services) -> None:
    """Prepare everything that requests need, before clients are served."""
    services.housekeeping.schedule()
    await services.quotas.apply()
    services.node.scheduler.add(
        ScheduledTask("erasures", lambda: next_due_ms(services.jobs), lambda: resume_due(services.jobs))
    )
    await services.load_coordinators()


def next_due_ms(queues: Iterable[AnyQueue]) -> int | None:
    """Return the due time of the next job, on the broker's clock; None if there is none."""
    due = (queue.table.next_due_ms() for queue in queues if not queue.is_stopping)
    return min((one for one in due if one is not None), default=None)


async def resume_due(queues: Iterable[AnyQueue]) -> None:
    """Resume the due jobs of each queue: jobs left unfinished by an earlier run, postponed, or waiting for a horizon."""
    for queue in queues:
        await queue.resume_due()


async def _put_users(node: Node) -> None:
    """Add the credentials of `diamant.users` to the metadata log, unless they are there already."""
    if not node.config[USERS]:
        return
    from diamant.broker.security.sasl.scram_keys import changed_credentials

    users = parse_users(USERS, str(node.config[USERS]))
    known = dict(node.metadata.image.scram_credentials)
    records = await asyncio.to_thread(changed_credentials, users, lambda mechanism, user: known.get((mechanism, user)))
    if records:
        node.metadata.append(records)
        await node.topics.sync()


def _check_acls_of_new(env: Env, config: BrokerConfig) -> None:
    """Raise ConfigError for ACLs that a new directory could not hold, before it is formatted."""
    wanted = acls_of(str(config[ACLS]))
    if not wanted or env.exists(f"{config.data_dir}/{names.META_PROPERTIES}"):
        return
    from diamant.broker.security.authorization.acl_store import error_of

    _refuse_acls(error_of(acl, RELEASES[config.diamant_release_version][METADATA_VERSION]) for acl in wanted)


def _refuse_acls(errors: Iterable[KafkaError | None]) -> None:
    for error in filter(None, errors):
        hint = ""
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            hint = (
                " A new directory has it with diamant.release.version=4.4 (diamant start --release-version 4.4); for an existing "
                "directory, start the broker without that ACL and run kafka-features upgrade --release-version 4.4"
            )
        raise ConfigError(f"{ACLS}: {error.detail}{hint}")


async def _put_acls(node: Node) -> None:
    """Add missing ACLs of `diamant.acls` to the metadata log. Log a warning if the broker denies every request."""
    acls, authorizer = node.acls, node.authorizer
    if acls is None or authorizer is None:
        return
    wanted = acls_of(str(node.config[ACLS]))
    if wanted:
        _refuse_acls(acls.create(wanted))
        await node.topics.sync()
    if not authorizer.super_users and not len(acls) and not authorizer.allows_by_default:
        logger.warning(
            "there is an authorizer, no ACL and no super user: every request is denied. Stop the broker, add "
            "super.users=User:NAME to its configuration (User:ANONYMOUS is everybody on a listener without authentication), "
            "start it, and let that user create ACLs (diamant acl add, kafka-acls.sh)"
        )


def _tidy_up(directory: LogDirectory) -> None:
    """Finish the reset of a killed process, and remove the copies that it has left. Blocking."""
    env = directory.env
    snapshots = f"{os.path.realpath(directory.path)}.snapshots"
    if not env.exists(f"{directory.path}/{names.META_PROPERTIES}") and not env.is_dir(snapshots):
        return  # the directory is new
    from diamant.broker.snapshots.fork_directory import remove_left_forks
    from diamant.broker.snapshots.snapshot_store import SnapshotFiles

    remove_left_forks(env, directory.path, lambda path: directory.deletions.add([path]))
    if not env.is_dir(snapshots):
        return
    files = SnapshotFiles(env, directory.path)
    if env.exists(files.mark):
        from diamant.storage.directory.directory_copy import restore_directory

        snapshot_id = env.read_bytes(files.mark).decode().rpartition("/")[2]
        if snapshot_id not in files.ids():
            raise StorageError(
                f"{directory.path}: a reset to the snapshot {snapshot_id!r} was not finished, and {files.path} "
                f"has no such snapshot. Remove {files.mark} to start with the present data, perhaps parts of two states"
            )
        restore_directory(env, f"{files.path}/{snapshot_id}", files.data_dir, files.new_trash(), files.mark)
        directory.was_clean = True
        env.remove(files.mark)
    files.sweep()


def _place(config: BrokerConfig, listener: Listener) -> str:
    """Return a listener's address for an error; with several brokers, add the broker and the configuration of its port."""
    if config.diamant_brokers == 1:
        return listener.address
    return f"{listener.address}, for broker {config.node_id + listener.broker} (diamant.brokers.ports, --ports)"


def open_sasl(config: BrokerConfig) -> SaslListeners | None:
    """Read the configuration of the listeners with SASL; None if there are none. Blocking. Raises CannotStart."""
    if not any(listener.security_protocol in SASL_PROTOCOLS for listener in config.listeners):
        return None
    from diamant.broker.security.sasl.sasl_listeners import SaslListeners

    try:
        return SaslListeners(config)
    except ConfigError as error:
        raise CannotStart(str(error)) from None


def _partitions_text(directory: LogDirectory) -> str:
    internal = sum(topic in INTERNAL_TOPICS for topic, _ in directory.logs)
    count = len(directory.logs) - internal
    text = f"{count} partition{'s' * (count != 1)}"
    return f"{text} (and {internal} of internal topics)" if internal else text
