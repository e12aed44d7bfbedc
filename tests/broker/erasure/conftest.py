"""Fixtures shared by the tests of erasures."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.erasure.erase import erase_values
from tests.broker.erasure.brokers import broker_at
from tests.broker.erasure.records import commit


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An erasure checks again at once whether values are gone."""
    monkeypatch.setattr(erase_values, "LOOK_AGAIN_S", 0.001)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with a frozen clock."""
    async with broker_at(tmp_path) as running:
        yield running


@pytest.fixture
def _committed(broker: Broker) -> None:
    """A group that has not passed a tombstone at offset 1."""
    commit(broker, (1, "billing"))
