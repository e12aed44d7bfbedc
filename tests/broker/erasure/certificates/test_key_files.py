"""The places allowed for the signing key, its permissions, and the errors for a missing or short-lived one."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.erasure.certification.signing_keys import SigningKeys
from diamant.broker.operation_errors import NotPossible
from diamant.cleaner.evidence.certificates.key_location import check_lasting, mount_table
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.storage.errors import StorageError
from tests.broker.erasure.brokers import broker_at, move_to
from tests.broker.erasure.constants import DAY_MS, HTTP, KEY, RETRY_MS, START_MS
from tests.broker.erasure.erasing import erase, unfinished, wait_idle
from tests.broker.erasure.issued import certificates_of, certified_at
from tests.broker.erasure.records import create, create_with_key, write
from tests.broker.http_asking import ask
from tests.cleaner.evidence.scan.naive_scanner import records_of_key
from tests.waiting import wait_until


async def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    """Before anything is changed."""
    async with broker_at(tmp_path) as broker:
        await create(broker)
        path = tmp_path / "keys" / "certificate.key"
        SigningKey.load(str(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)
        with pytest.raises(NotPossible, match="chmod 600"):
            await erase(broker)


def made_of(path: Path) -> list[str]:
    """Return the files of a key that exist, with links resolved."""
    return [one for one in (str(path), f"{path}.secret") if os.path.exists(one)]


@pytest.mark.parametrize("place", ["inside", "linked directory", "linked secret"])
async def test_a_key_or_secret_inside_of_the_data_directory_is_refused(tmp_path: Path, place: str) -> None:
    """Links are resolved; nothing is erased, no key is made, and the error names the forbidden place."""
    data, keys = tmp_path / "data", tmp_path / "keys"
    data.mkdir()
    path = {"inside": data / "keys" / "certificate.key"}.get(place, keys / "certificate.key")
    if place == "linked directory":
        keys.symlink_to(data, target_is_directory=True)
    elif place == "linked secret":
        keys.mkdir()
        (keys / "certificate.key.secret").symlink_to(data / "secret")
    async with broker_at(tmp_path, **{"diamant.certificate.key.file": str(path)}) as broker:
        await create_with_key(broker)
        with pytest.raises(NotPossible, match=r"nothing was changed: .* is inside the data directory") as raised:
            await erase(broker)
        assert "diamant.certificate.key.file" in str(raised.value)
        assert ".secret is inside" in str(raised.value) or place != "linked secret"
        with pytest.raises(NotPossible, match="is inside the data directory"):
            await broker.services.certificates().public_key()
        assert len(records_of_key(data, "users", KEY)) == 1
        assert made_of(path) == []


async def test_a_key_beside_the_data_directory_is_used(tmp_path: Path) -> None:
    """A path that merely begins with the directory's name is not inside it."""
    path = tmp_path / "data-keys" / "certificate.key"
    async with broker_at(tmp_path, **{"diamant.certificate.key.file": str(path)}) as broker:
        await create(broker)
        assert (await erase(broker)).state == "nothing-matched"
    assert path.exists()


async def test_a_user_without_a_home_is_asked_for_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For an id without an account, as in containers, no key is made in a directory called ~."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "~")
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    async with broker_at(tmp_path, **{"diamant.certificate.key.file": ""}) as broker:
        await create_with_key(broker)
        with pytest.raises(
            NotPossible, match=r"nothing was changed: .* no known home .*set diamant.certificate.key.file"
        ):
            await erase(broker)
        assert await broker.services.erasures().queue.unfinished_on_disk() == []
    assert set(os.listdir(tmp_path)) <= {"data", "keys"}


async def test_a_place_where_no_key_can_be_made_is_named(tmp_path: Path) -> None:
    """The error names the place and the setting to change it."""
    (tmp_path / "file").touch()
    async with broker_at(tmp_path, **{"diamant.certificate.key.file": str(tmp_path / "file" / "key")}) as broker:
        await create_with_key(broker)
        with pytest.raises(NotPossible, match=r"file.*: .*set diamant.certificate.key.file to another place"):
            await erase(broker)


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
    """A place that vanishes together with the data may hold the key; of two mounts at one path the later one counts."""
    if reason is None:
        check_lasting(key, data, mounts)
        return
    with pytest.raises(StorageError) as caught:
        check_lasting(key, data, mounts)
    assert str(caught.value).startswith(f"{key} would vanish {reason}, while the data in {data} stays")
    for word in ("diamant.certificate.key.file", "-v diamant-keys:/keys", "diamant.certificate.key.ephemeral=true"):
        assert word in str(caught.value)


