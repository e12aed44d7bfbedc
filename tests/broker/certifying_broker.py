"""A broker as commands and `diamant.Admin` ask it for certificates: with HTTP, in its own thread, its keys beside its data."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.config.broker_config import BrokerConfig


@contextmanager
def certifying_broker(
    tmp_path: Path, prepare: Callable[[BlockingBroker], Coroutine[Any, Any, None]]
) -> Iterator[BlockingBroker]:
    """One that `prepare` has given its topics, on the broker's own loop."""
    properties = {
        "diamant.certificate.key.file": str(tmp_path / "certificate.key"),
        "diamant.http.listen": "127.0.0.1:0",
    }
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path / "data", properties=properties)
    with Broker(config) as running:
        running.call(prepare(running))
        yield running


def run(command: Any, *arguments: str) -> Result:
    """Run a command in this process; return its result."""
    return CliRunner().invoke(command, [*arguments])


def on(broker: BlockingBroker) -> list[str]:
    """Return the arguments that have a command ask this broker."""
    return ["--bootstrap-server", broker.bootstrap_servers]
