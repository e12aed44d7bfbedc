"""Renders a paper as one HTML page that the person can read, keep, mail and print, like `certificates/page.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from diamant.cleaner.evidence.certificates.page import certificate_page, template
from diamant.cleaner.evidence.certificates.page_words import Fields, part, written_since_count
from diamant.cleaner.papers.paper import is_paper, state_of
from diamant.cleaner.person.people_map import KEEP
from diamant.storage.certificate_states import (
    FIELDS_BLANKED,
    FORGOTTEN,
    FORGOTTEN_BUT_KEPT,
    KEY_GONE,
    NOT_CERTIFIED,
    NOTHING_MATCHED,
    RECORDS_GONE,
    VALUES_GONE,
)
from diamant.words import counted, not_searched_text, stay_text

_TITLES = {
    FORGOTTEN: ("Everything that was found is gone, as it was asked for", "good"),
    VALUES_GONE: ("The data are gone; deletion marks still name the keys", "good"),
    NOTHING_MATCHED: ("Nothing was found, and nothing was removed", "warn"),
    NOT_CERTIFIED: ("Not certified: something is left, or could not be checked", "bad"),
}
_NOT_SIGNED = ("This is not what was signed: it proves nothing", "bad")
_DONE = {
    KEY_GONE: "removed; nothing names the key any more",
    VALUES_GONE: "removed; a deletion mark still names the key",
    RECORDS_GONE: "removed",
    FIELDS_BLANKED: "the named fields were blanked, the rest stays",
    NOTHING_MATCHED: "nothing was found",
    NOT_CERTIFIED: "not certified",
}


def page_of(certificate: Fields, problem: str = "", bundle: str = "") -> str:
    """Return the page of a certificate of any kind. `problem`, `bundle`: as in `certificate_page`."""
    if not is_paper(certificate):
        return certificate_page(certificate, problem, bundle)
    title, mood = _title(certificate)
    parts = {str(one["id"]): one for one in certificate["parts"]}
    return template("person_page.html.j2").render(
        c=certificate,
        problem=problem,
        bundle=bundle,
        kind="Certificate of a person's request",
        title=_NOT_SIGNED[0] if problem else title,
        mood=_NOT_SIGNED[1] if problem else "warn" if mood in ("good", "") and certificate["not_searched"] else mood,
        searched=len({row["topic"] for row in certificate["topics"]}),
        not_searched=[not_searched_text(one) for one in certificate["not_searched"]],
        known_by=_known_by(one["name"] for one in certificate["request"]["identifiers"]),
        found={row["topic"] for row in certificate["topics"] if row["records"]},
        total=sum(row["records"] for row in certificate["topics"]),
        rows=[_row(row, parts) for row in certificate["topics"]],
        stays=list(dict.fromkeys(text for row in certificate["topics"] if (text := _stay_text(row, parts)))),
        problems=[(row["topic"], row["problem"]) for row in certificate["topics"] if row["problem"]],
        again=_again(parts.values()),
        marks=any(one["state"] == VALUES_GONE for one in parts.values()),
        part_rows=[
            [part_id, ", ".join(one["request"]["topics"]), str(one["state"]), str(len(one["claims"]))]
            for part_id, one in parts.items()
        ],
    )


def _title(paper: Fields) -> tuple[str, str]:
    """Return the heading and its mood, which is good only if no record stays."""
    state, staying = paper["state"], [row for row in paper["topics"] if stay_text(row)]
    if not staying or state not in (FORGOTTEN, FORGOTTEN_BUT_KEPT, VALUES_GONE):
        return _TITLES.get(state, (f"State: {state}", "warn"))
    stay = sum(row["records"] for row in staying)
    where = counted(len({row["topic"] for row in staying}), "topic")
    marks = ", and deletion marks name the keys" if state == VALUES_GONE else ""
    return (
        f"Done as the data map asks: {counted(stay, 'record')} in {where} {'stays' if stay == 1 else 'stay'}{marks}",
        "",
    )


def _stay_text(row: Fields, parts: Fields) -> str:
    """Describe the records of a topic that stay; "" if none stay."""
    if row["do"] != KEEP and state_of([row], [parts[one] for one in row["parts"] if one in parts]) == NOT_CERTIFIED:
        return f"{row['topic']}: what was found may stay, since not all of it is certified"
    return stay_text(row)


def _known_by(names: Iterable[str]) -> list[str]:
    """Return each name once, with its count if it occurs several times."""
    return [name if count == 1 else f"{count} × {name}" for name, count in Counter(names).items()]


def _row(row: Fields, parts: Fields) -> list[str]:
    states = {parts[one]["state"] for one in row["parts"] if one in parts}
    done = "; ".join(_DONE.get(state, state) for state in sorted(states)) or row["problem"] or "not done"
    if row["do"] == KEEP:
        done = "kept, see below" if row["records"] else "nothing was found"
    fields = f" ({', '.join(row['fields'])})" if row["fields"] else ""
    records = counted(row["records"], "record").replace(" ", "\N{NO-BREAK SPACE}")
    return [str(row["topic"]), records, f"{done}{fields}"]


def _again(parts: Iterable[Any]) -> list[tuple[str, str]]:
    """Return the topics with records written after the offsets at which the claims end, and the number of these records."""
    counts = [(", ".join(part(one, "request").get("topics", ())), written_since_count(one)) for one in parts]
    return [(topics, counted(count, "record")) for topics, count in counts if count]
