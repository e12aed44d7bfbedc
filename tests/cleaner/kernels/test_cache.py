"""The cache of compiled kernels: where it lies, whose code it holds, and that all works without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from diamant.cleaner.kernels import cache

KERNELS = Path(cache.__file__).parent


def test_the_cache_lies_where_it_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NUMBA_CACHE_DIR, the package, the user's cache: the first that works; none is no error."""
    blocked = tmp_path / "file"
    blocked.touch()
    for places, found in (
        (["chosen", "file", "user"], "chosen"),
        (["file", "user", "other"], "user"),
        (["file"], None),
    ):
        directory = cache.find_directory(KERNELS, [tmp_path / place for place in places])
        assert (directory and directory.parent) == (found and tmp_path / found)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "chosen"))
    assert cache.places(KERNELS)[:2] == [tmp_path / "chosen", KERNELS / "__pycache__"]


@pytest.mark.parametrize("packages", ["site-packages", "dist-packages"])
def test_an_installed_package_leaves_nothing_behind_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packages: str
) -> None:
    """What pip has not written it does not remove: the user's cache comes first then, and a checkout's own place stays first."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    user = tmp_path / "diamant"
    assert cache.places(KERNELS) == [KERNELS / "__pycache__", user]
    installed = Path("/usr/lib") / packages / "diamant" / "cleaner"
    assert cache.places(installed) == [user, installed / "__pycache__"]


def test_a_user_without_a_home_has_no_cache_of_his_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """An id without an account, as in containers: no directory called ~ is made wherever the program was started."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "~")
    assert cache.places(KERNELS) == [KERNELS / "__pycache__"]


@pytest.mark.slow
def test_a_cache_that_is_full_fails_nothing(tmp_path: Path) -> None:
    """What cannot be kept is compiled all the same, and nobody is told that it is in the cache."""
    program = """
import errno, os
from numba.core import caching
def full(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
caching.IndexDataCacheFile._save_data = full
from diamant.cleaner.kernels import cache, produce_validation
produce_validation.warm_up()
cache.note_cached()
assert not cache.is_cached()
"""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_another_version_of_the_kernels_has_another_cache(tmp_path: Path) -> None:
    """Code that was compiled from other sources is never found."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for source in KERNELS.glob("*.py"):
        (copy / source.name).write_bytes(source.read_bytes())
    before = cache.find_directory(KERNELS, [tmp_path])
    assert cache.find_directory(copy, [tmp_path]) == before
    (copy / "offset_map.py").write_text("changed")
    assert cache.find_directory(copy, [tmp_path]) != before


@pytest.mark.slow
def test_the_engine_works_without_a_cache(tmp_path: Path) -> None:
    """Everything is compiled in the process then, here without LLVM's optimisations, which take a third of the time."""
    program = """
from pathlib import Path
from diamant.cleaner.engines import compiled
from diamant.cleaner.kernels import cache
cache.places = lambda _: [Path(__import__("sys").executable)]
assert not compiled.is_warm()
from tests.cleaner.prompt.segment_history import SegmentHistory
history = SegmentHistory()
history.batch([(b"a", b"1"), (b"a", b"2")])
assert compiled.clean(*history.stored()).stats.messages_written == 1
assert compiled.is_warm()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "NUMBA_OPT": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
