"""A replacement for testcontainers' `KafkaContainer` that runs a broker without Docker.

with DiamantContainer() as kafka:
    producer = Producer({"bootstrap.servers": kafka.get_bootstrap_server()})
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from diamant.broker.broker import BlockingBroker, Broker

if TYPE_CHECKING:
    from diamant.broker.client.client_config import ClientConfig


class DiamantContainer:
    """A broker in this process, in a temporary directory, started by `start` or `with`.

    `settings` are those of a `BrokerConfig`, including `users`, `acls` and `tls`. Container features (image, network, volumes,
    logs, commands) are not supported.
    """

    def __init__(self, image: str = "", **settings: Any) -> None:
        """Accept `image` for compatibility, and ignore it."""
        self._settings = settings
        self._properties: dict[str, str] = {}
        self._made: Broker | None = None
        self._broker: BlockingBroker | None = None

    @property
    def broker(self) -> BlockingBroker:
        """The broker, for operations that Kafka's container lacks. Raises RuntimeError before `start`."""
        if self._broker is None:
            raise RuntimeError("the broker is not running: call start() or use `with` first")
        return self._broker

    def with_env(self, key: str, value: str) -> Self:
        """Set a configuration by its environment variable in Kafka's images, such as KAFKA_NUM_PARTITIONS; ignore others."""
        if key.startswith("KAFKA_"):
            self._properties[key.removeprefix("KAFKA_").lower().replace("_", ".")] = value
        return self

    def with_kraft(self) -> Self:
        """Do nothing: there is no ZooKeeper."""
        return self

    def start(self, timeout: float = 30) -> Self:
        """Start the broker and return once it listens; `timeout` is ignored. Raises CannotStart, ConfigError."""
        self._made = Broker(properties=self._properties, **self._settings)
        self._broker = self._made.__enter__()
        return self

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        """Stop the broker and remove its directory. Does nothing if the broker is not running."""
        made, self._made, self._broker = self._made, None, None
        if made is not None:
            made.__exit__()

    def get_bootstrap_server(self) -> str:
        """Return the value for a client's `bootstrap.servers`."""
        return self.broker.bootstrap_servers

    def client_config(
        self, user: str | None = None, *, mechanism: str | None = None, certificate: str | None = None
    ) -> ClientConfig:
        """Return a client's configuration for a broker with `users` or `tls`; see `Broker.client_config`."""
        return self.broker.client_config(user, mechanism=mechanism, certificate=certificate)

    def get_container_host_ip(self) -> str:
        """Return the host of the bootstrap server."""
        return self.broker.bootstrap_servers.rpartition(":")[0]

    def get_exposed_port(self, port: int) -> int:
        """Return the port of the bootstrap server; `port` is ignored."""
        return int(self.broker.bootstrap_servers.rpartition(":")[2])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
