"""Frames of every API and version against a broker, without sockets: in plaintext, behind SASL, and within TLS.

Requests are valid by their schemas and name what exists, or are damaged: `damage` flips, cuts, repeats and inserts extreme
lengths. A conversation is a connection of some frames. It must end in answers or in a closed connection; nothing is logged as a
failure of the broker, and its next client is served.
"""

from __future__ import annotations

import asyncio
import copy
import random
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from struct import error as StructError
from typing import Any

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.network.client_connection import Connection
from diamant.broker.network.listener_sockets import ListenerEndpoint
from diamant.broker.network.server import Server
from diamant.broker.security.tls.tls_connection import TlsConnection
from diamant.broker.security.tls.tls_listeners import TlsListeners
from diamant.protocol.wire.apis import API_NAMES, SERVED, is_flexible
from diamant.protocol.wire.schemas import request_class
from tests.broker.security.tls.certificates import authority, broker_properties
from tests.broker.wire import API_VERSIONS, WireClient, batch_of
from tests.fuzz.watching import Finding, watched
from tests.protocol.random_messages import entity, kio_bytes, random_fields
from tests.protocol.wire.test_fuzz_requests import damage
from tests.waiting import wait_until

MAX_FRAMES = 6
TURNS = 50
BODIES = 8
FRAMES_OF_TLS, DAMAGED_IN_TLS = 100, 0.05
"""After one handshake, which costs as much as ten: a damaged frame most often closes the connection."""
NAMES = {
    "topic": ("t", "compacted", "__consumer_offsets", "missing", ""),
    "name": ("t", "compacted", "missing", "1", "cleanup.policy", "client-id", "SCRAM-SHA-256", ""),
    "group_id": ("g", "h", ""),
    "transactional_id": ("x", "y", ""),
    "member_id": ("", "m"),
    "key": ("g", "x", "producer_byte_rate"),
    "resource_name": ("t", "compacted", "1", "", "g"),
    "protocol_type": ("consumer", ""),
    "principal": ("User:alice", "User:*"),
    "mechanism": ("PLAIN", "SCRAM-SHA-256"),
}
SMALL = (-1, 0, 1, 2)
"""Values of most numbers: partitions, epochs, offsets, types."""


class Quiet(asyncio.Transport):
    """A transport to nowhere: it counts what is written, and closes as asyncio's does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._closing = False
        self.protocol: Any = None
        self.written = bytearray()
        self.is_read = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self.written += data

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self.protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """All is taken."""

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        # A context, so that files are written through this transport.
        known = {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2), "sslcontext": self}
        return known.get(name, default)


@cache
def bodies(key: int, version: int) -> list[bytes]:
    """Valid bodies of a request."""
    rng = random.Random(key * 100 + version)
    struct = request_class(key, version)
    found = []
    for _ in range(BODIES):
        fields = random_fields(rng, struct)
        try:
            found.append(kio_bytes(entity(struct, _known(rng, copy.deepcopy(fields)))))
        except (StructError, OverflowError):  # a small number that its field cannot hold
            found.append(kio_bytes(entity(struct, fields)))
    return found


def _known(rng: random.Random, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields, most of which name what exists, in small numbers."""
    for name, value in fields.items():
        if isinstance(value, dict):
            _known(rng, value)
        elif isinstance(value, list):
            fields[name] = [_known(rng, one) if isinstance(one, dict) else _value(rng, name, one) for one in value]
        else:
            fields[name] = _value(rng, name, value)
    return fields


def _value(rng: random.Random, name: str, value: Any) -> Any:
    if rng.random() < 0.2:
        return value
    if isinstance(value, str):
        found = [names for part, names in NAMES.items() if part in name]
        return rng.choice(found[-1]) if found else value
    if isinstance(value, bytes) and name == "records":
        return batch_of(
            [b"value"] * rng.randint(1, 3), producer_id=rng.choice((-1, 0)), base_sequence=0, producer_epoch=0
        )
    if type(value) is int and -(1 << 31) <= value < 1 << 31 and "error" not in name:
        return rng.choice(SMALL)
    return value


def frame_of(rng: random.Random, damaged: float) -> bytes:
    """Return a frame of any API and version, valid or damaged: so often."""
    key = rng.choice(_KEYS)
    version = rng.randint(SERVED[key].min, SERVED[key].max)
    body = rng.choice(bodies(key, version))
    kind = rng.random() * 0.6 / damaged
    if kind < 0.5:
        body = damage(rng, body)
    elif kind < 0.55:
        body = rng.randbytes(rng.randint(0, 60))
    header = key.to_bytes(2, "big") + version.to_bytes(2, "big") + rng.randbytes(4) + b"\x00\x01c"
    frame = header + (b"\x00" if is_flexible(key, version) else b"") + body
    frame = len(frame).to_bytes(4, "big") + frame
    return damage(rng, frame) if 0.55 < kind < 0.6 else frame


_KEYS = sorted(SERVED)


