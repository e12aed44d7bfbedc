"""A directory where something happens whenever it is listed, or not all of it is shown."""

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
        """`before` is told how often the directory was listed; of this and of what is below only names are shown that are."""
        super().__init__()
        self._directory = str(directory)
        self._before = before
        self._is_shown = is_shown
        self.listings = 0

    def list_dir(self, path: str) -> list[str]:
        """List what is shown."""
        if path.rstrip("/") == self._directory:
            self._before(self.listings)
            self.listings += 1
        return [name for name in super().list_dir(path) if self._is_shown(name)]
