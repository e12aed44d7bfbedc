"""Chooses the search for a file of batches: the compiled search if there are kernels, otherwise the plain search."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from diamant.cleaner.evidence.search.record_search import FileSearch, search_plain
from diamant.kernels import ARE_COMPILED
from diamant.storage.env.env import ReadableFile

if TYPE_CHECKING:
    from diamant.cleaner.evidence.search.compiled_search import CompiledSearch


class SearchEngine:
    """The search engine of one scan. Thread-safe."""

    def __init__(self, *, is_compiled: bool = ARE_COMPILED) -> None:
        self.is_compiled = is_compiled
        """False if the plain search reads everything."""
        self.has_compiled = False
        """True if the compiled search has read anything."""
        self._local = threading.local()

    @property
    def name(self) -> str:
        """The search that read the files: `plain` or `compiled`. Even in the latter case, the plain one handles findings."""
        return "compiled" if self.has_compiled else "plain"

    def search(self, search: FileSearch, file: ReadableFile, end: int, position: int = 0) -> None:
        """Search a file of batches from byte `position`, the beginning of a batch, up to `end`."""
        if self.is_compiled:
            self.has_compiled = True
            self._compiled().search(search, file, end, position)
        else:
            search_plain(search, file, end, position)

    def _compiled(self) -> CompiledSearch:
        """Return the compiled search of this thread."""
        found: CompiledSearch | None = getattr(self._local, "compiled", None)
        if found is None:
            from diamant.cleaner.evidence.search.compiled_search import CompiledSearch

            found = self._local.compiled = CompiledSearch()
        return found
