"""Check, against a real Apache Kafka, that Diamant and Kafka can take over each other's data directories.

Run by hand; pytest does not collect it. It needs this project with its test tools installed, and a launcher: a command
that runs Apache Kafka 4 (a script of a dozen lines around its distribution). `--help` says what the launcher has to do.

    python tests/interop/check_with_kafka.py --kafka ./kafka-launcher

1. Diamant fills a new directory and is stopped. Kafka's dump-log reads every file of it.
2. Kafka starts on a copy: same topics, configs and records. It appends. Diamant takes the directory back and appends, dump-log
   reads it again, and Kafka takes it back once more.
3. Kafka fills a new directory (with transactions as well). Diamant takes it, appends, and Kafka takes it back.
4. Diamant is killed (SIGKILL) under load. Kafka starts on what it left: every acknowledged record is there, once, in order. It
   appends and stops, and Diamant takes the directory back. Then the same with Kafka killed and Diamant starting.
5. Diamant is killed ten times while it cleans compacted topics under load. After each start the last update of every key and all
   that must not have been cleaned is there. Kafka starts on what is left, has the same, goes on cleaning, and is killed as well;
   Diamant takes the directory back and cleans on, dump-log reads every file, and Kafka has the same once more.

Every check prints one line, `ok` or `FAILED` with what differs. The exit code is 1 when one failed.
"""

from __future__ import annotations

import argparse
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from compaction_load import History, Topic, Updates
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

LAUNCHER = """\
The launcher is a command with these subcommands:
  broker DIR PORT [NAME=VALUE...]
                         format DIR if it is new, then run a combined broker and controller (node id 1) on it in the
                         foreground, listening on 127.0.0.1:PORT, its controller on PORT+1, with further properties;
                         SIGTERM has to stop it cleanly and SIGKILL at once, so `exec` the JVM
  ready PORT             return when something listens on 127.0.0.1:PORT
  topics ARGS...         kafka-topics
  dump-log ARGS...       kafka-dump-log
It may consist of several words, as in --kafka 'docker exec kafka launcher'.
"""

CODECS = ("gzip", "snappy", "lz4", "zstd")
DAY_MS = 86_400_000
# What dump-log says about a file that it does not like; its exit code is 0 all the same.
COMPLAINT = re.compile(
    r"isvalid: false|Exception|[Mm]ismatch|out of order|Non-consecutive|not found|[Cc]orrupt|Could not|ERROR|Error at"
    r"|Failed|failed|invalid bytes"
)
# A line at level ERROR with which Kafka comments on what it does itself: new partitions of a topic that exists.
KAFKA_NOISE = re.compile(r"Expected partition .* to exist, but it was missing\. Creating")
# What either broker may say when it starts on a directory that was not closed.
RECOVERY_NOISE = re.compile(r"cut off \d+ bytes")
SHOWN = 5

TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "plain": (3, {}),
    "compact": (
        2,
        {"cleanup.policy": "compact", "min.compaction.lag.ms": str(7 * DAY_MS), "delete.retention.ms": "60000"},
    ),
    "segments": (1, {"segment.bytes": "1048576", "index.interval.bytes": "1024", "retention.ms": "-1"}),
    **{codec: (1, {}) for codec in CODECS},
    "recompressed": (1, {"compression.type": "lz4"}),
    "idempotent": (2, {}),
    "append-time": (1, {"message.timestamp.type": "LogAppendTime"}),
    "altered": (1, {"max.message.bytes": "200000"}),
    "trimmed": (1, {}),
    "empty": (2, {"retention.bytes": "1000000"}),
    "deleted": (1, {}),
}

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

