"""Each engine in turn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.cleaner.cleaner_log import CleanerLog
from tests.cleaner.engines.engines import ENGINES, Engine


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    """An engine."""
    return ENGINES[request.param]


@pytest.fixture
def new_log(engine: Engine) -> Callable[..., CleanerLog]:
    """Makes logs that the engine cleans."""
    return partial(CleanerLog, engine=engine)
