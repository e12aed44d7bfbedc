"""A cleaner for several logs in memory, and rounds that wait for the test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.cleaner.held_runner import HeldRunner
from tests.cleaner.service.several_logs import SeveralLogs


@pytest.fixture
async def logs() -> AsyncIterator[SeveralLogs]:
    """Logs whose cleaner is stopped at the end."""
    made = SeveralLogs()
    yield made
    await made.stop()


@pytest.fixture
def held(logs: SeveralLogs) -> HeldRunner:
    """A runner for all plans, however small."""
    logs.max_inline_bytes = -1
    return HeldRunner(logs.env)
