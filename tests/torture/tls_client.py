"""A client on the listener with TLS, and the certificate of the broker, which is replaced and reloaded under it."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path

from tests.broker.request_fields import SET, alteration
from tests.broker.security.tls.certificates import authority, strict_context
from tests.broker.wire import API_VERSIONS, INCREMENTAL_ALTER_CONFIGS, WireClient
from tests.ports import ReservedPort
from tests.torture.history import Finding
from tests.torture.operations import Operation
from tests.torture.producing import expect, wait_for

BROKER_CONFIGS = 4
LOCATION = "ssl.keystore.location"
MISREAD = frozenset({"INVALID_REQUEST"})
"""The answer if the file cannot be read, as while no descriptor is left."""


class TlsClient:
    """One connection over TLS, and the certificates that the broker may present. `close` it."""

    def __init__(self, place: Path) -> None:
        place.mkdir(exist_ok=True)
        self._file = place / "broker.pem"
        self._port = ReservedPort()
        self._wire: WireClient | None = None
        self._latest = ""
        self._write()
        self._possible = {self._latest}

    @property
    def listener(self) -> str:
        """For `listeners`."""
        return f"SSL://{self._port.address}"

    @property
    def properties(self) -> dict[str, str]:
        """Of a broker with this listener."""
        return {LOCATION: str(self._file)}

    def _write(self) -> None:
        """Replace the file, as tools that renew certificates do."""
        issued = authority().issue("broker", hosts=["localhost", "127.0.0.1"])
        new = self._file.with_suffix(".new")
        new.write_text(issued.certificate + issued.key)
        os.replace(new, self._file)
        self._latest = issued.certificate

    async def wire(self) -> WireClient:
        """Return the connection; a new one if there is none."""
        if self._wire is None:
            context = strict_context(authority().certificate)
            try:
                self._wire = await WireClient(self._port.address, context).__aenter__()
            except ssl.SSLCertVerificationError as error:
                raise Finding(f"the broker presents a certificate that is not its own: {error}") from error
            except ssl.SSLError as error:
                raise ConnectionError(str(error)) from error
        return self._wire

    def started(self) -> None:
        """The broker has read the file at its start."""
        self._possible = {self._latest}

    async def disconnect(self) -> None:
        """Close the connection."""
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.__aexit__(None, None, None)

    def reload(self) -> Operation:
        """Replace the certificate, and have it loaded."""
        self._write()
        self._possible.add(self._latest)

        async def operation(wire: WireClient) -> None:
            change = alteration(BROKER_CONFIGS, "1", (f"listener.name.ssl.{LOCATION}", SET, str(self._file)))
            answer = await wire.call(INCREMENTAL_ALTER_CONFIGS, 1, change)
            expect(answer.responses[0].error_code, "reload of a certificate", MISREAD)
            self._possible = {self._latest}

        return operation

    async def check(self, wire: WireClient) -> None:
        """A new connection gets the latest certificate, and one that was there before stays. Nothing disturbs. Finding."""
        secured = await self.wire()
        await wait_for(lambda: self.reload()(wire))
        await secured.call(API_VERSIONS, 2, {})
        host, _, port = self._port.address.rpartition(":")
        shown = await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))
        if shown not in self._possible:
            raise Finding("the broker presents a certificate that was replaced")

    def close(self) -> None:
        """Give the port back."""
        self._port.close()
