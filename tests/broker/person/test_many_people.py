"""The shop with 10,000 customers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from diamant import Admin
from diamant.broker.broker import Broker
from tests.broker.person.large_shop import PLANTED, SHOP_MAP, Customer, create_shop, write_shop
from tests.broker.person.test_show import holding

PEOPLE = 10_000


@pytest.mark.long
def test_people_are_found_among_many(tmp_path: Path) -> None:
    """The draft has the planted identifiers, and with the map or the draft every record of a person is shown."""
    with Broker(data_dir=tmp_path, listen="127.0.0.1:0", diamant_http_listen="127.0.0.1:0") as broker:
        asyncio.run_coroutine_threadsafe(create_shop(broker.awaited), broker.loop).result(60)
        write_shop(broker.bootstrap_servers, PEOPLE)
        admin = Admin(broker.bootstrap_servers, timeout=600)
        found = admin.person.suggest()
        planted = {(topic, place) for topic, places in PLANTED.items() for place in places}
        places = {(one["topic"], one["place"]) for one in found["places"]}
        assert len(planted & places) >= 30, planted - places
        assert len(places - planted) <= 4, places - planted
        person = Customer(4_711)
        expected = holding(broker, person)
        assert len(expected) >= 20
        for people in (SHOP_MAP, found["map"]):
            lines = admin.person.show({"customer_id": person.customer_id}, people)
            shown = {(one["topic"], one["partition"], one["offset"]) for one in lines if one["kind"] == "record"}
            assert shown == expected
