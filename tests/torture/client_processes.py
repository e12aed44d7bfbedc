"""Real clients in processes of their own: librdkafka, aiokafka, and Kafka's verifiable ones where `java` and KAFKA_HOME are.

What they tell is compared with the logs. That they get on again, after whatever was done to the broker, is checked, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.broker.broker_process import Child
from tests.torture.batches import Record
from tests.torture.checker import committed
from tests.torture.disturber import REAL
from tests.torture.history import Finding, History, Partition
from tests.torture.warm import Warm, end_with_parent
from tests.waiting import wait_until

SOURCE, COPY, BY_JAVA, BY_AIOKAFKA = REAL, f"{REAL}-copy", f"{REAL}-java", f"{REAL}-aiokafka"
TOPICS = {SOURCE: 2, COPY: 2, BY_JAVA: 1, BY_AIOKAFKA: 2}
GETS_ON_S, ENDED_S = 120.0, 90.0
"""Longer than a member that was killed stays in its group, and a transaction without its producer lasts."""
ENDED = (0, 143, -signal.SIGTERM)
"""In Java, and before a client has begun, its end is that of the signal."""
AHEAD = 3000
"""Records that Kafka's producer may have sent and does not tell of: it tells what is acknowledged."""
JVM = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m", "-cp")
JAVA_RATE = 100
JAVA_SETTINGS = {
    "produce": "enable.idempotence=true\nretries=2147483647\ndelivery.timeout.ms=2147483647\n",
    "consume": "isolation.level=read_committed\n",
    "share": "",
}
JAVA_CLASSES = {
    "produce": ("VerifiableProducer", "--throughput", str(JAVA_RATE)),
    "consume": ("VerifiableConsumer", "--reset-policy", "earliest", "--verbose"),
    "share": ("VerifiableShareConsumer", "--offset-reset-strategy", "earliest", "--verbose"),
}
EVENTS = ("sent", "producer_send_success", "record_data", "offsets_committed", "copied")


class Client(NamedTuple):
    """A kind of client: its program, what it does, the topic, and its group's protocol."""

    library: str
    role: str
    topic: str
    protocol: str = ""

    @property
    def name(self) -> str:
        """Of its group, or the one that comes before its values."""
        return f"{self.role}-{self.protocol}-{self.topic}" if self.protocol else f"{self.role}-{self.topic}"


IN_PYTHON = (
    Client("librdkafka", "produce", SOURCE),
    Client("librdkafka", "consume", SOURCE, "classic"),
    Client("librdkafka", "consume", SOURCE, "consumer"),
    Client("librdkafka", "copy", SOURCE),
    Client("aiokafka", "produce", BY_AIOKAFKA),
    Client("aiokafka", "consume", BY_AIOKAFKA, "classic"),
)
IN_JAVA = (
    Client("java", "produce", BY_JAVA, "0"),
    Client("java", "consume", BY_JAVA, "classic"),
    Client("java", "consume", BY_JAVA, "consumer"),
    Client("java", "share", BY_JAVA, "share"),
)


def kafka_jars() -> str | None:
    """The class path of KAFKA_HOME, if it has Kafka's verifiable clients and there is Java."""
    libraries = Path(os.environ.get("KAFKA_HOME", "/nowhere"), "libs")
    return f"{libraries}/*" if shutil.which("java") and any(libraries.glob("kafka-tools-*.jar")) else None


class Rate(NamedTuple):
    """Of a client in Python. `most`: records that it sends at most; without a bound a slow machine has ever more to check."""

    most: int
    pause_s: float = 0.05


class Process:
    """One run of a client."""

    def __init__(self, client: Client, address: str, place: Path, serial: int, warm: Warm, rate: Rate) -> None:
        self.client = client
        self.serial = serial
        self._out, self._errors, self._read = place / f"{serial}.out", place / f"{serial}.err", 0
        with self._out.open("wb") as out, self._errors.open("wb") as errors:
            self.process: Child
            if client in IN_JAVA:
                self.process = subprocess.Popen(
                    _in_java(client, address, place, serial),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=errors,
                    preexec_fn=end_with_parent,
                )
            else:
                self.process = warm.popen(_in_python(client, address, serial, rate), stdout=out, stderr=errors)

    def events(self) -> Iterator[dict[str, Any]]:
        """What it has told since the last time."""
        with self._out.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        for line in whole.splitlines():
            if line.startswith(b"{"):
                yield json.loads(line)

    @property
    def errors(self) -> str:
        return self._errors.read_text(errors="replace")[-3000:]


