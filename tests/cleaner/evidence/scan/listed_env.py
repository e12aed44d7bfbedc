"""A directory that changes whenever it is listed, or shows only a part of its files."""

from __future__ import annotations

from collections.abc import Callable

from diamant.storage.env.env import RealEnv


class ListedEnv(RealEnv):
    """The operating system, for a scan or for its census."""

    def __init__(
        self,
        directory: object,
        before: Callable[[int], object] = bool,
        *,
        is_shown: Callable[[str], bool] = lambda name: True,
    ) -> None:
        """`before` takes the number of listings so far. In and below this directory only allowed names are shown."""
        super().__init__()
        self._directory = str(directory)
        self._before = before
        self._is_shown = is_shown
        self.listings = 0

    def list_dir(self, path: str) -> list[str]:
        """Return the names that are shown."""
        if path.rstrip("/") == self._directory:
            self._before(self.listings)
            self.listings += 1
        return [name for name in super().list_dir(path) if self._is_shown(name)]
