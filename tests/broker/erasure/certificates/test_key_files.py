"""Where the key that signs certificates may lie, and who may read it: anywhere else an erasure is refused before it begins."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from diamant.broker.client.errors import NotPossible
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from tests.broker.erasure.cases import KEY, broker_at, create, create_with_key, erase
from tests.cleaner.evidence.scan.naive_scanner import records_of_key


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
    """Which files of a key there are, links followed."""
    return [one for one in (str(path), f"{path}.secret") if os.path.exists(one)]


@pytest.mark.parametrize("place", ["inside", "linked directory", "linked secret"])
async def test_a_key_or_secret_inside_of_the_data_directory_is_refused(tmp_path: Path, place: str) -> None:
    """Whatever links lead there: nothing is erased and no key is made, and the error says where it may not lie."""
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
        with pytest.raises(NotPossible, match=r"nothing was changed: .* is inside of the data directory") as raised:
            await erase(broker)
        assert "diamant.certificate.key.file" in str(raised.value)
        assert ".secret is inside" in str(raised.value) or place != "linked secret"
        with pytest.raises(NotPossible, match="is inside of the data directory"):
            await broker.services.certificates().public_key()
        assert len(records_of_key(data, "users", KEY)) == 1
        assert made_of(path) == []


async def test_a_key_beside_the_data_directory_is_used(tmp_path: Path) -> None:
    """A name that only begins like that of the directory is not inside of it."""
    path = tmp_path / "data-keys" / "certificate.key"
    async with broker_at(tmp_path, **{"diamant.certificate.key.file": str(path)}) as broker:
        await create(broker)
        assert (await erase(broker)).state == "nothing-matched"
    assert path.exists()


async def test_a_user_without_a_home_is_asked_for_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id without an account, as in containers: no key is made in a directory called ~ wherever the broker was started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "~")
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    async with broker_at(tmp_path, **{"diamant.certificate.key.file": ""}) as broker:
        await create_with_key(broker)
        with pytest.raises(
            NotPossible, match=r"nothing was changed: .* no home .*let diamant.certificate.key.file say"
        ):
            await erase(broker)
        assert await broker.services.erasures().queue.unfinished_on_disk() == []
    assert set(os.listdir(tmp_path)) <= {"data", "keys"}


async def test_a_place_where_no_key_can_be_made_is_named(tmp_path: Path) -> None:
    """With the setting that names another."""
    (tmp_path / "file").touch()
    async with broker_at(tmp_path, **{"diamant.certificate.key.file": str(tmp_path / "file" / "key")}) as broker:
        await create_with_key(broker)
        with pytest.raises(NotPossible, match=r"file.*: .*let diamant.certificate.key.file say where else"):
            await erase(broker)
