"""The map of the folders in ARCHITECTURE.md, made of their docstrings: `python -m tests.folder_map` writes it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "ARCHITECTURE.md"
FLOORS = ("kernels", "protocol", "storage", "cleaner", "broker")
_BLOCK = re.compile(r"(?<=<!-- folders -->\n\n```\n).*?(?=```\n)", re.DOTALL)


def purpose(folder: Path) -> str:
    """Return the purpose of a folder: the first paragraph of its docstring."""
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    return " ".join(text.split("\n\n")[0].split())


def folder_map() -> str:
    """Floor by floor from the ground up: a line for each folder, and below it the names of the folders in it."""
    lines = []
    for floor in FLOORS:
        root = ROOT / "diamant" / floor
        lines.append(f"{floor + '/':18} {purpose(root)}")
        for folder in inner(root):
            lines.append(f"{'  ' + folder.name + '/':18} {purpose(folder)}")
            names = ", ".join(path.name for path in inner(folder))
            lines += [f"{'':18}   {names}"] if names else []
    return "\n".join(lines) + "\n"


def inner(folder: Path) -> list[Path]:
    """Return the folders in a folder, by name."""
    return sorted(path.parent for path in folder.glob("*/__init__.py"))


def shown() -> str:
    """Return the map as the page has it."""
    found = _BLOCK.search(PAGE.read_text())
    assert found is not None, "ARCHITECTURE.md has no block after <!-- folders -->"
    return found[0]


if __name__ == "__main__":
    PAGE.write_text(_BLOCK.sub(lambda _: folder_map(), PAGE.read_text()))
