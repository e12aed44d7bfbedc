"""Shared fixtures of storage tests: environments with a frozen clock."""

from __future__ import annotations

import os

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


@pytest.fixture
def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system returns half of what is asked for, as network file systems may."""
    pread, read = os.pread, os.read

    def half_pread(fd: int, count: int, position: int) -> bytes:
        return pread(fd, (count + 1) // 2, position)

    def half_read(fd: int, count: int) -> bytes:
        return read(fd, (count + 1) // 2)

    for half in (half_pread, half_read):
        monkeypatch.setattr(os, half.__name__.removeprefix("half_"), half)
