"""A shop in a running broker, written by real producers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from tests.broker.person.large_shop import create_shop, write_shop

PEOPLE = 30


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingBroker]:
    """A broker with the shop of `PEOPLE` customers. The tests of a module share it and change nothing."""
    directory = tmp_path_factory.mktemp("shop")
    with Broker(data_dir=directory, listen="127.0.0.1:0", diamant_http_listen="127.0.0.1:0") as broker:
        asyncio.run_coroutine_threadsafe(create_shop(broker.awaited), broker.loop).result(60)
        write_shop(broker.bootstrap_servers, PEOPLE)
        yield broker
