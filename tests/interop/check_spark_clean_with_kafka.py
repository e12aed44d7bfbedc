"""Check, against a real Apache Kafka, that it opens what `diamant spark clean DIR` leaves of a directory that Kafka has filled.

Run by hand; pytest does not collect it. It needs this project with its test tools installed, Java 17 or newer, and a launcher
as `check_with_kafka.py` does (its `--help` says what that has to do).

    python tests/interop/check_spark_clean_with_kafka.py --kafka ./kafka-launcher

1. Kafka fills a directory and stops: compacted topics of every codec, one with committed and aborted transactions, one of 24 MB,
   which is what Spark gets (smaller ones are cleaned in its driver); and one that is not compacted.
2. `diamant spark clean` cleans the directory. Every partition is cleaned, the large one by Spark.
3. Kafka's dump-log reads every cleaned file. Kafka starts on the directory: of every compacted topic each key has the value that
   it had, no record is new, superseded ones are gone; the other topic is as it was. Kafka appends and stops.
4. Diamant starts on it and has the same.

Every check prints one line, `ok` or `FAILED` with what differs. The exit code is 1 when one failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from all_kinds import CODECS, create_topics
from confluent_kafka import Producer
from dump_checks import check_cleaned_files
from programs import Checks, Programs, command_line, run_parts
from topic_contents import Contents, Row, compare, contents

LARGE, TRANSACTIONS, KEPT = "updates-large", "updates-transactions", "kept"
# Never due by itself, so that it is Diamant who cleans; the last record, which is ten minutes younger, begins a segment.
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1.0", "segment.ms": "60000"}
YOUNGER_MS = 600_000
LARGE_RECORDS, LARGE_KEYS, LARGE_VALUE = 60_000, 5_000, bytes(range(200)) * 2
RECORDS, KEYS = 4_000, 300
CLEAN_TIMEOUT_S = 900


def fill(servers: str) -> None:
    """Topics for every codec, a large one, one with transactions, and one that is not compacted."""
    create_topics(servers, {f"updates-{codec}": COMPACTED for codec in ("none", *CODECS)})
    create_topics(servers, {LARGE: COMPACTED | {"segment.bytes": "4194304"}, TRANSACTIONS: COMPACTED, KEPT: {}})
    for codec in ("none", *CODECS):
        update(servers, f"updates-{codec}", RECORDS, KEYS, b"value", **{"compression.type": codec})
    update(servers, KEPT, RECORDS, KEYS, b"kept")
    update(servers, LARGE, LARGE_RECORDS, LARGE_KEYS, LARGE_VALUE, **{"enable.idempotence": True})
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "check", "compression.type": "lz4"})
    producer.init_transactions(60)
    for number in range(40):
        producer.begin_transaction()
        for index in range(50):
            producer.produce(TRANSACTIONS, b"%d-%d" % (number, index), b"key-%d" % (index * number % 70))
        producer.flush(60)
        (producer.abort_transaction if number % 4 == 3 else producer.commit_transaction)(60)
    for topic in (TRANSACTIONS, *(f"updates-{codec}" for codec in ("none", *CODECS))):
        producer = Producer({"bootstrap.servers": servers})
        producer.produce(topic, b"last", b"last", timestamp=int(time.time() * 1000) + YOUNGER_MS)
        producer.flush(60)


def update(servers: str, topic: str, count: int, keys: int, value: bytes, **config: object) -> None:
    """Send values of keys that come again and again, with headers, and some tombstones."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, **config})
    for number in range(count):
        producer.produce(
            topic,
            None if number % 97 == 96 else b"%d-" % number + value,
            b"key-%d" % (number * 7 % keys),
            headers=[("n", b"%d" % number)] if number % 3 == 0 else None,
        )
        producer.poll(0)
    if left := producer.flush(120):
        raise RuntimeError(f"{left} records of {topic} were not taken")


