"""Shared fixtures of storage tests: environments with a frozen clock."""

from __future__ import annotations

import pytest

from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import RealEnv
from tests.memory_env import MemoryEnv

START_MS = 1_700_000_000_000


@pytest.fixture
def clock() -> SettableClock:
    """A clock that only tests move."""
    return SettableClock(START_MS)


@pytest.fixture
def env(clock: SettableClock) -> RealEnv:
    """The operating system's files with the settable clock."""
    return RealEnv(clock)


@pytest.fixture
def memory(clock: SettableClock) -> MemoryEnv:
    """A machine with an empty disk."""
    return MemoryEnv(clock)
