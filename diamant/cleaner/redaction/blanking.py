"""Blanking: changes the named fields of matching records and leaves the rest of these records as it is.

    fields      value.customer.name, value["e mail"], header.user, header.user.name; `value` needs a path
    blank       the fields become null, the schema's default, empty, or a fixed string: `null`, `default`, `empty`, `text:***`
    set         a field becomes a given value: value.name="Ada L."

In Protobuf, `null` omits the field. A field that a record does not have is not added. Keys cannot change, because another key
means a different record. A record is Unchangeable if the schema of a value is missing or does not allow the new value, or if
a path may lead through a string that itself contains JSON; `where` then judges the record UNDECIDED, with the reason.

Bounds: `MAX_FIELDS` fields; one value and its decoded forms at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, TypeAlias

from diamant.cleaner.evidence.search.needles import keyed_digest
from diamant.cleaner.redaction.json_edit import edit_json
from diamant.cleaner.redaction.json_path import SHORT_FRAME_BYTES, is_json, leads_into_text
from diamant.cleaner.redaction.where import (
    HEADER,
    MAX_BYTES,
    ChangedRecord,
    RecordChange,
    WhereError,
    field_text,
    parse_field,
)
from diamant.cleaner.values.edits import DEFAULT, EMPTY, GIVEN, NULL, TEXT, Edit, NewValue, Unchangeable, texts_in
from diamant.cleaner.values.framing import Frame
from diamant.cleaner.values.nodes import Undecodable
from diamant.cleaner.values.schemas import VALUE, Values
from diamant.protocol.batches.header import Header, Record

MAX_FIELDS = 100

_TEXT = f"{TEXT}:"
_GIVEN = "a given value"
_EXAMPLE = """--set 'value.name="Ada L."'"""
"""Example in which the outer quotes keep the shell from removing the inner ones."""

_Edited: TypeAlias = tuple[bytes, list[list[Edit]]]
"""The new bytes, and a list of edits for each field."""


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field, and its new value."""

    field: str
    """`VALUE` or `HEADER`."""
    path: tuple[str, ...]
    """The steps into the value; for a header, its name followed by the steps into its value."""
    new: NewValue

    @property
    def name(self) -> str:
        """The field in the syntax of `where`, such as `value.customer.name`."""
        return field_text(self.field, self.path)

    def header(self, old: bytes | None) -> bytes | None:
        """Return the new value of a header. Raises Unchangeable."""
        kind = self.new.kind
        if kind == DEFAULT:
            raise Unchangeable("headers have no defaults")
        if kind == EMPTY:
            return None if old is None else b""
        text = None if kind == NULL else self.new.given
        return None if text is None else str(text).encode()

    def to_fields(self, secret: bytes) -> dict[str, str]:
        """Return the change as a row of a certificate, with a keyed digest in place of a given value."""
        new = self.new
        if new.kind == GIVEN:
            digest = keyed_digest(secret, new.text.encode()).hex()
            return {"field": self.name, "becomes": _GIVEN, "hmac": digest}
        return {
            "field": self.name,
            "becomes": _TEXT + new.text if new.kind == TEXT else new.kind,
        }


@dataclass(frozen=True, slots=True)
class Blanking:
    """Changes to individual fields; implements `where.RecordChange`. Usable from any thread."""

    changes: tuple[FieldChange, ...]

    @property
    def said(self) -> Sequence[bytes]:
        """The non-empty strings in the given values, as UTF-8."""
        given = [one.new for one in self.changes if one.new.kind == GIVEN]
        return [text for one in given for text in _texts_given(one.given) if text]

    def change(self, record: Record, values: Values) -> ChangedRecord:
        """Return the changed record, or the same record if nothing changes. Raises Unchangeable."""
        value, headers = record.value, record.headers
        lost: list[bytes] = []
        seen: list[str] = []
        changes = [one for one in self.changes if one.field == VALUE]
        if value is not None and changes:
            value, made = _changed_value(value, values.frame_of(record, VALUE), VALUE, values, changes)
            lost = [text for edits in made for edit in edits for text in texts_in(edit.old)]
            seen = [one.name for one, edits in zip(changes, made, strict=True) if edits]
        for one in self.changes:
            if one.field == HEADER:
                headers, edits = _changed_headers(record, headers, values, one)
                lost += [text for edit in edits for text in texts_in(edit.old)]
                seen += [one.name] if edits else []
        is_same = value == record.value and headers == record.headers
        if is_same:
            return ChangedRecord(record, (), seen)
        return ChangedRecord(record._replace(value=value, headers=headers), lost, seen)

    def to_fields(self, secret: bytes) -> list[dict[str, str]]:
        """Return the changes as rows of a certificate."""
        return [one.to_fields(secret) for one in self.changes]


def parse_blanking(blank: Sequence[str], blank_with: str, given: Sequence[str]) -> Blanking | None:
    """Return the changes that a request specifies; None if it specifies none. Raises WhereError.

    `blank`: the fields to blank. `blank_with`: their replacement. `given`: assignments such as `value.name="Ada L."`.
    """
    if not blank and not given:
        if blank_with != NULL:
            raise WhereError("blank_with: there is no field to blank; specify one with blank")
        return None
    changes = []
    if blank:
        new = _replacement(blank_with)
        for text in blank:
            field, path, rest = parse_field(text, "blank")
            if rest.strip():
                raise WhereError("blank: expected one field, as in value.customer.name, and nothing after it")
            changes.append(FieldChange(field, path, new))
    for text in given:
        field, path, rest = parse_field(text, "set")
        if not rest.lstrip().startswith("="):
            raise WhereError(f"set: expected a field, = and its value as JSON, as in {_EXAMPLE}")
        value = _json(rest.lstrip()[1:].strip())
        changes.append(FieldChange(field, path, NewValue(NULL) if value == "null" else NewValue(GIVEN, value)))
    _check(changes)
    return Blanking(tuple(changes))


