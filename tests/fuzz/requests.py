"""Frames of every API and version against a broker, without sockets: in plaintext, behind SASL, and within TLS.

Requests are valid by their schemas and name what exists, or are damaged: `damage` flips, cuts, repeats and inserts extreme
lengths. Many connections talk at the same time, so that a turn of the loop serves them all, and one that the broker closes is
replaced. A frame counts once the broker has dispatched it, or has closed the connection because of it; not what it never read.
Each answer must be the one that is owed next. Nothing is logged as a failure of the broker, its next client is served, and it
gives back connections and descriptors.
"""

from __future__ import annotations

import asyncio
import copy
import random
import ssl
import tempfile
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from struct import Struct
from struct import error as StructError
from typing import Any, ClassVar

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.network.api import Answer, ConnectionInfo, Dispatch
from diamant.broker.network.client_connection import Connection
from diamant.broker.network.listener_sockets import ListenerEndpoint
from diamant.broker.network.request_metrics import VersionCounts
from diamant.broker.network.server import Server
from diamant.broker.security.tls.tls_connection import TlsConnection
from diamant.broker.security.tls.tls_listeners import TlsListeners
from diamant.protocol.errors import ProtocolError
from diamant.protocol.wire.apis import API_NAMES, PRODUCE, SERVED, is_flexible
from diamant.protocol.wire.schemas import request_class
from diamant.protocol.wire.server_connection import Request, ServerConnection
from tests.broker.groups.share.share_requests import SHARE_FETCH
from tests.broker.security.sasl.sasl_wire import ALICE, PROPERTIES, SASL_AUTHENTICATE, SASL_HANDSHAKE
from tests.broker.security.tls.certificates import authority, broker_properties
from tests.broker.wire import API_VERSIONS, WireClient, batch_of
from tests.fuzz.watching import Finding, descriptors, watched
from tests.protocol.random_messages import entity, kio_bytes, random_fields
from tests.protocol.wire.test_fuzz_requests import damage
from tests.waiting import wait_until

