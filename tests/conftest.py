"""How much the tests of this run are to do."""

from __future__ import annotations

import pytest

from tests import effort


def pytest_configure(config: pytest.Config) -> None:
    """Leaving out what is slow, do less of what goes on for long."""
    effort.set_quick(config.option.markexpr == "not slow")