# For the crashes during cleaning: configs of the topic, and its load.
COMPACTION = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "index.interval.bytes": "1024",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "5000",  # longer than a start, so that no tombstone goes before it was seen
    "file.delete.delay.ms": "500",
}
COMPACTION_TOPICS: dict[str, tuple[dict[str, str], Topic]] = {
    "updates-plain": (COMPACTION, Topic(500, 200, False, {})),
    "updates-lz4": (COMPACTION, Topic(500, 200, False, {"enable.idempotence": True, "compression.type": "lz4"})),
    "updates-zstd": (COMPACTION, Topic(2000, 400, False, {"compression.type": "zstd"})),
    # Large and mostly clean, so that Diamant keeps filters of keys beside its segments.
    "updates-wide": (
        COMPACTION | {"segment.bytes": "4194304", "min.cleanable.dirty.ratio": "0.1"},
        Topic(40_000, 600, True, {"enable.idempotence": True}),
    ),
}
CLEANER = ("log.cleaner.backoff.ms=100",)
CLEANER_KILLS = 10
UPDATES_ACKNOWLEDGED = 3000  # per topic, before each kill


class Row(NamedTuple):
    """One record as a client sees it."""

    offset: int
    timestamp: tuple[int, int]
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Contents(NamedTuple):
    """All that a client can learn about a broker's topics."""

    cluster_id: str
    topics: dict[str, tuple[str, int]]  # topic id and number of partitions
    configs: dict[str, dict[str, str]]  # those that were set on the topic
    bounds: dict[tuple[str, int], tuple[int, int]]  # earliest offset and high watermark
    by_time: dict[tuple[str, int], int]  # answer to a ListOffsets by timestamp
    records: dict[tuple[str, int], list[Row]]


class Checks:
    """Prints the outcome of each check and remembers whether one failed."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0

    def report(self, what: str, faults: list[str], remark: str = "") -> None:
        if faults:
            self.failed += 1
            print(f"FAILED  {what}")
            for fault in faults[:SHOWN]:
                print(f"          {fault}")
            if len(faults) > SHOWN:
                print(f"          and {len(faults) - SHOWN} more")
        else:
            self.passed += 1
            print(f"ok      {what}{f' ({remark})' if remark else ''}")
        sys.stdout.flush()


class Programs:
    """Starts the two brokers and Kafka's tools; their output goes to files in the work directory."""

    def __init__(self, kafka: list[str], diamant: list[str], work: Path, port: int, checks: Checks) -> None:
        self.kafka = kafka
        self.diamant = diamant
        self.work = work
        self.port = port
        self.checks = checks
        self.runs = 0

    def _log(self, name: str) -> Path:
        self.runs += 1
        return self.work / f"{self.runs:02d}-{name}.log"

    @contextmanager
    def diamant_broker(self, directory: Path, *, is_killed: bool = False, configs: Sequence[str] = ()) -> Iterator[str]:
        """Diamant on a directory; stopped with SIGTERM, which has to end well and leave the mark of a clean shutdown, or
        with SIGKILL.
        """
        log = self._log("diamant")
        port = free_port(self.port)
        command = [*self.diamant, "start", "--listen", f"127.0.0.1:{port}", "--data", str(directory)]
        command += [word for config in ("diamant.http.listen=", *configs) for word in ("--set", config)]
        with (
            log.open("w") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        ):
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                if "Diamant listens on" not in line:
                    raise RuntimeError(f"Diamant did not start on {directory}: see {log}")
                yield f"127.0.0.1:{port}"
            finally:
                code = kill(process) if is_killed else stop(process)
        if not is_killed:
            self._report_stop("Diamant", directory, [] if code == 0 else [f"exit code {code}, see {log}"])
        lines = [line for line in log.read_text().splitlines() if not RECOVERY_NOISE.search(line)]
        noise = [line for line in lines if re.search(r"\b(ERROR|WARNING)\b|Traceback", line)]
        self.checks.report(f"Diamant has no warnings or errors on {directory.name}", noise)

    @contextmanager
    def kafka_broker(self, directory: Path, *, is_killed: bool = False, configs: Sequence[str] = ()) -> Iterator[str]:
        """Kafka on a directory, stopped with SIGTERM or SIGKILL."""
        log = self._log("kafka")
        port = free_port(self.port)
        with log.open("w") as output:
            process = subprocess.Popen(
                [*self.kafka, "broker", str(directory), str(port), *configs], stdout=output, stderr=subprocess.STDOUT
            )
            try:
                subprocess.run([*self.kafka, "ready", str(port)], check=True, timeout=120)
                if process.poll() is not None:
                    raise RuntimeError(f"Kafka did not start on {directory}: see {log}")
                yield f"127.0.0.1:{port}"
            finally:
                code = kill(process) if is_killed else stop(process)
        if not is_killed:
            # A JVM ends with 143 after SIGTERM, also when it took its time to close everything.
            self._report_stop("Kafka", directory, [] if code in (0, 143, -15) else [f"exit code {code}, see {log}"])
        lines = [line for line in log.read_text().splitlines() if not KAFKA_NOISE.search(line)]
        noise = [line for line in lines if re.search(r"\b(ERROR|FATAL)\b|[Cc]orrupt", line)]
        self.checks.report(f"Kafka has no errors on {directory.name}", noise)

    def _report_stop(self, who: str, directory: Path, faults: list[str]) -> None:
        if not (directory / ".kafka_cleanshutdown").exists():
            faults.append(f"no .kafka_cleanshutdown in {directory}")
        self.checks.report(f"{who} stops cleanly on {directory.name}", faults)

    def tool(self, *arguments: str) -> str:
        """Run a subcommand of the launcher; its whole output, standard error included. An exit code is a last line."""
        run = subprocess.run(
            [*self.kafka, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=300,
            check=False,
        )
        self._log(arguments[0]).write_text(run.stdout)
        return run.stdout + (f"\nERROR exit code {run.returncode}" if run.returncode else "")


def stop(process: subprocess.Popen[Any]) -> int:
    """Ask a process to end and wait for it."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def kill(process: subprocess.Popen[Any]) -> int:
    """End a process without warning, as a crash would."""
    if process.poll() is not None:
        raise RuntimeError(f"the broker ended by itself with {process.returncode}")
    process.kill()
    return process.wait(30)


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
    """Look again and again until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"waited {seconds} s in vain until {what}")
        time.sleep(0.05)


