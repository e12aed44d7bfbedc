"""A broker with the methods of testcontainers' `KafkaContainer`, without Docker, for tests that use that class.

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
    """A broker in this process, started by `start` or `with`, in a temporary directory.

    `settings` are those of a `BrokerConfig`: `users`, `acls` and `tls` among them. The parts of a container (image, network,
    volumes, logs, commands) are missing.
    """

    def __init__(self, image: str = "", **settings: Any) -> None:
        """`image` is ignored: a call that names one need not change."""
        self._settings = settings
        self._properties: dict[str, str] = {}
        self._made: Broker | None = None
        self._broker: BlockingBroker | None = None

    @property
    def broker(self) -> BlockingBroker:
        """The broker, for operations that Kafka's container does not have. RuntimeError before the start."""
        if self._broker is None:
            raise RuntimeError("the broker does not run: start() it, or use `with`, first")
        return self._broker

    def with_env(self, key: str, value: str) -> Self:
        """Set a configuration as Kafka's images take it: `KAFKA_NUM_PARTITIONS` is `num.partitions`. Other names do nothing."""
        if key.startswith("KAFKA_"):
            self._properties[key.removeprefix("KAFKA_").lower().replace("_", ".")] = value
        return self

    def with_kraft(self) -> Self:
        """Nothing: there is no ZooKeeper."""
        return self

    def start(self, timeout: float = 30) -> Self:
        """Start it; returns when it listens, which takes no `timeout`. Raises CannotStart, ConfigError."""
        self._made = Broker(properties=self._properties, **self._settings)
        self._broker = self._made.__enter__()
        return self

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        """Stop it, and remove its directory. Stopping twice is harmless."""
        made, self._made, self._broker = self._made, None, None
        if made is not None:
            made.__exit__()

    def get_bootstrap_server(self) -> str:
        """The value for a client's `bootstrap.servers`."""
        return self.broker.bootstrap_servers

    def client_config(
        self, user: str | None = None, *, mechanism: str | None = None, certificate: str | None = None
    ) -> ClientConfig:
        """The configuration of a client of a broker with `users` or `tls`; see `Broker.client_config`."""
        return self.broker.client_config(user, mechanism=mechanism, certificate=certificate)

    def get_container_host_ip(self) -> str:
        """The host of that address."""
        return self.broker.bootstrap_servers.rpartition(":")[0]

    def get_exposed_port(self, port: int) -> int:
        """The port of that address, whatever `port` a container would listen at."""
        return int(self.broker.bootstrap_servers.rpartition(":")[2])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
