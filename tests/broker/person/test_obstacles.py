"""What comes in the way of a person's request: stops, second requests, deleted topics, grounds to keep, doubtful identifiers."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.operation_errors import BadArgument, NotPossible
from diamant.broker.topics.deletion import delete_topics
from diamant.cleaner.evidence.certificates.certificate import sign_certificate
from diamant.cleaner.papers.paper_page import page_of
from diamant.cleaner.papers.paper_verification import verify_certificate
from tests.broker.erasure.brokers import broker_at, data_of, move_to
from tests.broker.erasure.constants import DAY_MS, START_MS
from tests.broker.erasure.issued import key_of
from tests.broker.person.shop import ADA, BOB, MAP, fill, order
from tests.waiting import wait_until

WHY = {"reason": "GDPR Art. 17"}


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with the shop's topics."""
    async with broker_at(tmp_path) as running:
        await fill(running)
        yield running


def with_rule(topic: str, **changes: Any) -> dict[str, Any]:
    """Return the map with another entry for a topic."""
    found = copy.deepcopy(MAP)
    found["topics"][topic] |= changes
    return found


class Stopped(BaseException):
    """Stands for a kill."""


@pytest.mark.parametrize("jobs", [0, 1])
async def test_a_stop_between_the_jobs_is_continued(tmp_path: Path, jobs: int) -> None:
    """After a stop with some jobs done, the next start does the others, each once, and issues the paper."""
    async with broker_at(tmp_path) as broker:
        await fill(broker)
        people = broker.services.people()
        begin, count = people.queue.kind._begin, 0  # type: ignore[attr-defined]

        async def stopping(*given: Any) -> None:
            nonlocal count
            if count == jobs:
                raise Stopped
            count += 1
            await begin(*given)

        people.queue.kind._begin = stopping  # type: ignore[attr-defined]
        with pytest.raises(Stopped):
            await broker.person.forget({"customer_id": ADA}, MAP, **WHY)
        (before,) = (await broker.person.requests())["requests"]
        assert before["state"] == "in-progress"
    async with broker_at(tmp_path) as broker:
        await wait_until(lambda: [*data_of(broker).glob("diamant-person-*.values-gone.json")] != [])
        await wait_until(lambda: broker.services.people().register.get(before["id"]).certificate == "values-gone")
        paper = await broker.certificate(before["id"])
        assert len([*data_of(broker).glob("diamant-redaction-*.json")]) == 1
        assert [part["state"] for part in paper["parts"]] == ["values-gone", "records-gone"]


async def test_a_stop_during_the_scan_is_continued(tmp_path: Path) -> None:
    """No paper is issued about what the stop has interrupted; the next start goes through it again, and issues one."""
    async with broker_at(tmp_path) as broker:
        await fill(broker)
        is_scanning = asyncio.Event()

        async def held(*_: Any) -> Any:
            is_scanning.set()
            await asyncio.Event().wait()

        broker.services.evidence().scan = held  # type: ignore[method-assign]
        request = asyncio.create_task(broker.person.forget({"customer_id": ADA}, MAP, **WHY))
        await is_scanning.wait()
    assert isinstance((await asyncio.gather(request, return_exceptions=True))[0], BaseException)
    assert not [*(tmp_path / "data").glob("diamant-*.json")]
    async with broker_at(tmp_path) as broker:
        await wait_until(lambda: [*data_of(broker).glob("diamant-person-*.values-gone.json")] != [])
        assert not [*data_of(broker).glob("*.not-certified.json")]


async def test_a_request_that_was_never_begun_stays_open(tmp_path: Path) -> None:
    """A stop after the entry in the register and before the intent leaves it received, not in progress."""
    async with broker_at(tmp_path) as broker:
        await fill(broker)
        entry = await broker.person.receive({"customer_id": ADA})
        await broker.services.people().register.change(entry.id, state="in-progress")
    async with broker_at(tmp_path) as broker:
        (found,) = (await broker.person.requests())["requests"]
        assert (found["id"], found["state"]) == (entry.id, "received")
        done = await broker.person.forget({"customer_id": ADA}, MAP, **WHY)
        assert done.id == entry.id