def wait_for_all(futures: dict[Any, Any]) -> list[Any]:
    """Results of the futures of an admin call."""
    return [future.result(30) for future in futures.values()]


class Writer:
    """Sends records from a seeded generator."""

    def __init__(self, servers: str, seed: int) -> None:
        self.servers = servers
        self.random = random.Random(seed)
        # Recent, so that neither retention nor a bound on timestamps touches them, and distinct.
        self.timestamp = int(time.time() * 1000) - 3_600_000

    def send(
        self,
        topic: str,
        count: int,
        *,
        partitions: int = 1,
        size: int = 40,
        keys: int = 0,
        batch: int = 50,
        **config: Any,
    ) -> None:
        """`count` records over the partitions in turn, a flush after each `batch`; a tenth without value, some with headers.

        keys: 0 for a mixture of null keys and distinct ones, otherwise how many different keys there are.
        """
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 20, **config})
        errors: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: object) -> None:
            if error is not None:
                errors.append(error)

        for index in range(count):
            self.timestamp += 1
            key = f"key-{self.random.randrange(keys)}" if keys else (f"key-{index}" if index % 3 else None)
            producer.produce(
                topic,
                None if index % 10 == 7 and key else self.random.randbytes(size // 2) + b"x" * (size - size // 2),
                key,
                partition=index // 7 % partitions,
                timestamp=self.timestamp,
                headers=[("index", str(index).encode()), ("null", None), ("index", b"")] if index % 5 == 0 else None,
                on_delivery=delivered,
            )
            if index % batch == batch - 1:
                producer.flush(30)
        left = producer.flush(30)
        if errors or left:
            raise RuntimeError(f"{topic}: {left} records not delivered, first error: {errors[:1]}")


def fill(servers: str, seed: int) -> None:
    """Create the topics and write all kinds of records, then change and delete some."""
    admin = AdminClient({"bootstrap.servers": servers})
    new = [NewTopic(name, count, 1, config=config) for name, (count, config) in TOPICS.items()]
    wait_for_all(admin.create_topics(new))
    append(servers, seed)
    writer = Writer(servers, seed + 1)
    writer.send("deleted", 10)
    writer.send("trimmed", 100)
    wait_for_all(admin.delete_records([TopicPartition("trimmed", 0, 60)]))
    wait_for_all(admin.delete_topics(["deleted"]))
    wait_for_all(admin.create_partitions([NewPartitions("altered", 3)]))
    entry = ConfigEntry("retention.ms", str(30 * DAY_MS), incremental_operation=AlterConfigOpType.SET)
    gone = ConfigEntry("max.message.bytes", "", incremental_operation=AlterConfigOpType.DELETE)
    wait_for_all(
        admin.incremental_alter_configs(
            [ConfigResource(ResourceType.TOPIC, "altered", incremental_configs=[entry, gone])]
        )
    )


def append(servers: str, seed: int) -> None:
    """Write records to topics that exist."""
    writer = Writer(servers, seed)
    writer.send("plain", 300, partitions=3)
    writer.send("compact", 300, partitions=2, keys=20)
    writer.send("segments", 2000, size=1000, batch=20)
    for codec in CODECS:
        writer.send(codec, 300, size=200, **{"compression.type": codec})
    writer.send("recompressed", 200, size=200, **{"compression.type": "gzip"})
    writer.send("idempotent", 300, partitions=2, **{"enable.idempotence": True})
    writer.send("append-time", 100)
    writer.send("altered", 20)


def transact(servers: str) -> None:
    """A committed and an aborted transaction, only for a broker that has them."""
    admin = AdminClient({"bootstrap.servers": servers})
    wait_for_all(admin.create_topics([NewTopic("transactions", 1, 1)]))
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "check"})
    producer.init_transactions(60)
    for number, finish in enumerate(
        (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction)
    ):
        producer.begin_transaction()
        for index in range(10):
            producer.produce("transactions", f"{number}-{index}", "key")
        producer.flush(30)
        finish(60)


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
        """All that was acknowledged is there, and at every offset the number that was sent for it; faults and a remark."""
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


