"""A broker that runs: its node, its services and its HTTP port, from the start to the stop.

Start: bind the sockets (port 0 becomes a port), lock the directory, read the metadata log, load the partitions,
listen. Stop: the reverse, with requests in progress answered, everything synced and the clean-shutdown mark set.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from diamant.broker.cannot_start import told
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.listeners import Addresses
from diamant.broker.dispatch.services import Services
from diamant.broker.dispatch.table import TABLE, load
from diamant.broker.http.endpoints.table import ENDPOINTS
from diamant.broker.http.serving.server import HttpServer, open_http
from diamant.broker.network.listener_sockets import bound_socket, reachable
from diamant.broker.node.node import Node, open_clock, open_metadata
from diamant.broker.node.scheduler import ScheduledTask
from diamant.broker.topics.names import INTERNAL_TOPICS
from diamant.kernels import ARE_COMPILED
from diamant.storage.env.env import Env
from diamant.storage.recovery.log_directory import LogDirectory

logger = logging.getLogger("diamant.broker.broker")
"""Its name is in the logs of users."""

STOP_TIMEOUT_S = 10.0
"""The time that a stop waits for requests in progress before it closes their connections."""


class RunningBroker:
    """The parts of a broker between its start and its stop."""

    def __init__(self, node: Node, services: Services, http: HttpServer | None) -> None:
        self.node = node
        self.services = services
        self.http = http

    async def stop(self) -> None:
        """Answer requests in progress, flush everything, release the directory. Stopping twice is harmless."""
        node, services = self.node, self.services
        if node.is_stopping:
            return
        node.is_stopping = True
        services.server.stop_accepting()
        node.purgatory.close()
        await services.stop()
        await services.server.close(STOP_TIMEOUT_S)
        http, self.http, node.addresses.http = self.http, None, None
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


async def start_broker(config: BrokerConfig, env: Env, addresses: Addresses) -> RunningBroker:
    """Open the directory and listen; `addresses` get those it listens at. Raises CannotStart, and holds nothing then."""
    with told(str(config.data_dir)), contextlib.ExitStack() as undo:
        sockets = []
        for listener in config.listeners:
            with told(listener.address):
                sockets.append((listener, undo.enter_context(bound_socket(listener))))
        addresses.kafka = [reachable(listener, sock) for listener, sock in sockets]
        directory = await asyncio.to_thread(
            LogDirectory.open, env, config.data_dir, producer_expiration_ms=config.producer_id_expiration_ms
        )
        undo.callback(directory.close, is_clean=False)  # as a crash would leave it
        await asyncio.to_thread(open_clock, env, config)
        metadata = await asyncio.to_thread(open_metadata, env, config, addresses)
        undo.callback(metadata.close, clean=False)
        node = Node(config, env, directory, metadata, addresses)
        undo.callback(node.batch_checkers.shutdown)
        services = Services(node, TABLE, load)
        await node.load()
        services.housekeeping.schedule()
        node.scheduler.add(ScheduledTask("erasures", services.next_job_ms, services.run_due_jobs))
        await services.load_coordinators()
        for (listener, sock), told_of in zip(sockets, config.advertised(addresses.kafka), strict=True):
            services.server.listen(sock, listener.name, told_of.host, told_of.port)
        # In the same turn of the loop: a client that the Kafka port answers finds HTTP there.
        node.started_s = time.monotonic()
        http = open_http(services, config.http_listener, ENDPOINTS)
        if http is not None:
            undo.callback(_abandon, http, addresses)
        await services.start()
        undo.pop_all()
    logger.info("started with %s in %s", _partitions_text(directory), config.data_dir)
    if not ARE_COMPILED:
        logger.warning(
            "Diamant was built without its kernels: it cleans much more slowly, and some commands do not work"
        )
    return RunningBroker(node, services, http)


def _abandon(http: HttpServer, addresses: Addresses) -> None:
    addresses.http = None
    http.abandon()


def _partitions_text(directory: LogDirectory) -> str:
    internal = sum(topic in INTERNAL_TOPICS for topic, _ in directory.logs)
    count = len(directory.logs) - internal
    text = f"{count} partition{'s' * (count != 1)}"
    return f"{text} (and {internal} of internal topics)" if internal else text
