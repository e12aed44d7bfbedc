"""Words for the fields of a certificate (names, states, settings), and access to fields that may be missing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from diamant.storage import certificate_states as states
from diamant.words import counted, number

MAX_SHOWN = 600
"""Maximum number of characters that are shown of an unknown value."""

_STATES = {
    states.KEY_GONE: "no record with the key",
    states.VALUES_GONE: "a deletion mark, no value",
    states.RECORDS_GONE: "no record that matches",
    states.FIELDS_BLANKED: "the fields are as asked",
    states.NOTHING_MATCHED: "nothing was found",
    "values-present": "values are left",
    "records-present": "records are left",
    "inconclusive": "could not be decided",
    states.NOT_CERTIFIED: "not certified",
    "unreadable": "a deletion mark, no value is returned",
    "key-unreadable": "nothing is returned",
    "not-read": "it was not read",
    "not-there": "it is not there",
    "no-tombstone": "no deletion mark could be written",
    "unknown": "its topic is unknown",
    "cancelled": "cancelled",
    "everything-matches": "ended, because everything matches",
    "topics-deleted": "the topic was deleted",
    "topic-deleted": "the topic was deleted",
    "topic-recreated": "the topic was deleted, another one has its name",
}

_FIELDS = {"staging": "Staging location of Spark", "topic_ids": "Ids of the topics"}

_NO_LIMIT_MS = (1 << 63) - 1

Fields = Mapping[str, Any]


def part(fields: Fields, name: str) -> Fields:
    """Return the object in a field; an empty one if the field is missing or not an object."""
    found = fields.get(name)
    return found if isinstance(found, Mapping) else {}


def is_redaction(certificate: Fields) -> bool:
    """Tell whether the certificate is about a redaction, which concerns matching records instead of a key."""
    return str(certificate["type"]) == "diamant-redaction-certificate"


def fields_not_seen(certificate: Fields) -> list[str]:
    """Return the fields to change that no matching record had.

    The list is empty if no record matched, or if a matching record could not be changed.
    """
    found = certificate.get("found", ())
    has_match = any(one.get("matched") or one.get("unchanged") for one in found)
    seen = {name for one in found for name in one.get("fields", ())}
    wanted = [one["field"] for one in part(certificate, "request").get("fields", ())]
    return [one for one in wanted if one not in seen] if has_match and not unchangeable_count(certificate) else []


def unchangeable_count(certificate: Fields) -> int:
    """Return the number of records that matched, but could not be changed."""
    return sum(int(one.get("unchangeable", 0)) for one in certificate.get("found", ()))


def undecided_count(certificate: Fields) -> int:
    """Return the number of records that may match."""
    found = sum(int(one.get("undecided", 0)) for one in certificate.get("found", ()))
    return found - unchangeable_count(certificate)


def unchangeable(certificate: Fields) -> str:
    """Return a sentence about the records that matched, but could not be changed; empty if there are none."""
    count = unchangeable_count(certificate)
    if not count:
        return ""
    first = next(one for one in certificate["found"] if one.get("unchangeable"))
    at = f"{place_text(first)}@{first['unchangeable_offsets'][0]}"
    return f"{counted(count, 'matching record')} could not be changed: {first['unchangeable_reason']} (first: {at})"


_BECOMES = {"null": "nothing (null)", "default": "the default of its schema", "empty": "empty"}


def becoming(text: object) -> str:
    """Say in words what a changed field becomes."""
    fixed = str(text).removeprefix("text:")
    return _BECOMES.get(str(text), str(text) if fixed == text else f"the text “{fixed}”")


def topics_of(certificate: Fields) -> Sequence[str]:
    """Return the topics that the request names."""
    request = part(certificate, "request")
    topics = request.get("topics") or ([request["topic"]] if "topic" in request else [])
    return topics if isinstance(topics, list) else []


def state_text(state: object) -> str:
    """Return the state of a partition in words."""
    return _STATES.get(str(state), str(state))


def place_text(one: Fields) -> str:
    """Return the name of the partition, or the name of the file if it belongs to no partition."""
    if one.get("topic") is None:
        return str(one.get("file", "-"))
    return f"{one['topic']}-{one.get('partition')}"


def spaced(name: str) -> str:
    """Return the name of a field in words."""
    return _FIELDS.get(name) or name.replace("_", " ").capitalize()


def seen_elsewhere(certificate: Fields) -> str:
    """Say how many records and other places `elsewhere` lists, and how many findings it leaves out; "" if there are none.

    A record that is left out counts several times if several of its fields, or copies in other files, have findings.
    """
    listed, unlisted = certificate.get("elsewhere", ()), certificate.get("elsewhere_not_listed", 0)
    records, others = set(), set()
    for one in listed:
        if one.get("offset") is None:
            others.add((one.get("file"), one.get("position")))
        else:
            records.add((one.get("topic") or one.get("file"), one.get("partition"), one["offset"]))
    parts = [counted(len(records), "record")] if records else []
    if others:
        parts.append(f"{counted(len(others), 'place')} outside of records")
    if unlisted:
        parts.append(f"{counted(unlisted, 'further place')} that {'is' if unlisted == 1 else 'are'} not listed")
    return " and ".join(parts)


def written_since_count(certificate: Fields) -> int:
    """Return the number of records written above the claims' ends, listed or not."""
    return len(certificate.get("written_since", ())) + int(certificate.get("written_since_not_listed", 0))


def shown(value: object) -> str:
    """Return an unknown value in words; lists and objects are described element by element."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str | int):
        return f"{value:,}" if isinstance(value, int) else value
    if value is None or value in ([], {}):
        return "none"
    if isinstance(value, Mapping):
        text = "; ".join(f"{name}: {shown(one)}" for name, one in value.items())
    else:
        text = ", ".join(map(shown, value)) if isinstance(value, list) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} … ({len(text) - MAX_SHOWN:,} letters more)"


_UNITS_MS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000))


def span(time_ms: object) -> str:
    """Format a duration that is given in ms, in the largest unit that divides it: `1 day`, `90 minutes`."""
    if isinstance(time_ms, int) and time_ms > 0:
        for unit, unit_ms in _UNITS_MS:
            if time_ms % unit_ms == 0:
                return counted(time_ms // unit_ms, unit)
    return f"{number(time_ms)} ms"


def setting(value: object, name: str) -> str:
    """Format the value of a configuration. A duration is given in words and in ms."""
    if name.endswith(".ms") and isinstance(value, int) and value > 0:
        return "no limit" if value == _NO_LIMIT_MS else f"{span(value)} ({number(value)} ms)"
    return shown(value)
