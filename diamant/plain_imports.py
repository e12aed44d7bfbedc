"""Keeps pytest from rewriting the asserts of this package.

If a distribution has a plugin, pytest parses each of the distribution's modules at import and rewrites its asserts. Diamant's
modules are imported late, in threads, while other threads import tests. CPython before 3.11.8 and 3.12.2 fails at random if two
threads build syntax trees at the same time ("AST constructor recursion depth mismatch", gh-106905). Besides, Diamant's asserts
belong to no test.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class PlainFinder:
    """Finds this package's modules in the interpreter's usual way, before pytest's finder can."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, path, target) if fullname.startswith("diamant.") else None


def keep_plain() -> None:
    """Import this package's modules through `PlainFinder` from now on. May be called repeatedly."""
    sys.meta_path[:] = [PlainFinder, *(finder for finder in sys.meta_path if finder is not PlainFinder)]
