"""Fault injection for tests: file system calls that fail, or that run a function first."""

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
    """A rule for calls that fail or run a function first; made by `InjectedFaults.fail` and `before`."""

    operation: Operation
    path_glob: str
    effect: OSError | Callable[[], object]
    """The error to raise, or the function to call first."""
    after: int
    """Number of calls that succeed first."""
    times: int | None
    """Number of calls affected afterwards; None for all."""
    partial_bytes: int = 0
    """Number of bytes that a failing append still writes."""
    hits: int = 0
    """Number of calls affected so far."""

    def clear(self) -> None:
        """Let all further calls succeed."""
        self.times = 0


class InjectedFaults:
    """The faults of one file system, in order of injection. Any thread."""

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
        fails. Creating a file counts as `create` as well as `open`; a rename matches by either path.
        """
        if isinstance(error, int):
            error = OSError(error, os.strerror(error))
        return self._add(InjectedFault(operation, path_glob, error, after, times, partial_bytes))

    def before(
        self, operation: Operation, path_glob: str, act: Callable[[], object], *, times: int | None = 1
    ) -> InjectedFault:
        """Call `act` before the first `times` calls (None: all) of `operation` on paths like `path_glob`.

        The call fails with any exception of `act`. `act` runs in the caller's thread and may call the file system. Before
        calls of an open file and `sync_file` it may also wait for other threads that call the file system.
        """
        return self._add(InjectedFault(operation, path_glob, act, 0, times))

    def begin(self, operation: Operation, paths: tuple[str, ...]) -> None:
        """Apply the faults before a call. Raises OSError if the call must fail; exceptions of injected functions."""
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
        """Count and return the faults that affect this call, up to the first that makes it fail."""
        faults: list[InjectedFault] = []
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
                    faults.append(fault)
                    if isinstance(fault.effect, OSError):
                        break
        return faults
