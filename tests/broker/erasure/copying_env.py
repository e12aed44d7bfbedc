"""Real files that are copied at each step, as a killed process would leave them."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import RealEnv
from tests.broker.erasure.constants import START_MS


class CopyingEnv(RealEnv):
    """Real files; while `copies` is set, the data directory is copied before renames and removals."""

    def __init__(self, directory: Path) -> None:
        super().__init__(SettableClock(START_MS))
        self._directory = directory
        self._lock = threading.Lock()
        self.copies: Path | None = None
        self.points: list[str] = []
        """What comes next, by copy."""

    def copy(self, what: str) -> None:
        """Copy the data directory."""
        if self.copies is not None:
            shutil.copytree(self._directory, self.copies / str(len(self.points)) / "data")
            self.points.append(what)

    def rename(self, old: str, new: str) -> None:
        with self._lock:
            self.copy(f"rename to {Path(new).name}")
            super().rename(old, new)

    def remove(self, path: str, *, missing_ok: bool = False) -> None:
        with self._lock:
            if Path(path).exists():
                self.copy(f"remove {Path(path).name}")
            super().remove(path, missing_ok=missing_ok)
