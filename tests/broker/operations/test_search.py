"""Searching the records of a topic: newest first over all partitions, past damage."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.operation_errors import NotFound, TooMany
from diamant.broker.operations.records.search_operation import MAX_AT_ONCE, PlacedDamage, PlacedRecord
from diamant.cleaner.queries.matching_records import Wanted
from tests.effort import examples

PARTITIONS = 3


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker whose topic has records of 3,000 moments, in segments of some 100 batches."""
    async with Broker(data_dir=tmp_path, listen="127.0.0.1:0") as running:
        await running.create_topic("events", PARTITIONS, internal_segment_bytes=9_000)
        for number in range(600):
            await running.produce(
                "events",
                f"v{number}",
                key=f"k{number % 7}",
                partition=number * number % PARTITIONS,
                timestamp_ms=1000 + number,
            )
        yield running


async def found(
    broker: Broker, wanted: Wanted | None = None, most: int = 10_000, before: dict[int, int] | None = None
) -> list[PlacedRecord | PlacedDamage]:
    """Return everything that a search finds."""
    pages = broker.services.search().newest_first("events", None, wanted, most=most, cut_bytes=100, before=before)
    return [one async for page in pages for one in page.found]


def values(items: list[PlacedRecord | PlacedDamage]) -> list[int]:
    """Return the numbers of the records."""
    return [int((one.record.value or b"").decode()[1:]) for one in items if isinstance(one, PlacedRecord)]


async def test_records_come_newest_first_over_all_partitions(broker: Broker) -> None:
    """All records come newest first, or only the newest ones; matching ones have the same order."""
    assert values(await found(broker)) == list(range(599, -1, -1))
    assert values(await found(broker, most=50)) == list(range(599, 549, -1))
    assert values(await found(broker, Wanted.key(b"k3"))) == list(range(598 - 598 % 7 + 3 - 7 * (598 % 7 < 3), -1, -7))
    assert values(await found(broker, Wanted.text(b"v17"))) == [*range(179, 169, -1), 17]


async def test_pages_follow_one_another(broker: Broker) -> None:
    """The offsets of a page's last records, by partition, begin the next one."""
    seen: list[int] = []
    before: dict[int, int] = {}
    rng = random.Random(3)
    while page := await found(broker, most=rng.randrange(1, 90), before=before):
        seen += values(page)
        before |= {one.partition: one.record.offset for one in page if isinstance(one, PlacedRecord)}
    assert seen == list(range(599, -1, -1))


async def test_a_long_search_can_be_left(broker: Broker) -> None:
    """Few searches run at a time; one that is left makes room."""
    search = broker.services.search()
    running = [search.newest_first("events", None, None, most=1_000, cut_bytes=1) for _ in range(MAX_AT_ONCE)]
    for one in running:
        await anext(one)
    with pytest.raises(TooMany):
        await found(broker)
    await running[0].aclose()
    assert len(await found(broker, most=1)) == 1
    for one in running:
        await one.aclose()
    with pytest.raises(NotFound):
        await anext(search.newest_first("none", None, None, most=1, cut_bytes=1))


async def test_old_records_in_new_places_are_found(broker: Broker) -> None:
    """Timestamps that do not ascend change the order, and nothing is missing or twice."""
    rng = random.Random(5)
    for number in range(600, 800):
        await broker.produce("events", f"v{number}", key="k", timestamp_ms=rng.randrange(2000))
    assert sorted(values(await found(broker))) == list(range(800))


@pytest.mark.parametrize("seed", range(examples(24)))
async def test_damage_costs_only_damaged_batches(broker: Broker, seed: int) -> None:
    """Both directions read all other records, and name the lost offsets, wherever a few bytes are wrong."""
    rng = random.Random(seed)
    log = broker.node.topics.by_name["events"].logs[1]
    segment = log.segments[rng.randrange(len(log.segments))]
    headers = list(segment.scan_from(segment.base_offset))
    position, header = headers[rng.randrange(len(headers))]
    file = log.env.open(segment.path)
    file.pwrite(rng.randbytes(4), position + rng.choice([8, 16, 18, 62]))
    file.close()
    items = await found(broker)
    lost = {one.damage.first_offset for one in items if isinstance(one, PlacedDamage)}
    assert len(values(items)) + len(lost) == 600
    assert lost <= {header.base_offset}
    backwards = [one.record.offset for one in items if isinstance(one, PlacedRecord) and one.partition == 1][::-1]
    forwards, after = await broker.services.search().from_offset(log, 0, most=10_000, cut_bytes=10)
    assert [one.record.offset for one in forwards if isinstance(one, PlacedRecord)] == backwards
    assert after == log.log_end_offset
    assert {one.damage.first_offset for one in forwards if isinstance(one, PlacedDamage)} == lost