async def test_a_second_request_of_the_same_person_is_refused(shop: Broker) -> None:
    """While the first is in progress, also if it names the person by another identifier of the same request."""
    first = await shop.person.forget({"customer_id": ADA}, MAP, **WHY)
    with pytest.raises(NotPossible, match=f"request {first.id} of the same person is in progress"):
        await shop.person.forget({"customer_id": ADA}, MAP, **WHY)
    other = await shop.person.forget({"customer_id": BOB}, MAP, **WHY)
    assert other.id != first.id


async def test_what_the_person_writes_afterwards_is_named_in_the_paper(shop: Broker) -> None:
    """The last paper counts it, and a further request removes it."""
    first = await shop.person.forget({"customer_id": ADA}, MAP, **WHY)
    await shop.produce("customers", "I am back", key=ADA)
    assert first.next_due_ms is not None
    move_to(shop, first.next_due_ms)
    await wait_until(lambda: [*data_of(shop).glob("diamant-person-*.forgotten.json")] != [])
    paper = await shop.certificate(first.id)
    assert sum(len(part["written_since"]) for part in paper["parts"]) == 1
    assert "There is something new in" in page_of(paper)
    again = await shop.person.forget({"customer_id": ADA}, MAP, **WHY)
    assert [row["records"] for row in again.certificate["topics"]] == [0, 1, 0]


async def test_a_topic_that_is_deleted_in_between_is_no_part_of_it(shop: Broker) -> None:
    """The paper names it and says nothing of it; the others are certified."""
    first = await shop.person.forget({"customer_id": ADA}, MAP, **WHY)
    await delete_topics(shop.node.topics, ["orders"])
    assert first.next_due_ms is not None
    move_to(shop, first.next_due_ms)
    await wait_until(lambda: [*data_of(shop).glob("diamant-person-*.forgotten.json")] != [])
    paper = await shop.certificate(first.id)
    assert [one["topic"] for one in paper["topics_ended"]] == ["orders"]
    assert [row["topic"] for row in paper["topics"]] == ["carts", "customers"]


async def test_records_with_a_ground_stay_and_the_paper_says_why(shop: Broker) -> None:
    """The topic has no job; state and page name the ground and its period."""
    kept = with_rule("orders", keep={"until": "P10Y", "because": "§ 147 AO"})
    del kept["topics"]["customers"], kept["topics"]["carts"]
    done = await shop.person.forget({"customer_id": ADA}, kept, **WHY)
    assert done.state == "forgotten-but-kept"
    assert done.certificate["parts"] == []
    page = page_of(done.certificate)
    assert "for 10 years after each was written, because of § 147 AO" in page
    found = verify_certificate(done.certificate, bytes.fromhex(done.certificate["signature"]["public_key"]))
    assert "orders: 3 records stay, for 10 years after each was written, because of § 147 AO." in found.notes


@pytest.mark.parametrize("keep", [None, {"until": "2001-01-01", "because": "§ 147 AO"}])
async def test_records_kept_without_a_ground_are_not_certified(shop: Broker, keep: dict[str, str] | None) -> None:
    """With none, or one whose time is over, and no action, nothing was done: the paper says so, and is valid."""
    rule = {"identity": MAP["topics"]["orders"]["identity"], **({} if keep is None else {"keep": keep})}
    done = await shop.person.forget({"customer_id": ADA}, {"version": 1, "topics": {"orders": rule}}, **WHY)
    assert done.state == "not-certified"
    assert "its records stay without a ground" in page_of(done.certificate)
    found = verify_certificate(done.certificate, bytes.fromhex(done.certificate["signature"]["public_key"]))
    assert found.outcome != "not-valid", found.notes
    assert any("neither a ground nor what is to be done" in note for note in found.notes)


