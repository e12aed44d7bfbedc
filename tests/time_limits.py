"""A hard time limit for every test, generous, that shows what all threads were at.

At the limit pytest-timeout raises in the main thread: the test fails, its report has the stacks of all threads, and the run goes
on. Where that ends nothing (a main thread that waits in C, a teardown that waits for the same thing once more) the process
writes its stacks to standard error and ends after another `GRACE_S`; xdist names the test and starts another worker.
"""

from __future__ import annotations

import faulthandler
import re
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

from tests import effort

LIMIT_S = 300
INSTALLING_LIMIT_S = 900
"""For what starts Spark, or installs packages from an index."""
LONG_LIMIT_S = 7200
GRACE_S = 180


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the limit of its kind, unless it has one."""
    for item in items:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(limit_s(item)))


def limit_s(item: pytest.Item) -> int:
    """Return the limit of a test with all that it sets up and takes down."""
    if item.get_closest_marker("long") or effort.FACTOR > 1:
        return LONG_LIMIT_S
    return INSTALLING_LIMIT_S if re.search("spark|docker|wheel", item.nodeid) else LIMIT_S


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Add the end of the process to pytest-timeout's signal."""
    _end_after(settings.timeout + GRACE_S, item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Limit the teardown on its own: a hang before has used the signal, and pytest's report of it stops our timer."""
    _end_after(GRACE_S, item)


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer() -> None:
    """The test is over."""
    faulthandler.cancel_dump_traceback_later()


def _end_after(seconds: float, item: pytest.Item) -> None:
    # Capturing leaves pytest's own copy of standard error alone.
    faulthandler.dump_traceback_later(seconds, exit=True, file=item.config.stash[fault_handler_stderr_fd_key])
