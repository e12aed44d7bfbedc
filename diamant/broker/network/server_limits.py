"""The limits on the clients of the Kafka port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

from diamant.broker.config.broker_config import BrokerConfig

MAX_QUEUED_BYTES = 1024 * 1024
"""The maximum size of all requests queued on a busy connection. Above it, the socket is not read."""


class ServerLimits(NamedTuple):
    """The limits of one server."""

    max_frame_bytes: int
    max_connections: int
    max_idle_ms: int
    max_queued_bytes: int = MAX_QUEUED_BYTES
    backlog: int = 128
    send_buffer_bytes: int = -1  # -1: the system's default
    receive_buffer_bytes: int = -1
    max_request_memory_bytes: int = -1  # of all connections; -1: no limit
    max_connections_of: Mapping[str, int] = {}  # by name, for listeners with a limit of their own

    @classmethod
    def of(cls, config: BrokerConfig) -> ServerLimits:
        """Return the limits that a configuration sets."""
        return cls(
            max_frame_bytes=config.socket_request_max_bytes,
            max_connections=config.max_connections,
            max_idle_ms=config.connections_max_idle_ms,
            backlog=config.socket_listen_backlog_size,
            send_buffer_bytes=config.socket_send_buffer_bytes,
            receive_buffer_bytes=config.socket_receive_buffer_bytes,
            max_request_memory_bytes=config.queued_max_request_bytes,
            max_connections_of=limits_of_listeners(config, "max.connections"),
        )


def limits_of_listeners(config: BrokerConfig, setting: str) -> dict[str, int]:
    """Return the values of `listener.name.NAME.SETTING`, for the listeners that set it."""
    limits = {}
    for listener in config.listeners:
        name, limit = config.of_listener(listener.name, setting)
        if name != setting:
            limits[listener.name] = cast(int, limit)
    return limits