class Plaintext:
    """Connections without TLS to one broker."""

    def __init__(self, broker: Broker, rng: random.Random) -> None:
        self.server = broker.services.server
        self.rng = rng
        self.loop = asyncio.get_running_loop()

    async def talk(self) -> int:
        """One conversation; the number of its frames."""
        transport = Quiet(self.loop)
        connection = transport.protocol = Connection(self.server, ListenerEndpoint("PLAINTEXT", "", 0, "PLAINTEXT", 1))
        self.server.slots.take("PLAINTEXT")
        connection.connection_made(transport)
        sent = 0
        for frames in self.groups(self.rng.randint(1, MAX_FRAMES), 0.6):
            if transport.is_closing():
                break
            await feed(connection, transport, b"".join(frames))
            await self.settle(transport, connection)
            sent += len(frames)
        await self.end(transport, connection)
        return sent

    def groups(self, count: int, damaged: float) -> Iterator[list[bytes]]:
        """Frames, some of which are received together."""
        while count > 0:
            frames = [frame_of(self.rng, damaged) for _ in range(self.rng.choice((1, 1, 1, 3)))]
            yield frames
            count -= len(frames)

    async def end(self, transport: Quiet, connection: Connection | None) -> None:
        """Let the broker answer, then close."""
        await asyncio.sleep(0)
        if connection is not None:
            await self.settle(transport, connection)
        transport.close()
        await asyncio.sleep(0)

    async def settle(self, transport: Quiet, connection: Connection) -> None:
        """Let the broker answer: most often all, but for requests that wait for something."""
        for _ in range(self.rng.choice((1, *[TURNS] * 4))):
            if transport.is_closing() or not (connection.is_busy or connection.queue.requests):
                break
            await asyncio.sleep(0)


class Tls(Plaintext):
    """Connections within TLS, whose records are damaged, too."""

    def __init__(self, broker: Broker, rng: random.Random) -> None:
        super().__init__(broker, rng)
        config = BrokerConfig(listen="SSL://127.0.0.1:0", properties=broker_properties())
        self._tls = TlsListeners(self.server.refused.log).open(config, config.listeners[0])
        self._context = ssl.create_default_context(cadata=authority().certificate)

    async def talk(self) -> int:
        """One handshake and a conversation, or a damaged handshake."""
        transport = Quiet(self.loop)
        endpoint = ListenerEndpoint("SSL", "", 0, "SSL", 1)
        self.server.slots.take("SSL")
        above = Connection(self.server, endpoint)
        connection = TlsConnection(self._tls, lambda: above, Counted(self.server))
        transport.protocol = connection
        connection.connection_made(transport)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = self._context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        is_damaged = self.rng.random() < 0.1
        while not transport.is_closing():
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
                break
            hello = outgoing.read()
            if is_damaged:
                await feed(connection, transport, damage(self.rng, hello), is_patient=True)
                await self.end(transport, None)
                return 1
            await feed(connection, transport, hello, is_patient=True)
            await wait_until(lambda: bool(transport.written) or transport.is_closing())
            incoming.write(bytes(transport.written))
            transport.written.clear()
        await feed(connection, transport, outgoing.read(), is_patient=True)
        await wait_until(lambda: transport.is_read or transport.is_closing())
        sent = 1
        for frames in self.groups(FRAMES_OF_TLS, DAMAGED_IN_TLS):
            if transport.is_closing():
                break
            client.write(b"".join(frames))
            records = outgoing.read()
            await feed(connection, transport, damage(self.rng, records) if self.rng.random() < 0.02 else records)
            transport.written.clear()
            sent += len(frames)
            await self.settle(transport, above)
        await self.end(transport, above)
        return sent


class Counted:
    """The server's view of a TLS connection, which is counted from its acceptance."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def arrived(self, address: str, peer: str) -> bool:
        """Let everyone in."""
        return self._server.arrived(address, peer)

    def left(self, address: str) -> None:
        """Free the slot."""
        self._server.left(address, "SSL")


async def feed(
    connection: asyncio.BufferedProtocol, transport: Quiet, data: bytes, *, is_patient: bool = False
) -> None:
    """Have a protocol receive bytes, as far as it reads them; `is_patient`: it will, after a step in a thread."""
    view = memoryview(data)
    while view and not transport.is_closing():
        if is_patient:
            await wait_until(lambda: transport.is_read or transport.is_closing())
        elif not transport.is_read:
            return
        buffer = connection.get_buffer(-1)
        count = min(len(buffer), len(view))
        buffer[:count] = view[:count]
        del buffer
        connection.buffer_updated(count)
        view = view[count:]


async def fuzz(seed: int, frames: int, kind: type[Plaintext] = Plaintext) -> int:
    """Send about that many frames to a broker; the exact number. Raises Finding."""
    rng = random.Random(seed)
    sent = 0
    with tempfile.TemporaryDirectory(prefix="diamant-fuzz-") as directory:
        settings = {"auto.create.topics.enable": "false", "diamant.http.listen": "", "num.partitions": "2"}
        async with Broker(listen="127.0.0.1:0", data_dir=directory, properties=settings) as broker:
            async with WireClient(broker.bootstrap_servers) as wire:
                await wire.create("t", 2)
                await wire.create("compacted", cleanup_policy="compact")
            talking = kind(broker, rng)
            while sent < frames:
                with watched(f"seed {seed}, after {sent} frames"):
                    for _ in range(20):
                        sent += await talking.talk()
                    async with WireClient(broker.bootstrap_servers) as wire:
                        answer = await wire.call(API_VERSIONS, 2, {})
                        if answer.error_code:
                            raise Finding(f"seed {seed}: the next client is answered {answer}")
            surprised = {API_NAMES[row.api_key] for row in broker.services.server.metrics.rows() if row.errors.get(-1)}
            if surprised:
                raise Finding(f"seed {seed}: UNKNOWN_SERVER_ERROR of {surprised}")
    return sent