WIDTH = 32
"""The connections that talk at the same time."""
ROUNDS = 10
"""The rounds between two looks at the broker."""
TURNS, FEW = 50, 4
"""A round lasts as many turns of the loop at most, and until no more connections are busy: some requests wait for long."""
BODIES, FRESH = 8, 0.003
HOST = "127.0.0.2"
"""The address of hostile clients."""
OWN_ID = 0x5A5A5A5A
"""The correlation id of authentication: its frames are not hostile."""
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
        self.is_free = asyncio.Event()
        """Set unless the protocol has paused reading."""
        self.is_free.set()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self.written += data

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.is_free.set()
            self._loop.call_soon(self.protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self.is_read = False
        self.is_free.clear()

    def resume_reading(self) -> None:
        self.is_read = True
        self.is_free.set()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """All is taken."""

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        # A context, so that files are written through this transport.
        known = {"peername": (HOST, 1), "sockname": ("127.0.0.1", 2), "sslcontext": self}
        return known.get(name, default)


@cache
def bodies(key: int, version: int) -> list[bytes]:
    """Valid bodies of a request."""
    rng = random.Random(key * 100 + version)
    return [_body(rng, key, version) for _ in range(BODIES)]


def _body(rng: random.Random, key: int, version: int) -> bytes:
    struct = request_class(key, version)
    fields = random_fields(rng, struct)
    try:
        return kio_bytes(entity(struct, _known(rng, copy.deepcopy(fields))))
    except (StructError, OverflowError):  # a small number that its field cannot hold
        return kio_bytes(entity(struct, fields))


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


class Frames:
    """Frames of one seed, whatever ran before it: any API and version, valid or damaged."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._bodies: dict[tuple[int, int], list[bytes]] = {}

    def frame(self, damaged: float) -> bytes:
        """Return a frame, damaged with this probability."""
        rng, chance = self._rng, self._rng.random
        key, first, count = _APIS[int(chance() * len(_APIS))]
        version = first + int(chance() * count)
        found = self._bodies.get((key, version))
        if found is None:
            found = self._bodies[key, version] = [*bodies(key, version)]
        place = int(chance() * BODIES)
        if chance() < FRESH:
            found[place] = _body(rng, key, version)
        body = found[place]
        kind = chance() * 0.6 / damaged
        if kind < 0.5:
            body = damage(rng, body)
        elif kind < 0.55:
            body = rng.randbytes(rng.randint(0, 60))
        frame = header(key, version, rng.getrandbits(32), len(body)) + body
        return damage(rng, frame) if 0.55 < kind < 0.6 else frame


def header(key: int, version: int, correlation_id: int, size: int) -> bytes:
    """Return what comes before a body of `size` bytes."""
    end = b"c\0" if is_flexible(key, version) else b"c"
    return _HEADER.pack(10 + len(end) + size, key, version, correlation_id, 1) + end


_HEADER = Struct(">ihhIh")
_ANSWER = Struct(">iI")
_APIS = [(key, served.min, served.max - served.min + 1) for key, served in sorted(SERVED.items())]


class Looking:
    """The broker's dispatcher, which counts the frames of hostile clients that reach it."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self.count = 0

    def __call__(self, info: ConnectionInfo, request: Request) -> Answer:
        if info.host == HOST and request.correlation_id != OWN_ID:
            self.count += 1
        return self._dispatch(info, request)


class Parsed(ServerConnection):
    """The frames of a connection, with the answers that are owed."""

    def __init__(self, server: Server) -> None:
        super().__init__(max_frame_bytes=server.limits.max_frame_bytes, scratch=server.scratch)
        self.owed = deque[tuple[int, int]]()
        """API keys and correlation ids."""
        self.is_broken = False

    def received(self, count: int) -> list[Request]:
        """Remember what is answered."""
        try:
            requests = super().received(count)
        except ProtocolError:
            self.is_broken = True
            raise
        self.owed.extend([(request.api_key, request.correlation_id & 0xFFFFFFFF) for request in requests])
        return requests


@dataclass(slots=True, eq=False)
class Talk:
    """A conversation: a transport, the protocol that receives from it, and what is above that."""

    transport: Quiet
    below: asyncio.BufferedProtocol
    above: Connection
    parsed: Parsed
    unread: bytes = b""
    answers: bytearray = field(default_factory=bytearray)

    @property
    def is_busy(self) -> bool:
        """True while the broker has something to do for it."""
        return not self.transport.is_closing() and bool(self.above.is_busy or self.above.queue.requests)

    def receive(self, data: bytes) -> None:
        """Have the broker receive bytes, as far as it reads them."""
        view = memoryview(self.unread + data if self.unread else data)
        transport, below = self.transport, self.below
        while view and transport.is_read and not transport.is_closing():
            buffer = below.get_buffer(-1)
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            del buffer
            below.buffer_updated(count)
            view = view[count:]
        self.unread = bytes(view)

    def check(self, data: bytes | bytearray) -> None:
        """Check answers: each is owed, and only those of Produce are left out. Raises Finding."""
        answers, owed, at = self.answers, self.parsed.owed, 0
        answers += data
        while len(answers) - at >= _ANSWER.size and self.above.frames is self.parsed:  # not after a bare token
            size, correlation_id = _ANSWER.unpack_from(answers, at)
            if at + 4 + size > len(answers):
                break
            at += 4 + size
            while owed:
                key, expected = owed.popleft()
                if expected == correlation_id:
                    break
                if key != PRODUCE:
                    raise Finding(f"{correlation_id} is answered, {expected} of {API_NAMES.get(key, key)} is not")
            else:
                raise Finding(f"{correlation_id} is answered, nobody has sent it")
        del answers[:at]


class Plaintext:
    """Connections without TLS to one broker."""

    protocol, listen = "PLAINTEXT", "PLAINTEXT://127.0.0.1:0"
    properties: ClassVar[Mapping[str, str]] = {}
    damaged, groups, ends = 0.6, (1, 1, 1, 3), 0.15
    """How often a frame is damaged, how many are received together, how often a client leaves after a round."""

    def __init__(self, broker: Broker, rng: random.Random) -> None:
        self.server = broker.services.server
        self.rng = rng
        self.loop = asyncio.get_running_loop()
        self.frames = Frames(rng)
        self.looking = self.server.dispatch = Looking(self.server.dispatch)
        self.talks: list[Talk] = []

    async def round(self) -> None:
        """Send frames on each of many connections, and let the broker answer: most often all."""
        await self.fill()
        for talk in self.talks:
            self.send(talk, b"".join([self.frames.frame(self.damaged) for _ in range(self.rng.choice(self.groups))]))
        for _ in range(self.rng.choice((1, *[TURNS] * 4))):
            await asyncio.sleep(0)
            if sum([talk.is_busy for talk in self.talks]) <= FEW:
                break
        for talk in self.talks:
            self.read(talk)
            self.looking.count += talk.parsed.is_broken
            if self.rng.random() < self.ends:
                talk.transport.close()

    async def fill(self) -> None:
        """Open the connections that are missing."""
        self.forget()
        while len(self.talks) < WIDTH:
            self.talks.append(self.open())

    def forget(self) -> None:
        """Forget closed connections."""
        self.talks = [talk for talk in self.talks if not talk.transport.is_closing()]

    def open(self) -> Talk:
        """Open a connection."""
        transport, (above, parsed) = Quiet(self.loop), self.above()
        transport.protocol = above
        above.connection_made(transport)
        return Talk(transport, above, above, parsed)

    def above(self) -> tuple[Connection, Parsed]:
        """Return a connection, not connected yet, and its frames."""
        self.server.slots.take(self.protocol)
        above = Connection(self.server, ListenerEndpoint(self.protocol, "", 0, self.protocol, 1))
        above.frames = parsed = Parsed(self.server)
        return above, parsed

    def send(self, talk: Talk, data: bytes) -> None:
        """Have the broker receive frames."""
        talk.receive(data)

    def read(self, talk: Talk) -> None:
        """Check what the broker has sent."""
        if talk.transport.written:
            talk.check(talk.transport.written)
            talk.transport.written.clear()

    async def leave(self) -> None:
        """Close all connections; the broker must give them up."""
        for talk in self.talks:
            talk.transport.close()
        await wait_until(lambda: not self.server.connections)


class Authenticated(Plaintext):
    """Connections of clients that have authenticated."""

    protocol, listen = "SASL_PLAINTEXT", "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
    properties: ClassVar = {name: value for name, value in PROPERTIES.items() if name != "listeners"}
    damaged, groups, ends = 0.2, (1, 1, 2, 4), 0.05

    def open(self) -> Talk:
        """Open a connection and authenticate."""
        talk = super().open()
        for key, body in ((SASL_HANDSHAKE, b"\0\5PLAIN"), (SASL_AUTHENTICATE, len(ALICE).to_bytes(4, "big") + ALICE)):
            talk.receive(header(key, 1, OWN_ID, len(body)) + body)
        return talk


class Tls(Plaintext):
    """Connections within TLS, whose records are damaged, too. Most resume a session: a handshake costs as much as many frames."""

    protocol = "SSL"
    damaged, groups, ends = 0.05, (1, 2, 4, 8), 0.02

    def __init__(self, broker: Broker, rng: random.Random) -> None:
        super().__init__(broker, rng)
        config = BrokerConfig(listen="SSL://127.0.0.1:0", properties=broker_properties())
        self._tls = TlsListeners(self.server.refused.log).open(config, config.listeners[0])
        self._context = ssl.create_default_context(cadata=authority().certificate)
        self._session: ssl.SSLSession | None = None
        self._clients: dict[Talk, tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]] = {}

    async def fill(self) -> None:
        """Open the connections that are missing, at the same time."""
        self.forget()
        self._clients = {talk: self._clients[talk] for talk in self.talks}
        await asyncio.gather(*[self._handshake() for _ in range(WIDTH - len(self.talks))])

    async def _handshake(self) -> None:
        transport, (above, parsed) = Quiet(self.loop), self.above()
        below = transport.protocol = TlsConnection(self._tls, lambda: above, Counted(self.server))
        talk = Talk(transport, below, above, parsed)
        below.connection_made(transport)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = self._session if self.rng.random() < 0.95 else None
        client = self._context.wrap_bio(incoming, outgoing, server_hostname="localhost", session=session)
        is_damaged, is_agreed = self.rng.random() < 0.1, False
        while not is_agreed:
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
                is_agreed = True
            hello = outgoing.read()
            talk.receive(damage(self.rng, hello) if is_damaged else hello)
            await transport.is_free.wait()
            if is_damaged:
                self.looking.count += transport.is_closing()
                transport.close()
                return
            if transport.is_closing():
                raise Finding("a handshake that is right is refused")
            incoming.write(transport.written)
            transport.written.clear()
        self._clients[talk] = client, incoming, outgoing
        self.talks.append(talk)

    def send(self, talk: Talk, data: bytes) -> None:
        """Send frames in records, few of which are damaged."""
        client, _, outgoing = self._clients[talk]
        client.write(data)
        records, before = outgoing.read(), self.looking.count
        if self.rng.random() > 0.02:
            return talk.receive(records)
        talk.receive(damage(self.rng, records))
        if talk.transport.is_closing() and self.looking.count == before and not talk.parsed.is_broken:
            self.looking.count += 1

    def read(self, talk: Talk) -> None:
        """Decrypt what the broker has sent, and check it."""
        client, incoming, _ = self._clients[talk]
        incoming.write(talk.transport.written)
        talk.transport.written.clear()
        if incoming.pending:
            with suppress(ssl.SSLError):  # the end of it, or a broken connection's
                while data := client.read(1 << 20):
                    talk.check(data)
            if self._session is None:  # a copy that costs as much as a frame
                self._session = client.session


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


