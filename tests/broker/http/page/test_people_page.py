"""The view of people in a real browser: look a person up, forget, see the due date and the paper."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from diamant.broker.broker import BlockingBroker

pytestmark = pytest.mark.slow

ORDERS = {"identity": {"customer": "value.customer"}, "do": "remove-record"}
MAP = {"version": 1, "topics": {"orders": ORDERS}}


@pytest.mark.parametrize("width", [1280, 390])
def test_a_person_is_forgotten_after_a_preview(page: Page, broker: BlockingBroker, tmp_path: Path, width: int) -> None:
    """The preview's figures are confirmed; register and paper follow. Nothing exceeds the window."""
    people = tmp_path / "people.json"
    people.write_text(json.dumps(MAP))
    broker.create_topic("orders", 1)
    for number in range(6):
        broker.produce("orders", json.dumps({"customer": f"c-{number % 3}"}))
    page.set_viewport_size({"width": width, "height": 900})
    page.goto("/people")
    page.get_by_label("Identifiers (one per line").fill("customer=c-1")
    page.get_by_label("Data map").set_input_files(people)
    page.get_by_role("button", name="Preview").click()
    form = page.locator("form.confirm")
    expect(page.locator("main")).to_contain_text("removed")
    expect(page.locator("main")).not_to_contain_text(
        "Groups that would read the deletion mark later"
    )  # no group is behind
    form.get_by_label("Reason").fill("GDPR Art. 17")
    form.get_by_label("Case number").fill("case-7")
    form.get_by_label("Do this with 2 records of this person").check()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    form.get_by_role("button", name="Forget").click()
    expect(form.locator(".outcome")).to_contain_text("Done: everything that was found is gone.")
    assert len(list(broker.records("orders"))) == 4
    expect(page.locator("#register")).to_contain_text("case-7")  # without a reload
    page.goto("/people")
    table = page.get_by_role("region", name="Requests with their due dates")
    expect(table).to_contain_text("case-7")
    expect(table).to_contain_text("forgotten")
    assert table.evaluate("one => one.scrollWidth <= one.clientWidth")  # the links to the paper are seen
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    table.get_by_role("link", name="page").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Everything that was found is gone")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_what_stays_is_said_before_and_after(page: Page, broker: BlockingBroker, tmp_path: Path) -> None:
    """With its reason and its end, before the confirmation; and no list is older than the job."""
    people = tmp_path / "people.json"
    keys = {"identity": {"customer": "key"}, "do": "erase-key"}
    orders = {**ORDERS, "do": {"blank": ["value.name"]}}
    kept = {**ORDERS, "keep": {"until": "P10Y", "because": "tax law"}}
    people.write_text(json.dumps({"version": 1, "topics": {"users": keys, "orders": orders, "invoices": kept}}))
    broker.produce("users", "all", key="c-1")
    for topic in ("orders", "invoices"):
        broker.create_topic(topic, 1)
        broker.produce(topic, json.dumps({"customer": "c-1", "name": "Ada"}))
    page.goto("/people")
    expect(page.locator("main")).to_contain_text("No requests yet.")
    page.get_by_label("Identifiers (one per line").fill("customer=c-1")
    page.get_by_label("Data map").set_input_files(people)
    page.get_by_role("button", name="Preview").click()
    form = page.locator("form.confirm")
    preview = page.locator("section[aria-labelledby=look-up]")
    expect(preview).to_contain_text(
        "orders: 1 record stays, with value.name blanked, as long as the topic keeps records"
    )
    expect(preview).to_contain_text("invoices: 1 record stays, for 10 years after each was written (the last until ")
    expect(preview).to_contain_text("removed; a deletion mark tells consumers")
    expect(preview).to_contain_text("users-1: readers/1")
    form.get_by_label("Reason").fill("GDPR Art. 17")
    form.get_by_label("Do this with 3 records of this person").check()
    form.get_by_role("button", name="Forget").click()
    expect(form.locator(".outcome")).to_contain_text(
        "Done. 2 records stay in 2 topics; the preview says why and until when. Deletion marks stay for consumers."
    )
    expect(page.locator("#open-requests")).to_contain_text("1 open request")
    expect(page.locator("#register")).to_contain_text("values-gone")
