"""Concurrent removal of the same files by the broker's queue and an erasure: neither fails, and no file is left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from diamant.storage.directory.log_directory import LogDirectory
from diamant.storage.env.env import RealEnv


class Overtaken(RealEnv):
    """An environment in which another caller always removes a file first."""

    def remove(self, path: str, *, missing_ok: bool = False) -> None:
        """Remove it twice."""
        os.unlink(path)
        super().remove(path, missing_ok=missing_ok)


def test_a_file_that_somebody_else_removes_is_gone(tmp_path: Path) -> None:
    """A file already removed is not an error."""
    directory = LogDirectory.open(Overtaken(), str(tmp_path / "data"), producer_expiration_ms=1)
    path = tmp_path / "data" / "00000000000000000000.index.deleted"
    path.touch()
    assert directory.deletions.remove([str(path)]) == {}
    assert not path.exists()
    directory.close(is_clean=False)


def test_a_tree_that_somebody_else_removes_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a partly removed tree is removed."""
    tree = tmp_path / "t-0.0123-delete"
    tree.mkdir()
    for name in "abc":
        (tree / name).touch()
    unlink, overtaken = os.unlink, list[Any]()

    def late(path: Any, **options: Any) -> None:
        unlink(path, **options)
        if not overtaken:
            overtaken.append(path)
            raise FileNotFoundError(2, "No such file", path)

    monkeypatch.setattr(os, "unlink", late)
    RealEnv().remove_tree(str(tree))
    assert (overtaken != [], tree.exists()) == (True, False)
