"""The log of a broker that runs beside a command: a temporary file. After a failure its problems are shown, and it is kept."""

from __future__ import annotations

import logging
import os
import tempfile
from collections import deque

from diamant.broker.commands.terminal.failures import tell

PROBLEM_LINES = 20
"""Warnings and errors that are shown."""


class KeptLog:
    """The handlers of the log from `with` to its end. The file stays if it was shown."""

    def __init__(self) -> None:
        self._problems: deque[str] = deque(maxlen=PROBLEM_LINES)
        descriptor, self.path = tempfile.mkstemp(prefix="diamant-exec-", suffix=".log")
        self._file = os.fdopen(descriptor, "w", encoding="utf-8")
        self._is_shown = False

    def __enter__(self) -> KeptLog:
        problems = _LastLines(self._problems)
        problems.setLevel(logging.WARNING)
        form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
        logging.basicConfig(
            level=logging.INFO, format=form, handlers=[logging.StreamHandler(self._file), problems], force=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().handlers.clear()
        self._file.close()
        if not self._is_shown:
            os.unlink(self.path)

    def show(self, what: str) -> None:
        """Print to standard error what has failed, the last problems, and the path of the file."""
        self._is_shown = True
        lines = [what, *self._problems] if self._problems else [f"{what}; the broker logged no warning and no error"]
        for line in lines:
            tell(f"diamant exec: {line}", err=True)
        tell(f"diamant exec: the broker's whole log: {self.path}", err=True)


class _LastLines(logging.Handler):
    """Keeps the last records as text."""

    def __init__(self, lines: deque[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self._lines.append(self.format(record))
