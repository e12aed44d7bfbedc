"""The examples of docs/how-to/compact-on-demand.md as they stand, and that its tables are complete."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from diamant.broker.config.virtual_topic_table import ROWS
from diamant.broker.operations.compactions import compact as compaction
from diamant.broker.operations.compactions import compact_by_config as compact_config

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/how-to/compact-on-demand.md").read_text()


@pytest.mark.slow
def test_the_examples_of_the_guide(tmp_path: Path) -> None:
    """They are tests, and pass."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "test_guide.py").write_text("\n\n".join(blocks))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "test_guide.py",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_guide_is_complete() -> None:
    """Each entry of DescribeConfigs and each error code has its row; limits are those of the code."""
    assert set(re.findall(r"^\| `(diamant\.[a-z.]+)` \|", PAGE, re.MULTILINE)) == set(ROWS)
    for code in {*compact_config._CODES.values(), "KAFKA_STORAGE_ERROR"}:
        name = code if isinstance(code, str) else code.name
        assert f"| {name} |" in PAGE
    assert (compact_config.RATE_PER_S, compact_config.BURST, compaction.MAX_CALLS) == (10.0, 20, 256)
