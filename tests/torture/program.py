"""One seed of the torture program: rounds of steps and disturbances, each followed by a recovery and a check."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import AsyncExitStack, suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.broker.restarted_broker import RestartedBroker
from tests.broker.wire import WireClient
from tests.torture import disturber
from tests.torture.checker import check, missing, unowned, waiting
from tests.torture.client_processes import TOPICS, ClientProcesses, Rate, check_clients, check_with_kafka
from tests.torture.disturber import FILES, Disturbance
from tests.torture.draws import generator, pick
from tests.torture.forking_broker import FORK
from tests.torture.history import Finding, History, as_known_at
from tests.torture.operations import Administrator
from tests.torture.producing import (
    FORBIDDEN,
    Answer,
    Clock,
    IdempotentProducer,
    Refused,
    Transactions,
    commit_offset,
    read_offset,
    trespass,
    wait_for,
)
from tests.torture.share_reader import ShareReader
from tests.torture.shim import Kind, Rule, Shim
from tests.torture.small_disk import SmallDisk
from tests.torture.tls_client import TlsClient
from tests.torture.warm import Warm
from tests.waiting import PATIENCE_S, wait_until

PROPERTIES = {
    "diamant.http.listen": "127.0.0.1:0",
    "diamant.clock": "manual",
    "diamant.certificate.key.ephemeral": "true",
    "diamant.cleaner.spark.master": "local[2]",
    "offsets.topic.num.partitions": "2",
    "offsets.retention.minutes": "100000000",
    "producer.id.expiration.ms": "2147483647",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.num.partitions": "2",
    "log.segment.delete.delay.ms": "0",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "offsets.topic.segment.bytes": "1048576",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "20000",
    "authorizer.class.name": "StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "diamant.acls": json.dumps([f"User:* DENY ALL topic {FORBIDDEN}", f"User:* DENY ALL group {FORBIDDEN}"]),
}
BROKER = "tests.torture.forking_broker"
GONE = (ConnectionError, EOFError, TimeoutError)
"""What a client sees of a broker that is no longer there: `IncompleteReadError` is an EOFError."""
CONFIGS = {
    "max.compaction.lag.ms": (60_000, 10**9),
    "segment.ms": (60_000, 10**9),
    "max.message.bytes": (10**6, 2 * 10**6),
}
STEPS = {
    "send": 24, "transact": 8, "commit": 6, "share": 6, "topic": 4, "trespass": 2, "beside": 5, "reload": 2, "fork": 2,
    "large": 1,
}  # fmt: skip
"""Kinds of steps, and how often each is taken."""
LOAD, LOAD_STEPS = ("send", "transact", "commit", "share", "beside"), 8
"""What is done between two starts of a crash loop."""
MOST_TOPICS = 12
CLIENT_RECORDS = 400
LARGE, LARGE_BYTES = "large", 66 << 20
"""A topic, and so much that a round is divided among processes."""
LARGE_CONFIGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1", "segment.bytes": str(16 << 20)}
ROUND_TIMEOUT_S = 600
"""Longer than anything that a client waits for."""


@dataclass(slots=True)
class Figures:
    """What a run has done."""

    seeds: int = 0
    rounds: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    fired: int = 0
    acknowledged: int = 0
    transactions: int = 0
    certificates: int = 0
    power_losses: int = 0
    slowest_start_s: float = 0
    refused: Counter[str] = field(default_factory=Counter)

    def add(self, other: Figures) -> None:
        """Add those of another seed."""
        for name in ("seeds", "kills", "fired", "acknowledged", "transactions", "certificates", "power_losses"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.rounds += other.rounds
        self.steps += other.steps
        self.refused += other.refused
        self.slowest_start_s = max(self.slowest_start_s, other.slowest_start_s)


class World:
    """A broker, its clients and the history of one seed."""

    def __init__(
        self,
        seed: int,
        place: Path,
        library: Path | None,
        *,
        record: Path | None = None,
        with_small_disk: bool = False,
    ) -> None:
        self.seed = seed
        self.number = 0
        """Of the round."""
        self.rng = generator(seed, "settings")
        self.figures = Figures(seeds=1)
        self.shim = None if library is None else Shim(library, place / "control", root=place / "data", record=record)
        chosen = {
            "log.cleaner.threads": str(self.rng.choice((1, 1, 2))),
            "diamant.cleaner.mode": self.rng.choice(("kafka", "prompt")),
            "log.flush.interval.messages": "1" if record else str(self.rng.choice((1, 10, 10**9))),
            "diamant.certificate.key.file": f"{place}/keys/certificate.key",
        }
        self.properties = PROPERTIES | chosen
        self.tls = TlsClient(place / "keys")
        self.properties |= self.tls.properties
        self._warm: Warm | None = None  # without the library it is a soak, which measures a process
        if self.shim is not None:
            (place / "temporary").mkdir()
            own = {"TMPDIR": str(place / "temporary")}
            self._warm = Warm(BROKER, environment=self.shim.environment() | own)
        self.broker = RestartedBroker(
            place,
            *(f"{name}={value}" for name, value in self.properties.items()),
            program=BROKER,
            listens_also=f",{self.tls.listener}",
            popen=subprocess.Popen if self._warm is None else self._warm.popen,
        )
        self.data = self.broker.data_dir
        self.disk = SmallDisk(self.data) if with_small_disk else None
        self.clock = Clock()
        self.history = History()
        self.admin = Administrator(self.history, self.clock)
        self.steps = dict(STEPS)
        if record is not None or chosen["log.cleaner.threads"] == "1":
            del self.steps["large"]
        if record is not None:
            del self.steps["fork"]  # the record is of one directory
        self.producers: list[IdempotentProducer] = []
        self.large = IdempotentProducer(self.history, (LARGE, 0), LARGE, keys=8, pad=80_000)
        self.transactions: list[Transactions] = []
        self.reader = ShareReader(self.history, "events-0")
        self.clients = ClientProcesses(place, self.broker.address, Rate(CLIENT_RECORDS))
        self.background: asyncio.Task[None] | None = None
        self.snapshot: tuple[str, History] | None = None
        self.is_up = False
        self._wire: WireClient | None = None
        self._looked_at = 0
        """How much of the log of the running process was looked at."""
        self._serial = 0
        self._taken = 0
        """Steps of this round."""

    # The broker

    async def start(self) -> None:
        """Start the broker. If a rule that is armed kills it, or has it refuse, start again without."""
        while not await self._has_started():
            self.disarm()

    async def _has_started(self) -> bool:
        """Start the broker once; False if a rule that is armed has killed it, or has it refuse."""
        began = time.monotonic()
        self._looked_at = 0
        self.broker.spawn()
        try:
            await asyncio.to_thread(self.broker.process.wait_for_address)
        except AssertionError as error:
            if self.shim is None or not self.shim.fired():
                raise Finding(f"it does not start: {error}") from error
            self.figures.fired += self.shim.fired()
            self.figures.kills += self.broker.process.was_killed
            return False
        self.is_up = True
        self.tls.started()
        self.figures.slowest_start_s = max(self.figures.slowest_start_s, time.monotonic() - began)
        found = re.findall(r"http://127.0.0.1:\d+", self.broker.process.log)
        self.admin.http = found[0] if found else "http://127.0.0.1:9"
        return True

    async def crash_loop(self, disturbance: Disturbance) -> None:
        """Start again and again: each is killed at a call of the start or, if it lives, of the load after it."""
        for rule, lives in disturber.crash_loop(self.seed, self.number):
            if self.shim is not None:
                self.shim.arm(*() if lives else (rule,))
            if await self._has_started():
                if self.shim is not None and lives:
                    self.shim.arm(rule)
                await self._take_steps(LOAD_STEPS, LOAD)
                if self.shim is not None:
                    self.figures.fired += self.shim.fired()
                await self.end("kill")
            self.look_at_log(disturbance)
        self.disarm()

    async def wire(self) -> WireClient:
        """Return the connection; a new one if there is none."""
        if self._wire is None:
            self._wire = await WireClient(self.broker.address).__aenter__()
        return self._wire

    async def disconnect(self) -> None:
        """Close the connection."""
        wire, self._wire = self._wire, None
        for transactions in self.transactions:
            transactions.forget()
        self.reader.forget()
        if wire is not None:
            with suppress(*GONE):
                await wire.__aexit__(None, None, None)
        with suppress(*GONE):
            await self.tls.disconnect()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do one thing beside the steps."""
        if self.background is None:
            self.background = asyncio.create_task(self._quietly(work))
        else:
            work.close()

    async def _quietly(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
            self.figures.steps[getattr(work, "__name__", "")] += 1
        except Refused as error:
            self.note(error)
        except GONE:
            pass

    def note(self, error: Refused) -> None:
        """Count an answer that was no success."""
        self.figures.refused[re.sub(r"\d+", "N", str(error))[:160]] += 1

    async def join(self) -> None:
        """Wait for what is done beside the steps."""
        if self.background is not None:
            await asyncio.wait_for(self.background, PATIENCE_S * 2)
            self.background = None

    # Steps

    async def prepare(self) -> None:
        """Create the first topics and clients."""
        wire = await self.wire()
        for number in range(2):
            for kind, configs in (
                ("events", {}),
                ("keyed", {}),
                ("state", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}),
            ):
                name = f"{kind}-{number}"
                size = str(self.rng.choice((8000, 20_000, 200_000)))
                await self.admin.run(wire, self.admin.create(name, 2, configs | {"internal.segment.bytes": size}))
        await self.admin.run(wire, self.admin.create("payments", 3, {"internal.segment.bytes": "8000"}))
        await self.admin.run(wire, self.admin.create(LARGE, 1, LARGE_CONFIGS))
        for name, partitions in TOPICS.items():
            await self.admin.run(wire, self.admin.create(name, partitions, {"internal.segment.bytes": "100000"}))
        self.add_clients()

    def add_clients(self) -> None:
        """Make clients for the topics that are always there."""
        self.producers = []
        self._serial += 1
        for name in ("events-0", "events-1", "keyed-0", "keyed-1", "state-0", "state-1"):
            for index in range(2):
                keys = 0 if name.startswith("events") else 8
                who = f"{name}-{index}-{self._serial}"
                self.producers.append(IdempotentProducer(self.history, (name, index), who, keys=keys))
        self.large = IdempotentProducer(self.history, (LARGE, 0), f"{LARGE}-{self._serial}", keys=8, pad=80_000)
        self.transactions = [
            Transactions(self.history, f"payer-{number}-{self._serial}", "payments", (0, 1, 2)) for number in range(2)
        ]
        self.reader = ShareReader(self.history, "events-0")

    def draw_for(self, *concern: object) -> None:
        """Draw from a generator of this round's own for something, whatever was drawn before."""
        self.rng = generator(self.seed, self.number, *concern)

    async def step(self, among: Collection[str] = STEPS) -> str:
        """Take one step; its kind. Exceptions as of the clients."""
        weights = {kind: weight for kind, weight in self.steps.items() if kind in among}
        kind = pick(weights, self.seed, self.number, "step", self._taken)
        self.draw_for(kind, self._taken)
        self._taken += 1
        rng, wire = self.rng, await self.wire()
        match kind:
            case "send":
                await rng.choice(self.producers).send(
                    await self.tls.wire() if rng.random() < 0.3 else wire, rng, self.clock
                )
            case "transact":
                await rng.choice(self.transactions).run(wire, rng)
                self.figures.transactions += 1
            case "commit":
                await commit_offset(wire, self.history, f"group-{rng.randrange(2)}", f"events-{rng.randrange(2)}")
            case "topic":
                await self.change_topics(wire)
            case "trespass":
                await trespass(wire)
            case "share":
                await self.reader.step(wire, rng)
            case "reload":
                await self.admin.run(wire, self.tls.reload())
            case "fork":
                await self.fork()
            case "large":
                self.spawn(self.compact_large(rng.getrandbits(32)))
            case _:
                self.begin_beside()
        self.figures.steps[kind] += 1
        return kind

    async def change_topics(self, wire: WireClient) -> None:
        """Create, grow, alter or delete a topic."""
        rng = self.rng
        there = [name for name, topic in self.history.topics.items() if name.startswith("more") and topic.is_created]
        alive = [name for name in there if self.history.topics[name].is_deleted is False]
        kind = rng.choice(("create", "create", "grow", "alter", "delete", "delete"))
        if kind == "create" and len(alive) < MOST_TOPICS:
            self._serial += 1
            compact = rng.choice(({}, {"cleanup.policy": "compact"}))
            name = f"more-{self._serial}"
            await self.admin.run(
                wire, self.admin.create(name, rng.randint(1, 3), {**compact, "segment.bytes": "1048576"})
            )
            keys = 5 if compact else 0
            self.producers.append(IdempotentProducer(self.history, (name, 0), f"{name}-0", keys=keys))
        elif kind == "alter":
            key = rng.choice([*CONFIGS])
            await self.admin.run(
                wire, self.admin.alter(rng.choice([*alive, "state-0"]), key, str(rng.randint(*CONFIGS[key])))
            )
        elif kind == "grow" and alive:
            await self.admin.run(wire, self.admin.grow(rng.choice(alive)))
        elif alive:
            name = rng.choice(alive)
            self.producers = [each for each in self.producers if each.partition[0] != name]
            await self.admin.run(wire, self.admin.delete(name))

    def begin_beside(self) -> None:
        """Begin something that takes its time."""
        rng = self.rng
        kind = rng.choice(("compact", "compact", "erase", "redact", "advance"))
        if kind == "advance":
            if not any(producer.is_pending for producer in self.producers):
                self.spawn(self.admin.advance(rng))
            return
        if kind == "compact":
            self.begin_compaction()
        elif self.background is None:
            forget = self.forget(0.3)
            if forget is not None:
                self.spawn(forget)

    def begin_compaction(self) -> None:
        """Compact one of the small topics, in a thread, in a process, or by the driver of Spark."""
        topic, engine = self.rng.choice(("state-0", "state-1")), self.rng.choice((None, "process", "spark"))
        self.spawn(self.admin.compact(topic, engine))

    def forget(self, planted: float) -> Coroutine[Any, Any, None] | None:
        """Choose a key to be erased or redacted, None if there is none; `planted`: how often a value of it is put elsewhere."""
        kept = [
            one
            for one in self.producers
            if one.partition[0].startswith(("keyed", "state")) and not one.is_pending and len(one.live_keys()) > 2
        ]
        if not kept:
            return None
        producer = self.rng.choice(kept)
        topic, key = producer.partition[0], self.rng.choice(producer.live_keys())
        producer.retire(key)
        if self.rng.random() < planted:
            self.plant(key)
        return self.admin.forget(topic, key, by="erase" if topic.startswith("state") else "redact")

    def plant(self, key: bytes) -> None:
        """Put a value of a key where no partition has it: as long as it is there, nothing is certified to be gone."""
        values = [one.value for sent in self.history.sent.values() for one in sent.values() if one.key == key]
        name = f"left-{len(self.history.planted)}.bak"
        if values:
            self.history.planted.add(name)
            with suppress(OSError):  # the disk is full
                (self.data / name).write_bytes(b"a copy: " + values[-1])

    async def compact_large(self, seed: int) -> None:
        """Fill the large topic, and compact it: by several processes, if all is well."""
        rng, already = random.Random(seed), self.history.bytes_sent(self.large.partition)
        async with WireClient(self.broker.address) as wire:
            while self.history.bytes_sent(self.large.partition) < already + LARGE_BYTES:
                await self.large.send(wire, rng, self.clock)
        await self.admin.compact(LARGE)

    async def fork(self) -> None:
        """Have the broker fork: all that was answered is in the fork, and what it is sent is in no other."""
        self.clients.gather(self.history)
        # The broker's clock may be moved at the same time, and the fork's is not.
        mark, clock, told = self.history.copy(), copy(self.clock), self.data.with_name(FORK)
        told.write_text("")
        self.broker.process.signal(signal.SIGUSR1)
        fork = await self._told(told)
        self.clients.gather(self.history)
        known = as_known_at(mark, self.history)
        try:
            async with WireClient(fork["address"].partition(",")[0]) as wire:
                await IdempotentProducer(known, ("events-0", 0), "fork", keys=0).send(wire, self.rng, clock)
            await self._rests(Path(fork["data"]), known)
            check(Path(fork["data"]), known)
        except Finding as error:
            if not self.broker.process.is_running:
                raise ConnectionError("killed while its fork was checked") from error
            raise Finding(f"a fork: {error}") from error
        finally:
            told.write_text("")
            self.broker.process.signal(signal.SIGUSR2)
            if not isinstance(sys.exception(), Finding):
                await self._told(told)  # the next fork would take it for its own

    async def _told(self, file: Path) -> dict[str, str]:
        """Return what the broker writes to a file. Refused if it is an error."""
        await wait_until(lambda: file.read_text().endswith("\n") or not self.broker.process.is_running)
        text = await asyncio.to_thread(file.read_text)
        if not text.endswith("\n"):
            raise ConnectionError("killed while it forked")
        told: dict[str, str] = json.loads(text)
        if "bug" in told:
            raise Finding(f"a fork: {told['bug']}")
        if "error" in told:
            raise Refused(f"fork: {told['error']}")
        return told

    async def go_back(self, *, amid_kill: bool = False) -> None:
        """Take a snapshot, or go back to the one there is. Nothing else is in progress, and all is known."""
        before = None if self.snapshot is None else self.snapshot[1]
        if amid_kill:
            self.arm(Disturbance("kill", 0, (Rule(FILES, Kind.KILL, 1, skip=self.rng.randrange(200)),)))
        try:
            if self.snapshot is None:
                taken = self.history.copy()
                self.snapshot = await self._answered(self.admin.snapshot), taken
            else:
                (snapshot, _), self.snapshot = self.snapshot, None
                await self._answered(partial(self.admin.reset, snapshot))
                await self._be_at(before or History())
            self.figures.steps["snapshot" if before is None else "reset"] += 1
        except Refused as error:
            self.note(error)
            # A reset that fails has closed all connections, and the kill may have come after its answer.
            await self.disconnect()
        except ConnectionError:
            await self._begin_again(before)
        self.disarm()
        if not self.broker.process.is_running:
            await self._begin_again(before)

    async def _be_at(self, history: History) -> None:
        """Know what was known then."""
        await self.disconnect()
        self.history = self.admin.history = history
        self.add_clients()
        await self._answered(self.admin.look_at_clock)

    async def _begin_again(self, before: History | None) -> None:
        """After a kill amid a snapshot, or amid a reset to `before`: then all is as before or as it was."""
        self.figures.steps["snapshot, killed" if before is None else "reset, killed"] += 1
        await self.end("kill")
        self.disarm()
        await self.start()
        try:
            await self.check()
        except Finding:
            if before is None:
                raise
            await self._be_at(before)
            await self.check()

    async def _answered(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask over HTTP again as long as the broker runs: on a busy machine its ten seconds for a request may be over."""
        while True:
            try:
                return await ask()
            except ConnectionError:
                if not self.broker.process.is_running:
                    raise

    # Rounds

    async def round(self, number: int, disturbance: Disturbance) -> None:
        """Take steps under a disturbance until it has ended the broker or the steps are taken, then recover and check."""
        self.number, self._taken = number, 0
        self.draw_for("round")
        self.figures.rounds[disturbance.name] += 1
        if disturbance.compacts:
            wire = await self.wire()
            for producer in self.producers:
                if producer.partition[0].startswith("state"):
                    await wait_for(partial(producer.send, wire, self.rng, self.clock))
        if disturbance.at_start:
            await self.end("kill")
            self.arm(disturbance)
            await self.start()
        else:
            self.arm(disturbance)
        if self.rng.random() < 0.4 or disturbance.for_clients:
            self.clients.start(with_java=self.rng.random() < 0.3)
        if disturbance.compacts:
            self.begin_compaction()
        reviver = asyncio.create_task(self._wait_and_revive())
        try:
            await self._take_steps(disturbance.steps)
            await self.recover(disturbance)
        finally:
            reviver.cancel()

    async def _take_steps(self, count: int, among: Collection[str] = STEPS) -> None:
        """Take steps as long as the broker runs."""
        for _ in range(count):
            if not self.broker.process.is_running:
                break
            try:
                await self.step(among)
            except Refused as error:
                self.note(error)
            except TimeoutError as error:
                if self.broker.process.is_running:
                    raise Finding("a request is not answered") from error
            except GONE:
                await self.disconnect()

    def arm(self, disturbance: Disturbance) -> None:
        """Put the rules in force."""
        if self.shim is not None:
            self.shim.arm(*disturbance.rules)
            self.shim.set_quota(None if self.disk else disturbance.quota)
            self.shim.set_clock(disturbance.ahead_s)
        if self.disk:
            self.disk.leave_free(disturbance.quota)
        if disturbance.descriptors is not None:
            disturber.limit_descriptors(self.broker.process.pid, disturbance.descriptors)

    def disarm(self) -> None:
        """End the disturbance, but for a broker that is stopped."""
        if self.shim is not None:
            self.shim.disarm()
        if self.disk:
            self.disk.leave_free(None)

    async def _wait_and_revive(self) -> None:
        """Let what was stopped go on, a moment later, and after some more open files."""
        began = time.monotonic()
        while True:
            await asyncio.sleep(0.2)
            self.broker.process.signal(signal.SIGCONT)
            disturber.resume_descendants(self.broker.process.pid)
            if time.monotonic() > began + disturber.FEW_S:
                disturber.limit_descriptors(self.broker.process.pid, None)

    async def end(self, how: str) -> None:
        """End the broker: "kill" or "stop"."""
        await self.disconnect()
        if how == "stop" and self.broker.process.is_running:
            self.broker.process.terminate()
            await asyncio.to_thread(self.broker.process.wait_for_end, PATIENCE_S)
            if self.broker.process.is_running:
                raise Finding("it does not stop")
        elif self.is_up:
            self.figures.kills += 1
            self.broker.process.kill()
        self.is_up = False
        await self.join()

    async def recover(self, disturbance: Disturbance) -> None:
        """End what the disturbance asks for, start again, finish what was begun, and check."""
        ended = not self.broker.process.is_running
        if disturbance.ends == "stop":
            await self.end("stop")
        if self.shim is not None:
            self.figures.fired += self.shim.fired()
        self.disarm()
        if not ended and disturbance.ends == "kill":
            await self.end("kill")
        if not self.broker.process.is_running:
            await self.end("kill")
            self.look_at_log(disturbance)
            await self.crash_loop(disturbance)
            await self.start()
        await self.disconnect()
        try:
            await self.finish()
            is_whole = "refuses writes until the next start" not in self.broker.process.log
        except Refused:
            is_whole = False
        if not is_whole:  # as metadata and partitions that could not be repaired
            await self.end("kill")
            self.look_at_log(disturbance)
            await self.start()
            await self.finish()
        self.draw_for("recovery")
        if self.rng.random() < 0.3:
            self.clients.replace_one(self.rng, self.history)
        await self.clients.stop(self.history)
        await self.check()
        self.look_at_log(disturbance)

    async def finish(self) -> None:
        """Have everything acknowledged that is not yet."""
        for attempt in range(3):
            try:
                wire = await self.wire()
                await self.admin.look_at_clock()
                await wait_for(partial(self.admin.finish, wire))
                for producer in self.producers:
                    await wait_for(partial(producer.finish, wire, self.clock))
                for transactions in self.transactions:
                    await wait_for(partial(transactions.begin, wire))
                await self.join()
                await wait_for(partial(self.large.finish, wire, self.clock))
                return
            except GONE as error:
                if attempt == 2:
                    if "__cluster_metadata-0: refuses records" in self.broker.process.log[self._looked_at :]:
                        raise Refused("a change of the metadata: its log has failed") from error
                    raise
                await self.disconnect()

    def look_at_log(self, disturbance: Disturbance | None) -> None:
        """Finding if the broker was surprised since the last look: an earlier disturbance may have been why."""
        whole = self.broker.process.log
        log, self._looked_at = whole[self._looked_at :], len(whole)
        fails = disturbance is not None and any(rule.kind is Kind.FAIL for rule in disturbance.rules)
        is_short = disturbance is not None and (disturbance.quota, disturbance.descriptors) != (None, None)
        if "Traceback" in log and not fails and not is_short:
            raise Finding(f"a traceback: {log[log.index('Traceback') :][:3000]}")

    async def check(self) -> None:
        """Compare the files with the history, and what the broker says of groups and topics."""
        wire = await self.wire()
        await self._rests(self.data, self.history)
        check_clients(self.history, check(self.data, self.history))
        for name in self.history.planted:
            (self.data / name).unlink(missing_ok=True)
        await self._wait_for(lambda: not unowned(self.data, self.history), "nobody owns some files")
        await self._wait_for(lambda: not [*self.data.parent.glob(f"{self.data.name}.fork-*")], "forks stay")
        for (group, topic), offsets in self.history.offsets.items():
            found = await wait_for(partial(read_offset, wire, group, topic))
            if found != offsets.answered and found not in offsets.asked:
                raise Finding(f"{group} has committed {offsets.answered}, then {offsets.asked}, and reads {found}")
        await self.check_offsets_of_transactions(wire)
        if self.rng.random() < 0.2:
            await self.tls.check(wire)

    async def _rests(self, data: Path, history: History) -> None:
        """Wait until a broker has removed what it replaced, and created what the disk had refused."""
        await self._wait_for(
            lambda: (not waiting(data) and not missing(data, history)) or not self.broker.process.is_running,
            "files wait for nothing, or partitions are missing",
        )

    async def _wait_for(self, is_so: Callable[[], bool], otherwise: str) -> None:
        try:
            await wait_until(is_so)
        except TimeoutError:
            of_files = waiting(self.data), unowned(self.data, self.history), missing(self.data, self.history)
            there = (*of_files, sorted(os.listdir(self.data.parent)))
            raise Finding(f"{otherwise}: {there}") from None

    async def check_offsets_of_transactions(self, wire: WireClient) -> None:
        """The group of a transactional producer is where its last committed transaction left it."""
        for transactions in self.transactions:
            mine = [one for one in self.history.transactions if one.offset >= 0 and transactions.owns(one)]
            known = max((one.offset for one in mine if one.wants_commit and one.is_answered), default=-1)
            possible = {one.offset for one in mine if one.wants_commit and one.offset > known} | {known}
            found = await wait_for(partial(read_offset, wire, transactions.group, "payments"))
            if found not in possible:
                raise Finding(f"{transactions.group} reads {found}, which is not among {possible}")

    async def close(self) -> None:
        """Give everything back."""
        self.clients.close()
        if self.background is not None:
            self.background.cancel()
        await self.disconnect()
        self.tls.close()
        if self.disk is not None:
            self.broker.process.kill()
            self.disk.unmount()
        if self.shim is not None:
            self.shim.close()
        if self._warm is not None:
            await asyncio.to_thread(self._warm.close)


async def torture(
    seed: int,
    place: Path,
    library: Path | None,
    *,
    rounds: int,
    without: frozenset[int] = frozenset(),
    with_small_disk: bool = False,
) -> Figures:
    """Run a seed in an empty directory; Finding. `without`: numbers of rounds whose disturbance is left out."""
    world = World(seed, place, library, with_small_disk=with_small_disk)
    async with AsyncExitStack() as stack:
        stack.enter_context(world.broker)
        stack.push_async_callback(world.close)
        await world.start()
        await world.prepare()
        for number in range(rounds):
            disturbance = disturber.choose(seed, number)
            if number in without:
                disturbance = Disturbance("none", disturbance.steps, ends="")
            try:
                async with asyncio.timeout(ROUND_TIMEOUT_S):
                    await world.round(number, disturbance)
                    world.draw_for("afterwards")
                    if world.rng.random() < 0.3:
                        await world.go_back(amid_kill=world.rng.random() < 0.5)
                        await world.check()
                    elif world.rng.random() < 0.4 and (forget := world.forget(0.5)) is not None:
                        world.spawn(forget)
                        await world.join()
                        await world.check()
            except (Finding, Refused, *GONE) as error:
                raise Finding(f"seed {seed}, round {number}, {disturbance}: {type(error).__name__} {error}") from error
        await world.end("stop")
        check_with_kafka(world.data)
        world.figures.acknowledged = world.history.is_acknowledged()
        world.figures.certificates = len(list(world.data.glob("diamant-*-*.json")))
    return world.figures
