"""Kernels: the innermost loops, in Cython's pure Python mode, compiled when Diamant is built.

All kernels are in one extension module, `compiled`, but each is imported by its own name, such as `diamant.kernels.record_walk`.
If Diamant was built without them (`ARE_COMPILED` is False), kernels that have a plain Python twin are replaced by it; features
that need other kernels, and every import of a kernel, raise `KernelsMissing`.

Python imports extension modules from files only. Spark's workers have this package in a zip, so they unpack the kernels once,
into the directory `<zip>.kernels` beside the zip.
"""

from __future__ import annotations

import mmap
import os
import sys
import zipimport
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from math import prod
from types import ModuleType
from typing import Literal


def _unpack(archive: str) -> str:
    """Unpack the kernels of a zip into a directory beside it, unless another process has done so; return the directory."""
    import shutil
    import tempfile
    import zipfile

    place = f"{archive}.kernels"
    if not os.path.isdir(place):
        unpacked = tempfile.mkdtemp(prefix=f"{os.path.basename(place)}.", dir=os.path.dirname(archive) or ".")
        try:
            with zipfile.ZipFile(archive) as opened:
                for name in opened.namelist():
                    if name.startswith("diamant/kernels/") and name.endswith(".so"):
                        with opened.open(name) as source, open(f"{unpacked}/{os.path.basename(name)}", "wb") as target:
                            shutil.copyfileobj(source, target)
            with suppress(OSError):  # Another process was first.
                os.rename(unpacked, place)
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)
    return place


_loader: object = getattr(__spec__, "loader", None)
if isinstance(_loader, zipimport.zipimporter):
    __path__.insert(0, _unpack(_loader.archive))

_COMPILED = find_spec("diamant.kernels.compiled")
ARE_COMPILED = _COMPILED is not None
"""True if the kernels can be imported."""


GET_KERNELS = "Reinstall it from a wheel for this machine, or with a C compiler and without DIAMANT_KERNELS=none"
"""What to do if the kernels are missing."""


WITHOUT_KERNELS = (
    "Diamant was built without its kernels: it cleans 6 to 18 times slower, Spark and some commands do not work. "
    + GET_KERNELS
)


class KernelsMissing(ImportError):
    """A feature needs a kernel without a plain twin. `what` is the subject of the sentence "... needs the kernels"."""

    def __init__(self, what: str = "this") -> None:
        super().__init__(f"{what} needs the kernels, and Diamant was built without them. {GET_KERNELS}")


def require_kernels(what: str) -> None:
    """Raise KernelsMissing if the kernels are missing."""
    if not ARE_COMPILED:
        raise KernelsMissing(what)


class _KernelFinder:
    """Finds kernels in the module `compiled`, which contains all of them. Python's own finders run first, but find no kernels."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        package, _, kernel = name.rpartition(".")
        if package != __name__:
            return None
        if _COMPILED is None:
            raise KernelsMissing
        if kernel == "compiled":
            return _COMPILED
        is_there = kernel in import_module(_COMPILED.name).KERNELS
        # Not a subclass of importlib.abc.Loader, which takes a millisecond to import.
        return ModuleSpec(name, cls(), origin=_COMPILED.origin) if is_there else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None: Python creates the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Add the functions of all kernels to a kernel's module."""
        compiled = import_module("diamant.kernels.compiled")
        module.__file__ = compiled.__file__
        vars(module).update((name, found) for name, found in vars(compiled).items() if not name.startswith("_"))


_SIZES = {"B": 1, "i": 4, "I": 4, "q": 8, "Q": 8}
_MAPPED_FROM_BYTES = 256 * 1024


def numbers(kind: Literal["B", "i", "I", "q", "Q"], *shape: int) -> memoryview[int]:
    """Return zeroed memory for kernels, as numbers of kind B, i, I, q or Q. If it has several dimensions, none may be 0.

    Large arrays have pages of their own, which the system allocates on first use.
    """
    size = _SIZES[kind] * prod(shape)
    is_small = size < _MAPPED_FROM_BYTES
    memory = memoryview(bytearray(size) if is_small else _pages(size))
    return memory.cast(kind, shape) if len(shape) > 1 else memory.cast(kind)


def new_table(slots: int) -> memoryview[int]:
    """Return an empty table of keys, uint64[slots, 3] (`table.pxd`)."""
    return in_large_pages(numbers("Q", slots, 3))


def in_large_pages(memory: memoryview[int]) -> memoryview[int]:
    """Request 2 MiB pages for new `numbers` that will be used completely or in random order; return the numbers.

    Large pages are allocated in a tenth of the time, and halve the TLB misses.
    """
    if isinstance(pages := memory.obj, mmap.mmap) and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # A system without such pages returns EINVAL.
            pages.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _pages(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


import_module("diamant.kernels.constants")
# Without a path, Python cannot import a kernel's source and run it in place of the compiled kernel.
__path__.clear()
sys.meta_path.append(_KernelFinder())
