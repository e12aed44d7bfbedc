"""Shared fixture of tests of producers' state."""

from __future__ import annotations

import pytest

from diamant.storage.producers.producer_state import ProducerStateManager
from tests.storage.producers.test_producer_state import make


@pytest.fixture
def state() -> ProducerStateManager:
    """A partition without producers."""
    return make()
