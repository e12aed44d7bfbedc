"""One HTTP request to a broker, byte by byte, and its answer; and a port with other limits."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple

from diamant.broker.broker import Broker
from diamant.broker.http.serving.limits import ConnectionLimits, HttpLimits
from diamant.broker.http.serving.server import open_http

TIMEOUT_S = 60


class Answer(NamedTuple):
    """An HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        assert self.headers["content-type"].startswith("application/json")
        return json.loads(self.body)


async def connect(broker: Broker) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection to the HTTP port."""
    assert broker.addresses.http is not None
    return await asyncio.open_connection(broker.addresses.http.host, broker.addresses.http.port)


async def ask(
    broker: Broker, method: str, path: str, fields: object = None, *, headers: dict[str, str | None] | None = None
) -> Answer:
    """One request; `fields` become a JSON body, text and bytes go as they are.

    `headers` replace the usual ones, None leaves one out.
    """
    assert broker.addresses.http is not None
    body = b"" if fields is None else fields.encode() if isinstance(fields, str) else fields
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent: dict[str, str | None] = {"Host": broker.addresses.http.address, "Content-Length": str(len(body))}
    if method in ("POST", "PUT"):
        sent["Content-Type"] = "application/json"
    sent |= headers or {}
    head = "".join(f"{name}: {value}\r\n" for name, value in sent.items() if value is not None)
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await connect(broker)
        try:
            writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
            raw = await reader.read()
        finally:
            writer.close()
    first, _, rest = raw.partition(b"\r\n")
    lines, _, content = rest.partition(b"\r\n\r\n")
    found = dict(line.split(": ", 1) for line in lines.decode().split("\r\n"))
    return Answer(int(first.split()[1]), {name.lower(): value for name, value in found.items()}, content)


async def limit_http(broker: Broker, **limits: Any) -> None:
    """Put a port with other `ConnectionLimits` in the place of a broker's."""
    assert broker.running.http is not None
    await broker.running.http.close()
    listener = broker.config.http_listener
    broker.running.http = open_http(broker.services, listener, HttpLimits(ConnectionLimits(**limits)))
