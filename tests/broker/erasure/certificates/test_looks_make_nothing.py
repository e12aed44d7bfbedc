"""Read-only requests create no file: no signing key, no secret, nothing in the data directory."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.operation_errors import NotFound
from diamant.storage import names
from tests.broker.checked_certificate import check_certificate
from tests.broker.erasure.brokers import broker_at, data_of
from tests.broker.erasure.constants import HTTP, KEY
from tests.broker.erasure.erasing import erase
from tests.broker.erasure.records import create, create_with_key
from tests.broker.http_asking import ask
from tests.waiting import wait_until

WITH_HTTP: dict[str, Any] = {**HTTP}

LOOKS = {
    "/v1/explain": {"topic": "users"},
    "/v1/count": {"topic": "users"},
    "/v1/latest": {"topic": "users"},
}
"""What looks and is a POST, as its arguments are in a body."""


def files_below(path: Path) -> set[str]:
    """Return all names below a directory, including directories."""
    return {str(one) for one in path.rglob("*")}


def has_hash_key(broker: Broker) -> bool:
    """Whether the cleaner has made its key, which it does independently of requests."""
    return (data_of(broker) / names.HASH_KEY).exists()


async def paths_to_get(broker: Broker) -> list[str]:
    """Every path with a GET, with placeholders for its parameters."""
    document = (await ask(broker, "GET", "/v1/openapi.json")).json
    paths = [path for path, methods in document["paths"].items() if "get" in methods]
    assert "/v1/certificates" in paths
    return [re.sub(r"\{\w+\}", "1", path) for path in paths]


async def test_every_get_and_every_look_leaves_the_disk_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No GET and no look changes the disk, not even the list of certificates, which reports a missing key without an error."""
    async with broker_at(tmp_path, **WITH_HTTP) as broker:
        await create_with_key(broker)
        await wait_until(lambda: has_hash_key(broker))
        before = files_below(tmp_path)
        for path in [*await paths_to_get(broker), "/health", "/healthz?erasure", "/readyz", "/metrics"]:
            await ask(broker, "GET", path)
        for path, body in LOOKS.items():
            assert (await ask(broker, "POST", path, body)).status in (200, 202)
        listed = (await ask(broker, "GET", "/v1/certificates")).json
        assert (listed["public_key"], listed["key_problem"], listed["certificates"]) == (None, None, [])
        with pytest.raises(NotFound):
            await broker.erase_now("nobody")
        assert files_below(tmp_path) == before
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


async def test_verifying_makes_no_key(tmp_path: Path) -> None:
    """A broker without a key checks the signature of another broker's certificate, but no digests."""
    async with broker_at(tmp_path / "one") as broker:
        await create_with_key(broker)
        certificate = (await erase(broker)).certificate
    async with broker_at(tmp_path / "two") as broker:
        await create(broker)
        await wait_until(lambda: has_hash_key(broker))
        before = files_below(tmp_path)
        pinned = bytes.fromhex(certificate["signature"]["public_key"])
        found = await check_certificate(broker, certificate, public_key=pinned, key=KEY)
        assert (found.signature, found.outcome) == ("trusted", "not-confirmed")
        assert files_below(tmp_path) == before


@pytest.fixture
def made_by_openssl(tmp_path: Path) -> str:
    """The public key of a key made as docs/reference/certificates.md describes."""
    found = re.search(r"```sh\n(umask 077\n.*?)```", Path("docs/reference/certificates.md").read_text(), re.DOTALL)
    assert found
    (tmp_path / "keys").mkdir()
    subprocess.run(["sh", "-ec", found[1]], cwd=tmp_path / "keys", check=True, timeout=60)
    return (tmp_path / "keys" / "public.pem").read_text()


async def test_a_key_of_openssl_is_known_before_anything_is_signed(tmp_path: Path, made_by_openssl: str) -> None:
    """A key made by OpenSSL is listed before it has signed anything, and then signs certificates."""
    async with broker_at(tmp_path, **WITH_HTTP) as broker:
        await create_with_key(broker)
        public = (await ask(broker, "GET", "/v1/certificates")).json["public_key"]
        assert public == made_by_openssl
        assert (await erase(broker)).public_key == public
