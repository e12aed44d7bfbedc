"""Random schedules of brokers that go down and up, leaders that move, followers that lag, while clients write and read.

    python -m tests.broker.brokers.schedules --count 1000 --first 1

Some processes share them. Each has three brokers, its clients (`schedule_clients`), and for each schedule a topic. A schedule
that fails is named with its seed, and its process ends. `--first` with its seed repeats its choices; when requests arrive
depends on the machine, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from confluent_kafka.admin import AdminClient, NewTopic

from diamant import Admin
from diamant.broker.client.admin import AdminError
from tests.broker.brokers.schedule_clients import PARTITIONS, Clients

STEPS = 15
MAX_DOWN = 2
VERBS = ("down", "hard", "fence", "up", "up", "late up", "move", "move", "shuffle", "lag", "end lag")
CONFIGS = (
    "min.insync.replicas=2",
    "offsets.topic.replication.factor=3",
    "offsets.topic.num.partitions=6",
    "transaction.state.log.replication.factor=3",
    "transaction.state.log.num.partitions=6",
    "group.initial.rebalance.delay.ms=0",
    "group.consumer.heartbeat.interval.ms=100",
    "group.consumer.min.heartbeat.interval.ms=100",
    "group.consumer.session.timeout.ms=6000",
    "group.consumer.min.session.timeout.ms=6000",
    "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector",
)
PROCESSES = 8
"""A schedule mostly waits: for a timeout of a client, for a group."""


class Schedules:
    """Schedules beside one process of three brokers."""

    def __init__(self, bootstrap_servers: str, http_url: str, name: str) -> None:
        self._admin = Admin(bootstrap_servers, http_url=http_url)
        self._kafka = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        self._clients = Clients(bootstrap_servers, name)
        self._down = set[int]()
        self.totals = Counter[str]()

    def run(self, seed: int) -> None:
        """Run one schedule, and check what was written and read. AssertionError."""
        choice, topic = random.Random(seed), f"orders-{seed}"
        self._kafka.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(60)
        self._clients.begin(topic, seed)
        for _ in range(STEPS):
            self.totals["changes"] += self._change(topic, choice)
            for _ in range(choice.randrange(5)):
                self._clients.poll()
        for broker_id in (1, 2, 3):
            if broker_id in self._down:
                self._admin.brokers.up(broker_id)
            self._admin.brokers.lag(broker_id, 0)
        self._down.clear()
        self.totals["schedules"] += 1
        self.totals.update(self._clients.finish())

    def _change(self, topic: str, choice: random.Random) -> bool:
        """Let one broker go or come back, or leaders move; return whether the choice was possible."""
        brokers, down = self._admin.brokers, self._down
        verb, broker_id = choice.choice(VERBS), choice.randrange(1, 4)
        if verb in ("down", "hard", "fence") and broker_id not in down and len(down) < MAX_DOWN:
            if verb == "fence":
                brokers.fence(broker_id)
            else:
                brokers.down(broker_id, hard=verb == "hard")
            down.add(broker_id)
        elif verb in ("up", "late up") and down:
            brokers.up(down.pop(), lag="50ms" if verb == "late up" else 0)
        elif verb == "move":
            with suppress(AdminError):  # it is down, not in sync yet, or leads already
                brokers.move(topic, choice.randrange(PARTITIONS), broker_id)
        elif verb == "shuffle":
            brokers.shuffle(seed=choice.randrange(1000))
        elif verb in ("lag", "end lag"):
            brokers.lag(broker_id, "20ms" if verb == "lag" else 0)
        else:
            return False
        return True


def beside_brokers(seeds: range) -> None:
    """Run schedules beside the brokers of `diamant exec`, print their totals, and end the process."""
    bootstrap_servers, http_url = os.environ["DIAMANT_BOOTSTRAP_SERVERS"], os.environ["DIAMANT_HTTP_URL"]
    schedules = Schedules(bootstrap_servers, http_url, f"from{seeds.start}")
    code = 0
    try:
        for seed in seeds:
            began_s = time.monotonic()
            schedules.run(seed)
            print(f"schedule {seed}: {time.monotonic() - began_s:.1f} s", flush=True)
    except Exception:
        traceback.print_exc()
        print(f"schedule {seed} FAILED", file=sys.stderr, flush=True)
        code = 1
    print(json.dumps(schedules.totals), flush=True)
    os._exit(code)  # without the end of consumers, which may never come (`schedule_clients`)


def run(seeds: range) -> Counter[str]:
    """Run schedules in a process with brokers of its own, and return their totals and the count of failures."""
    broker = [sys.executable, "-m", "diamant", "exec", "--brokers", "3"]
    broker += [word for config in CONFIGS for word in ("--set", config)]
    program = [sys.executable, "-m", "tests.broker.brokers.schedules", "--beside-brokers"]
    program += ["--first", str(seeds.start), "--count", str(len(seeds))]
    line = "{}"
    with subprocess.Popen([*broker, "--", *program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
    return Counter(json.loads(line) if line.startswith("{") else {}) + Counter(failures=int(process.returncode != 0))


def main() -> int:
    """Run what the command line says; 1 if a schedule has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=1, help="the seed of the first")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--beside-brokers", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.count)
    if given.beside_brokers:
        beside_brokers(seeds)
    began_s, size = time.monotonic(), -(-given.count // given.processes)
    with ThreadPoolExecutor(given.processes) as pool:
        totals = sum(pool.map(run, [seeds[at : at + size] for at in range(0, len(seeds), size)]), Counter[str]())
    print(f"{dict(totals)} in {time.monotonic() - began_s:.0f} s")
    return 1 if totals["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
