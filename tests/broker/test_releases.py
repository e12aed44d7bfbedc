"""Data directories for a release of Kafka: the level of their features."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from diamant.broker.broker import Broker
from diamant.broker.cli import main
from diamant.broker.config.broker_config import BrokerConfig
from diamant.storage.config_key import ConfigError
from tests.broker.wire import WireClient


@pytest.mark.parametrize(("properties", "level"), [({}, 30), ({"diamant.release.version": "4.4"}, 33)])
async def test_a_new_directory_is_formatted_for_a_release(
    tmp_path: Path, properties: dict[str, str], level: int
) -> None:
    """A new directory is for Kafka 4.3 by default. Forks and later starts keep the level, whatever the configuration then
    says.
    """
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, properties=properties)
    async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t")
        assert broker.node.metadata.image.metadata_version == level
        async with await broker.fork() as fork:
            assert fork.node.metadata.image.features == broker.node.metadata.image.features
            assert "t" in fork.node.topics.by_name
    for release in ("4.3", "4.4"):
        config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, properties={"diamant.release.version": release})
        async with Broker(config) as broker:
            assert broker.node.metadata.image.metadata_version == level


def test_a_release_is_one_of_those_supported() -> None:
    """Another release is refused, in a configuration and on the command line."""
    with pytest.raises(ConfigError, match=r"diamant\.release\.version: .*4\.3, 4\.4"):
        BrokerConfig(properties={"diamant.release.version": "4.5"})
    result = CliRunner().invoke(main, ["start", "--release-version", "4.2"])
    assert result.exit_code == 2
    assert "'4.3', '4.4'" in result.output
