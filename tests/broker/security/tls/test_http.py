"""The HTTP port with TLS: the page and the paths over https, and the effects of handshakes."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from click.testing import CliRunner

from diamant.broker.broker import Broker
from diamant.broker.cannot_start import CannotStart
from diamant.broker.cli import main
from diamant.broker.client.admin import Admin
from diamant.broker.config.broker_config import BrokerConfig
from tests.broker.security.tls.certificates import authority, client_context, of_broker, of_client, written
from tests.waiting import wait_until


def config_of(directory: Path, **http_settings: str) -> BrokerConfig:
    """Return a broker with TLS on its HTTP port only."""
    return BrokerConfig(
        listen="127.0.0.1:0",
        data_dir=directory / "data",
        diamant_http_listen="127.0.0.1:0",
        diamant_http_ssl_keystore_location=str(written(directory, of_broker())),
        properties={f"diamant.http.ssl.{name}": value for name, value in http_settings.items()},
    )


async def get(broker: Broker, context: ssl.SSLContext | None) -> bytes:
    """Return the response to `GET /health`."""
    assert broker.addresses.http is not None
    port = broker.addresses.http.port
    reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(60):
        try:
            return await reader.read()
        except (ConnectionError, ssl.SSLError):
            return b""
        finally:
            writer.close()


async def test_clients_connect_over_https(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients connect with its address and certificate. A plain HTTP client gets nothing, and the log has the reason."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    (tmp_path / "ca.pem").write_text(authority().certificate)
    async with Broker(config_of(tmp_path)) as broker:
        assert broker.http_url is not None
        assert broker.http_url.startswith("https://127.0.0.1:")
        assert (await get(broker, client_context(tmp_path))).startswith(b"HTTP/1.1 200 OK")
        admin = Admin(broker.bootstrap_servers)
        assert (await asyncio.to_thread(admin.status))["topics"] is not None
        assert admin.http_url == broker.http_url
        assert await get(broker, None) == b""
        await wait_until(lambda: "an HTTP request without TLS" in caplog.text)


async def test_client_certificates_over_https(tmp_path: Path) -> None:
    """A proxy or a person presents one."""
    settings = {"ssl.client.auth": "required", "ssl.truststore.certificates": authority().certificate}
    names = {name.removeprefix("ssl."): value for name, value in settings.items()}
    (tmp_path / "client").mkdir()
    async with Broker(config_of(tmp_path, **names)) as broker:
        assert await get(broker, client_context(tmp_path)) == b""
        with_certificate = client_context(tmp_path / "client", of_client())
        assert (await get(broker, with_certificate)).startswith(b"HTTP/1.1 200 OK")


async def test_half_open_handshakes_take_no_place_from_others(tmp_path: Path) -> None:
    """With more silent connections than the port serves at once, a client still gets its response."""
    async with Broker(config_of(tmp_path)) as broker:
        assert broker.addresses.http is not None
        silent = [await asyncio.open_connection("localhost", broker.addresses.http.port) for _ in range(90)]
        assert (await get(broker, client_context(tmp_path))).startswith(b"HTTP/1.1 200 OK")
        for _, writer in silent:
            writer.close()


async def test_a_key_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    """A broker configured for TLS never opens the port without it."""
    junk = tmp_path / "junk"
    junk.write_text("junk")
    config = BrokerConfig(
        listen="127.0.0.1:0",
        data_dir=tmp_path / "data",
        diamant_http_listen="127.0.0.1:0",
        diamant_http_ssl_keystore_location=str(junk),
    )
    with pytest.raises(CannotStart, match=r"diamant\.http\.ssl\.keystore\.location: .* cannot be opened as PKCS12"):
        async with Broker(config):
            pass


async def test_a_broker_with_tls_on_both_ports(tmp_path: Path) -> None:
    """A command looks the HTTP address up over TLS; both ports trust the CA of a file. A wrong file is an error of one line."""
    ca_file, none, pem = tmp_path / "ca.pem", tmp_path / "none", str(written(tmp_path, of_broker()))
    (tmp_path / "empty").touch()
    ca_file.write_text(authority().certificate)
    (tmp_path / "password").write_text("secret\n")
    async with Broker(
        listen="SSL://127.0.0.1:0",
        data_dir=tmp_path / "data",
        diamant_http_listen="127.0.0.1:0",
        diamant_http_ssl_keystore_location=pem,
        ssl_keystore_location=pem,
    ) as broker:
        for file, code, said in (
            (ca_file, 0, ""),
            (none, 2, "No such file or directory"),
            (tmp_path / "password", 2, "expected certificates in PEM"),
            (tmp_path / "empty", 2, "expected certificates in PEM"),
        ):
            asked = ["status", "-b", broker.bootstrap_servers, "--json", "--ca", str(file)]
            result = await asyncio.to_thread(CliRunner().invoke, main, asked)
            assert (result.exit_code, said in result.stderr) == (code, True), result.output
