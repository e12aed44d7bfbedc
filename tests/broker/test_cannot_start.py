"""A broker in a program that cannot start says what is in its way, and what to do."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from diamant import Broker, BrokerConfig
from diamant.broker.cannot_start import CannotStart


def test_settings_stand_for_a_configuration(tmp_path: Path) -> None:
    """By the names that a BrokerConfig has; what is wrong is its error, and both at once are none of the two."""
    with Broker(listen="127.0.0.1:0", data_dir=tmp_path, num_partitions=3) as broker:
        assert (broker.config.num_partitions, Path(broker.config.data_dir)) == (3, tmp_path)
    with pytest.raises(TypeError, match="did you mean num_partitions"):
        Broker(num_partitoins=3)
    with pytest.raises(TypeError, match="give these to the BrokerConfig"):
        Broker(BrokerConfig(), listen="127.0.0.1:0")


def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    """With a way out; nothing is left of the start."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(CannotStart, match=f"{address}: Address already in use. Is another broker") as raised:
            Broker(listen=address, data_dir=tmp_path).__enter__()
        assert raised.value.filename == address


@pytest.mark.parametrize("below", ["", "/data"])
def test_a_file_in_the_place_of_the_directory_is_named(tmp_path: Path, below: str) -> None:
    """The directory itself, or one above it."""
    (tmp_path / "file").touch()
    with pytest.raises(CannotStart, match=r"file.*: .*Expected a directory"):
        Broker(listen="127.0.0.1:0", data_dir=f"{tmp_path}/file{below}").__enter__()
