"""Diamant: a Kafka-compatible broker that stores data in Kafka's own file formats.

    from diamant import Broker

    with Broker() as broker:                               # a free port, a temporary directory; `async with` works, too
        broker.create_topic("users", compact=True)
        broker.produce("users", "value", key="42")         # or any Kafka client, at broker.bootstrap_servers
        broker.compact("users")
        print(list(broker.records("users")))

`Broker` runs a broker in this process and takes the settings of `BrokerConfig`; `with` returns a `BlockingBroker`. `Admin`
calls a broker in another process over HTTP. `DiamantContainer` replaces testcontainers' KafkaContainer. pytest discovers
the fixtures `diamant_broker`, `diamant_manual_broker`, `diamant_topic`, `diamant_faults` and `diamant_config`.

Each name is imported on first use, so that the other parts can be used without importing the broker.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diamant.broker.broker import BlockingBroker as BlockingBroker
    from diamant.broker.broker import Broker as Broker
    from diamant.broker.cannot_start import CannotStart as CannotStart
    from diamant.broker.client.admin import Admin as Admin
    from diamant.broker.client.admin import AdminError as AdminError
    from diamant.broker.client.client_config import ClientConfig as ClientConfig
    from diamant.broker.client.client_config import ClientRefused as ClientRefused
    from diamant.broker.config.broker_config import BrokerConfig as BrokerConfig
    from diamant.container import DiamantContainer as DiamantContainer
    from diamant.protocol.errors import KafkaError as KafkaError
    from diamant.storage.config_key import ConfigError as ConfigError
    from diamant.version import __version__ as __version__

__all__ = [
    "Admin",
    "AdminError",
    "BlockingBroker",
    "Broker",
    "BrokerConfig",
    "CannotStart",
    "ClientConfig",
    "ClientRefused",
    "ConfigError",
    "DiamantContainer",
    "KafkaError",
    "__version__",
]

if "_pytest.assertion.rewrite" in sys.modules:
    from diamant.plain_imports import keep_plain

    keep_plain()

_HOMES = {
    "Admin": "diamant.admin",
    "AdminError": "diamant.admin",
    "BlockingBroker": "diamant.broker.broker",
    "Broker": "diamant.broker.broker",
    "BrokerConfig": "diamant.broker.config.broker_config",
    "CannotStart": "diamant.broker.cannot_start",
    "ClientConfig": "diamant.broker.client.client_config",
    "ClientRefused": "diamant.broker.client.client_config",
    "ConfigError": "diamant.storage.config_key",
    "DiamantContainer": "diamant.container",
    "KafkaError": "diamant.protocol.errors",
    "__version__": "diamant.version",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'diamant' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
