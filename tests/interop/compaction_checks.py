"""Brokers are killed while they clean compacted topics, and each goes on where the other left off."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from all_kinds import create_topics
from compaction_load import History, Topic, Updates
from dump_checks import check_cleaned_files
from programs import Checks, Programs, wait_until
from topic_contents import contents

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
