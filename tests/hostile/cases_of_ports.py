"""Cases beyond single connections: bombs, HTTP, guessed logins, invented client ids."""

from __future__ import annotations

import asyncio
import gzip
from contextlib import suppress

from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from tests.broker.security.sasl.sasl_wire import SaslClient
from tests.broker.wire import PRODUCE, WireClient, produce_fields
from tests.hostile.measuring import Target
from tests.hostile.peers import drain, end, opened, pipelined, push, request, wait_s

CODECS = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
CONSUMER_GROUP_HEARTBEAT = 68


async def bombs(target: Target, size: int) -> str:
    """Small batches of every codec that would become large, in a Produce each, twice."""
    now_ms, sizes = 1_700_000_000_000, []
    async with WireClient(target.plain) as client:
        for codec in CODECS:
            batch = bytes(build_batch([Record(0, now_ms, None, bytes(size << 20))], base_offset=0, codec=codec))
            sizes.append(f"{CODECS[codec]} {len(batch) >> 10} KiB")
            for _ in range(2):
                fields = produce_fields("second", 0, batch)
                await client.call(PRODUCE, 9, fields)
    return f"{size} MiB in {', '.join(sizes)}"


async def guesses(target: Target, size: int) -> str:
    """Users guessed, half by PLAIN and half by SCRAM, fifty at a time."""
    free = asyncio.Semaphore(50)

    async def guess(number: int) -> None:
        async with free, WireClient(target.sasl) as wire:
            client = SaslClient(wire)
            with suppress(EOFError, ConnectionError):
                if number % 2:
                    await client.handshake("PLAIN")
                    await client.authenticate(f"\0user-{number}\0guess".encode())
                else:
                    await client.handshake("SCRAM-SHA-256")
                    await client.authenticate(f"n,,n=user-{number},r=abcdef".encode())
                    await client.authenticate(b"c=biws,r=abcdef,p=" + b"A" * 44)

    await asyncio.gather(*(guess(number) for number in range(size)))
    return f"{size} guesses"


async def client_ids(target: Target, size: int) -> str:
    """Return a client id for each request, against a quota for client ids."""
    async with WireClient(target.plain) as wire:
        entity = {"entity": [{"entity_type": "client-id", "entity_name": None}]}
        ops = {"ops": [{"key": "producer_byte_rate", "value": 1e6, "remove": False}]}
        await wire.call(49, 1, {"entries": [entity | ops], "validate_only": False})
        frames = b"".join(
            request(PRODUCE, 7, produce_fields("missing", 0, b""), client_id=b"evader-%d" % number)
            for number in range(size)
        )
        connections = await opened(target.plain, 1)
        await asyncio.gather(drain(connections[0], 4), push(connections[0], frames, 3))
        end(connections)
        ops["ops"] = [{"key": "producer_byte_rate", "value": 0.0, "remove": True}]
        await wire.call(49, 1, {"entries": [entity | ops], "validate_only": False})
    return f"{size} client ids"


async def patterns(target: Target, size: int) -> str:
    """Heartbeats of consumers that subscribe to patterns made to take long."""
    fields = {
        "group_id": "patterns",
        "member_epoch": 0,
        "rebalance_timeout_ms": 1000,
        "subscribed_topic_regex": "(.*a){25}.*(b|c|d)*" * 5,
        "topic_partitions": [],
    }
    frames = [request(CONSUMER_GROUP_HEARTBEAT, 1, fields | {"member_id": f"member-{n}"}) for n in range(size)]
    return await pipelined(target, b"".join(frames), 2)


async def slow_http(target: Target, size: int) -> str:
    """HTTP requests that come a byte at a time, and answers that nobody reads."""
    writers = await opened(target.http, size, b"GET / HT")
    readers = await opened(target.http, size, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for _ in range(20):
        for connection in writers:
            with suppress(OSError):
                connection.send(b"T")
        await wait_s(0.1)
    end([*writers, *readers])
    return f"{2 * size} connections"


async def http_pipelined(target: Target, size: int) -> str:
    """HTTP requests without end on some connections."""
    frame = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for _ in range(5):
        await pipelined(target, frame, size, 0.5, address=target.http)
    return f"{5 * size} connections"


async def http_headers(target: Target, size: int) -> str:
    """Headers that are too long, too many, or never end."""
    starts = [
        b"GET /" + b"a" * 100_000,
        b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000,
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: a\r\n" % n for n in range(20_000)),
    ]
    for number in range(size):
        connections = await opened(target.http, 1)
        await push(connections[0], starts[number % 3], 0.05)
        end(connections)
    return f"{size} connections"


async def http_bombs(target: Target, size: int) -> str:
    """Bodies that become large when they are decompressed."""
    body = gzip.compress(bytes(size << 20))
    head = (
        f"POST /v1/compact HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    for _ in range(4):
        connections = await opened(target.http, 1)
        await asyncio.gather(push(connections[0], head.encode() + body, 0.5), drain(connections[0], 1))
        end(connections)
    return f"{size} MiB in {len(body) >> 10} KiB"


async def renegotiations(target: Target, size: int) -> str:
    """Return a client of TLS 1.2 that asks for a new handshake again and again."""
    host, _, port = target.tls.rpartition(":")
    process = await asyncio.create_subprocess_exec(
        "openssl", "s_client", "-connect", f"{host}:{port}", "-tls1_2", "-legacy_renegotiation",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    with suppress(ConnectionError):
        for _ in range(size):
            process.stdin.write(b"R\n")
            await process.stdin.drain()
            await wait_s(0.01)
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()
    return f"{size} asked for"
