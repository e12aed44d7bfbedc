"""The templates as such: what they compute with, and the words of their durations."""

from __future__ import annotations

from pathlib import Path

import pytest
from jinja2 import Environment, nodes

import diamant

TEMPLATES = sorted(Path(diamant.__file__).parent.rglob("*.j2"))
TEXT_FILTERS = {"counted", "duration", "format", "marked", "moment", "number", "setting", "shown", "size", "spaced"}
ARITHMETIC = (nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow, nodes.Neg)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_template_computes_with_a_text(path: Path) -> None:
    """A filter binds tighter than an operator: `minutes * 60000|duration` repeats the text `1m`."""
    parsed = Environment(autoescape=True).parse(path.read_text())
    wrong = [
        f"line {one.lineno}: {one.name}"
        for operation in parsed.find_all(ARITHMETIC)
        for one in operation.iter_child_nodes()
        if isinstance(one, nodes.Filter) and one.name in TEXT_FILTERS
    ]
    assert wrong == []
