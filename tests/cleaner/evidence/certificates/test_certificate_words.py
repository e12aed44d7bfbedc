"""Words for the fields of a certificate: the number of findings elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from diamant.cleaner.evidence.certificates.page_words import seen_elsewhere


def place(offset: int | None, field: str = "value", file: str = "t-0/0.log", topic: str | None = "t") -> dict[str, Any]:
    """One place as a certificate lists it."""
    found = {
        "what": "same-bytes",
        "topic": topic,
        "partition": 0,
        "file": file,
        "position": 7,
        "offset": offset,
        "field": field,
    }
    return {name: value for name, value in found.items() if value is not None}


@pytest.mark.parametrize(
    ("places", "unlisted", "said"),
    [
        ([], 0, ""),
        ([place(1)], 0, "1 record"),
        ([place(1), place(1, "key"), place(1, "header"), place(2)], 0, "2 records"),
        ([place(1), place(1, file="t-0/0.log.deleted")], 0, "1 record"),
        ([place(1), place(1, topic="u"), place(1, topic=None)], 0, "3 records"),
        ([place(None)], 0, "1 place outside of records"),
        ([place(1), place(None), place(None, file="notes.txt")], 0, "1 record and 2 places outside of records"),
        ([place(1)], 1, "1 record and 1 further place that is not listed"),
        ([place(1)], 1500, "1 record and 1,500 further places that are not listed"),
    ],
)
def test_records_are_counted_and_not_the_places_in_them(places: list[dict[str, Any]], unlisted: int, said: str) -> None:
    """A record with findings in key, value and a header, and in a copy of its file, counts once."""
    assert seen_elsewhere({"elsewhere": places, "elsewhere_not_listed": unlisted}) == said
