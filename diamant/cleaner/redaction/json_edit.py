"""Changes fields in JSON by replacing the bytes of their values, and preserves order and whitespace."""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from typing import Any

from diamant.cleaner.redaction.json_path import DECODER, leads_into_text
from diamant.cleaner.values.edits import DEFAULT, EMPTY, GIVEN, NULL, TEXT, Edit, NewValue, Unchangeable
from diamant.cleaner.values.nodes import Object

_SPACE = re.compile(r"[ \t\n\r]*")
_QUICK = json.JSONDecoder(strict=False, parse_int=str, parse_float=str, parse_constant=str)
"""Used to find the end of a value."""


def edit_json(data: bytes, path: tuple[str, ...], new: NewValue) -> tuple[bytes, list[Edit]]:
    """Replace the values at a path; return the new JSON and the edits. Raises ValueError, RecursionError, Unchangeable."""
    text = data.decode("utf-8-sig")
    # Nested JSON has quotes around its names, which a string can contain only as escapes.
    if "\\" in text and leads_into_text(DECODER.decode(text), path):
        raise Unchangeable("the path leads through a string that contains JSON")
    _QUICK.decode(text)
    fields = _Fields(text, path, new)
    fields.visit(0, 0)
    mark = BOM_UTF8 if data.startswith(BOM_UTF8) else b""
    parts, at = [mark], 0
    for edit in fields.edits:
        parts += [text[at : edit.start].encode(), edit.new]
        at = edit.end
    return b"".join([*parts, text[at:].encode()]), fields.edits


class _Fields:
    """Follows a path through valid JSON and collects the edits."""

    def __init__(self, text: str, path: tuple[str, ...], new: NewValue) -> None:
        self._text = text
        self._path = path
        self._new = new
        self.edits: list[Edit] = []
        """The edits in ascending order, with positions in characters. `old` lists the decoded value and its text in the JSON."""

    def visit(self, at: int, depth: int) -> int:
        """Apply the path from step `depth` on to the value that follows any whitespace at `at`; return the end of the value."""
        text, is_there = self._text, depth == len(self._path)
        at = self._space(at)
        if text[at] == "[" and (not is_there or self._new.kind == TEXT):
            return self._items(at, depth)
        if is_there:
            return self._replace(at)
        if text[at] == "{":
            return self._members(at, depth)
        return _QUICK.raw_decode(text, at)[1]

    def _items(self, at: int, depth: int) -> int:
        at = self._space(at + 1)
        while self._text[at] != "]":
            at = self._space(self.visit(at, depth))
            at += self._text[at] == ","
            at = self._space(at)
        return at + 1

    def _members(self, at: int, depth: int) -> int:
        at = self._space(at + 1)
        while self._text[at] != "}":
            name, at = _QUICK.raw_decode(self._text, at)
            at = self._space(self._space(at) + 1)
            if name == self._path[depth]:
                at = self.visit(at, depth + 1)
            else:
                _, at = _QUICK.raw_decode(self._text, at)
            at = self._space(at)
            at = self._space(at + (self._text[at] == ","))
        return at + 1

    def _replace(self, at: int) -> int:
        old, end = DECODER.raw_decode(self._text, at)
        new = _written(old, self._new)
        lost = None if new == self._text[at:end] else [old, self._text[at:end].strip('"')]
        self.edits.append(Edit(at, end, new.encode(), lost))
        return end

    def _space(self, at: int) -> int:
        found = _SPACE.match(self._text, at)
        return at if found is None else found.end()


def _written(old: Any, new: NewValue) -> str:
    """Return the JSON that replaces the value `old`. Raises Unchangeable."""
    kind = new.kind
    if kind == DEFAULT:
        raise Unchangeable("JSON has no default")
    if kind == GIVEN:
        return new.text
    if kind == TEXT:
        return json.dumps(new.text, ensure_ascii=False)
    if kind == NULL or old is None:
        return "null"
    assert kind == EMPTY
    if isinstance(old, bool):
        return "false"
    return '""' if isinstance(old, str) else "{}" if isinstance(old, Object) else "[]" if isinstance(old, list) else "0"
