r"""Java's properties format, as far as server.properties files use it.

One ``name=value`` a line (``:`` or a blank separate as well); ``#`` and ``!`` begin a comment line; a backslash at the
end of a line continues it without the next line's indentation; ``\t``, ``\n``, ``\uXXXX`` and ``\`` before any other
character are escapes. The last one of two lines with one name wins, as in ``java.util.Properties``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_NAME = re.compile(r"(?:[^\\=:\s]|\\.)*")
_SEPARATOR = re.compile(r"\s*[=:]?\s*")


def parse_properties(text: str) -> dict[str, str]:
    """The names and values of a properties file's text."""
    properties = {}
    for line in _logical_lines(text):
        name = _NAME.match(line)
        assert name is not None  # it matches the empty text
        separator = _SEPARATOR.match(line, name.end())
        assert separator is not None
        properties[_unescape(name[0])] = _unescape(line[separator.end() :])
    return properties


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments, blank lines and indentation, continuations joined."""
    begun = ""
    for physical in re.split(r"\r\n|\r|\n", text):
        line = physical.lstrip(" \t\f")
        if not begun and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            begun += line[:-1]
            continue
        yield begun + line
        begun = ""
    if begun:
        yield begun


def _unescape(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        escaped = match[1]
        return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _CONTROL.get(escaped, escaped)

    return _ESCAPE.sub(plain, text)