def clean(programs: Programs, directory: Path, master: str) -> None:
    """Have the directory cleaned, and look at what the command says."""
    command = [*programs.diamant, "spark", "clean", str(directory), "--master", master, "--force", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CLEAN_TIMEOUT_S)
    (programs.work / "spark-clean.log").write_text(done.stdout + done.stderr)
    faults = [] if done.returncode == 0 else [f"exit code {done.returncode}", *done.stderr.splitlines()[-3:]]
    reports = {
        name: one
        for one in map(json.loads, done.stdout.splitlines())
        if (name := one["partition"]).startswith("updates-")
    }
    runners = {name: (one.get("result") or {}).get("runner", "nobody") for name, one in reports.items()}
    if runners.get(f"{LARGE}-0") != "spark":
        faults.append(f"{LARGE} was cleaned by {runners.get(f'{LARGE}-0')}, expected spark")
    if len(runners) != len(CODECS) + 3:
        faults.append(f"{len(runners)} partitions were cleaned, expected {len(CODECS) + 3}: {sorted(runners)}")
    faults += [f"{name} was not cleaned: {reports[name].get('error')}" for name in runners if runners[name] == "nobody"]
    removed = sum(sum(one["result"]["stats"]["removed"].values()) for one in reports.values() if one.get("result"))
    programs.checks.report("diamant spark clean", faults, f"{len(runners)} partitions, {removed} records removed")


def latest(rows: list[Row]) -> dict[bytes | None, Row]:
    """Return the last record of each key."""
    return {row.key: row for row in rows}


def check_cleaned(checks: Checks, before: Contents, after: Contents) -> None:
    """What may have gone has gone, and nothing else."""
    for partition, rows in sorted(before.records.items()):
        left, faults = after.records[partition], []
        name = f"{partition[0]}-{partition[1]}"
        if partition[0] == KEPT:
            checks.report(f"{name} is as it was", [] if left == rows else ["it differs"], f"{len(left)} records")
            continue
        if latest(left) != latest(rows):
            faults.append("keys have other values than before")
        if not set(left) <= set(rows):
            faults.append(f"{len(set(left) - set(rows))} records are new")
        if len(left) >= len(rows):
            faults.append(f"{len(left)} of {len(rows)} records are left")
        if before.bounds[partition][1] != after.bounds[partition][1]:
            faults.append(f"it ends at {after.bounds[partition][1]}, expected {before.bounds[partition][1]}")
        checks.report(f"{name}: the last value of every key", faults, f"{len(left)} of {len(rows)} records are left")


def run(programs: Programs, master: str) -> None:
    """All checks."""
    directory = programs.work / "by-kafka"
    with programs.kafka_broker(directory) as servers:
        fill(servers)
        before = contents(servers)
    clean(programs, directory, master)
    check_cleaned_files(programs, directory)
    topics = set(before.topics)
    with programs.kafka_broker(directory) as servers:
        after = contents(servers, topics)
        check_cleaned(programs.checks, before, after)
        for codec in ("none", *CODECS):
            update(servers, f"updates-{codec}", 100, KEYS, b"later", **{"compression.type": codec})
        update(servers, LARGE, 100, KEYS, b"later")
        appended = contents(servers)
    with programs.diamant_broker(directory, configs=["log.cleaner.enable=false"]) as servers:
        found = contents(servers, topics)
    # Kafka finds no record by its time where the file of an emptied segment before it is younger than that (LogSegment.java,
    # largestTimestamp); Diamant goes on to the next segment.
    same = (one._replace(by_time={}) for one in (appended, found))
    compare(programs.checks, "Diamant on the directory, back from Kafka", *same)


def main() -> int:
    """Run the checks; the exit code."""
    parser = command_line(__doc__)
    parser.add_argument("--master", default="local[2]", help="where Spark runs (default: local[2])")
    options = parser.parse_args()
    return run_parts(options, {"the check of Spark": lambda programs: run(programs, options.master)})


if __name__ == "__main__":
    sys.exit(main())
