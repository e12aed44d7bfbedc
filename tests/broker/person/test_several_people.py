"""Several people are forgotten in one search and one job; each has a paper and an entry of the register of their own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from diamant.broker.broker import Broker
from diamant.broker.cli import main
from diamant.broker.operation_errors import BadArgument, NotPossible, Unconfirmed
from diamant.broker.person.person_steps import ForgottenPeople
from tests.broker.erasure.brokers import broker_at, data_of, move_to
from tests.broker.person.shop import ADA, BOB, MAP, fill, order
from tests.waiting import wait_until

WHY = {"reason": "GDPR Art. 17"}
BOTH = [{"customer_id": ADA}, {"customer_id": BOB}]
CLEO = "customer-44"


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with the shop's topics, and a customer who stays."""
    async with broker_at(tmp_path) as running:
        await fill(running)
        await running.produce("customers", f"all about {CLEO}", key=CLEO)
        await running.produce("orders", order(CLEO, 9), key="9")
        yield running


async def papers(broker: Broker, found: ForgottenPeople) -> list[Mapping[str, Any]]:
    """Return the papers; nothing failed."""
    assert [one.error for one in found.people if one.error] == []
    return [await broker.certificate(one.id) for one in found.people]


def names_in(broker: Broker) -> set[str]:
    """Return the customers whose data is in the files of the shop."""
    contents = [one.read_bytes() for one in data_of(broker).glob("[co]*-0/*.log")]
    return {name for name in (ADA, BOB, CLEO) if any(name.encode() in content for content in contents)}


def scans_of(shop: Broker) -> list[int]:
    """Return a list that gets the number of claims of each scan from now on."""
    evidence: Any = shop.services.erasures()._evidence
    scan, asked = evidence.scan, []

    async def counted(requests: Any, *more: Any) -> Any:
        asked.append(len(requests))
        return await scan(requests, *more)

    evidence.scan = counted
    return asked


async def test_people_are_gone_and_each_has_a_paper(shop: Broker) -> None:
    """One scan proves all parts, two with `now`. A paper has its own person's parts, and neither identifiers nor their HMACs
    of others; the register has an entry for each.
    """
    asked = scans_of(shop)
    found = await papers(shop, await shop.person.forget_each(BOTH, MAP, **WHY, now=True))
    assert [one["state"] for one in found] == ["forgotten", "forgotten"]
    assert names_in(shop) == {CLEO}
    assert len(asked) == 2
    assert [[row["records"] for row in one["topics"]] for one in found] == [[1, 1, 3], [1, 1, 3]]
    hmacs = [{row["hmac"] for row in one["request"]["identifiers"]} for one in found]
    for paper, others in zip(found, reversed(hmacs), strict=True):
        text = json.dumps(paper)
        assert not [one for one in (*others, ADA, BOB) if one in text]
    entries = (await shop.person.requests())["requests"]
    assert {one["id"] for one in entries} == {one["id"] for one in found}
    assert {one["state"] for one in entries} == {"done"}


async def test_topics_are_read_once_for_all(shop: Broker) -> None:
    """As many files are opened for two people as for one, and each plan is that of the person alone."""
    explaining = shop.services.explain()
    opened, opening = 0, explaining.open

    async def counted(log: Any) -> Any:
        nonlocal opened
        opened += 1
        return await opening(log)

    explaining.open = counted  # type: ignore[method-assign]
    alone = [(await shop.person.preview(one, MAP)).to_fields() for one in BOTH]
    of_both, opened = opened, 0
    plans = (await shop.person.preview_each(BOTH, MAP)).people
    # Each plan also counts the records of three topics by itself.
    assert (of_both, opened) == (2 * (3 + 3), 3 + 2 * 3)
    assert [plan.to_fields() for plan in plans] == alone


async def test_a_person_without_records_is_told_and_others_are_done(shop: Broker) -> None:
    """The paper about the third person says that nothing matched."""
    found = await papers(
        shop, await shop.person.forget_each([*BOTH, {"customer_id": "customer-99"}], MAP, **WHY, now=True)
    )
    assert [one["state"] for one in found] == ["forgotten", "forgotten", "nothing-matched"]
    assert names_in(shop) == {CLEO}


