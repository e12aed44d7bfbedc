"""The line that shows how far a command is with what it does by itself."""

from __future__ import annotations

from contextlib import redirect_stderr
from io import StringIO

import pytest

from diamant.broker.commands.terminal.progress_text import LiveProgress


class Terminal(StringIO):
    """A file that says that it is a terminal."""

    def isatty(self) -> bool:
        """It is."""
        return True


def test_bytes_rate_and_time_left() -> None:
    """From the first second on, a few times a second, and nothing is left of it at the end."""
    terminal, seconds = Terminal(), [100.0]
    with redirect_stderr(terminal), LiveProgress(clock=lambda: seconds[-1]) as progress:
        progress.tell(1 << 20, 0.01)
        assert terminal.getvalue() == ""
        seconds.append(104.0)
        progress.tell(8 << 20, 0.25)
        progress.tell(9 << 20, 0.3)
        assert terminal.getvalue() == "\r\x1b[K25 %, 8.0 MiB, 2.0 MiB/s, 12s left"
        seconds.append(105.0)
        progress.tell(10 << 20)
        assert terminal.getvalue().endswith("\r\x1b[K10.0 MiB, 2.0 MiB/s")
    assert terminal.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize("file", [StringIO(), Terminal()])
def test_programs_see_none_of_it(file: StringIO) -> None:
    """No terminal, no line; nor where something else is on the terminal."""
    seconds = [100.0]
    with redirect_stderr(file), LiveProgress(is_shown=not file.isatty(), clock=lambda: seconds[-1]) as progress:
        seconds.append(104.0)
        progress.tell(1)
    assert file.getvalue() == ""