def wait_for_bounds(consumer: Consumer, partition: tuple[str, int]) -> tuple[int, int]:
    """Earliest offset and high watermark. Kafka names topics shortly before it leads their partitions: ask until it does."""
    end = time.monotonic() + 30
    while True:
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(*partition), 30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return low, high


def contents(servers: str, expected_topics: set[str] | None = None) -> Contents:
    """Everything that clients can see, read with checked CRCs and read_committed."""
    admin = AdminClient({"bootstrap.servers": servers})
    if expected_topics is not None:  # a broker that has just started may answer before it knows all
        wait_until(lambda: expected_topics <= set(admin.list_topics(timeout=10).topics), "all topics are there")
    listed = admin.list_topics(timeout=30)
    names = sorted(name for name in listed.topics if not name.startswith("__"))
    topics = {}
    for name, future in admin.describe_topics(TopicCollection(names)).items():
        described = future.result(30)
        topics[name] = (str(described.topic_id), len(described.partitions))
    configs = {}
    for resource, future in admin.describe_configs(
        [ConfigResource(ResourceType.TOPIC, name) for name in names]
    ).items():
        entries = future.result(30).values()
        configs[resource.name] = {
            entry.name: entry.value for entry in entries if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        }
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "check",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
        }
    )
    partitions = [(name, index) for name, (_, count) in topics.items() for index in range(count)]
    bounds = {partition: wait_for_bounds(consumer, partition) for partition in partitions}
    records: dict[tuple[str, int], list[Row]] = {partition: [] for partition in partitions}
    consumer.assign([TopicPartition(*partition, bounds[partition][0]) for partition in partitions])
    open_partitions = set(partitions)
    end = time.monotonic() + 120
    while open_partitions:
        if time.monotonic() > end:
            raise RuntimeError(f"no end of {sorted(open_partitions)} after 120 s")
        for message in consumer.consume(1000, 1):
            partition = (message.topic(), message.partition())
            error = message.error()
            if error is None:
                headers = tuple((key, value) for key, value in message.headers() or ())
                records[partition].append(
                    Row(message.offset(), message.timestamp(), message.key(), message.value(), headers)
                )
            elif error.code() == KafkaError._PARTITION_EOF:
                open_partitions.discard(partition)
            else:
                raise RuntimeError(f"{partition}: {error}")
    # The timestamp of a record in the middle of each partition.
    middles = {partition: rows[len(rows) // 2].timestamp[1] for partition, rows in records.items() if rows}
    answers = consumer.offsets_for_times([TopicPartition(*partition, ms) for partition, ms in middles.items()], 30)
    by_time = {(answer.topic, answer.partition): answer.offset for answer in answers}
    consumer.close()
    return Contents(listed.cluster_id, topics, configs, bounds, by_time, records)


def differences(before: Contents, after: Contents) -> dict[str, list[str]]:
    """What is not the same, by the fields of Contents."""
    found: dict[str, list[str]] = {}
    for field in Contents._fields:
        old, new = getattr(before, field), getattr(after, field)
        faults = []
        if not isinstance(old, dict):
            faults = [f"expected {old}, got {new}"] if old != new else []
        else:
            for key in sorted(old.keys() | new.keys()):
                if old.get(key) == new.get(key):
                    continue
                if field != "records" or key not in old or key not in new:
                    faults.append(f"{key}: expected {old.get(key)}, got {new.get(key)}"[:300])
                    continue
                pairs = [(a, b) for a, b in zip(old[key], new[key], strict=False) if a != b]
                first = f", first: expected {pairs[0][0]}, got {pairs[0][1]}" if pairs else ""
                faults.append(
                    f"{key}: {len(old[key])} records expected, got {len(new[key])}; {len(pairs)} differ{first}"[:400]
                )
        found[field] = faults
    return found


def compare(checks: Checks, what: str, before: Contents, after: Contents) -> None:
    """Report each field of two Contents."""
    counts = {
        "cluster_id": "",
        "topics": f"{len(after.topics)} topics, ids and partitions",
        "configs": f"{sum(map(len, after.configs.values()))} values",
        "bounds": f"{len(after.bounds)} partitions",
        "by_time": f"{len(after.by_time)} look-ups",
        "records": f"{sum(map(len, after.records.values()))} records",
    }
    for field, faults in differences(before, after).items():
        checks.report(f"{what}: same {field}", faults, counts[field])


def check_configs_as_set(checks: Checks, who: str, seen: Contents) -> None:
    """What was asked for at creation, changed afterwards, is what is described; offsets are where they have to be."""
    expected = {name: config for name, (_, config) in TOPICS.items() if name != "deleted"}
    expected["altered"] = {"retention.ms": str(30 * DAY_MS)}
    faults = [
        f"{name}: expected {config}, got {seen.configs.get(name)}"
        for name, config in expected.items()
        if seen.configs.get(name) != config
    ]
    if seen.bounds.get(("trimmed", 0)) != (60, 100):
        faults.append(f"trimmed-0: expected offsets 60 to 100, got {seen.bounds.get(('trimmed', 0))}")
    if "deleted" in seen.topics:
        faults.append("the deleted topic is still there")
    checks.report(f"{who} kept what it was told", faults)


def complaints(output: str) -> list[str]:
    """The lines of a tool's output that speak of a fault.

    dump-log finds the first record of every segment but the first non-consecutive ("-1 is followed by 1080"): it compares with
    a start of -1, whoever wrote the file.
    """
    output = re.sub(r"Non-consecutive offsets in .*\n\s+-1 is followed by \d++(?!\n\s+\d+ is followed)", "", output)
    return [line[:300] for line in output.splitlines() if COMPLAINT.search(line)]


def check_files(programs: Programs, directory: Path, seen: Contents) -> None:
    """Let dump-log read every file of a stopped broker's directory."""
    checks = programs.checks
    partitions = [path for path in sorted(directory.iterdir()) if path.is_dir() and path.name != "__cluster_metadata-0"]

    def files(*suffixes: str) -> list[str]:
        return [str(path) for folder in partitions for path in sorted(folder.iterdir()) if path.suffix in suffixes]

    where = f"dump-log on {directory.name}"
    logs = files(".log")
    output = programs.tool("dump-log", "--files", ",".join(logs), "--print-data-log", "--skip-record-metadata")
    faults = complaints(output)
    batches = output.count("isvalid: true")
    if batches == 0:
        faults.append("no batch was shown")
    checks.report(f"{where}: .log", faults, f"{len(logs)} segments, {batches} batches")

    several = [path for path in logs if "/segments-0/" in path]
    checks.report(
        f"{where}: 'segments' has several", [] if len(several) > 1 else [f"only {several}"], f"{len(several)}"
    )

    indexes = files(".index", ".timeindex", ".txnindex")
    output = programs.tool("dump-log", "--files", ",".join(indexes))
    entries = sum(line.startswith(("offset:", "timestamp:", "version:")) for line in output.splitlines())
    checks.report(
        f"{where}: .index, .timeindex, .txnindex", complaints(output), f"{len(indexes)} files, {entries} entries"
    )
    indexes = files(".index", ".timeindex")
    output = programs.tool("dump-log", "--files", ",".join(indexes), "--index-sanity-check")
    faults = complaints(output)
    # An offset index without entries is said to be empty, which is all right where a log has less than one interval.
    if (passed := output.count("passed sanity check") + output.count(".index is empty")) != len(indexes):
        faults.append(f"{passed} of {len(indexes)} passed")
    checks.report(f"{where}: --index-sanity-check", faults, f"{passed} passed")
    output = programs.tool("dump-log", "--files", ",".join(indexes), "--verify-index-only")
    checks.report(f"{where}: --verify-index-only", complaints(output), f"{len(indexes)} files")

    snapshots = files(".snapshot")
    output = programs.tool("dump-log", "--files", ",".join(snapshots))
    producers = output.count("producerId:")
    faults = complaints(output)
    if producers == 0:
        faults.append("no producer in any snapshot, though there were idempotent ones")
    checks.report(f"{where}: .snapshot", faults, f"{len(snapshots)} files, {producers} producers")

    metadata = directory / "__cluster_metadata-0"
    parts = [str(path) for path in sorted(metadata.iterdir()) if path.suffix in (".log", ".checkpoint")]
    output = programs.tool("dump-log", "--files", ",".join(parts), "--cluster-metadata-decoder")
    faults = complaints(output)
    faults += [f"no TOPIC_RECORD of {name}" for name in seen.topics if f'"name":"{name}"' not in output]
    checks.report(f"{where}: metadata log", faults, f"{len(parts)} files, {output.count('payload')} records")


def check_topics_command(programs: Programs, servers: str, seen: Contents) -> None:
    """Kafka's own admin client, which is not librdkafka, describes the topics of a running Diamant."""
    output = programs.tool("topics", "--bootstrap-server", servers, "--describe")
    faults = complaints(output)
    faults += [f"no line for {name}" for name in seen.topics if not re.search(rf"Topic: {re.escape(name)}\s", output)]
    programs.checks.report("kafka-topics --describe against Diamant", faults)


def check_diamant_first(programs: Programs, seed: int) -> None:
    """Diamant, Kafka, Diamant, Kafka on the same data."""
    checks = programs.checks
    first = programs.work / "by-diamant"
    with programs.diamant_broker(first) as servers:
        fill(servers, seed)
        written = contents(servers)
        check_configs_as_set(checks, "Diamant", written)
        check_topics_command(programs, servers, written)
    check_files(programs, first, written)

    copy = programs.work / "by-diamant-copy"
    shutil.copytree(first, copy)
    names = set(written.topics)
    with programs.kafka_broker(copy) as servers:
        compare(checks, "Kafka on Diamant's directory", written, contents(servers, names))
        append(servers, seed + 10)
        written = contents(servers)
    with programs.diamant_broker(copy) as servers:
        compare(checks, "Diamant, back from Kafka", written, contents(servers, names))
        append(servers, seed + 20)
        written = contents(servers)
    check_files(programs, copy, written)
    with programs.kafka_broker(copy) as servers:
        compare(checks, "Kafka, once more", written, contents(servers, names))


def check_kafka_first(programs: Programs, seed: int) -> None:
    """Kafka, Diamant, Kafka on the same data."""
    checks = programs.checks
    directory = programs.work / "by-kafka"
    with programs.kafka_broker(directory) as servers:
        fill(servers, seed)
        transact(servers)
        written = contents(servers)
        check_configs_as_set(checks, "Kafka", written)
    with programs.diamant_broker(directory) as servers:
        compare(checks, "Diamant on Kafka's directory", written, contents(servers, set(written.topics)))
        append(servers, seed + 10)
        written = contents(servers)
    check_files(programs, directory, written)
    with programs.kafka_broker(directory) as servers:
        compare(checks, "Kafka, back from Diamant", written, contents(servers, set(written.topics)))


def create_topics(servers: str, topics: dict[str, dict[str, str]]) -> None:
    """Create topics with one partition and these configs."""
    admin = AdminClient({"bootstrap.servers": servers})
    wait_for_all(admin.create_topics([NewTopic(name, 1, 1, config=config) for name, config in topics.items()]))


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
    """The same without what the load moved: the bounds and records of its topics."""
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


def check_compaction(programs: Programs, seed: int) -> None:
    """Diamant and Kafka are killed while they clean; each goes on where the other left off."""
    checks = programs.checks
    directory = programs.work / "compaction"
    histories = [History(name, row[1], seed) for name, row in COMPACTION_TOPICS.items()]
    found: Counter[str] = Counter()
    for kill_number in range(CLEANER_KILLS):
        with programs.diamant_broker(directory, is_killed=True, configs=CLEANER) as servers:
            if kill_number == 0:
                create_topics(servers, {name: row[0] for name, row in COMPACTION_TOPICS.items()})
            else:
                check_histories(checks, f"Diamant after kill {kill_number}", directory, servers, histories)
            updates = Updates(servers, histories)
            wait_for_cleaning(directory, histories)
        suffixes = {path.suffix for path in staged(directory)}
        found.update(suffixes or {"neither"})
        updates.end(is_answered=False)
    checks.report(
        "Kills hit the cleaner at work",
        [f"{found['neither']} of {CLEANER_KILLS} did not"] if found["neither"] > CLEANER_KILLS // 2 else [],
        ", ".join(f"{count} left {suffix}" for suffix, count in sorted(found.items())),
    )
    facts = sorted(directory.glob("*/diamant-*.facts"))
    faults = [] if facts else ["there is no diamant-*.facts file in any partition"]
    faults += [] if (directory / "diamant-hash-key").exists() else ["there is no diamant-hash-key"]
    checks.report("Diamant keeps filters of keys", faults, f"{len(facts)} segments")

    with programs.kafka_broker(directory, is_killed=True, configs=CLEANER) as servers:
        check_histories(checks, "Kafka after Diamant's crashes", directory, servers, histories)
        before = cleaner_checkpoint(directory)
        updates = Updates(servers, histories)
        wait_until(
            lambda: all(cleaner_checkpoint(directory)[name] > before.get(name, 0) for name in COMPACTION_TOPICS),
            "Kafka has cleaned each topic",
            120,
        )
        checks.report("Kafka cleans what Diamant cleaned before", [], f"{sum(before.values())} offsets clean before")
        wait_for_cleaning(directory, histories)
    updates.end(is_answered=False)
    with programs.diamant_broker(directory, configs=CLEANER) as servers:
        check_histories(checks, "Diamant after Kafka's crash", directory, servers, histories)
        before = cleaner_checkpoint(directory)
        updates = Updates(servers, histories)
        wait_until(
            lambda: all(cleaner_checkpoint(directory)[name] > before.get(name, 0) for name in COMPACTION_TOPICS),
            "Diamant has cleaned each topic",
            120,
        )
        updates.end(is_answered=True)
        check_histories(checks, "Diamant, having cleaned on", directory, servers, histories)
    check_cleaned_files(programs, directory)
    with programs.kafka_broker(directory, configs=CLEANER) as servers:
        check_histories(checks, "Kafka, once more", directory, servers, histories)


def check_histories(checks: Checks, what: str, directory: Path, servers: str, histories: Sequence[History]) -> None:
    """Judge what a broker serves of all topics, while it may be cleaning them."""
    seen = contents(servers, set(COMPACTION_TOPICS))
    for history in histories:
        logs = [path.stem for path in (directory / f"{history.topic}-0").glob("*.log")]
        checks.report(f"{what} has what it must", *history.check(seen.records[history.topic, 0], int(max(logs))))


def wait_for_cleaning(directory: Path, histories: Sequence[History]) -> None:
    """Return when all topics had updates and files show that the cleaner is at work this very moment."""
    before = [len(history.stored) for history in histories]
    wait_until(
        lambda: all(
            len(history.stored) >= old + UPDATES_ACKNOWLEDGED for history, old in zip(histories, before, strict=True)
        ),
        "the updates are acknowledged",
        120,
    )
    time.sleep(random.random() / 2)
    end = time.monotonic() + 10
    while not staged(directory) and time.monotonic() < end:
        pass  # Some of these files are there for a few milliseconds.


def staged(directory: Path) -> list[Path]:
    """Return the files that a cleaner has not put in their place yet."""
    return [path for suffix in ("cleaned", "swap") for path in directory.glob(f"updates-*/*.{suffix}")]


def cleaner_checkpoint(directory: Path) -> Counter[str]:
    """Return up to where each topic is clean."""
    path = directory / "cleaner-offset-checkpoint"
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    return Counter({line.split()[0]: int(line.split()[2]) for line in lines})


def check_cleaned_files(programs: Programs, directory: Path) -> None:
    """Let dump-log read the logs and indexes of the cleaned topics of a stopped broker's directory."""
    paths = sorted(directory.glob("updates-*/*"))
    logs = [str(path) for path in paths if path.suffix == ".log"]
    output = programs.tool("dump-log", "--files", ",".join(logs), "--print-data-log", "--skip-record-metadata")
    # Gaps are what cleaning makes.
    output = re.sub(r"Non-consecutive offsets in .*\n(\s+-?\d+ is followed by \d+\n?)+", "", output)
    programs.checks.report("dump-log on cleaned .log", complaints(output), f"{len(logs)} segments")
    indexes = [str(path) for path in paths if path.suffix in (".index", ".timeindex")]
    output = programs.tool("dump-log", "--files", ",".join(indexes), "--index-sanity-check")
    programs.checks.report(
        "dump-log on cleaned indexes: --index-sanity-check", complaints(output), f"{len(indexes)} files"
    )
    output = programs.tool("dump-log", "--files", ",".join(indexes), "--verify-index-only")
    # It takes a batch whose records are all gone for one without a timestamp, also in logs that Kafka has cleaned.
    output = re.sub(r"Found timestamp mismatch in .*\n(\s+Index timestamp: \d+, log timestamp: -1\n?)+", "", output)
    programs.checks.report(
        "dump-log on cleaned indexes: --verify-index-only", complaints(output), f"{len(indexes)} files"
    )


def free_port(first: int) -> int:
    """The first port from `first` on that is free now together with the next one."""
    for port in range(first, first + 90, 2):
        with socket.socket() as one, socket.socket() as two:
            for number, each in enumerate((one, two)):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    each.bind(("127.0.0.1", port + number))
                except OSError:
                    break
            else:
                return port
    raise RuntimeError(f"no two free ports from {first} on")


PARTS: dict[str, Callable[[Programs, int], None]] = {
    "diamant-first": check_diamant_first,
    "kafka-first": check_kafka_first,
    "unclean": check_unclean,
    "compaction": check_compaction,
}


def main() -> int:
    """Run the checks; the exit code."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        epilog=LAUNCHER,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--kafka", required=True, type=shlex.split, metavar="COMMAND", help="launcher of Apache Kafka, see below"
    )
    parser.add_argument(
        "--diamant",
        type=shlex.split,
        metavar="COMMAND",
        default=[str(Path(sys.executable).parent / "diamant")],
        help="command of Diamant (default: the one beside this Python)",
    )
    parser.add_argument(
        "--work", type=Path, metavar="DIR", help="directory for data and logs, kept (default: a temporary one)"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=19092,
        help="where to look for two free ports (default: 19092); better none that the system gives to clients",
    )
    parser.add_argument("--seed", type=int, default=None, help="seed of the records (default: a new one, printed)")
    parser.add_argument("--only", choices=tuple(PARTS), help="one part of the checks")
    options = parser.parse_args()
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    print(f"seed {seed}")
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="diamant-interop-") as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        programs = Programs(options.kafka, options.diamant, work.resolve(), options.port, checks)
        for name, run in PARTS.items():
            if options.only not in (None, name):
                continue
            try:
                run(programs, seed)
            except Exception as error:  # what cannot go on is a failed check; the other parts still run
                checks.report(f"{name} ran to its end", [f"{type(error).__name__}: {error}"])
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