@pytest.mark.parametrize(
    ("subjects", "expected"),
    [
        ([], "expected 1 to 1,000 people, got 0"),
        ([{}], "subjects: expected at least one identifier, as name: value"),
        ([*BOTH, {"customer_id": [CLEO, ADA]}], "person 1 and person 3 have the same customer_id"),
        ([BOTH[0], {"customer_id": ""}], "person 2 of 2: identifiers: customer_id: expected a string"),
        ([BOTH[0], {"iban": "1"}], "person 2 of 2: the map has no identifier 'iban'"),
    ],
)
async def test_people_that_cannot_be_looked_for_are_named_by_number(
    shop: Broker, subjects: list[dict[str, Any]], expected: str
) -> None:
    """Nothing is begun, and no text repeats an identifier's value."""
    with pytest.raises(BadArgument) as caught:
        await shop.person.forget_each(subjects, MAP, **WHY)
    assert expected in str(caught.value)
    assert ADA not in str(caught.value)
    assert (await shop.person.requests())["requests"] == []


async def test_a_request_in_progress_keeps_all_from_being_begun(shop: Broker) -> None:
    """The person is named by number; the others are not registered."""
    first = await shop.person.forget(BOTH[1], MAP, **WHY)
    with pytest.raises(NotPossible, match=f"person 2 of 2: request {first.id} of the same person is in progress"):
        await shop.person.forget_each(BOTH, MAP, **WHY)
    assert len((await shop.person.requests())["requests"]) == 1


async def test_people_whose_turn_does_not_come_are_told_and_stay_open(shop: Broker) -> None:
    """Another erasure takes longer than they wait: the requests are received, and a later call continues them."""
    async with shop.services.erasures().queue.attempts.lock:
        found = (await shop.person.forget_each(BOTH, MAP, **WHY, timeout=0.05)).people
    assert {one.code for one in found} == {"timed-out"}
    entries = (await shop.person.requests())["requests"]
    assert [(one["id"], one["state"]) for one in entries] == [(one.id, "received") for one in found]
    again = await papers(shop, await shop.person.forget_each(BOTH, MAP, **WHY, now=True))
    assert [one["id"] for one in again] == [one.id for one in found]
    assert {one["state"] for one in again} == {"forgotten"}


async def test_doubts_name_each_person_and_shared_identifiers_need_confirmation(shop: Broker) -> None:
    """Ada and Bob have one device, which leads to their clicks; confirmed, both are forgotten, each on an own paper."""
    await shop.create_topic("devices", cleanup_policy="compact")
    await shop.create_topic("clicks")
    for name in (ADA, BOB):
        await shop.produce("devices", json.dumps({"device": "tablet-of-the-family"}), key=name)
    await shop.produce("devices", json.dumps({"device": "telephone-of-cleo"}), key=CLEO)
    await shop.produce("clicks", json.dumps({"device": "tablet-of-the-family"}))
    topics = {
        "devices": {"identity": {"customer_id": "key"}, "learns": {"device": "value.device"}, "do": "erase-key"},
        "clicks": {"identity": {"device": "value.device"}, "do": "remove-record"},
    }
    everyone = [*BOTH, {"customer_id": CLEO}]
    with pytest.raises(Unconfirmed) as caught:
        await shop.person.forget_each(everyone, {"version": 1, "topics": topics}, **WHY)
    doubt = "device is an identifier of 2 different people in devices"
    assert f"person 1 of 3: {doubt}" in str(caught.value)
    assert f"person 2 of 3: {doubt}" in str(caught.value)
    assert "person 3" not in str(caught.value)
    found = await papers(
        shop, await shop.person.forget_each(everyone, {"version": 1, "topics": topics}, **WHY, now=True, confirm=True)
    )
    assert {one["state"] for one in found} == {"forgotten"}
    assert b"tablet" not in b"".join(one.read_bytes() for one in data_of(shop).glob("clicks-0/*.log"))


async def test_a_short_identifier_of_one_person_asks(shop: Broker) -> None:
    """Two characters that select a large part of a topic may be several people's."""
    for number in range(30):
        await shop.produce("orders", order("42", number))
    with pytest.raises(Unconfirmed, match="person 2 of 2: short identifiers select 30 of 37 records of orders"):
        await shop.person.preview_each([BOTH[0], {"customer_id": "42"}], MAP)


async def test_erasures_whose_horizon_has_come_share_a_scan(shop: Broker) -> None:
    """Two people's tombstones wait for the same time; then one scan proves both keys gone, and each gets the last paper."""
    first = await papers(shop, await shop.person.forget_each(BOTH, MAP, **WHY))
    assert {one["state"] for one in first} == {"values-gone"}
    asked = scans_of(shop)
    move_to(shop, max(one["next"]["due_ms"] for one in first))
    await wait_until(lambda: len([*data_of(shop).glob("diamant-person-*.forgotten.json")]) == 2)
    await wait_until(lambda: not [*data_of(shop).glob("*.intent")])
    assert asked == [2]
    assert {one["state"] for one in (await shop.person.requests())["requests"]} == {"done"}


