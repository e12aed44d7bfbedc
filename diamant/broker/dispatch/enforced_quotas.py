"""Passing the quotas in the metadata log and the configuration to the server, which enforces them.

If no limit is set, the server gets no quotas, and requests and connections skip all checks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from time import monotonic
from typing import TYPE_CHECKING, cast

from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.network.server import Server
from diamant.broker.network.server_limits import limits_of_listeners
from diamant.broker.node.lazy import Lazy
from diamant.broker.node.node import Node
from diamant.storage.config_key import INT_MAX

if TYPE_CHECKING:
    from diamant.broker.security.quotas.connection_quotas import NewConnectionLimits
    from diamant.broker.security.quotas.quotas import Quotas
    from diamant.broker.security.quotas.rate import RateWindows

logger = logging.getLogger(__name__)

CREATION_RATE = "max.connection.creation.rate"


class EnforcedQuotas:
    """The quotas of one node. Belongs to the loop thread."""

    def __init__(self, node: Node, server: Server) -> None:
        self._node = node
        self._server = server
        self.clients: Lazy[Quotas] = Lazy(self._make_clients)
        """The quotas of users and client ids, created when the first limit is set."""
        server.quotas = None
        node.on_reconfigured.append(self._reconfigured)

    def _reconfigured(self, _: BrokerConfig) -> None:
        self._server.keep(self.apply())

    async def apply(self) -> None:
        """Enforce the current limits, after resolving host names."""
        stored = self._node.metadata.image.quotas
        if stored or self.clients.made is not None:
            clients = self.clients()
            clients.set_limits(stored)
            self._server.quotas = clients if clients else None
        if stored or self._server.admission is not None or _limits_connections(self._node.config):
            self._admit_within(await self._connection_limits())

    def _admit_within(self, limits: NewConnectionLimits) -> None:
        if not limits.has_any:
            self._server.stop_limiting()
            return
        if self._server.admission is None:
            from diamant.broker.network.acceptor import ConnectionAdmission
            from diamant.broker.security.quotas.connection_quotas import ConnectionQuotas

            quotas = ConnectionQuotas(_windows(self._node.config), monotonic)
            self._server.admission = ConnectionAdmission(self._node.loop, quotas)
        self._server.admission.quotas.limits = limits

    async def _connection_limits(self) -> NewConnectionLimits:
        from diamant.broker.config.broker_table import ip_overrides_of
        from diamant.broker.security.quotas.connection_quotas import NO_LIMIT, NewConnectionLimits, rates_by_host

        config = self._node.config
        rates = rates_by_host(self._node.metadata.image.quotas)
        overrides = ip_overrides_of(config.max_connections_per_ip_overrides)
        addresses = await self._addresses({*filter(None, rates), *overrides})
        return NewConnectionLimits(
            per_second=config.max_connection_creation_rate,
            per_second_of_any=rates.get(None, NO_LIMIT),
            per_second_of={a: limit for host, limit in rates.items() if host for a in addresses[host]},
            at_once_of_any=config.max_connections_per_ip,
            at_once_of={a: limit for host, limit in overrides.items() for a in addresses[host]},
            per_second_of_listener=limits_of_listeners(config, CREATION_RATE),
        )

    async def _addresses(self, hosts: Iterable[str]) -> dict[str, list[str]]:
        """Return the addresses of each host. A host whose name cannot be resolved has none, and a warning is logged."""
        from diamant.broker.security.quotas.connection_quotas import plain_address

        found: dict[str, list[str]] = {}
        for host in hosts:
            address = plain_address(host)
            if address is not None:
                found[host] = [address]
                continue
            try:
                looked_up = await asyncio.get_running_loop().getaddrinfo(host, None)
                found[host] = sorted({str(entry[4][0]) for entry in looked_up})
            except (OSError, UnicodeError) as error:
                logger.warning(
                    "connections from %s are not limited, because its address cannot be resolved: %s", host, error
                )
                found[host] = []
        return found

    def _make_clients(self) -> Quotas:
        from diamant.broker.security.quotas.quotas import Quotas

        config = self._node.config
        return Quotas(_windows(config), _windows(config, "controller."), monotonic)


def _windows(config: BrokerConfig, prefix: str = "") -> RateWindows:
    from diamant.broker.security.quotas.rate import RateWindows

    count, size_s = config[f"{prefix}quota.window.num"], config[f"{prefix}quota.window.size.seconds"]
    return RateWindows(cast(int, count), cast(int, size_s) * 1000)


def _limits_connections(config: BrokerConfig) -> bool:
    limits = (config.max_connections_per_ip, config.max_connection_creation_rate)
    of_broker = any(limit != INT_MAX for limit in limits) or bool(config.max_connections_per_ip_overrides)
    return of_broker or bool(limits_of_listeners(config, CREATION_RATE))
