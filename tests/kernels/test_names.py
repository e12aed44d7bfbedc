"""The names of the kernels, which become one module."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[2] / "diamant" / "kernels"


def meanings(source: Path) -> dict[str, str]:
    """Return the names that a kernel defines or imports at its top, and what each stands for there."""
    found: dict[str, str] = {}
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = f"the function of {source.name}"
        elif isinstance(node, ast.Assign):
            found |= {ast.unparse(target): f"the value of {source.name}" for target in node.targets}
        elif isinstance(node, ast.ImportFrom):
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return found


def test_a_name_means_the_same_in_all_kernels() -> None:
    """Cython takes the last meaning for all of them, and for constants it does so without a word."""
    everywhere = defaultdict(set)
    for source in KERNELS.glob("[!_]*.py"):
        for name, meaning in meanings(source).items():
            everywhere[name].add(meaning)
    assert {name: found for name, found in everywhere.items() if len(found) > 1} == {}
