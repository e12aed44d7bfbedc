"""How much the tests of this run are to do."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from tests import effort


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--long` adds what takes minutes."""
    parser.addoption("--long", action="store_true", help="run the tests marked long, too: each takes minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked long, unless it is asked for."""
    if config.getoption("--long"):
        return
    config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long")])
    items[:] = [item for item in items if not item.get_closest_marker("long")]


def pytest_configure(config: pytest.Config) -> None:
    """Leaving out what is slow, do less of what goes on for long, and do not wait for the disk."""
    is_quick = config.option.markexpr == "not slow"
    effort.set_quick(is_quick)
    if is_quick:
        settings.register_profile("quick", max_examples=effort.examples(100))
        settings.load_profile("quick")
        # No test can see whether its own process's bytes reached the platters; those about that lose power in memory.
        os.fsync = os.fdatasync = lambda fd: None
