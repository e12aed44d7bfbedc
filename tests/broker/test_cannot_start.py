"""A broker in a program that cannot start says what is in its way, and what to do."""

from __future__ import annotations

import asyncio
import socket
from errno import EACCES, EADDRINUSE, EBUSY, ENOSPC
from pathlib import Path

import pytest

import diamant
from diamant import Broker, BrokerConfig, CannotStart
from diamant.broker.cannot_start import told
from diamant.storage.errors import CorruptLog, InUse


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
        assert (raised.value.errno, raised.value.reason) == (EADDRINUSE, f"{address}: Address already in use")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "here:1: Name or service not known"),
        (PermissionError(EACCES, "Permission denied", "/d"), "/d: Permission denied. The broker needs to read"),
        (OSError(ENOSPC, "No space left on device", "/d"), "/d: No space left on device"),
        (OSError("strange"), "here:1: strange"),
        (CorruptLog("/d/meta.properties", 2, "expected a number"), "/d/meta.properties at 2: expected a number"),
    ],
)
def test_what_is_in_the_way_is_named(error: Exception, said: str) -> None:
    """The file if the error names one, else the address; the error behind it is the cause."""
    with pytest.raises(CannotStart) as raised, told("here:1"):
        raise error
    assert str(raised.value).startswith(said)
    assert raised.value.__cause__ is error


async def test_a_directory_in_use_is_named(tmp_path: Path) -> None:
    """By a broker of the same program, too, in a thread or on an event loop: one error for all that keeps it from starting."""
    async with Broker(listen="127.0.0.1:0", data_dir=tmp_path):
        other = Broker(listen="127.0.0.1:0", data_dir=tmp_path)
        said = f"{tmp_path}/.lock: in use by this process already. Is another broker running on it?"
        for start in (other.start(), asyncio.to_thread(other.__enter__)):
            with pytest.raises(diamant.CannotStart) as raised:
                await start
            assert str(raised.value).startswith(said)
            assert (raised.value.errno, type(raised.value.__cause__)) == (EBUSY, InUse)


async def test_what_is_wrong_in_the_directory_is_the_same_error(tmp_path: Path) -> None:
    """With the file, also where it is found late in the start."""
    async with Broker(listen="127.0.0.1:0", data_dir=tmp_path):
        pass
    (tmp_path / "meta.properties").write_text("version=7\n")
    with pytest.raises(CannotStart, match=r"meta\.properties"):
        await Broker(listen="127.0.0.1:0", data_dir=tmp_path).start()


@pytest.mark.parametrize("below", ["", "/data"])
def test_a_file_in_the_place_of_the_directory_is_named(tmp_path: Path, below: str) -> None:
    """The directory itself, or one above it."""
    (tmp_path / "file").touch()
    with pytest.raises(CannotStart, match=r"file.*: .*Expected a directory"):
        Broker(listen="127.0.0.1:0", data_dir=f"{tmp_path}/file{below}").__enter__()
