"""Intents that were written before 0.1 knew the scope of a job, and where a tombstone was found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diamant.cleaner.erasure.intent import Intent
from diamant.cleaner.redaction.intent import RedactionIntent

INTENTS = json.loads((Path(__file__).parents[3] / "golden" / "intents.json").read_text())
KINDS: dict[str, Any] = {"erase": Intent, "redact": RedactionIntent}


@pytest.mark.parametrize("written", INTENTS, ids=lambda one: f"{one['kind']}-{one['phase']}")
def test_an_intent_without_what_came_later_is_read_and_written(written: dict[str, Any]) -> None:
    """It says of the rest what it said; without a scope the names of topics count."""
    fields = {name: value for name, value in written["json"].items() if name != "scope"}
    fields["done"] = [
        {name: value for name, value in step.items() if name != "tombstone_found_at"} for step in fields["done"]
    ]
    found = json.loads(KINDS[written["kind"]].from_bytes(json.dumps(fields).encode()).to_bytes())
    assert {**found, "scope": {}} == {**fields, "scope": {}}
    assert found["scope"] == {}
