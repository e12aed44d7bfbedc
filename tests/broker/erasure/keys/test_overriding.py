"""A horizon that is overridden: no group is behind the tombstone, or those that are are named and confirmed."""

from __future__ import annotations

from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from tests.broker.erasure.cases import (
    HTTP,
    KEY,
    PERSON,
    broker_at,
    commit,
    create,
    create_with_key,
    data_of,
    erase,
    fill,
    values_left,
    write,
)
from tests.broker.http_asking import ask
from tests.cleaner.evidence.scan.naive_scanner import log_files, records_in


async def test_the_horizon_can_be_overridden(broker: Broker) -> None:
    """All other records keep their offsets; the groups that were behind stand in the certificate."""
    await create(broker)
    write(broker, (KEY, PERSON), (b"other", b"stays"))
    fill(broker)
    erasure = await erase(broker, is_now=True)
    assert (erasure.state, erasure.next_due_ms) == ("key-gone", None)
    assert erasure.certificate["overrides"][0]["groups_that_had_not_passed_it"] == []
    assert values_left(broker) == []
    kept = [one for path in log_files(data_of(broker), "users") for one in records_in(path)]
    assert (1, b"other", b"stays") in [one[1:] for one in kept]
    assert len(kept) == 11


@pytest.mark.usefixtures("_committed")
async def test_now_lists_the_groups_that_are_behind_and_stops_there(broker: Broker) -> None:
    """The values go, the tombstone stays for them until its horizon; once they are confirmed it goes."""
    await create_with_key(broker)
    refused = await erase(broker, is_now=True)
    assert (refused.state, refused.is_now_refused, refused.groups_behind) == (
        "values-gone",
        True,
        {"users-0": ["billing"]},
    )
    assert refused.certificate["overrides"] == []
    assert values_left(broker) == [None]
    done = await broker.erase_now(refused.id, is_confirmed=True)
    assert (done.id, done.state, done.is_now_refused) == (refused.id, "key-gone", False)
    assert done.certificate["overrides"][0]["groups_that_had_not_passed_it"] == ["billing"]
    assert values_left(broker) == []


async def test_now_needs_no_word_when_all_groups_have_passed(broker: Broker) -> None:
    """There is nobody to be listed."""
    commit(broker, (2, "billing"))
    await create_with_key(broker)
    assert (await erase(broker, is_now=True)).state == "key-gone"


async def test_over_http_now_is_confirmed_by_a_field(tmp_path: Path) -> None:
    """The first answer names the groups; the second request, about the same erasure, says that they are known."""
    async with broker_at(tmp_path, **HTTP) as broker:
        commit(broker, (1, "billing"))
        await create_with_key(broker)
        fields = {"key": KEY.decode(), "topics": ["users"], "reason": "r", "now": True}
        first = (await ask(broker, "POST", "/v1/erase?wait_ms=20000", fields)).json
        assert (first["state"], first["is_now_refused"]) == ("values-gone", True)
        assert first["groups_behind"] == {"users-0": ["billing"]}
        path = f"/v1/erase/{first['id']}/now?wait_ms=20000"
        unsaid = (await ask(broker, "POST", path, {})).json
        assert (unsaid["certificate"], unsaid["is_now_refused"]) == (first["certificate"], True)
        assert (unsaid["groups_behind"], unsaid["next_due_ms"]) == (first["groups_behind"], first["next_due_ms"])
        second = (await ask(broker, "POST", path, {"confirm_groups_behind": True})).json
        assert (second["id"], second["state"], second["is_now_refused"]) == (first["id"], "key-gone", False)
        listed = (await ask(broker, "GET", "/v1/certificates")).json
        assert [one["id"] for one in listed["certificates"]] == [first["id"]] * 2
        assert listed["unfinished"] == []
