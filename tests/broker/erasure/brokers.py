"""Brokers with a frozen clock, faulty files, and a key that signs certificates."""

from __future__ import annotations

from pathlib import Path

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.storage.env.clocks import SettableClock
from tests.broker.erasure.constants import START_MS
from tests.broker.erasure.faulty_env import FaultyEnv


def config(tmp_path: Path, **properties: str) -> BrokerConfig:
    """Data and keys below a directory."""
    names = {"diamant.certificate.key.file": str(tmp_path / "keys" / "certificate.key"), **properties}
    return BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path / "data", properties=names)


def env_at(now_ms: int = START_MS) -> FaultyEnv:
    """Real files, and a frozen clock."""
    return FaultyEnv(SettableClock(now_ms))


def env_of(broker: Broker) -> FaultyEnv:
    """Return the broker's files."""
    assert isinstance(broker.env, FaultyEnv)
    return broker.env


def broker_at(tmp_path: Path, now_ms: int = START_MS, **properties: str) -> Broker:
    """Return a broker with data and keys below a directory, and a frozen clock."""
    return Broker(config(tmp_path, **properties), env=env_at(now_ms))


def clock_of(broker: Broker) -> SettableClock:
    """Return the broker's clock."""
    assert isinstance(broker.env.clock, SettableClock)
    return broker.env.clock


def move_to(broker: Broker, now_ms: int) -> None:
    """Move the broker's clock, so that due work begins."""
    clock_of(broker).set_ms(now_ms)
    broker.node.scheduler.poke()


def data_of(broker: Broker) -> Path:
    """Return the broker's data directory."""
    return Path(broker.config.data_dir)
