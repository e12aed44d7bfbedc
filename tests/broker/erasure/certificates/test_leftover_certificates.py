"""Certificates that are there besides the last word: damaged ones, and those of attempts that did not come to their end."""

from __future__ import annotations

import errno
import json
import os
from functools import partial
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.client.errors import NotPossible
from diamant.cleaner.evidence.certificates.files import CertificateList, tidy
from tests.broker.erasure.cases import (
    broker_at,
    certificates_of,
    create_with_key,
    data_of,
    env_of,
    erase,
    move_to,
    traces_of,
    wait_idle,
)


async def test_a_damaged_certificate_hides_no_other(broker: Broker) -> None:
    """The others of its id can be fetched, unless it may be the last word: then the answer names the file. The list has all."""
    await create_with_key(broker)
    erasure = await erase(broker)
    damaged = data_of(broker) / f"diamant-erasure-{erasure.id}.not-certified.json"
    damaged.write_bytes(b"{")
    os.utime(damaged, (1, 1))
    assert (await broker.services.certificates().last(erasure.id))["state"] == "values-gone"
    listed = await broker.services.certificates().list_all()
    assert sorted((one["state"], one["topics"]) for one in listed if one["topics"]) == [("values-gone", ["users"])]
    assert len(listed) == 2
    damaged.write_bytes(b"{")
    with pytest.raises(NotPossible, match=damaged.name):
        await broker.services.certificates().last(erasure.id)


@pytest.mark.parametrize("clock", ["yesterday", {"issued_ms": "yesterday"}, None])
async def test_a_certificate_that_does_not_say_when_it_was_issued(broker: Broker, clock: object) -> None:
    """Somebody has changed it; those that do say it are later words."""
    await create_with_key(broker)
    erasure = await erase(broker)
    (path,) = certificates_of(broker, "values-gone")
    odd = json.loads(path.read_bytes()) | {"clock": clock}
    (data_of(broker) / f"diamant-erasure-{erasure.id}.not-certified.json").write_text(json.dumps(odd))
    assert (await broker.services.certificates().last(erasure.id))["clock"] != clock


async def test_one_whose_intent_could_not_be_removed_gets_no_name_after_another_end(tmp_path: Path) -> None:
    """What the scan showed then may not be so any more: the last certificate is that of the cancellation, also after a start."""
    async with broker_at(tmp_path) as broker:
        await create_with_key(broker)
        erasure = await erase(broker)
        assert erasure.next_due_ms is not None
        env_of(broker).fail("remove", "*.intent", errno.EIO)
        move_to(broker, erasure.next_due_ms)
        await wait_idle(broker)
        assert [path.suffix for path in traces_of(broker) if "key-gone" in path.name] == [".pending"]
        env_of(broker).faults = ()
        await broker.cancel(erasure.id, reason="no more")
        assert [path.name for path in traces_of(broker) if "key-gone" in path.name] == []
    tidy(broker.env, str(data_of(broker)))
    assert certificates_of(broker, "key-gone") == []


async def test_a_certificate_is_looked_into_once_for_lists(broker: Broker) -> None:
    """However often it is listed, unless it is another file; those with anything odd in them are listed by their names."""
    await create_with_key(broker)
    erasure = await erase(broker)
    checked: list[str] = []

    def check(_fields: object, job_id: str, _state: str) -> str:
        checked.append(job_id)
        return ""

    listed = partial(CertificateList().describe, broker.env, str(data_of(broker)), check)
    first = listed()
    assert listed() == first
    assert [one["topics"] for one in first] == [["users"]]
    assert checked == [erasure.id]
    (path,) = certificates_of(broker, "values-gone")
    path.write_bytes(path.read_bytes().replace(b'"reference": ""', b'"reference": "1"'))
    assert [one["reference"] for one in listed()] == ["1"]
    assert checked == [erasure.id] * 2
    path.write_bytes(path.read_bytes().replace(b'"topics": [', b'"topics": 5, "more": ['))
    (odd,) = listed()
    assert (odd["id"], odd["topics"], odd["issued_ms"]) == (erasure.id, None, None)
