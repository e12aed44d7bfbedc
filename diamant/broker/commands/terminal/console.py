"""A terminal to print on. Texts have markup: `[bold]`, `[red]`, `[bold red]` and so on, ended by `[/]` or `[/red]`.

Text from elsewhere must go through `escape`. Control characters are never printed, so no text contains a terminal sequence.
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
"""Follows a bracket that is not markup; a character that no text contains."""
_CONTROLS = dict.fromkeys([*range(32), *range(127, 160)]) | {9: 9, 10: 10}
LONGEST = 200
"""Width where there is no terminal."""


def escape(text: str) -> str:
    """Return a text as markup that prints it."""
    return text.replace("[", "[" + _GUARD)


def plain(markup: str) -> str:
    """Return the text of markup, without styles."""
    return _TAG.sub("", markup).replace("[" + _GUARD, "[")


def cells(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(letter) else 1 + (east_asian_width(letter) in "WF") for letter in text)


def wrap(markup: str, width: int) -> list[str]:
    """Break markup of one line between words. The terminal itself breaks a word that is longer than `width`."""
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
    """Replace tags by the terminal's sequences."""
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
    """A printer to a file, by default to standard output.

    `width`: by default the terminal's width or $COLUMNS, else `LONGEST`. Without a terminal, lines are not wrapped.
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
        """Print a text and end the line. `markup=False`: the text has no markup. `soft_wrap`: its lines are not wrapped."""
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
        # The encoding may lack a character.
        text = text.encode(self.encoding, "backslashreplace").decode(self.encoding)
        self.file.write(text + "\n")
        self.file.flush()
