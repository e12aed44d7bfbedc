"""The proof that a scan sees: it must find what was planted for it (`known_positives`)."""

from __future__ import annotations

import os
from collections.abc import Iterable

from diamant.cleaner.evidence.scan.file_reader import FileReader
from diamant.cleaner.evidence.scan.files_to_read import FoundFile
from diamant.cleaner.evidence.search.known_positives import KnownPositives
from diamant.cleaner.evidence.search.search_engine import SearchEngine
from diamant.storage.env.env import Env

MAX_SHOWN = 5
"""Missed known positives that the reason lists."""


class SightCheck:
    """The check of one scan."""

    def __init__(self, env: Env, known: KnownPositives, directory: str) -> None:
        """`directory`: where the known positives are written."""
        self._env = env
        self._known = known
        self._directory = directory
        self._is_over = False
        self.planted = 0
        self.seen = 0
        self.blind = "the scan ended before it looked for the known positives that prove that it sees"
        """Reason why the scan is not proven to see; "" if it is."""

    @property
    def topic(self) -> str:
        """The topic of the known positives."""
        return self._known.topic

    def write(self) -> None:
        """Write the known positives. If that fails, nothing can be claimed."""
        known = self._known
        try:
            known.write(self._env, self._directory)
            self.planted = len(known.expected)
        except OSError as error:
            self.remove()
            reason = str(error.strerror or error)
            if error.filename:
                reason += f": {os.fsdecode(error.filename).removeprefix(f'{self._directory}/')}"
            self.blind = (
                f"known positives, which prove that the scan sees, could not be written; nothing is certain: {reason}"
            )
            self._is_over = True

    def look(self, files: Iterable[FoundFile], reader: FileReader, engine: SearchEngine) -> None:
        """Check, once, that `engine` finds all known positives, and that the plain search, which it relies on, does as well."""
        if self._is_over:
            return
        self._is_over = True
        missed: set[str] = set()
        files = [*files]
        for is_compiled in {False, engine.is_compiled}:
            asked = SearchEngine(is_compiled=is_compiled)
            searches = [reader.search_known(found, asked) for found in files]
            missed |= self._known.missed(one for search in searches if search for one in search.found.findings)
        self.remove()
        self.seen = self.planted - len(missed)
        shown = ", ".join(sorted(missed)[:MAX_SHOWN])
        self.blind = shown and f"the scan missed known positives that were written for it, and may be blind: {shown}"

    def remove(self) -> None:
        """Remove the known positives."""
        self._known.remove(self._env, self._directory)
