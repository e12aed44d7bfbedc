"""Erasures in random histories on three brokers of Apache Kafka: a broker stops, a leader moves, or the command is killed at a
random moment.

The disks are searched afterwards by other means: where the erasure says that nothing is readable, each replica is made the leader
once, and read.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diamant.broker.clusters.operations import erase, restore, resume
from diamant.broker.clusters.register import Register
from diamant.protocol.batches.compression import CODEC_NAMES
from tests.broker.clusters.any_cluster import AnyCluster, open_works
from tests.broker.clusters.real_kafka import RealKafka, real_kafka

pytestmark = pytest.mark.long
TIMEOUT_S = 180.0
KEY = b"customer-42"
HISTORIES = 100


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """Three brokers."""
    with real_kafka(tmp_path_factory.mktemp("three"), brokers=3, min_insync_replicas="1") as running:
        yield running


def fill(cluster: RealKafka, name: str, chance: random.Random) -> list[bytes]:
    """Random records, and their values of the key: none of them is anywhere else."""
    values = []
    stamp = round(time.time() * 1000) - chance.randrange(10**9)
    for number in range(chance.randrange(2, 12)):
        pairs: list[tuple[bytes, bytes | None]] = []
        for index in range(chance.randrange(1, 40)):
            value = b"%016x-%d-%d" % (chance.getrandbits(64), number, index) + b"y" * chance.choice([0, 10, 5000])
            key = KEY if chance.random() < 0.2 else b"customer-%d" % chance.randrange(40)
            pairs.append((key, None if chance.random() < 0.1 else value))
            if key == KEY and pairs[-1][1] is not None:
                values.append(value)
        stamp += chance.choice([0, 1, 5000, 10**6])
        codec = chance.randrange(len(CODEC_NAMES))
        cluster.produce(name, pairs, timestamp_ms=stamp, partition=chance.randrange(2), codec=codec)
    return values


def on_disk(cluster: RealKafka, name: str, values: list[bytes], *, is_interrupted: bool) -> list[str]:
    """Return the files of a topic that hold one of the values as they are; batches that are compressed are decoded by `held`.

    After an interruption, segments may have been replaced while the configurations were put back: they wait for their deletion.
    """
    found = []
    for node in (1, 2, 3):
        for path in cluster.data(node).glob(f"{name}-*/*"):
            if is_interrupted and path.suffix == ".deleted":
                continue
            data = path.read_bytes()
            found += [str(path) for value in values if value in data]
    return found


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_nothing_is_readable_at_any_replica(three: RealKafka, register: Register, tmp_path: Path, seed: int) -> None:
    """Whatever happens during the erasure: once it is closed, no replica has a value, and the configurations are as before."""
    chance = random.Random(seed)
    name = three.create(f"history-{seed}", partitions=2, segment_bytes=str(chance.choice([1048576, 10485760])))
    values = fill(three, name, chance)
    before = three.configs(name)
    what, moment = chance.choice(["nothing", "stop", "move", "kill", "kill"]), chance.random() * 4
    if what == "kill":
        child = os.fork()
        if not child:
            with AnyCluster(three.bootstrap) as own:
                erase(own.client, KEY, [name], reason="asked", timeout_s=TIMEOUT_S, register=register)
            os._exit(0)
        wait_and_kill(child, moment)
        for work in register.all():
            restore(three.client, work.id, register=register)
        assert three.configs(name) == before
    elif what == "stop":
        stopped = chance.choice([2, 3])
        listen, ended = once_after(moment, lambda: three.stop(stopped))
        try:
            erase(three.client, KEY, [name], reason="asked", timeout_s=TIMEOUT_S, on_progress=listen, register=register)
        finally:
            if ended:
                three.start(stopped)
                three.wait_up(stopped)
                three.wait_registered(3)
        assert three.configs(name) == before
        three.wait_in_sync(name, 3)
    elif what == "move":
        listen, _ = once_after(moment, lambda: three.lead(name, 0, chance.choice([1, 2, 3])))
        with AnyCluster(three.bootstrap) as own:
            erase(own.client, KEY, [name], reason="asked", timeout_s=TIMEOUT_S, on_progress=listen, register=register)
        assert three.configs(name) == before
    for work in open_works(register):
        resume(three.client, work.id, timeout_s=TIMEOUT_S, register=register)
    found = erase(three.client, KEY, [name], reason="asked", timeout_s=TIMEOUT_S, register=register)
    assert found["missing"] == {}, (seed, what, moment)
    assert three.configs(name) == before
    for partition in range(2):
        for broker in (1, 2, 3):
            three.lead(name, partition, broker)
            held = three.held(name, partition)
            assert not [one for one in held if one.key == KEY and one.value is not None], (seed, what, broker)
    assert on_disk(three, name, values, is_interrupted=what != "nothing") == [], (seed, what, moment)


def once_after(moment: float, do: Callable[[], object]) -> tuple[Callable[[object], None], list[float]]:
    """Return a listener that does something once, so many seconds from now on; and a list that has the moment then."""
    began, done = time.monotonic(), list[float]()

    def listen(_: object) -> None:
        if not done and time.monotonic() - began > moment:
            done.append(moment)
            do()

    return listen, done


def wait_and_kill(child: int, moment: float) -> None:
    """Kill a process after a while; it may have ended before."""
    time.sleep(moment)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
