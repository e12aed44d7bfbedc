"""A broker is killed (SIGKILL) under load, and the other takes over what it left."""

from __future__ import annotations

import threading
from typing import Any

from all_kinds import DAY_MS, append, create_topics, fill, transact
from confluent_kafka import KafkaError, Producer
from dump_checks import check_files
from programs import Programs, wait_until
from topic_contents import Contents, compare, contents

# For the load under which a broker is killed: configs of the topic, of its producer, and bytes of a value.
LOAD_TOPICS: dict[str, tuple[dict[str, str], dict[str, Any], int]] = {
    "load-plain": ({}, {"max.in.flight.requests.per.connection": 1}, 100),
    "load-idempotent": ({}, {"enable.idempotence": True, "compression.type": "zstd"}, 100),
    "load-segments": ({"segment.bytes": "1048576", "index.interval.bytes": "1024"}, {"enable.idempotence": True}, 1000),
    "load-compact": (
        {"cleanup.policy": "compact", "min.compaction.lag.ms": str(7 * DAY_MS)},
        {"enable.idempotence": True, "compression.type": "lz4"},
        100,
    ),
}
LOAD_ACKNOWLEDGED = 5000  # per topic, before the kill
LOAD_QUEUED = 2000  # per topic, kept waiting in the producer


class Load:
    """A producer that is never finished: it sends the numbers 0, 1, 2... to the one partition of a topic."""

    def __init__(self, servers: str, topic: str) -> None:
        _, config, size = LOAD_TOPICS[topic]
        self.topic = topic
        self.size = size
        self.sent = 0
        self.acknowledged = 0
        self.faults: list[str] = []
        self._producer = Producer(
            {"bootstrap.servers": servers, "linger.ms": 2, "acks": "all", "log_level": 0, **config}
        )

    def top_up(self) -> None:
        """Keep the queue full, take what was acknowledged."""
        while len(self._producer) < LOAD_QUEUED:
            value = f"{self.sent}-".encode().ljust(self.size, b"x")
            self._producer.produce(self.topic, value, str(self.sent % 50), partition=0, on_delivery=self._delivered)
            self.sent += 1
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            if message.offset() != self.acknowledged:
                self.faults.append(f"record {self.acknowledged} was acknowledged at offset {message.offset()}")
            self.acknowledged += 1

    def abandon(self) -> None:
        """Give up what was not acknowledged."""
        self._producer.purge()
        self._producer.flush(10)

    def check(self, seen: Contents) -> tuple[list[str], str]:
        """Return all that was acknowledged is there, and at every offset the number that was sent for it; faults and a remark."""
        rows = seen.records[self.topic, 0]
        faults = list(self.faults)
        if len(rows) < self.acknowledged:
            faults.append(f"{self.topic}: {self.acknowledged} acknowledged, {len(rows)} are there")
        for number, row in enumerate(rows):
            found = (row.offset, (row.value or b"").partition(b"-")[0], len(row.value or b""))
            if found != (number, str(number).encode(), self.size):
                faults.append(f"{self.topic}: expected record {number} at offset {number}, got {found}")
                break
        return faults, f"{self.topic}: {self.acknowledged} acknowledged, {len(rows)} there, {self.sent} sent"


class Press(threading.Thread):
    """Keeps all loads going until it is told to stop, also while the broker is being killed."""

    def __init__(self, servers: str) -> None:
        super().__init__(daemon=True)
        self.loads = [Load(servers, topic) for topic in LOAD_TOPICS]
        self._is_over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._is_over.is_set():
            for load in self.loads:
                load.top_up()

    def wait_for_acknowledged(self) -> None:
        """Return when every topic has so many that the kill is worth it."""
        wait_until(
            lambda: min(load.acknowledged for load in self.loads) >= LOAD_ACKNOWLEDGED, "the load is acknowledged", 120
        )

    def end(self) -> None:
        """Stop sending; answers that came before the broker was gone have been taken."""
        self._is_over.set()
        self.join()
        for load in self.loads:
            load.abandon()


def check_killed(programs: Programs, seed: int, who: str) -> None:
    """One broker is killed under load, the other takes over and gives back."""
    checks = programs.checks
    directory = programs.work / f"killed-{who.lower()}"
    brokers = {"Diamant": programs.diamant_broker, "Kafka": programs.kafka_broker}
    other = "Kafka" if who == "Diamant" else "Diamant"
    with brokers[who](directory, is_killed=True) as servers:
        create_topics(servers, {name: row[0] for name, row in LOAD_TOPICS.items()})
        fill(servers, seed)
        if who == "Kafka":
            transact(servers)
        before = contents(servers)
        # Neither broker writes down a moved log start at once: Diamant within 5 s, Kafka within 60 s or with a deletion.
        checkpoint = directory / "log-start-offset-checkpoint"
        wait_until(
            lambda: checkpoint.exists() and "trimmed 0 60" in checkpoint.read_text(),
            f"{checkpoint} has the DeleteRecords",
            90,
        )
        press = Press(servers)
        press.wait_for_acknowledged()
    press.end()
    checks.report(
        f"{who} was killed",
        ["there is a .kafka_cleanshutdown"] if (directory / ".kafka_cleanshutdown").exists() else [],
    )
    names = set(before.topics)
    with brokers[other](directory) as servers:
        after = contents(servers, names)
        for load in press.loads:
            checks.report(f"{other} after {who}'s crash has what was acknowledged", *load.check(after))
        quiet = without_load(after)
        compare(checks, f"{other} after {who}'s crash, other topics", without_load(before), quiet)
        append(servers, seed + 10)
        written = contents(servers)
    check_files(programs, directory, written)
    with brokers[who](directory) as servers:
        compare(checks, f"{who}, back from {other}", written, contents(servers, names))


def without_load(seen: Contents) -> Contents:
    """Return the same without what the load moved: the bounds and records of its topics."""
    return seen._replace(
        bounds={partition: row for partition, row in seen.bounds.items() if partition[0] not in LOAD_TOPICS},
        by_time={partition: row for partition, row in seen.by_time.items() if partition[0] not in LOAD_TOPICS},
        records={partition: row for partition, row in seen.records.items() if partition[0] not in LOAD_TOPICS},
    )


def check_unclean(programs: Programs, seed: int) -> None:
    """Both directions; the second is tried also if the first breaks off."""
    for who in ("Diamant", "Kafka"):
        try:
            check_killed(programs, seed, who)
        except Exception as error:
            programs.checks.report(f"the crash of {who} ran to its end", [f"{type(error).__name__}: {error}"])