def _in_python(client: Client, address: str, serial: int, rate: Rate) -> list[str]:
    name = f"{client.name}-{serial}" if client.role == "produce" else client.name
    consumes = [client.protocol] * (client.library == "librdkafka")
    more = {"produce": [str(rate.most)], "copy": [str(serial)], "consume": consumes}
    return [
        sys.executable,
        "-m",
        f"tests.torture.{client.library}_client",
        address,
        str(rate.pause_s),
        client.role,
        client.topic,
        name,
        *more[client.role],
    ]


def _in_java(client: Client, address: str, place: Path, serial: int) -> list[str]:
    settings = place / f"{client.role}.properties"
    settings.write_text(f"reconnect.backoff.max.ms=200\n{JAVA_SETTINGS[client.role]}")
    program, *options = JAVA_CLASSES[client.role]
    if client.role == "produce":
        options += ["--value-prefix", str(serial)]
    else:
        options += ["--group-id", client.name]
    if client.role == "consume":
        options += ["--group-protocol", client.protocol]
    where = ["--bootstrap-server", address, "--topic", client.topic, "--command-config", str(settings)]
    return [*JVM, kafka_jars() or "", f"org.apache.kafka.tools.{program}", *where, *options]


def check_with_kafka(data: Path) -> None:
    """Have Kafka's dump-log read every batch, where there is one. Finding. The broker is stopped."""
    jars = kafka_jars()
    if jars is None:
        return
    files = ",".join(str(file) for file in sorted(data.glob("*/*.log")) if file.stat().st_size)
    command = [*JVM, jars, "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wrong = [line for line in done.stdout.splitlines() if "isvalid: false" in line or "Exception" in line]
    if wrong or done.returncode:
        raise Finding(f"dump-log says {wrong[:3]} {done.stderr[-1000:]}")


class ClientProcesses:
    """Those that run at the moment. A seed chooses when and which; between rounds there are none."""

    def __init__(self, place: Path, address: str, rate: Rate) -> None:
        self.rate = rate
        self._place = place / "clients"
        self._place.mkdir()
        self._address = address
        self._warm = Warm(*(f"tests.torture.{library}_client" for library in ("librdkafka", "aiokafka")))
        self._running: list[Process] = []
        self._sent_by_java: dict[int, int] = {}
        self._serial = 0

    def start(self, *, with_java: bool) -> None:
        """Start one of each kind."""
        for client in IN_PYTHON + (IN_JAVA if with_java and kafka_jars() else ()):
            self._start(client)

    def _start(self, client: Client) -> None:
        self._serial += 1
        self._running.append(Process(client, self._address, self._place, self._serial, self._warm, self.rate))

    def replace_one(self, rng: random.Random, history: History) -> None:
        """Kill one, and start another in its place: its transaction and its membership are left behind."""
        if not self._running:
            return
        process = self._running.pop(rng.randrange(len(self._running)))
        process.process.kill()
        process.process.wait()
        self._gather_of(process, history)
        self._start(process.client)

    def gather(self, history: History) -> None:
        """Note what they have told."""
        for process in self._running:
            self._gather_of(process, history)

    def _gather_of(self, process: Process, history: History) -> None:
        client = process.client
        for event in process.events():
            name = event["name"]
            if name not in EVENTS:
                continue
            at = event.get("topic", client.topic), event.get("partition", 0)
            if name == "sent":
                history.send(at, process.client.name + f"-{process.serial}", None, event["value"].encode())
            elif name == "producer_send_success":
                if client in IN_JAVA:
                    self._send_ahead(process, history, int(event["value"].partition(".")[2]))
                if event["offset"] is None:  # librdkafka takes the success of a later batch for that of all before it
                    raise Finding(f"{client.name}: {event['value']!r} counts as delivered, and no answer says so")
                history.acknowledge(at, [event["value"].encode()], int(event["offset"]))
            elif name == "record_data":
                _note_read(history, client.name, at, int(event["offset"]), event["value"].encode())
            elif name == "copied":
                history.committed[client.name, *at] = event["offset"]
            elif event.get("success", True):
                for one in event["offsets"]:
                    history.committed[client.name, one["topic"], one["partition"]] = one["offset"]

    def _send_ahead(self, process: Process, history: History, number: int) -> None:
        first = self._sent_by_java.get(process.serial, 0)
        for following in range(first, number + AHEAD):
            history.send((BY_JAVA, 0), f"java-{process.serial}", None, b"%d.%d" % (process.serial, following))
        self._sent_by_java[process.serial] = max(first, number + AHEAD)

    async def stop(self, history: History) -> None:
        """Have everything acknowledged, then read and copied; end them well. Finding if one does not."""
        if not self._running:
            return
        try:
            await self._end([one for one in self._running if one.client.role == "produce"])
            self.gather(history)
            while behind := self._behind(history):
                try:
                    await wait_until(lambda behind=behind: self._behind(history) != behind, GETS_ON_S)  # type: ignore[misc]
                except TimeoutError:
                    for one in self._running:
                        if one.client in IN_PYTHON:
                            one.process.send_signal(signal.SIGUSR1)  # its stack goes to its errors
                    with suppress(TimeoutError):
                        await wait_until(lambda: len(self._told()) == len(self._running), 5)
                    raise Finding(f"a group does not get on: {behind}; {self._told()}") from None
            await self._end(self._running)
            self.gather(history)
        finally:
            self.kill()

    def _behind(self, history: History) -> dict[str, tuple[int, int]]:
        """Groups that have not read and committed, or copied, everything acknowledged, and where they are."""
        self.gather(history)
        behind = {}
        for process in self._running:
            client = process.client
            for partition in range(TOPICS[client.topic]) if client.role != "produce" else ():
                sent = history.sent.get((client.topic, partition), {}).values()
                end = 1 + max((one.offset for one in sent), default=-1)
                place = client.name, client.topic, partition
                if client.role == "share":
                    at = next((offset for offset in range(end) if offset not in history.read.get(place, {})), end)
                else:
                    at = history.committed.get(place, 0)
                if at < end:
                    behind[f"{client.name}, partition {partition}"] = at, end
        return behind

    def _told(self) -> dict[str, str]:
        return {one.client.name: one.errors for one in self._running if one.errors}

    async def _end(self, processes: list[Process]) -> None:
        for one in processes:
            if one.process.poll() is None:
                one.process.send_signal(signal.SIGTERM)
        for one in processes:
            try:
                code = await asyncio.to_thread(one.process.wait, ENDED_S)
            except subprocess.TimeoutExpired:
                raise Finding(f"{one.client.name} hangs: {one.errors}") from None
            if code not in ENDED:
                raise Finding(f"{one.client.name} ended with {code}: {one.errors}")

    def kill(self) -> None:
        """End them at once."""
        for one in self._running:
            one.process.kill()
            one.process.wait()
        self._running = []

    def close(self) -> None:
        """End them, and what they are forked by."""
        self.kill()
        self._warm.close()


def _note_read(history: History, group: str, at: Partition, offset: int, value: bytes) -> None:
    before = history.read.setdefault((group, *at), {}).setdefault(offset, value)
    if before != value:
        raise Finding(f"{group} has read at {at}, {offset}, {before!r} and then {value!r}")


def check_clients(history: History, logs: dict[Partition, list[Record]]) -> None:
    """A group reads each record where it is, and misses none before what it has committed; each is copied once, in order."""
    values = {
        at: {record.offset: record.value for record in logs.get(at, ()) if record.value is not None}
        for at in ((topic, partition) for topic, count in TOPICS.items() for partition in range(count))
    }
    for (group, *at), read in history.read.items():
        there = values[at[0], at[1]]
        for offset, value in read.items():
            if there.get(offset) != value:
                raise Finding(f"{group} has read at {at}, {offset}, {value!r}, and there is {there.get(offset)!r}")
        end = history.committed.get((group, *at), 0)
        missed = [offset for offset in there if offset < end and offset not in read]
        if missed:
            raise Finding(f"{group} has committed {end} of {at} and not read {missed[:10]}")
    for partition in range(TOPICS[COPY]):
        source = list(values[SOURCE, partition].values())
        copied = [(record.value or b"").partition(b"/")[0] for record in committed(logs.get((COPY, partition), ()))]
        for index, value in enumerate(copied):
            if [value] != source[index : index + 1]:
                raise Finding(
                    f"partition {partition}: {value!r} is the copy {index}, {source[index : index + 1]} was read"
                )
        if len(copied) < history.committed.get((f"copy-{SOURCE}", SOURCE, partition), 0):
            raise Finding(f"partition {partition}: of {len(source)} records {len(copied)} are copied")
