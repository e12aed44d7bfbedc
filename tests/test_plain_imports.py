"""Our modules in a run of pytest: imported as the interpreter does it, not rewritten."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from diamant.protocol.wire import schema_fields

TEST = """
import pytest
pytest.register_assert_rewrite("diamant")  # what pytest does with a distribution that has a plugin

def test_plain():
    import diamant.broker.config.listeners as late
    assert type(late.__loader__).__name__ == "SourceFileLoader"
"""
MAIN = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "options"),
    [(MAIN, []), (MAIN, ["-p", "no:diamant"]), (f"import diamant; {MAIN}", [])],
    ids=["plugin", "no plugin", "imported before pytest"],
)
def test_late_imports_are_not_rewritten(tmp_path: Path, program: str, options: list[str]) -> None:
    """Late imports are not rewritten with the plugin, without it, or where Diamant was imported before pytest."""
    (tmp_path / "test_it.py").write_text(TEST)
    command = [sys.executable, "-c", program, "-q", "-p", "no:cacheprovider", "-c", "/dev/null", *options, "test_it.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr


def test_hypothesis_is_hidden_from_one_thread_alone() -> None:
    """While a broker's thread imports kio, a test may import hypothesis, and pytest may look whether it is there."""

    def find_in_another_thread() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(schema_fields._WithoutHypothesis.find_spec, "hypothesis").result()

    hidden = schema_fields._IS_HYPOTHESIS_HIDDEN.set(True)
    try:
        with pytest.raises(ModuleNotFoundError):
            schema_fields._WithoutHypothesis.find_spec("hypothesis")
        find_in_another_thread()
    finally:
        schema_fields._IS_HYPOTHESIS_HIDDEN.reset(hidden)
    schema_fields._WithoutHypothesis.find_spec("hypothesis")
