r"""Java's properties format, used by server.properties, meta.properties and Spark's settings.

Each line is ``name=value`` (the separator may also be ``:`` or a blank); ``#`` and ``!`` begin a comment line. A backslash at
the end of a line joins the next line to it, without its indentation. ``\t``, ``\n``, ``\uXXXX`` and ``\`` before any other
character are escapes. If a key occurs more than once, its last value wins, as in ``java.util.Properties``.
"""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_UNESCAPED_SEPARATOR = re.compile(r"((?:[^\\=:\s]|\\.)*)\s*[=:]?\s*(.*)", re.DOTALL)


def parse_properties(text: str) -> dict[str, str]:
    """Parse a Java properties file (`java.util.Properties.load`); if a key occurs more than once, its last value wins."""
    properties = {}
    for line in _logical_lines(text):
        match = _UNESCAPED_SEPARATOR.fullmatch(line)
        if match is not None:
            properties[_unescape(match[1])] = _unescape(match[2])
    return properties


def _logical_lines(text: str) -> list[str]:
    """Return the lines that are neither blank nor comments, with continuation lines joined."""
    lines: list[str] = []
    is_continued = False
    for line in re.split(r"\r\n|\r|\n", text):
        line = line.lstrip(" \t\f")
        if not is_continued and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        ends_open = backslashes % 2 == 1
        content = line[:-1] if ends_open else line
        if is_continued:
            lines[-1] += content
        else:
            lines.append(content)
        is_continued = ends_open
    return lines


def _unescape(text: str) -> str:
    return _ESCAPE.sub(
        lambda match: chr(int(match[1][1:], 16)) if len(match[1]) > 1 else _CONTROL.get(match[1], match[1]), text
    )


def format_properties(properties: dict[str, str]) -> str:
    """Return the contents of a Java properties file, with the properties in order and non-ASCII characters escaped."""
    lines = [f"{_escape(key, is_key=True)}={_escape(value, is_key=False)}\n" for key, value in properties.items()]
    return "".join(lines)


def _escape(text: str, *, is_key: bool) -> str:
    special = "\\=:#! " if is_key else "\\=:#!"
    reverse = {value: key for key, value in _CONTROL.items()}
    parts = []
    for index, character in enumerate(text):
        if character in reverse:
            parts.append("\\" + reverse[character])
        elif character in special or (character == " " and not index):
            parts.append("\\" + character)
        elif " " <= character <= "~":
            parts.append(character)
        else:
            units = character.encode("utf-16-be")
            parts.extend(f"\\u{units[at : at + 2].hex().upper()}" for at in range(0, len(units), 2))
    return "".join(parts)
