"""Keeps pytest from rewriting the asserts of this package.

pytest parses every module of a distribution that has a plugin, when it is imported, and puts its own code in place of the
asserts. Ours are imported late, in threads, while tests are imported in others; CPython before 3.11.8 and 3.12.2 fails at random
where two threads make syntax trees ("AST constructor recursion depth mismatch", gh-106905). Nor are our asserts those of a test.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class PlainFinder:
    """Finds the modules of this package as the interpreter does; stands in front of pytest's finder."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, path, target) if fullname.startswith("diamant.") else None


def keep_plain() -> None:
    """Make imports of this package's modules go through `PlainFinder` from now on. May be called again."""
    sys.meta_path[:] = [PlainFinder, *(finder for finder in sys.meta_path if finder is not PlainFinder)]
