"""Shared fixture of tests of the metadata log."""

from __future__ import annotations

import pytest

from diamant.storage.kraft.metadata_log import MetadataLog
from tests.memory_env import MemoryEnv
from tests.storage.kraft.metadata_directory import open_log


@pytest.fixture
def log(memory: MemoryEnv) -> MetadataLog:
    """The metadata log of a new directory."""
    return open_log(memory)
