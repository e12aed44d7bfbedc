"""Faults of a file system, as a test asks for them: calls that fail, and calls before which something else happens."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

Operation: TypeAlias = Literal[
    "open", "create", "pread", "append", "pwrite", "truncate", "sync", "rename", "link", "remove", "make_dirs", "sync_dir",
    "set_mtime", "lock",
]  # fmt: skip


@dataclass(slots=True)
class InjectedFault:
    """Calls that are to fail, or before which something else happens; `InjectedFaults.fail` and `before` make one."""

    operation: Operation
    path_glob: str
    effect: OSError | Callable[[], object]
    """The error, or a function that is called first."""
    after: int
    """Number of calls that succeed first."""
    times: int | None
    """Number of calls that are affected then; None for all of them."""
    partial_bytes: int = 0
    """Number of bytes that a failing append writes nevertheless."""
    hits: int = 0
    """Number of calls that were affected."""

    def clear(self) -> None:
        """Let all further calls succeed."""
        self.times = 0


class InjectedFaults:
    """All faults of one file system, in the order in which they were asked for. Any thread."""

    def __init__(self) -> None:
        self._all: list[InjectedFault] = []
        self._lock = threading.Lock()

    def fail(
        self,
        operation: Operation,
        path_glob: str,
        error: int | OSError,
        *,
        after: int = 0,
        times: int | None = None,
        partial_bytes: int = 0,
    ) -> InjectedFault:
        """Make calls of `operation` on paths like `path_glob` fail with `error` (an errno such as ENOSPC).

        The first `after` calls succeed, then `times` fail (None: all). An append may write `partial_bytes` before it
        fails. Making a file counts as `create` besides `open`; a rename is known by either of its paths.
        """
        if isinstance(error, int):
            error = OSError(error, os.strerror(error))
        return self._add(InjectedFault(operation, path_glob, error, after, times, partial_bytes))

    def before(
        self, operation: Operation, path_glob: str, act: Callable[[], object], *, times: int | None = 1
    ) -> InjectedFault:
        """Call `act` before the first `times` calls (None: all) of `operation` on paths like `path_glob`.

        The call fails with what `act` raises. `act` runs in the thread of the call, and may call the file system. Before a call
        of an open file, or a `sync_file`, it may wait for other threads that do.
        """
        return self._add(InjectedFault(operation, path_glob, act, 0, times))

    def begin(self, operation: Operation, paths: tuple[str, ...]) -> None:
        """Have happen what is to happen before a call: OSError if it is to fail, and what a function raises."""
        for fault in self._affecting(operation, paths) if self._all else ():
            if isinstance(fault.effect, OSError):
                error = OSError(fault.effect.errno, fault.effect.strerror, paths[0])
                error.partial_bytes = fault.partial_bytes  # type: ignore[attr-defined]
                raise error
            fault.effect()

    def _add(self, fault: InjectedFault) -> InjectedFault:
        with self._lock:
            self._all.append(fault)
        return fault

    def _affecting(self, operation: Operation, paths: tuple[str, ...]) -> list[InjectedFault]:
        """Return the faults that affect this call, up to the first that makes it fail, and count them."""
        found: list[InjectedFault] = []
        with self._lock:
            for fault in self._all:
                if fault.operation != operation or not any(fnmatchcase(path, fault.path_glob) for path in paths):
                    continue
                if fault.after > 0:
                    fault.after -= 1
                elif fault.times is None or fault.times > 0:
                    if fault.times is not None:
                        fault.times -= 1
                    fault.hits += 1
                    found.append(fault)
                    if isinstance(fault.effect, OSError):
                        break
        return found
