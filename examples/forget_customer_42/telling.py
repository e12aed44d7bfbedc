"""How the story is printed: in colour on a terminal, plain elsewhere. A claim that is not so ends it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

MAX_WIDTH = 108
INDENT = 3
MAX_SHOWN = 400
"""Letters of what was found instead of what was claimed."""


class ClaimFailed(Exception):
    """Something that the demonstration says is not so."""


class Teller:
    """Prints, and counts claims. Texts are no markup: whatever they hold is printed as it is."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        # Where there is no terminal, lines are as long as on a good one.
        self._console.width = min(self._console.width, MAX_WIDTH) if self._console.is_terminal else MAX_WIDTH
        self.chapters = 0
        self.claims = 0

    def chapter(self, title: str) -> None:
        """Begin a step."""
        self.chapters += 1
        self._console.print()
        self._console.print(Text(f"{self.chapters:2} {title}", style="bold cyan"))

    def say(self, text: str) -> None:
        """Explain."""
        self._put(text)

    def call(self, text: str) -> None:
        """Show what is called, as one would type it."""
        self._put(f"> {text}", "magenta")

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
        """Show figures."""
        table = Table(*heads, box=None, header_style="dim", padding=(0, 3, 0, 0))
        for row in rows:
            table.add_row(*row)
        self._console.print(Padding(table, (0, 0, 0, INDENT + 2), expand=False))

    def claim(self, is_so: bool, text: str, instead: object = None) -> None:
        """Say what was just seen to be so. Raises ClaimFailed if it is not, with what was found `instead`."""
        if not is_so:
            found = "" if instead is None else f". Found instead: {str(instead)[:MAX_SHOWN]}"
            raise ClaimFailed(f"{text}{found}")
        self.claims += 1
        self._put(f"✓ {text}", "green")

    def failed(self, text: str) -> None:
        """Say why it ends here."""
        self._console.print()
        self._put(f"✗ NOT SO: {text}", "bold red")

    def end(self, text: str) -> None:
        """Close."""
        self._console.print()
        self._put(text, "bold")

    def _put(self, text: str, style: str = "") -> None:
        """Print a text, indented; further lines stand below the first one's words."""
        hanging = 2 if text[:2] in ("✓ ", "✗ ", "> ", "- ") else 0
        lines = textwrap.wrap(
            text,
            self._console.width,
            initial_indent=" " * INDENT,
            subsequent_indent=" " * (INDENT + hanging),
            break_long_words=False,
            break_on_hyphens=False,
        )
        self._console.print(Text("\n".join(lines), style=style), soft_wrap=True)


def count_cell(count: int) -> Text:
    """How often something personal was found: red if it was."""
    return Text(str(count), style="bold red" if count else "green")
