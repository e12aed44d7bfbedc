"""Pages that name the tests of what they say."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_names_tests_that_exist() -> None:
    """Every row of docs/reference/compaction-claims.md has a test, and every test is there under its name."""
    names = (
        "reference/compaction-claims.md", "explanation/cleaner-modes.md", "explanation/differences-from-kafka.md",
        "explanation/security.md",
    )  # fmt: skip
    page = "\n".join((ROOT / "docs" / name).read_text() for name in names)
    named = re.findall(r"`(test_[a-z0-9_]+)::(test_[a-z0-9_]+)`", page)
    there = {
        (path.stem, name)
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_[a-z0-9_]+)", path.read_text(), re.MULTILINE)
    }
    assert [f"{module}::{name}" for module, name in named if (module, name) not in there] == []
    rows = [line for line in page.splitlines() if re.match(r"\| [A-Z0-9]+-\d+ \|", line)]
    assert len(rows) == 164
    assert all(row.endswith("` |") for row in rows)


def test_the_page_lists_each_difference_between_the_modes() -> None:
    """Every test in test_modes.py has a row there."""
    page = (ROOT / "docs" / "explanation" / "cleaner-modes.md").read_text()
    source = (ROOT / "tests" / "cleaner" / "rules" / "test_modes.py").read_text()
    named = [name for name in re.findall(r"^def (test_[a-z0-9_]+)", source, re.MULTILINE) if "still_merged" not in name]
    assert [name for name in named if f"`test_modes::{name}`" not in page] == []