async def test_the_register_says_what_waits_until_when(shop: Broker) -> None:
    """Until their horizon for tombstones, until the end of their time for kept records; both go once that has come."""
    await shop.create_topic("invoices", retention_ms="-1")
    await shop.produce("invoices", order(ADA, 1))
    until_ms = START_MS + 365 * DAY_MS
    people = {"version": 1, "topics": {**MAP["topics"], "invoices": {**MAP["topics"]["orders"]}}}
    people["topics"]["invoices"]["keep"] = {"until": "P1Y", "because": "§ 147 AO"}
    first = await shop.person.forget({"customer_id": ADA}, people, **WHY)
    (entry,) = (await shop.person.requests())["requests"]
    assert (first.state, entry["next_due_ms"]) == ("values-gone", first.next_due_ms)
    rows = {row["topic"]: row for row in entry["topics"]}
    assert (rows["invoices"]["do"], rows["invoices"]["records"]) == ("keep", 1)
    assert abs(rows["invoices"]["kept_until_ms"] - until_ms) <= DAY_MS
    assert [topic for topic, row in rows.items() if "kept_until_ms" in row] == ["invoices"]
    assert first.next_due_ms is not None
    move_to(shop, first.next_due_ms)
    await wait_until(lambda: [*data_of(shop).glob("diamant-person-*.forgotten-but-kept.json")] != [])
    await wait_until(lambda: not [*data_of(shop).glob("*.intent")])
    # The register is told after the last intent is gone.
    register = shop.services.people().register
    await wait_until(lambda: [one.state for one in register.known()] == ["done"])
    (entry,) = (await shop.person.requests())["requests"]
    assert entry["next_due_ms"] is None
    move_to(shop, rows["invoices"]["kept_until_ms"] + 1)
    again = await shop.person.forget({"customer_id": ADA}, people, **WHY, now=True)
    assert again.state == "forgotten"
    assert not [one for one in data_of(shop).glob("invoices-0/*.log") if ADA.encode() in one.read_bytes()]


async def test_a_cancelled_request_is_closed(shop: Broker) -> None:
    """What was removed stays removed; the register has the reason."""
    first = await shop.person.forget({"customer_id": ADA}, MAP, **WHY)
    closed = await shop.person.close(first.id, reason="withdrawn")
    assert (closed.state, closed.closed_because, closed.certificate) == ("closed", "withdrawn", "not-certified")
    assert not [*data_of(shop).glob("*.intent")]


async def test_a_reason_must_not_name_the_person(shop: Broker) -> None:
    """A reason that names the person is refused; it would stand in the paper and in the register."""
    with pytest.raises(BadArgument, match="must not contain the data"):
        await shop.person.forget({"customer_id": ADA}, MAP, reason=f"wish of {ADA}")
    assert (await shop.person.requests())["requests"] == []


async def test_due_dates_are_extended_with_a_reason(shop: Broker) -> None:
    """A request is due a month from its receipt, extended by two more at most; a request for information is closed by hand."""
    entry = await shop.person.receive({"customer_id": ADA}, kind="show", received="2023-01-31")
    (found,) = (await shop.person.requests())["requests"]
    assert found["is_overdue"]
    assert entry.due_ms - entry.received_ms == 28 * 24 * 3_600_000
    later = await shop.person.extend(entry.id, reason="many topics")
    assert later.extensions[0].reason == "many topics"
    with pytest.raises(NotPossible, match="at most 2 months"):
        await shop.person.extend(entry.id, reason="more", months=1)
    assert (await shop.person.close(entry.id, reason="answered")).state == "closed"
    assert (await shop.person.requests(open=True))["requests"] == []


@pytest.mark.parametrize("change", ["state", "part", "row", "ground"])
async def test_a_paper_never_says_more_than_its_parts(shop: Broker, change: str) -> None:
    """A paper that its own broker's key signs, but that claims more than its parts prove, is not valid."""
    kept = with_rule("orders", keep={"until": "P10Y", "because": "§ 147 AO"})
    paper = copy.deepcopy((await shop.person.forget({"customer_id": ADA}, kept, **WHY)).certificate)
    assert paper["state"] == "values-gone"
    del paper["signature"]
    if change == "state":
        paper["state"] = "forgotten"
    elif change == "part":
        paper["parts"][0]["claims"][0]["below_offset"] += 1
    elif change == "row":
        paper["topics"][0]["parts"] = []
    else:
        paper["topics"][2]["keep"]["because"] = ""
    signed = sign_certificate(paper, key_of(shop))
    found = verify_certificate(signed, bytes.fromhex(signed["signature"]["public_key"]))
    assert found.outcome == "not-valid", found.notes