def test_the_table_of_this_machine_can_be_read(tmp_path: Path) -> None:
    """The table of this machine has every mount: data and key in one directory pass, whatever the file system."""
    check_lasting(str(tmp_path / "k"), str(tmp_path), mount_table())


async def test_an_erasure_makes_no_key_in_a_containers_layer(tmp_path: Path) -> None:
    """In a container an erasure is refused before any change, unless a short-lived key is allowed or the key exists."""
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
        assert unfinished(broker) == []
    async with contained(**{"diamant.certificate.key.ephemeral": "true"}) as broker:
        await erase(broker)
    async with contained() as broker:
        assert "BEGIN PUBLIC KEY" in (await broker.services.certificates().public_key() or "")


@pytest.mark.parametrize("name", ["certificate.key", "certificate.key.secret"])
async def test_an_unfinished_erasure_waits_for_its_key_files(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If the disk of the keys is not mounted, a start logs the missing files and makes no key; the erasure resumes with them."""
    async with broker_at(tmp_path) as broker:
        await create_with_key(broker)
        await erase(broker)
    (tmp_path / "keys" / name).rename(tmp_path / name)
    with caplog.at_level(logging.ERROR):
        async with broker_at(tmp_path, START_MS + 2 * DAY_MS) as broker:
            assert f"{name} is missing" in caplog.text
            move_to(broker, START_MS + 2 * DAY_MS + RETRY_MS)
            await wait_idle(broker)
            assert len(unfinished(broker)) == 1
            assert not (tmp_path / "keys" / name).exists()
            (tmp_path / name).rename(tmp_path / "keys" / name)
            await certified_at(broker, START_MS + 3 * DAY_MS, "key-gone")
            await wait_until(lambda: unfinished(broker) == [])


async def test_an_erasure_that_is_not_due_keeps_waiting_once_its_key_is_back(tmp_path: Path) -> None:
    """Once the key files are back, an erasure that is not due keeps waiting: only reading its intent was delayed."""
    async with broker_at(tmp_path) as broker:
        await create_with_key(broker)
        await erase(broker)
    (tmp_path / "keys").rename(tmp_path / "unmounted")
    async with broker_at(tmp_path) as broker:
        (tmp_path / "unmounted").rename(tmp_path / "keys")
        move_to(broker, START_MS + RETRY_MS)
        await wait_idle(broker)
        assert [one["due_ms"] for one in unfinished(broker)] == [START_MS + DAY_MS]
        assert broker.services.erasures().table.held == 0
        await certified_at(broker, START_MS + DAY_MS, "key-gone")


async def test_with_another_secret_it_continues_at_no_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A different secret is reported once, and the erasure is not retried."""
    async with broker_at(tmp_path) as broker:
        await create_with_key(broker)
        erasure = await erase(broker)
    (tmp_path / "keys").rename(tmp_path / "unmounted")
    async with broker_at(tmp_path) as broker:
        SigningKey.load(str(tmp_path / "keys" / "certificate.key"))
        move_to(broker, START_MS + RETRY_MS)
        await wait_idle(broker)
        assert unfinished(broker) == []
        assert await broker.services.erasures().queue.unfinished_on_disk() == [
            {"id": erasure.id, "kind": "erasure", "due_ms": None, "waits_for": None}
        ]
        assert "cannot be continued" in caplog.text


async def test_no_other_key_is_made_where_certificates_are(tmp_path: Path) -> None:
    """A new key could not verify them. The existing certificates can be listed; the error says what to do."""
    async with broker_at(tmp_path) as broker:
        await create_with_key(broker)
        await erase(broker, now=True)
    (tmp_path / "keys").rename(tmp_path / "unmounted")
    async with broker_at(tmp_path, **HTTP) as broker:
        write(broker, (b"customer-7", b"somebody else"))
        with pytest.raises(NotPossible, match=r"are missing.*restore it.*move .* out of the data directory"):
            await erase(broker, b"customer-7")
        listed = (await ask(broker, "GET", "/v1/certificates")).json
        assert (len(listed["certificates"]), listed["public_key"]) == (2, None)
        assert "certificate.key.secret are missing" in listed["key_problem"]
        assert not (tmp_path / "keys").exists()
        for path in [*certificates_of(broker, "key-gone"), *certificates_of(broker, "values-gone")]:
            path.rename(tmp_path / path.name)
        assert (await erase(broker, b"customer-7")).state == "values-gone"
        listed = (await ask(broker, "GET", "/v1/certificates")).json
        assert (listed["public_key"].split()[0], listed["key_problem"]) == ("-----BEGIN", None)