def surprises(rows: Iterable[VersionCounts]) -> set[str]:
    """Return the APIs that have answered UNKNOWN_SERVER_ERROR.

    But ShareFetch: so Kafka answers an unknown acquire mode, a negative max_bytes, and for a partition that no member's
    subscription has initialized (tests/golden/groups/share_answers_4.3.1.json). A failure of ours is in the log, too.
    """
    return {API_NAMES[row.api_key] for row in rows if row.api_key != SHARE_FETCH and row.errors.get(-1)}


async def fuzz(seed: int, frames: int, kind: type[Plaintext] = Plaintext) -> int:
    """Send about that many frames to a broker; the exact number. Raises Finding."""
    rng = random.Random(seed)
    before = descriptors()
    with tempfile.TemporaryDirectory(prefix="diamant-fuzz-") as directory:
        settings = {"auto.create.topics.enable": "false", "diamant.http.listen": "", "num.partitions": "2"}
        settings |= {"group.initial.rebalance.delay.ms": "0"}
        async with Broker(listen=kind.listen, data_dir=directory, properties=settings | kind.properties) as broker:
            async with WireClient(broker.bootstrap_servers.partition(",")[0]) as wire:
                await wire.create("t", 2)
                await wire.create("compacted", cleanup_policy="compact")
            talking = kind(broker, rng)
            while talking.looking.count < frames:
                with watched(f"seed {seed}, after {talking.looking.count} frames"):
                    for _ in range(ROUNDS):
                        await talking.round()
                    async with WireClient(broker.bootstrap_servers.partition(",")[0]) as wire:
                        answer = await wire.call(API_VERSIONS, 2, {})
                        if answer.error_code:
                            raise Finding(f"seed {seed}: the next client is answered {answer}")
            with watched(f"seed {seed}, at the end of connections"):
                await talking.leave()
            if surprised := surprises(broker.services.server.metrics.rows()):
                raise Finding(f"seed {seed}: UNKNOWN_SERVER_ERROR of {surprised}")
    if descriptors() > before:
        raise Finding(f"seed {seed}: {descriptors() - before} descriptors more than before")
    return talking.looking.count
