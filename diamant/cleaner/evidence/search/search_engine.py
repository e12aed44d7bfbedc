"""Chooses the search that reads a file of batches: the compiled one if it is there, the plain one until then.

Compiling takes some ten seconds on a machine where it was never done. No scan waits for it: a process of its own
compiles into the cache of kernels, the plain search runs until then, and hands over in the middle of a file. Where
there is no cache to write to, a thread compiles for this process.

Any thread. One process or thread that compiles for all scans of this process.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from diamant.cleaner.engines import compiled
from diamant.cleaner.evidence.search.record_search import FileSearch, search_plain
from diamant.cleaner.kernels import cache
from diamant.storage.env.env import File

if TYPE_CHECKING:
    from diamant.cleaner.evidence.search.compiled_search import CompiledSearch

logger = logging.getLogger(__name__)

COMPILE_TIMEOUT_S = 300
NICENESS = 10

# The interpreter is told to look where this process found the package, and never in the working directory first.
_BOOTSTRAP = (
    "import os, sys; os.nice(int(sys.argv[1])); place = sys.argv[2]; place in sys.path or sys.path.insert(0, place); "
    "from diamant.cleaner.engines import compiled; compiled.warm_up()"
)


class Compiler(Protocol):
    """The kernels, there or in the making."""

    def is_warm(self) -> bool:
        """Tell whether they are there."""
        ...

    def start(self) -> None:
        """Start compiling them, unless that is in progress or has failed; returns at once."""
        ...


class KernelCompiler:
    """Compiles the kernels once."""

    def __init__(self, compile_all: Callable[[], object]) -> None:
        """`compile_all` does it, and does not raise."""
        self._lock = threading.Lock()
        self._compile_all = compile_all
        self.thread: threading.Thread | None = None

    def is_warm(self) -> bool:
        return compiled.is_warm()

    def start(self) -> None:
        with self._lock:
            if self.thread is None:
                self.thread = threading.Thread(target=self._compile_all, name="compile-kernels", daemon=True)
                self.thread.start()


class SearchEngine:
    """The engine of one scan."""

    def __init__(
        self, compiler: Compiler | None = None, *, from_bytes: int = 64 * 1024 * 1024, step_bytes: int = 4 * 1024 * 1024
    ) -> None:
        """`compiler` None: that of all scans of this process. `from_bytes`: with less to read loading the compiled walk takes
        longer than it saves. After `step_bytes` the plain search asks whether the compiled one is there.
        """
        self.from_bytes = from_bytes
        self._compiler = _compiler if compiler is None else compiler
        self._step_bytes = step_bytes
        self.is_wanted = False
        """True if there is enough to read for the compiled search to pay."""
        self.has_compiled = False
        """True if it has read anything."""
        self._forced: bool | None = None
        self._local = threading.local()
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The search that has read: `plain` or `compiled`; the latter leaves to the former all that has findings."""
        return "compiled" if self.has_compiled else "plain"

    def force(self, *, is_compiled: bool) -> None:
        """Take one of them, whatever it costs."""
        self._forced = is_compiled

    def settle(self) -> tuple[bool, ...]:
        """Return, for `force`, which engines have read, or may: nothing else hands over from one to the other any more."""
        if self.has_compiled or self._forced:
            return False, True
        self.force(is_compiled=False)
        return (False,)

    def search(self, search: FileSearch, file: File, end: int, position: int = 0) -> None:
        """Search a file of batches from byte `position`, where one begins, up to `end`."""
        while position < end:
            search.check()
            if self._is_ready(search):
                self._compiled().search(search, file, end, position)
                return
            position = search_plain(search, file, end, position, self._step_bytes)

    def _is_ready(self, search: FileSearch) -> bool:
        if search.subject.walked_keys(search.topic) is None:
            return False
        if self._forced is not None:
            return self._forced
        if not self.is_wanted:
            return False
        if self._compiler.is_warm():
            return True
        self._compiler.start()
        return False

    def _compiled(self) -> CompiledSearch:
        found: CompiledSearch | None = getattr(self._local, "compiled", None)
        if found is None:
            with self._lock:
                from diamant.cleaner.evidence.search.compiled_search import CompiledSearch

                found = self._local.compiled = CompiledSearch()
                self.has_compiled = True
        return found


def compile_kernels(program: str = _BOOTSTRAP) -> None:
    """Compile the kernels into their cache, by a process that runs `program`; into this one without a cache. Never raises."""
    try:
        if cache.cache_directory() is None:
            compiled.warm_up()
            return
        place = str(Path(__file__).resolve().parents[4])
        command = [sys.executable, "-c", program, str(NICENESS), place]
        done = subprocess.run(command, capture_output=True, timeout=COMPILE_TIMEOUT_S, check=False)
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            logger.warning("the kernels cannot be compiled, scans continue without them: %s", said[:500])
    except Exception as error:
        # Whatever it is: the plain search does without.
        logger.warning("the kernels cannot be compiled, scans continue without them: %s", error)


_compiler = KernelCompiler(compile_kernels)
