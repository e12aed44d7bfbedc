"""No key is made where it would be lost before the data is: in a container's own layer, or in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.client.errors import NotPossible
from diamant.broker.erasure.evidence.signing_keys import SigningKeys
from diamant.cleaner.evidence.certificates.key_location import check_lasting, mount_table
from diamant.storage.errors import StorageError
from tests.broker.erasure.cases import broker_at, create_with_key, erase

CONTAINER = """\
524 471 0:52 / / rw,relatime master:215 - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w
525 524 0:55 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
530 524 0:57 / /tmp rw - tmpfs tmpfs rw,size=65536k
540 524 254:1 /var/lib/docker/volumes/diamant-data/_data /data rw,relatime - ext4 /dev/vda1 rw
541 524 254:1 /var/lib/docker/volumes/diamant-keys/_data /keys\\040of\\040ours rw,relatime - ext4 /dev/vda1 rw
"""
"""As in a container of Docker's, with two volumes and memory at /tmp."""
MACHINE = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"


@pytest.mark.parametrize(
    ("key", "data", "mounts", "reason"),
    [
        ("/home/diamant/k", "/data", CONTAINER, "with the container (/ is an overlay)"),
        ("/database/k", "/data/sub", CONTAINER, "with the container (/ is an overlay)"),
        ("/tmp/k", "/data", CONTAINER, "with this machine's memory (/tmp is a tmpfs)"),
        ("/keys of ours/k", "/data", CONTAINER, None),
        ("/home/diamant/k", "/srv", CONTAINER, None),
        ("/home/diamant/k", "/tmp/data", CONTAINER, None),
        ("/home/diamant/k", "/data", MACHINE, None),
        ("/home/diamant/k", "/data", CONTAINER + CONTAINER.splitlines()[3].replace("/data", "/"), None),
        ("/home/diamant/k", "/data", "", None),
    ],
)
def test_a_place_vanishes_if_the_data_outlives_it(key: str, data: str, mounts: str, reason: str | None) -> None:
    """What vanishes together with the data may have the key; of two mounts at one place the later one counts."""
    if reason is None:
        check_lasting(key, data, mounts)
        return
    with pytest.raises(StorageError) as caught:
        check_lasting(key, data, mounts)
    assert str(caught.value).startswith(f"{key} would vanish {reason}, while the data in {data} stays")
    for word in ("diamant.certificate.key.file", "-v diamant-keys:/keys", "diamant.certificate.key.ephemeral=true"):
        assert word in str(caught.value)


def test_the_table_of_this_machine_can_be_read(tmp_path: Path) -> None:
    """Data and key in one directory vanish together, wherever that is."""
    check_lasting(str(tmp_path / "k"), str(tmp_path), mount_table())


async def test_an_erasure_makes_no_key_in_a_containers_layer(tmp_path: Path) -> None:
    """It is refused before anything is changed, unless the broker is told that the key may vanish, or the key is there."""
    root, data = CONTAINER.splitlines()[0], CONTAINER.splitlines()[3]
    mounts = f"{root}\n{data.replace(' /data ', f' {tmp_path}/data ')}\n"

    @asynccontextmanager
    async def contained(**properties: str) -> AsyncIterator[Broker]:
        async with broker_at(tmp_path, **properties) as broker:
            broker.services.evidence().keys = SigningKeys(broker.node, lambda: mounts)
            yield broker

    async with contained() as broker:
        await create_with_key(broker)
        with pytest.raises(NotPossible, match="would vanish with the container"):
            await erase(broker)
        assert not (tmp_path / "keys").exists()
        assert broker.services.erasures().queue.unfinished() == []
    async with contained(**{"diamant.certificate.key.ephemeral": "true"}) as broker:
        await erase(broker)
    async with contained() as broker:
        assert "BEGIN PUBLIC KEY" in (await broker.services.certificates().public_key() or "")
