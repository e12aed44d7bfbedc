"""Keeps pytest from rewriting the asserts of this package.

When a distribution has a plugin, pytest parses each of its modules at import, to replace the asserts. Diamant's modules are
imported late, in threads, while other threads import tests. CPython before 3.11.8 and 3.12.2 fails at random if two threads
build syntax trees ("AST constructor recursion depth mismatch", gh-106905). Besides, these asserts are not part of any test.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class PlainFinder:
    """Finds the modules of this package as the interpreter does, ahead of pytest's finder."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, path, target) if fullname.startswith("diamant.") else None


def keep_plain() -> None:
    """Import this package's modules through `PlainFinder` from now on. Does nothing the second time."""
    sys.meta_path[:] = [PlainFinder, *(finder for finder in sys.meta_path if finder is not PlainFinder)]
