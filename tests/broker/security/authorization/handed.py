"""Users without authentication: the test assigns a principal to each connection."""

from __future__ import annotations

from diamant.broker.broker import Broker
from diamant.broker.network.api import Answer, ConnectionInfo
from diamant.broker.security.identity.principal import USER, Principal
from diamant.protocol.wire.server_connection import Request
from tests.broker.security.authorization.asking import connected
from tests.broker.security.authorization.questions import Client
from tests.broker.wire import WireClient


class HandedPrincipals:
    """A broker whose connections have the users passed to `connect`."""

    def __init__(self, broker: Broker) -> None:
        running = broker._running
        assert running is not None
        self._address = broker.bootstrap_servers
        self._server = running.services.server
        self._dispatch = self._server.dispatch
        self._users: dict[str, Principal] = {}
        self._server.dispatch = self._answer

    async def connect(self, client: Client) -> WireClient:
        """Return a connection of a user from an address."""
        wire = await connected(self._address, client.host)
        host, port = wire.writer.get_extra_info("sockname")
        self._users[f"{host}:{port}"] = Principal(USER, client.user)
        return wire

    def _answer(self, connection: ConnectionInfo, request: Request) -> Answer:
        return self._dispatch(connection._replace(principal=self._users[connection.peer]), request)
