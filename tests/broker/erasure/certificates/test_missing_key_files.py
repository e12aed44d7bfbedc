"""Key files that are not there although certificates, or unfinished erasures, are of them: others are not made in their place."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from diamant.broker.client.errors import NotPossible
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from tests.broker.erasure.cases import (
    DAY_MS,
    HTTP,
    RETRY_MS,
    START_MS,
    broker_at,
    certificates_of,
    certified_at,
    create_with_key,
    erase,
    move_to,
    wait_idle,
    write,
)
from tests.broker.http_asking import ask
from tests.waiting import wait_until


@pytest.mark.parametrize("name", ["certificate.key", "certificate.key.secret"])
async def test_an_unfinished_erasure_waits_for_its_key_files(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As when their disk is not mounted at a start: the log says what is missing, none is made, and it goes on with them."""
    async with broker_at(tmp_path) as broker:
        await create_with_key(broker)
        await erase(broker)
    (tmp_path / "keys" / name).rename(tmp_path / name)
    with caplog.at_level(logging.ERROR):
        async with broker_at(tmp_path, START_MS + 2 * DAY_MS) as broker:
            assert f"{name} is missing" in caplog.text
            move_to(broker, START_MS + 2 * DAY_MS + RETRY_MS)
            await wait_idle(broker)
            assert len(broker.services.erasures().queue.unfinished()) == 1
            assert not (tmp_path / "keys" / name).exists()
            (tmp_path / name).rename(tmp_path / "keys" / name)
            await certified_at(broker, START_MS + 3 * DAY_MS, "key-gone")
            await wait_until(lambda: broker.services.erasures().queue.unfinished() == [])


async def test_one_whose_time_has_not_come_waits_on_when_they_are_back(tmp_path: Path) -> None:
    """Reading the intent is all that was put off."""
    async with broker_at(tmp_path) as broker:
        await create_with_key(broker)
        await erase(broker)
    (tmp_path / "keys").rename(tmp_path / "unmounted")
    async with broker_at(tmp_path) as broker:
        (tmp_path / "unmounted").rename(tmp_path / "keys")
        move_to(broker, START_MS + RETRY_MS)
        await wait_idle(broker)
        assert [one["due_ms"] for one in broker.services.erasures().queue.unfinished()] == [START_MS + DAY_MS]
        assert broker.services.erasures().table.held == 0
        await certified_at(broker, START_MS + DAY_MS, "key-gone")


async def test_with_another_secret_it_goes_on_at_no_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What comes back is not what was there: that is told once, and nothing is tried again."""
    async with broker_at(tmp_path) as broker:
        await create_with_key(broker)
        erasure = await erase(broker)
    (tmp_path / "keys").rename(tmp_path / "unmounted")
    async with broker_at(tmp_path) as broker:
        SigningKey.load(str(tmp_path / "keys" / "certificate.key"))
        move_to(broker, START_MS + RETRY_MS)
        await wait_idle(broker)
        assert broker.services.erasures().queue.unfinished() == []
        assert await broker.services.erasures().queue.unfinished_on_disk() == [
            {"id": erasure.id, "kind": "erasure", "due_ms": None}
        ]
        assert "cannot be continued" in caplog.text


async def test_no_other_key_is_made_where_certificates_are(tmp_path: Path) -> None:
    """They could not be verified with it, and digests not be compared. What there is can be listed; the error says what to do."""
    async with broker_at(tmp_path) as broker:
        await create_with_key(broker)
        await erase(broker, is_now=True)
    (tmp_path / "keys").rename(tmp_path / "unmounted")
    async with broker_at(tmp_path, **HTTP) as broker:
        write(broker, (b"customer-7", b"somebody else"))
        with pytest.raises(NotPossible, match=r"are missing.*bring it back.*move .* out of the data directory"):
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
