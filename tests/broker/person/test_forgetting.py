"""A person is forgotten in all topics of a map, and one paper says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from tests.broker.erasure.brokers import broker_at, data_of, move_to
from tests.broker.person.shop import ADA, BOB, MAP, fill
from tests.waiting import wait_until


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with the shop's topics."""
    async with broker_at(tmp_path) as running:
        await fill(running)
        yield running


def files_with(broker: Broker, text: str) -> list[str]:
    """Return the files of topics that hold a text."""
    return [str(one) for one in data_of(broker).rglob("*.log") if text.encode() in one.read_bytes()]


async def test_a_preview_counts_and_changes_nothing(shop: Broker) -> None:
    """It names each topic, what would happen to how many records, and leaves them."""
    plan = await shop.person.preview({"customer_id": ADA}, MAP)
    assert [(one.topic, one.do, one.records, one.of_records) for one in plan.topics] == [
        ("carts", "erase-key", 1, 2),
        ("customers", "erase-key", 1, 2),
        ("orders", "remove-record", 3, 6),
    ]
    assert len(files_with(shop, ADA)) == 3
    assert ADA not in str(plan.to_fields())


async def test_a_person_is_gone_from_all_topics(shop: Broker) -> None:
    """Values go at once, the key after its horizon; the second paper says forgotten, and others' records are still there."""
    first = await shop.person.forget({"customer_id": ADA}, MAP, reason="GDPR Art. 17", reference="case 7")
    assert first.state == "values-gone"
    assert not files_with(shop, f"all about {ADA}")
    assert not files_with(shop, f"for {ADA}")
    assert first.next_due_ms is not None
    move_to(shop, first.next_due_ms)
    await wait_until(lambda: [*data_of(shop).glob("diamant-person-*.forgotten.json")] != [])
    await wait_until(lambda: not [*data_of(shop).glob("*.intent")])
    assert not files_with(shop, ADA)
    assert len(files_with(shop, BOB)) == 3
    last = await shop.certificate(first.id)
    assert last["state"] == "forgotten"
    assert {one["state"] for one in last["parts"]} == {"key-gone", "records-gone"}
    assert [(row["topic"], row["records"], row["problem"]) for row in last["topics"]] == [
        ("carts", 1, ""), ("customers", 1, ""), ("orders", 3, ""),
    ]  # fmt: skip
    (entry,) = (await shop.person.requests())["requests"]
    assert (entry["id"], entry["state"], entry["certificate"]) == (first.id, "done", "forgotten")
    assert ADA not in str(entry)
    assert ADA not in str(last)


async def test_one_scan_proves_the_whole_request(shop: Broker) -> None:
    """Each part states its own findings in the account of the same scan; with `now` the erasures share a second one."""
    done = await shop.person.forget({"customer_id": ADA}, MAP, reason="GDPR Art. 17", now=True)
    assert done.state == "forgotten"
    scans: dict[str, set[str]] = {}
    for part in done.certificate["parts"]:
        ledger = [row for row in part["coverage"]["ledger"] if row["file"].endswith(".log")]
        scans.setdefault(part["state"], set()).add(f"{part['coverage']['duration_ms']} {ledger}")
    assert [(state, len(one)) for state, one in sorted(scans.items())] == [("key-gone", 1), ("records-gone", 1)]
    assert scans["key-gone"] != scans["records-gone"]
