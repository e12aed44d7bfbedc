"""The broker's HTTP port: bound at startup, served from the first connection on.

Until the first connection there is only a listening socket. aiohttp takes a few tenths of a second and 17 MB, so it is imported
in a thread on demand, while the first peer waits in the socket's queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import time
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from diamant.broker.http.serving.limits import DEFAULT_LIMITS, HttpLimits
from diamant.broker.network.listener_sockets import bound_socket, reachable
from diamant.broker.operation_errors import may_pass

if TYPE_CHECKING:
    from diamant.broker.config.listeners import Listener
    from diamant.broker.dispatch.services import Services
    from diamant.broker.http.serving.connections import Serving
    from diamant.broker.http.serving.routes import Routes
    from diamant.broker.http.serving.token import TokenCheck
    from diamant.broker.security.tls.listener_tls import ListenerTls

logger = logging.getLogger(__name__)

BACKLOG = 64
"""The length of the queue of connections waiting to be accepted."""
RETRY_S = 1
"""The pause after HTTP could not be loaded, during which the peer waits in the queue."""


class HttpServer:
    """Serves HTTP for a broker. `start` and `close` run on its loop thread."""

    def __init__(
        self,
        services: Services,
        listener: Listener,
        sock: socket.socket,
        limits: HttpLimits,
        tls: ListenerTls | None = None,
    ) -> None:
        """`sock` is bound and non-blocking, and now belongs to this object."""
        self._limits = limits
        self._tls = tls
        self._services = services
        self._sock = sock
        self._started_s = time.monotonic()
        self._starting: asyncio.Task[None] | None = None
        self._serving: Serving | None = None
        self._routes: Routes | None = None
        self._is_closed = False
        self._token_source = listener._replace(port=sock.getsockname()[1]), services.node.config.diamant_http_token_file
        self._token: TokenCheck | None = None

    def start(self) -> None:
        """Listen. Logs an invalid or missing token now, not at the first request that needs a token."""
        listener, path = self._token_source
        if path or not listener.host.startswith("127."):
            from diamant.broker.http.serving.token import load_token_check

            self._token = load_token_check(*self._token_source)
        self._sock.listen(BACKLOG)
        self._wait_for_someone()

    async def close(self) -> None:
        """Close the port and all connections. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._starting is None:
            asyncio.get_running_loop().remove_reader(self._sock)
        else:
            await self._starting
        if self._serving is not None:
            await self._serving.close()
        self._sock.close()

    def hand_over(self, services: Services) -> None:
        """Use other services from the next request on."""
        self._services = services
        if self._routes is not None:
            self._routes.services = services

    def _wait_for_someone(self) -> None:
        if not self._is_closed:
            asyncio.get_running_loop().add_reader(self._sock, self._someone_connects)

    def _someone_connects(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._sock)
        self._starting = loop.create_task(self._serve())

    async def _serve(self) -> None:
        try:
            connections = await asyncio.to_thread(_load)
            from diamant.broker.http.serving.routes import Routes
            from diamant.broker.http.serving.token import load_token_check

            if not self._is_closed:
                token = self._token or load_token_check(*self._token_source)
                routes = self._routes = Routes(self._services, self._started_s, token, self._limits)
                self._serving = connections.Serving(routes, self._sock, self._limits.connections, self._tls)
                self._serving.start()
        except Exception as error:
            if not may_pass(error):
                logger.exception("HTTP could not be started: there will be no /metrics and no /health")
                self._sock.close()
                return
            logger.error("HTTP could not be started, trying again in %d s: %s", RETRY_S, error)
            self._starting = None
            asyncio.get_running_loop().call_later(RETRY_S, self._wait_for_someone)


def _load() -> ModuleType:
    from diamant.broker.http.serving import connections

    return connections


def open_http(
    services: Services,
    listener: Listener | None,
    limits: HttpLimits = DEFAULT_LIMITS,
    *,
    bind: Callable[[Listener], socket.socket] = bound_socket,
    tls: ListenerTls | None = None,
) -> HttpServer | None:
    """Open HTTP if it is configured and possible. A broker starts even if its HTTP port cannot be opened."""
    addresses = services.node.addresses
    if listener is None:
        return None
    try:
        with contextlib.ExitStack() as undo:
            sock = undo.enter_context(bind(listener))
            http = HttpServer(services, listener, sock, limits, tls)
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
        return None
    addresses.http = reachable(listener, sock)
    addresses.http_bound = listener._replace(port=addresses.http.port)
    logger.info(
        "HTTP at %s: the page at %s/, metrics at %s/metrics",
        addresses.http_bound.address,
        addresses.http_url,
        addresses.http_url,
    )
    return http
