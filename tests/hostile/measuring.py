"""A broker under attack, and the figures that its bounds are about."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from diamant.protocol.wire.schemas import encode_request_fields
from tests.broker.broker_process import BrokerProcess
from tests.broker.security.tls.certificates import broker_properties, client_context
from tests.broker.wire import API_VERSIONS, FETCH, PRODUCE, WireClient, batch_of, fetch_fields, produce_fields
from tests.waiting import wait_until

MAX_P99_MS = 100.0
MAX_GROWTH_BYTES = 320 << 20
"""Two threads check batches that may be decompressed to 128 MiB each; all else takes far less."""
MAX_LOG_BYTES = 16 << 10
LISTEN = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"
SETTLED_S = 30.0
"""The longest time after an attack until its descriptors are given back."""
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SETTINGS = {
    "diamant.http.listen": "127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN_MODULE} user_alice="secret";',
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
}


@dataclass(slots=True)
class Figures:
    """One case as it was felt."""

    case: str
    p99_ms: float
    """Of the second client, on the clock."""
    computed_ms: float
    """The same in processor time of the broker, which is what other work on the machine does not change."""
    worst_ms: float
    probes: int
    growth_bytes: int
    descriptors_before: int
    descriptors_after: int
    log_bytes: int
    cpu_s: float
    detail: str

    def broken(self) -> list[str]:
        """Return the bounds that it breaks."""
        found = []
        if self.computed_ms > MAX_P99_MS:
            found.append("p99")
        if self.growth_bytes > MAX_GROWTH_BYTES:
            found.append("memory")
        if self.descriptors_after > self.descriptors_before:
            found.append("descriptors")
        if self.log_bytes > MAX_LOG_BYTES:
            found.append("log")
        return found


class Target:
    """The broker under attack."""

    def __init__(self, process: BrokerProcess, place: Path) -> None:
        self.process = process
        self.place = place
        listed = process.wait_for_address()
        self.plain, self.sasl, self.tls = listed.split(",")
        self.http = re.findall(r"HTTP at (127.0.0.1:\d+)", process.log)[0]
        self.context = client_context(place)

    @property
    def descriptors(self) -> int:
        """The open descriptors of the broker."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @property
    def peak_bytes(self) -> int:
        """The peak of its memory since `forget_peak`."""
        return self._status("VmHWM") * 1024

    @property
    def cpu_s(self) -> float:
        """The processor time that it has taken."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def forget_peak(self) -> None:
        """Let the peak begin again at the present memory."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def _status(self, name: str) -> int:
        found = re.search(rf"{name}:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())
        return int(found[1]) if found else 0


@contextmanager
def target(place: Path, **settings: str) -> Iterator[Target]:
    """A broker with a listener of each kind, in a process. `settings`: with underscores for dots."""
    place.mkdir(parents=True, exist_ok=True)
    values = SETTINGS | broker_properties() | {name.replace("_", "."): value for name, value in settings.items()}
    pairs = [f"{name}={value}" for name, value in values.items()]
    process = BrokerProcess(place / "data", place / "log", listen=LISTEN, settings=pairs)
    try:
        yield Target(process, place)
    finally:
        process.kill()


async def prepare(target: Target) -> None:
    """Make the second client's topic, and have every module imported that a case needs."""
    async with WireClient(target.plain) as client:
        await client.create("second")
        await client.produce("second", [b"first"])


def second_clients_frames() -> list[bytes]:
    """Its requests: ApiVersions, a Produce and a Fetch."""
    client = WireClient(":0")
    return [
        client.frame(key, version, encode_request_fields(key, version, fields), client_id=b"second")
        for key, version, fields in (
            (API_VERSIONS, 2, {}),
            (PRODUCE, 7, produce_fields("second", 0, batch_of([b"value"]))),
            (FETCH, 12, fetch_fields("second", 0, max_bytes=1000, partition_max_bytes=1000)),
        )
    ]


@asynccontextmanager
async def second_client(target: Target, *, is_new: bool) -> AsyncIterator[dict[str, list[float]]]:
    """A second client in this context; its latencies are in the dict afterwards."""
    host, _, port = target.plain.rpartition(":")
    prober = Path(__file__).with_name("prober.py")
    frames = [frame.hex() for frame in second_clients_frames()]
    process = await asyncio.create_subprocess_exec(
        sys.executable, prober, str(target.process.pid), host, port, "new" if is_new else "same", *frames,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=1 << 26,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    latencies: dict[str, list[float]] = {}
    try:
        assert await process.stdout.readline() == b"ready\n"
        yield latencies
        process.stdin.close()
        latencies |= json.loads(await process.stdout.readline())
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def p99(ordered: list[float]) -> float:
    """Return the 99th percentile."""
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


async def measured(target: Target, case: str, attack: Callable[[Target], Awaitable[str]]) -> Figures:
    """Attack while a second client asks; figures once the descriptors are given back."""
    target.forget_peak()
    before, resident = target.descriptors, target.process.resident_bytes
    log, cpu_s = len(target.process.log), target.cpu_s
    async with second_client(target, is_new=True) as latencies:
        detail = await attack(target)
    with suppress(TimeoutError):
        await wait_until(lambda: target.descriptors <= before, SETTLED_S)
    assert target.process.is_running, target.process.log
    waited = latencies["waited"]
    return Figures(
        case,
        p99(waited),
        p99(latencies["computed"]),
        waited[-1],
        len(waited),
        target.peak_bytes - resident,
        before,
        target.descriptors,
        len(target.process.log) - log,
        target.cpu_s - cpu_s,
        detail,
    )
