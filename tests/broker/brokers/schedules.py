"""Random schedules of brokers that go down and up, leaders that move, followers that lag, while clients write and read.

    diamant exec --brokers 3 ... -- python -m tests.broker.brokers.schedules FIRST COUNT

The clients have a process of their own: librdkafka holds Python's lock while it closes. Prints the schedules and their records.
"""

from __future__ import annotations

import os
import random
import sys
from contextlib import suppress

from confluent_kafka.admin import AdminClient, NewTopic

from diamant import Admin
from diamant.broker.client.admin import AdminError
from tests.broker.brokers.schedule_clients import PARTITIONS, Clients

STEPS = 15
VERBS = ("down", "hard", "fence", "up", "up", "late up", "move", "shuffle", "lag", "end lag")


def change(admin: Admin, topic: str, choice: random.Random, down: set[int]) -> None:
    """Let one broker go or come back, or leaders move."""
    verb, broker_id = choice.choice(VERBS), choice.randrange(1, 4)
    if verb in ("down", "hard", "fence") and not down:
        if verb == "fence":
            admin.brokers.fence(broker_id)
        else:
            admin.brokers.down(broker_id, hard=verb == "hard")
        down.add(broker_id)
    elif verb in ("up", "late up") and down:
        admin.brokers.up(down.pop(), lag="50ms" if verb == "late up" else 0)
    elif verb == "move":
        with suppress(AdminError):  # it is down, not in sync yet, or leads already
            admin.brokers.move(topic, choice.randrange(PARTITIONS), broker_id)
    elif verb == "shuffle":
        admin.brokers.shuffle(seed=choice.randrange(1000))
    elif verb in ("lag", "end lag"):
        admin.brokers.lag(broker_id, "20ms" if verb == "lag" else 0)


def run(seed: int, bootstrap_servers: str, admin: Admin) -> int:
    """Run one schedule, check what was written and read, and return the number of records."""
    choice, topic = random.Random(seed), f"orders-{seed}"
    kafka = AdminClient({"bootstrap.servers": bootstrap_servers})
    kafka.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(60)
    clients, down = Clients(bootstrap_servers, topic), set[int]()
    for _ in range(STEPS):
        act = choice.random()
        if act < 0.35:
            change(admin, topic, choice, down)
        elif act < 0.6:
            clients.produce(choice.randrange(1, 30))
        elif act < 0.8:
            clients.transact(choice.randrange(2), choice.randrange(1, 10), is_commit=choice.random() < 0.7)
        else:
            clients.poll()
    for broker_id in (1, 2, 3):
        if broker_id in down:
            admin.brokers.up(broker_id)
        admin.brokers.lag(broker_id, 0)
    clients.finish()
    in_log = clients.in_log()
    assert in_log.keys() == clients.stored, (seed, "lost or not committed", in_log.keys() ^ clients.stored)
    assert max(in_log.values(), default=1) == 1, (seed, "twice", in_log)
    for read in clients.read:
        assert read.keys() == clients.stored, (seed, "not read", read.keys() ^ clients.stored)
    return len(clients.stored)


def main(first: int, count: int) -> None:
    """Run schedules, and end the process; AssertionError with the first one that fails."""
    bootstrap_servers = os.environ["DIAMANT_BOOTSTRAP_SERVERS"]
    admin = Admin(bootstrap_servers, http_url=os.environ["DIAMANT_HTTP_URL"])
    records = sum(run(seed, bootstrap_servers, admin) for seed in range(first, first + count))
    print(f"{count} schedules, {records} records", flush=True)
    os._exit(0)  # without the end of consumers, which may never come (`schedule_clients`)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
