"""bench/run.py, which no type checker reads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parent.parent / "bench" / "run.py"


@pytest.mark.slow
def test_it_measures_a_broker_that_starts_and_one_that_is_killed(tmp_path: Path) -> None:
    """A round starts its broker by the default command, and once more on the same directory after SIGKILL."""
    out = tmp_path / "out.json"
    cases = ["--case", "start", "--case", "recovery", "--scale", "0.001", "--rounds", "1", "--json", str(out)]
    done = subprocess.run([sys.executable, str(RUN), *cases], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = {(row["case"], row["figure"]): row["values"]["diamant"][0] for row in json.loads(out.read_text())}
    assert figures["start", "spawn to first acknowledged produce"] > 0
    assert figures["recovery", "SIGKILL with a log of 0.002 GB: restart until it answers"] > 0
