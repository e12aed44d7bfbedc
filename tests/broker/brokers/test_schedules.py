"""Nothing is lost and nothing comes twice in random schedules of brokers."""

from __future__ import annotations

import subprocess
import sys

import pytest

AT_ONCE = 100


@pytest.mark.long
@pytest.mark.parametrize("first", range(1, 1000, AT_ONCE))
def test_nothing_is_lost_or_twice_in_a_thousand_schedules(first: int) -> None:
    """What is acknowledged or committed is stored once, in order, and read by both groups; what is aborted by none."""
    program = [sys.executable, "-m", "tests.broker.brokers.schedules", "--first", str(first), "--count", str(AT_ONCE)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"'schedules': {AT_ONCE}" in done.stdout
