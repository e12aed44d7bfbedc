"""The copy for a person, as an HTML page."""

from __future__ import annotations

import html
import re

from diamant import Admin
from diamant.broker.broker import BlockingBroker
from diamant.cleaner.person.copy_page import copy_page, rows_of
from tests.broker.person.large_shop import SHOP_MAP, Customer


def test_the_page_has_every_record_in_plain_words(shop: BlockingBroker) -> None:
    """Fields by their names and categories, what led to them, and other people's data marked; text of records is escaped."""
    person = Customer(2)
    lines = [*Admin(shop.bootstrap_servers).person.show({"customer_id": person.customer_id}, SHOP_MAP)]
    page = "".join(copy_page(lambda: lines, 1_700_000_000_000, "127.0.0.1:9092"))
    assert page.count("<article>") == lines[-1]["records"]
    assert page.count(person.email) >= 8
    assert "this is an older version" in page
    assert "It has to be kept until" in page
    assert "There is data of other people on this page" in page
    other = re.search(r'<tr class="other"><td>value\.receiver\.name<br><small>user\.name</small></td><td>([^<]*)', page)
    assert other
    assert other[1] == Customer(3).name
    assert "user.contact.address.street" in page
    record = next(one for one in lines if one["kind"] == "record")
    hostile = {**record, "value": {"text": '{"a": ["<script>", {"b": null}]}'}}
    hostile.pop("value_json", None)
    rows = rows_of(hostile)
    assert [(row.name, row.text) for row in rows[1:]] == [("value.a[0]", "<script>"), ("value.a[1].b", "null")]
    page = "".join(copy_page(lambda: [hostile], 0, "here"))
    assert "<script>" not in page
    assert html.escape("<script>") in page
