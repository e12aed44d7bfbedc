"""What the tests of erasing share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.erasure.erase import erase_steps
from diamant.broker.groups.coordinator import committed_offsets
from diamant.broker.operations import explain
from tests.broker.erasure.cases import broker_at


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An erasure that looks again whether values are gone does so at once."""
    monkeypatch.setattr(erase_steps, "LOOK_AGAIN_S", 0.001)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker whose clock stands still."""
    async with broker_at(tmp_path) as running:
        yield running


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """What groups have committed in each partition: one has not passed a tombstone at offset 1. A test may change the list."""
    groups = [(1, "billing")]

    async def groups_of(*_arguments: Any) -> list[tuple[int, str]]:
        return list(groups)

    monkeypatch.setattr(explain, "groups_of", groups_of)
    monkeypatch.setattr(committed_offsets, "groups_of", groups_of)
    return groups
