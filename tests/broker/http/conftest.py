"""The broker of the tests of HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diamant.broker.broker import Broker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with HTTP on loopback, without a token, and a manual clock."""
    async with Broker(data_dir=tmp_path, diamant_http_listen="127.0.0.1:0", diamant_clock="manual") as running:
        yield running
