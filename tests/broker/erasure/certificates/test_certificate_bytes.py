"""Certificates and intents keep their form: the same fields in the same order, encoded as in version 0.1.

The files in `tests/golden/certificates` were issued by 0.1.0 in the histories of this module. Values that differ from run to run
are masked: digests, ids, the engine, and a scan's counts. `tests/golden/intents.json` has intents left on disk by 0.1.0.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.cleaner.erasure_state.intent import Intent
from diamant.cleaner.evidence.certificates.certificate import TRUSTED, check_signature
from diamant.cleaner.redaction.intent import RedactionIntent
from tests.broker.erasure.brokers import broker_at
from tests.broker.erasure.constants import KEY, PERSON
from tests.broker.erasure.obstacles import damage, hold_up
from tests.broker.erasure.records import create_with_key, fill, write

GOLDEN = Path(__file__).parents[3] / "golden" / "certificates"
INTENTS = json.loads((Path(__file__).parents[3] / "golden" / "intents.json").read_text())
HEX = re.compile(r"\b[0-9a-f]{32,}\b")
COUNTED = ("coverage",)
"""Counts of files and bytes there are those of the whole directory."""


def masked(value: Any, *, is_counted: bool = False) -> Any:
    """Return a certificate without the fields that differ from run to run."""
    if isinstance(value, dict):
        return {
            name: "id"
            if name in ("cluster_id", "engine", "software", "topic_id")
            else masked(one, is_counted=is_counted or name in COUNTED)
            for name, one in value.items()
            if name != "topic_ids"
        }
    if isinstance(value, list):
        return [] if is_counted else [masked(one) for one in value]
    if isinstance(value, str):
        return HEX.sub(lambda found: f"{len(found[0])} digits", value)
    return 0 if is_counted and isinstance(value, int) and not isinstance(value, bool) else value


NEWER: Any = {"erase": {}, "redact": {"keys": ["*"], "blank": [], "blank_with": "null", "set": [], "registry": None}}
"""Fields that 0.2 did not have, and their values in an intent of that version: any key may be meant."""


async def erased_at_once(broker: Broker) -> dict[str, Any]:
    """Return a key in two partitions, both erased at once; return its last certificate."""
    await create_with_key(broker, 2, others=5)
    write(broker, (b"customer-7", b"so much as says " + PERSON))
    return (await broker.erase(KEY, ["users"], reason="GDPR Art. 17", reference="4711", now=True)).certificate


async def values_gone(broker: Broker) -> dict[str, Any]:
    """Return a key that was already deleted in one partition, and is written again after the claim."""
    await create_with_key(broker, 2, others=5)
    write(broker, (KEY, None), partition=1)
    return (await broker.erase(KEY, ["users"], reason="GDPR Art. 17")).certificate


async def damaged(broker: Broker) -> dict[str, Any]:
    """Return a readable partition and an unreadable one."""
    await create_with_key(broker, 2, others=5)
    damage(broker, partition=1)
    return (await broker.erase(KEY, ["users"], reason="GDPR Art. 17")).certificate


async def cancelled(broker: Broker) -> dict[str, Any]:
    """Return an erasure cancelled while it waited for its horizon."""
    await create_with_key(broker)
    erasure = await broker.erase(KEY, ["users"], reason="GDPR Art. 17")
    return (await broker.cancel(erasure.id, reason="a mistake")).certificate


async def records_gone(broker: Broker) -> dict[str, Any]:
    """Matching records in two partitions, one of them with an older value of its key."""
    await create_with_key(broker, 2, others=5)
    write(broker, (KEY, b"another value, which is long enough"))
    fill(broker, 5)
    return (await broker.redact("users", where='key == "customer-42"', reason="r", reference="4711")).certificate


async def redaction_held(broker: Broker) -> dict[str, Any]:
    """Return a match in an open transaction, and an unreadable partition."""
    await create_with_key(broker, 3, others=5)
    hold_up(broker, 1)
    damage(broker, partition=2)
    return (await broker.redact("users", where='key == "customer-42"', reason="r")).certificate


HISTORIES = (erased_at_once, values_gone, damaged, cancelled, records_gone, redaction_held)


@pytest.mark.parametrize("history", HISTORIES, ids=lambda one: one.__name__)
async def test_a_certificate_has_the_form_that_it_had(tmp_path: Path, history: Any) -> None:
    """Names, values and their order are those of the HTTP answer, and the signature covers exactly these bytes."""
    async with broker_at(tmp_path) as broker:
        certificate = await history(broker)
        public_key = bytes.fromhex(certificate["signature"]["public_key"])
        assert check_signature(certificate, public_key) == TRUSTED
        (path,) = (tmp_path / "data").glob(f"*-{certificate['id']}.{certificate['state']}.json")
        assert path.read_bytes() == json.dumps(certificate, indent=1, sort_keys=True).encode()
        found = json.dumps(masked(certificate), indent=1) + "\n"
    golden = GOLDEN / f"{history.__name__}.json"
    if os.environ.get("GOLDEN_CERTIFICATES"):
        golden.write_text(found)
    assert found == golden.read_text()


@pytest.mark.parametrize("written", INTENTS, ids=lambda one: f"{one['kind']}-{one['phase']}")
def test_an_intent_has_the_form_that_it_had(written: dict[str, Any]) -> None:
    """In each phase, an intent of 0.1 is written again byte for byte, then the newer fields; one without newer fields keeps the
    others.
    """
    kind: Any = {"erase": Intent, "redact": RedactionIntent}[written["kind"]]
    newer = NEWER[written["kind"]]
    data = json.dumps(written["json"]).encode()
    intent = kind.from_bytes(data)
    assert (intent.phase, intent.to_bytes()) == (written["phase"], json.dumps({**written["json"], **newer}).encode())
    fields = {name: value for name, value in written["json"].items() if name != "scope"}
    fields["done"] = [
        {name: value for name, value in step.items() if name != "tombstone_found_at"} for step in fields["done"]
    ]
    found = json.loads(kind.from_bytes(json.dumps(fields).encode()).to_bytes())
    assert found == {**fields, "scope": {}, **newer}, "without a scope, topic names count"
