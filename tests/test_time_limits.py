"""A test that hangs fails, says where all threads were, and keeps no other from its turn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

HANGING = """
import threading
import pytest
from tests import time_limits

time_limits.GRACE_S = 1
never = threading.Event()

@pytest.fixture
def teardown_that_hangs():
    yield
    never.wait()

@pytest.mark.timeout(1)
def test_hangs():
    threading.Thread(target=never.wait, daemon=True, name="waits-for-ever").start()
    never.wait()

@pytest.mark.timeout(1)
def test_hangs_at_its_end(teardown_that_hangs):
    never.wait()

def test_passes():
    pass
"""


@pytest.mark.slow
def test_a_hanging_test_is_ended(tmp_path: Path) -> None:
    """A hanging test fails with the stacks of all threads, or its worker ends. The tests after it run."""
    (tmp_path / "test_hanging.py").write_text(HANGING)
    command = [sys.executable, "-m", "pytest", "-n", "1", "-p", "tests.time_limits", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [*command, f"--rootdir={tmp_path}", "-c", "/dev/null", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    said = run.stdout + run.stderr
    assert "1 passed" in run.stdout, said
    assert "Timeout (>1.0s) from pytest-timeout" in run.stdout
    assert "Stack of waits-for-ever" in run.stdout
    assert "crashed while running" in run.stdout
    assert "in teardown_that_hangs" in run.stderr
