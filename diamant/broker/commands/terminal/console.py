"""A terminal to print on. Output has markup: `[bold]`, `[red]`, `[bold red]` and so on, ended by `[/]` or `[/red]`.

Pass text from other sources through `escape`. Control characters are never printed, so no text can contain terminal sequences.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import TextIO

_CODES = {
    "bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36, "white": 37,
    "bright_black": 90, "bright_yellow": 93,
}  # fmt: skip
_STYLE = "(?:{0})(?: (?:{0}))*".format("|".join(_CODES))
_TAG = re.compile(rf"\[(?:{_STYLE}|/(?:{_STYLE})?)\]")
_WORD = re.compile(rf"( *)((?:{_TAG.pattern}|[^ ])*)")
_GUARD = "\ufdd0"
"""A noncharacter, which no text contains. `escape` puts it after each `[`, so that the bracket is not taken for markup."""
_CONTROLS = dict.fromkeys([*range(32), *range(127, 160)]) | {9: 9, 10: 10}
LONGEST = 200
"""The width if the output is not a terminal and $COLUMNS is not set."""


def escape(text: str) -> str:
    """Escape a string so that it is printed literally."""
    return text.replace("[", "[" + _GUARD)


def plain(markup: str) -> str:
    """Return the text in `markup`, without the tags."""
    return _TAG.sub("", markup).replace("[" + _GUARD, "[")


def cells(text: str) -> int:
    """Return the number of terminal columns that a string takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(letter) else 1 + (east_asian_width(letter) in "WF") for letter in text)


def wrap(markup: str, width: int) -> list[str]:
    """Break a line of markup between words. The terminal itself breaks a word that is longer than `width`."""
    lines, line, used = [], "", 0
    for blanks, word in _WORD.findall(markup):
        needed = cells(plain(word))
        if used and needed and used + len(blanks) + needed > width:
            lines.append(line)
            line, used = word, needed
        else:
            line, used = line + blanks + word, used + len(blanks) + needed
    return [*lines, line.rstrip()]


def _styled(markup: str) -> str:
    """Replace tags with terminal escape sequences."""
    open_styles: list[str] = []

    def sequence(tag: re.Match[str]) -> str:
        if tag[0][1] != "/":
            open_styles.append(tag[0][1:-1])
        elif open_styles:
            open_styles.pop()
        names = " ".join(open_styles).split()
        return "\x1b[" + ";".join(["0", *(str(_CODES[name]) for name in names)]) + "m"

    return _TAG.sub(sequence, markup).replace("[" + _GUARD, "[") + "\x1b[0m" * bool(open_styles)


class Console:
    """Prints markup to a file, by default to standard output.

    `width`: by default the terminal's width or $COLUMNS, else `LONGEST`. If the file is not a terminal, lines are not wrapped.
    """

    def __init__(self, file: TextIO | None = None, *, width: int | None = None) -> None:
        self.file = sys.stdout if file is None else file
        self.is_terminal = self.file.isatty()
        if width is None:
            is_bounded = self.is_terminal or "COLUMNS" in os.environ
            width = shutil.get_terminal_size().columns if is_bounded else LONGEST
        self.width = width
        self.encoding = getattr(self.file, "encoding", None) or "utf-8"
        self._has_styles = self.is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def print(self, text: str = "", *, style: str = "", markup: bool = True, soft_wrap: bool = False) -> None:
        """Print `text` and a newline. Without `markup`, print it literally; with `soft_wrap`, leave wrapping to the terminal."""
        if not markup:
            text = escape(text)
        lines = text.split("\n")
        if self.is_terminal and not soft_wrap:
            lines = [part for line in lines for part in wrap(line, self.width)]
        text = "\n".join(lines)
        if style:
            text = f"[{style}]{text}[/]"
        text = text.translate(_CONTROLS)
        text = _styled(text) if self._has_styles else plain(text)
        # The file's encoding may not have every character.
        text = text.encode(self.encoding, "backslashreplace").decode(self.encoding)
        self.file.write(text + "\n")
        self.file.flush()
