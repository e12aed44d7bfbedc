"""A person's records as one HTML page for that person: in plain words, a row for each field, other people's data marked.

The page is made from the lines of `person show`, which are read twice: first for the summary at the top, then record by record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from diamant.cleaner.evidence.certificates.page import template
from diamant.words import moment, not_searched_text

Line: TypeAlias = Mapping[str, Any]

MAX_TEXT = 10_000
"""Maximum number of characters shown per field; the lines of `person show` have the complete field."""
MAX_ROWS = 1_000

_STATUSES = {
    "live": "this is the current version",
    "superseded": "this is an older version",
    "tombstone": "this marks a deletion",
    "aborted": "it was withdrawn when it was written",
    "undecided": "it is part of a transaction in progress",
    "keyless": "it stands alone",
    "below log start": "it counts as removed",
}


class FieldRow(NamedTuple):
    """One field of a record."""

    name: str
    text: str
    category: str
    is_other: bool
    """True if the data is another person's."""


def copy_page(lines: Callable[[], Iterable[Line]], made_ms: int, source: str) -> Iterator[str]:
    """Yield the HTML of the page in pieces. `lines` is called twice, and must return all lines of `person show` each time."""
    identifiers: list[Line] = []
    problems: list[str] = []
    topics: dict[str, None] = {}
    count, has_others = 0, False
    for line in lines():
        if line["kind"] == "identifier":
            identifiers.append(line)
        elif line["kind"] == "topic":
            problems += [f"{line['topic']}: {one}" for one in line["problems"]]
        elif line["kind"] == "end":
            problems += map(not_searched_text, line["not_searched"])
        elif line["kind"] == "record":
            topics[line["topic"]] = None
            count, has_others = count + 1, has_others or bool(line["others"])
    records = (line for line in lines() if line["kind"] == "record")
    groups = ((topic, map(_shown, some)) for topic, some in groupby(records, key=lambda line: line["topic"]))
    yield from template("person_copy.html.j2").generate(
        identifiers=identifiers,
        problems=problems,
        topics=list(topics),
        count=count,
        has_others=has_others,
        groups=groups,
        made_ms=made_ms,
        source=source,
    )


def _shown(line: Line) -> Mapping[str, Any]:
    return {
        "timestamp": line["timestamp"],
        "status": _STATUSES.get(line["status"], line["status"]),
        "until": _until(line),
        "keep": line["keep"],
        "rows": rows_of(line),
    }


def _until(line: Line) -> str:
    until_ms = line["until_ms"]
    if until_ms is None:
        return "It stays until it is replaced or deleted."
    certainty = "" if line["until_is"] == "exact" else " at the earliest"
    return f"It is removed after {moment(until_ms)}{certainty}."


def rows_of(line: Line) -> list[FieldRow]:
    """Return a row for the key, the value and each header of a record, or for each field in them if they can be decoded."""
    found: list[FieldRow] = []
    others, fields = set(line["others"]), line["fields"]
    parts = [("key", line.get("key_json", _json(line["key"]))), ("value", line.get("value_json", _json(line["value"])))]
    parts = parts[line["key"] is None :]
    headers = [(f"header.{one['key']}", _json(one["value"])) for one in line["headers"]]
    for name, node in (*parts, *headers):
        for path, shown, text in _leaves(name, name, node):
            if len(found) == MAX_ROWS:
                return found
            cut = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text):,} characters)"
            found.append(FieldRow(shown, cut, str(fields.get(path, "")), path in others))
    return found


def _json(data: Mapping[str, str] | None) -> Any:
    """Return the content of a key, value or header: the parsed JSON, other text, base64 if it is not text, or None."""
    if data is None:
        return None
    text = data.get("text")
    if text is None:
        return next(iter(data.values()))
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _leaves(path: str, shown: str, node: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the path (as in the map), the displayed name (with list indexes) and the text of each field below a node."""
    left = [(path, shown, node)]
    while left:
        path, shown, node = left.pop()
        if isinstance(node, dict) and node:
            left += [(f"{path}.{name}", f"{shown}.{name}", one) for name, one in reversed(node.items())]
        elif isinstance(node, list) and node:
            left += [(path, f"{shown}[{at}]", node[at]) for at in reversed(range(len(node)))]
        else:
            yield path, shown, node if isinstance(node, str) else json.dumps(node, ensure_ascii=False)