class Stopped(BaseException):
    """Stands for a kill."""


@pytest.mark.parametrize("jobs", [0, 2])
async def test_a_stop_in_the_middle_is_continued_for_all(tmp_path: Path, jobs: int) -> None:
    """Each person's request is in progress after it, and ends with the last paper."""
    async with broker_at(tmp_path) as broker:
        await fill(broker)
        steps: Any = broker.services.people().queue.kind
        begin, count = steps._begin, 0

        async def stopping(*given: Any) -> None:
            nonlocal count
            if count == jobs:
                raise Stopped
            count += 1
            await begin(*given)

        steps._begin = stopping
        with pytest.raises(Stopped):
            await broker.person.forget_each(BOTH, MAP, **WHY)
        assert {one["state"] for one in (await broker.person.requests())["requests"]} == {"in-progress"}
    async with broker_at(tmp_path) as broker:
        await wait_until(lambda: len([*data_of(broker).glob("diamant-person-*.values-gone.json")]) == 2)
        move_to(broker, max(table.due[one] for table in [broker.services.people().table] for one in table.due))
        await wait_until(lambda: len([*data_of(broker).glob("diamant-person-*.forgotten.json")]) == 2)
        await wait_until(lambda: not [*data_of(broker).glob("*.intent")])
        assert names_in(broker) == set()


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """The directory of a stopped broker with the shop, and its map beside it."""
    (tmp_path / "people.json").write_text(json.dumps(MAP))
    async with Broker(data_dir=tmp_path / "data") as broker:
        await fill(broker)
    return tmp_path / "data"


def forget(data: Path, lines: bytes, *words: str) -> Result:
    """Run the command on a directory, with a file of people."""
    each = data.parent / "people.txt"
    each.write_bytes(lines)
    command = ["log", "person", "forget", str(data), "--each", str(each), "--map", str(data.parent / "people.json")]
    return CliRunner().invoke(main, [*command, *words])


TWO = f"\ufeffcustomer_id={ADA}\r\n\r\ncustomer_id={BOB}\r\n".encode()


def test_a_file_names_the_people(data: Path) -> None:
    """The preview lists each person; papers and pages are numbered in the order of the file."""
    preview = json.loads(forget(data, TWO, "--dry-run", "--json").stdout)
    assert [one["records"] for one in preview["people"]] == [5, 5]
    shown = forget(data, TWO, "--dry-run").stdout
    assert [line for line in shown.splitlines() if line.startswith("person")] == ["person 1 of 2", "person 2 of 2"]
    outputs = ("--certificate", str(data.parent / "paper.json"), "--page", str(data.parent / "page.html"))
    done = forget(data, TWO, "--reason", "GDPR Art. 17", "--yes", "--now", *outputs)
    assert done.exit_code == 0, done.output
    found = [json.loads((data.parent / f"paper-{number}.json").read_text()) for number in (1, 2)]
    assert {one["state"] for one in found} == {"forgotten"}
    assert len({one["id"] for one in found}) == 2
    assert (data.parent / "page-2.html").exists()


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (b"", "people.txt: it names no person"),
        (b"\n \n", "people.txt: it names no person"),
        (b"customer_id=1\ncustomer_id\n", "people.txt, line 2: expected NAME=VALUE"),
        (b"customer_id=1\n\ncustomer_id=\n", "people.txt, line 3: expected NAME=VALUE"),
        (b"customer_id=\xff\xfe\n", "people.txt, line 1: expected NAME=VALUE in UTF-8"),
        (b"customer_id=1\ncustomer_id=2\ncustomer_id=1\n", "people.txt: lines 1 and 3 are the same"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(data: Path, lines: bytes, expected: str) -> None:
    """The error names the file and the line."""
    result = forget(data, lines, "--dry-run")
    assert (result.exit_code, expected in result.output) == (2, True), result.output


@pytest.mark.parametrize("words", [(f"customer_id={ADA}",), ()])
def test_people_are_given_in_one_way(data: Path, words: tuple[str, ...]) -> None:
    """Either by NAME=VALUE or by a file."""
    both = forget(data, TWO, *words, "--dry-run") if words else CliRunner().invoke(
        main, ["log", "person", "forget", str(data), "--map", str(data.parent / "people.json"), "--dry-run"]
    )  # fmt: skip
    assert (both.exit_code, "either NAME=VALUE" in both.output) == (2, True), both.output
