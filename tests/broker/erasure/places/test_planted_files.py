"""Random erasures and redactions beside random files, checked by a scanner that shares no code with the broker.

A case fails if a certificate claims that data is gone while the scanner finds it in a place that the certificate does not name.
Each case has a seed, which failures show with the planted files.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from tests.broker.erasure.brokers import broker_at, data_of
from tests.broker.erasure.obstacles import SCANNING, at_stage
from tests.broker.erasure.places.planting import Planted, plant
from tests.broker.erasure.records import fill, write
from tests.cleaner.evidence.scan.independent_scanner import Place, search
from tests.effort import examples

GONE = ("values-gone", "key-gone", "records-gone", "nothing-matched")
SEEDS_PER_BROKER = 50


@dataclass(slots=True)
class Outcomes:
    """The results of a run's cases."""

    certified_beside: int = 0
    """Although something was planted: in other topics, where it is listed, or in what waits to be deleted."""
    certified: int = 0
    refused: int = 0
    false: list[str] = field(default_factory=list)


async def make(broker: Broker) -> None:
    """Create a compacted topic, a plain one, and an unrelated one, with small segments."""
    for name, policy in (("users", "compact"), ("orders", "delete"), ("other", "delete")):
        await broker.create_topic(
            name, 2, cleanup_policy=policy, internal_segment_bytes=1000, min_cleanable_dirty_ratio=1.0
        )


async def one_case(broker: Broker, seed: int, outcomes: Outcomes) -> None:
    """Write a secret, plant copies of it before or during the job, certify, and check."""
    rng = random.Random(seed)
    data, outside = data_of(broker), data_of(broker).parent / "outside"
    outside.mkdir(exist_ok=True)
    key, mail = b"customer-%012d" % rng.randrange(10**12), f"ada{rng.randrange(10**12):012d}@example.com"
    value = json.dumps({"email": mail, "n": seed}).encode()
    is_erasure = rng.random() < 0.6
    topic = "users" if is_erasure else "orders"
    writes = rng.choice((0, 1, 1, 1, 2))
    for _ in range(writes):
        partition = rng.randrange(2)
        write(broker, (key, value), topic=topic, partition=partition, codec=rng.randrange(5))
        fill(broker, rng.randrange(30), topic=topic, partition=partition)
    log = broker.node.topics.log(topic, rng.randrange(2))
    planted = Planted()
    is_during = rng.random() < 0.3

    def do_plant() -> None:
        nonlocal planted
        if not planted.told:
            planted = plant(rng, data, outside, topic, key, value)

    progress = at_stage(SCANNING, do_plant)
    if not is_during:
        do_plant()
    if is_erasure:
        how: dict[str, Any] = {"now": rng.random() < 0.5, "confirm_groups_behind": True, "progress": progress}
        found: Any = await broker.erase(key, [topic], reason="GDPR Art. 17", **how)
    else:
        where = f'value.email == "{mail}"'
        found = await broker.redact(topic, where=where, reason="GDPR Art. 17", yes_all=True, progress=progress)
    certificate = found.certificate
    # Values that were nowhere in the topic nobody can know; then it is the key that is looked for, or what is compared with.
    places = search(data, value) if writes else []
    if certificate["state"] in ("key-gone", "nothing-matched"):
        places += search(data, key if is_erasure else mail.encode())
    hidden = hidden_places(data, places, certificate, topic)
    if certificate["state"] not in GONE:
        outcomes.refused += 1
    else:
        outcomes.certified += 1
        outcomes.certified_beside += bool(planted.told)
    if certificate["state"] in GONE and hidden:
        when = "during the work" if is_during else "before"
        outcomes.false.append(
            f"seed {seed}: {certificate['state']} of {topic}, planted {when}: {planted.told}; found: {hidden[:5]}"
        )
    await clean_up(broker, planted, log)


def hidden_places(data: Path, places: list[Place], certificate: dict[str, Any], topic: str) -> list[Place]:
    """Return the places missing from the certificate: left or unreadable in other topics, or left under other keys."""
    told = [one for one in certificate["elsewhere"] if one.get("topic") != topic or one["what"] == "same-bytes"]
    told += [one for one in certificate["coverage"]["unreadable"] if one.get("topic") not in (None, topic)]
    listed = {identity(data / one["file"]) for one in told}
    # A start sets aside the directories of partitions that no topic has.
    names = {one["file"] for one in told}
    return [
        one
        for one in places
        if identity(data / one.file) not in listed and re.sub(r"\.[0-9a-f]{32}-stray/", "/", one.file) not in names
    ]


def identity(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except FileNotFoundError:
        return (-1, -1)
    return status.st_dev, status.st_ino


async def clean_up(broker: Broker, planted: Planted, log: Any) -> None:
    """Remove everything that could affect the next case."""
    planted.remove()
    for kind in broker.services.jobs:
        for one in await kind.unfinished_on_disk():
            await broker.cancel(one["id"], reason="over")
    for path in data_of(broker).glob("diamant-*.json"):
        path.unlink()


async def run(tmp_path: Path, seeds: range) -> Outcomes:
    """Run cases, some of them in the same broker."""
    outcomes = Outcomes()
    for first in range(seeds.start, seeds.stop, SEEDS_PER_BROKER):
        async with broker_at(tmp_path / str(first)) as broker:
            await make(broker)
            for seed in range(first, min(first + SEEDS_PER_BROKER, seeds.stop)):
                await one_case(broker, seed, outcomes)
    return outcomes


def check(outcomes: Outcomes, cases: int) -> None:
    """Require both outcomes; otherwise the planting does not work as intended."""
    assert outcomes.false == [], "\n".join(outcomes.false)
    assert outcomes.certified + outcomes.refused == cases
    if cases >= 20:
        assert outcomes.refused > cases // 5, outcomes
        assert outcomes.certified > cases // 5, outcomes


@pytest.mark.slow
async def test_nothing_that_is_called_gone_is_found(tmp_path: Path) -> None:
    """Two dozen cases in one broker give no false claim."""
    count = examples(24)
    check(await run(tmp_path, range(count)), count)


@pytest.mark.long
async def test_nothing_that_is_called_gone_is_found_a_thousand_times(tmp_path: Path) -> None:
    """A thousand random directories with planted files give no false claim."""
    check(await run(tmp_path, range(1000, 2000)), 1000)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_the_scanner_finds_what_is_there(tmp_path: Path, codec: int) -> None:
    """The scanner finds a value in a batch at any position of a file with any name, and nowhere else."""
    secret = b"a secret of some length"
    batch = bytes(build_batch([Record(0, 1, b"k", secret * 3)], codec=codec))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "any name").write_bytes(b"\0" * 1237 + batch + b"end")
    (tmp_path / "raw").write_bytes(b"x" + secret)
    found = search(tmp_path, secret)
    assert [one.file for one in found if one.how == "raw" and one.file == "raw"] == ["raw"]
    assert ("deep/any name", 1237) in [(one.file, one.position) for one in found if one.how != "raw"]
    assert search(tmp_path, b"another of some length") == []