def stated_blanking(
    rows: Sequence[Mapping[str, Any]], given: RecordChange | None, secret: bytes | None
) -> Blanking | None:
    """Return the changes stated in a certificate. `given`: the source of the values that it contains only as digests.

    Returns None if one of these values is missing or does not match its digest. Raises WhereError.
    """
    known = {one.name: one for one in given.changes} if isinstance(given, Blanking) else {}
    changes = []
    for row in rows:
        if row["becomes"] == _GIVEN:
            one = known.get(row["field"])
            if one is None or (secret is not None and one.to_fields(secret) != dict(row)):
                return None
        else:
            field, path, _ = parse_field(row["field"], "field")
            one = FieldChange(field, path, _replacement(row["becomes"]))
        changes.append(one)
    return Blanking(tuple(changes))


def _replacement(text: str) -> NewValue:
    if text in (NULL, DEFAULT, EMPTY):
        return NewValue(text)
    if not text.startswith(_TEXT):
        raise WhereError(f"blank_with: expected {NULL}, {DEFAULT}, {EMPTY} or a fixed string, as in {_TEXT}***")
    _check_text(text, "blank_with")
    return NewValue(TEXT, text.removeprefix(_TEXT))


def _json(text: str) -> str:
    """Return a JSON text unchanged. Raises WhereError if it is invalid, too long or cannot be encoded as UTF-8."""
    _check_text(text, "set")
    try:
        json.dumps(json.loads(text, parse_constant=_refuse), ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise WhereError(f"set: the value is not JSON; a string needs quotes, as in {_EXAMPLE}") from None
    return text


def _refuse(_name: str) -> None:
    raise ValueError


def _check_text(text: str, what: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise WhereError(f"{what}: the text has lone surrogates, which UTF-8 cannot encode") from None
    if size > MAX_BYTES:
        raise WhereError(f"{what}: the text has {size} bytes, but at most {MAX_BYTES} are allowed")


def _check(changes: Sequence[FieldChange]) -> None:
    """Raise WhereError if there are too many fields, a field cannot be changed, or two fields overlap."""
    if len(changes) > MAX_FIELDS:
        raise WhereError(f"blank: more than {MAX_FIELDS} fields")
    for one in changes:
        if one.field not in (VALUE, HEADER):
            raise WhereError(
                "blank: keys cannot change, because another key means a different record; erase the key, or redact its records"
            )
        if not one.path:
            raise WhereError(
                "blank: expected a field of the value, as in value.name; a record without a value would be a tombstone"
            )
        is_header = one.field == HEADER and len(one.path) == 1
        if is_header and one.new.kind == GIVEN and not isinstance(one.new.given, str | None):
            raise WhereError("set: the value of a header must be a string or null")
    for first, second in combinations(changes, 2):
        size = min(len(first.path), len(second.path))
        if first.field == second.field and first.path[:size] == second.path[:size]:
            raise WhereError("blank: a field is named twice, or is part of another named field")


def _texts_given(value: Any) -> Iterator[bytes]:
    """Yield the strings in a JSON value as UTF-8, without the names in objects."""
    if isinstance(value, str):
        yield value.encode(errors="surrogatepass")
    elif isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts_given(one)


# -- changes of a record ----------------------------------------------------------------------------------------------


def _changed_headers(
    record: Record, headers: tuple[Header, ...], values: Values, change: FieldChange
) -> tuple[tuple[Header, ...], list[Edit]]:
    new, edits = [*headers], list[Edit]()
    for at, (name, old) in enumerate(headers):
        if name != change.path[0]:
            continue
        if len(change.path) == 1:
            now = change.header(old)
            edits.append(Edit(0, 0, b"", None if now == old else old))
        elif old is None:
            continue
        else:
            frame = values.frame_of(record, HEADER, old)
            now, made = _changed_value(old, frame, HEADER, values, [replace(change, path=change.path[1:])])
            edits += made[0]
        new[at] = Header(name, now)
    return tuple(new), edits


def _changed_value(
    data: bytes, frame: Frame | None, field: str, values: Values, changes: Sequence[FieldChange]
) -> _Edited:
    if frame is None:
        return _in_json(data, changes)
    try:
        try:
            root = values.decode(frame, field)
            if any(leads_into_text(root, one.path) for one in changes):
                raise Unchangeable("the path leads through a string that contains JSON")
            payload, made = values.change(frame, field, [(one.path, one.new) for one in changes])
        except Undecodable:
            return _json_in_frame(frame, changes)
    except Undecodable as error:
        raise Unchangeable(str(error)) from None
    return (data if payload == frame.payload() else frame.around(payload)), made


def _json_in_frame(frame: Frame, changes: Sequence[FieldChange]) -> _Edited:
    """Change fields in JSON within a frame. Raises Unchangeable, Undecodable."""
    old = frame.payload()
    if is_json(old):
        payload, made = _in_json(old, changes)
        return (frame.data if payload == old else frame.around(payload)), made
    payload, made = _in_json(frame.data[SHORT_FRAME_BYTES:], changes)
    return frame.data[:SHORT_FRAME_BYTES] + payload, made


def _in_json(data: bytes, changes: Sequence[FieldChange]) -> _Edited:
    """Change fields in JSON. Raises Unchangeable."""
    made: list[list[Edit]] = []
    for one in changes:
        try:
            data, edits = edit_json(data, one.path, one.new)
        except (ValueError, RecursionError):
            raise Unchangeable("the value is not JSON, and has no schema") from None
        made.append(edits)
    return data, made
