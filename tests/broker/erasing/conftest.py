"""What the tests of erasing share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from tests.broker.erasing.cases import config, env_at


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker whose clock stands still."""
    async with Broker(config(tmp_path), env=env_at()) as running:
        yield running
