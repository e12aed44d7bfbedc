"""The cache of compiled kernels, which outlives the process. Importing this does not load numba.

Compiling all kernels takes some ten seconds, loading them from the cache a fraction of one. The cache of one version of the
kernels is a directory of its own, named by a digest of their sources and of the compiler, so that code compiled from other
sources is never run (numba itself looks at one file of a kernel only, not at those that it calls into):

    <place>/kernels-<digest>/...            numba's own files, apart for each kind of processor
    <place>/kernels-<digest>/warm-<digest of the processor's abilities>    empty: every kernel is in there

The place is NUMBA_CACHE_DIR, else `__pycache__` beside the kernels, else the user's cache directory: the first that can be
written to. An installed package has the last two the other way round: what pip has not written it does not remove. Without
any, and where the place is full, kernels are compiled once in each process.
"""

from __future__ import annotations

import hashlib
import os
import pkgutil
import platform
import tempfile
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from diamant.storage.env.user_directory import user_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

F = TypeVar("F", bound="Callable[..., object]")

_HERE = Path(__file__).parent

_not_kept: list[str] = []
"""Why the cache did not take what was compiled in this process, once for each function."""


@cache
def cache_directory() -> Path | None:
    """Return the directory for this version's compiled code, made if need be; None if no place can be written to."""
    return find_directory(_HERE, places(_HERE))


def find_directory(kernels: Path, candidates: Iterable[Path]) -> Path | None:
    """Return the directory for the code of these kernels, in the first place that can be written to."""
    digest = hashlib.sha256()
    for module in sorted(pkgutil.iter_modules([str(kernels)]), key=lambda module: module.name):
        digest.update(_source(kernels, f"{module.name}.py"))
    for package in ("numba", "llvmlite", "numpy"):
        try:
            digest.update(f"{package}={version(package)};".encode())
        except PackageNotFoundError:
            return None
    digest.update(platform.python_version().encode())
    for place in candidates:
        directory = place / f"kernels-{digest.hexdigest()[:16]}"
        if _is_writable(directory):
            return directory
    return None


def _source(kernels: Path, name: str) -> bytes:
    """Return a file of the package, which may lie in a zip: so Spark ships it to its workers."""
    place = kernels / name
    if place.exists():
        return place.read_bytes()
    # Not by way of a Path: a zip knows itself by the very text that is on sys.path.
    source = pkgutil.get_data("diamant.cleaner.kernels", name)
    assert source is not None
    return source


def places(kernels: Path) -> list[Path]:
    """Return where the cache may lie, the best place first."""
    found = [kernels / "__pycache__"]
    user_cache = user_directory("XDG_CACHE_HOME", ".cache")
    if user_cache is not None:
        is_installed = not {"site-packages", "dist-packages"}.isdisjoint(kernels.parts)
        found.insert(0 if is_installed else 1, Path(user_cache) / "diamant")
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    return [Path(chosen), *found] if chosen else found


def _is_writable(directory: Path) -> bool:
    """Tell whether files can be made in `directory`, by making one: permissions alone do not tell of read-only mounts."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


@cache
def _processor_digest() -> str:
    """Return what tells processors apart for which code is compiled differently."""
    abilities = platform.machine() + platform.processor() + os.environ.get("NUMBA_CPU_NAME", "")
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            abilities += next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        pass  # Not Linux: the machine's name has to do.
    return hashlib.sha256(abilities.encode()).hexdigest()[:16]


def is_cached() -> bool:
    """Tell whether a process can load every kernel without compiling anything."""
    directory = cache_directory()
    return directory is not None and (directory / f"warm-{_processor_digest()}").exists()


def note_cached() -> None:
    """Note that every kernel was compiled and is in the cache, if there is one that has taken them all."""
    directory = cache_directory()
    if directory is not None and not _not_kept:
        try:
            (directory / f"warm-{_processor_digest()}").touch()
        except OSError:
            pass  # The next process compiles again; nothing else comes of it.


def compiled(function: F) -> F:
    """Compile `function` when it is first called, for use without the GIL; typed as the function it wraps."""
    return _compiled(function)


def inlined(function: F) -> F:
    """Compile `function` into its callers, always: for the insides of the innermost loops."""
    return _compiled(function, forceinline=True)


def _lay_out_source(function: Any, directory: Path) -> None:
    """Let a function from a zip look as if it came from a file: of others numba keeps no code between processes."""
    code = function.__code__
    if os.path.exists(code.co_filename):
        return
    name = os.path.relpath(code.co_filename, _HERE)
    place = directory / "sources" / name
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as file:
            file.write(_source(_HERE, name))
        os.replace(file.name, place)  # Atomic, in case another process does the same.
    function.__code__ = code.replace(co_filename=str(place))


def _compiled(function: F, **options: Any) -> F:
    import numba
    from numba.core import config

    settings: Any = config
    directory = cache_directory()
    if directory is None:
        return cast(F, numba.njit(nogil=True, **options)(function))
    _lay_out_source(function, directory)
    # numba asks for the directory when a function is decorated, and only then: other users' functions keep theirs.
    chosen = settings.CACHE_DIR
    settings.CACHE_DIR = str(directory)
    try:
        made = numba.njit(nogil=True, cache=True, **options)(function)
    finally:
        settings.CACHE_DIR = chosen
    save = made._cache.save_overload

    def save_if_possible(signature: object, code: object) -> None:
        try:
            save(signature, code)
        except OSError as error:  # A full disk, above all: the code is there, for this process.
            _not_kept.append(str(error))

    made._cache.save_overload = save_if_possible
    return cast(F, made)
