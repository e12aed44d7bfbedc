"""The view of people in a real browser: look a person up, forget, see the due date and the paper."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from diamant.broker.broker import BlockingBroker

pytestmark = pytest.mark.slow

MAP = {"version": 1, "topics": {"orders": {"identity": {"customer": "value.customer"}, "do": "remove-record"}}}


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
    page.get_by_label("Known by").fill("customer=c-1")
    page.get_by_label("Data map").set_input_files(people)
    page.get_by_role("button", name="Preview").click()
    form = page.locator("form.confirm")
    expect(page.locator("main")).to_contain_text("removed")
    form.get_by_label("Reason").fill("GDPR Art. 17")
    form.get_by_label("Case number").fill("case-7")
    form.get_by_label("Do this with 2 records of this person").check()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    form.get_by_role("button", name="Forget").click()
    expect(form.locator(".outcome")).to_contain_text("Done")
    assert len(list(broker.records("orders"))) == 4
    page.goto("/people")
    table = page.get_by_role("region", name="Requests with their due dates")
    expect(table).to_contain_text("case-7")
    expect(table).to_contain_text("forgotten")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    table.get_by_role("link", name="page").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Everything that was found is gone")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
