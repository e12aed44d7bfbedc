"""Odd, large or impossible requests get a clear error or an honest report, never a wrong certificate."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.erasure.jobs.job_queue import MAX_UNFINISHED
from diamant.broker.operation_errors import BadArgument, TooMany
from diamant.protocol.batches.header import Header
from tests.broker.erasure.brokers import broker_at, data_of
from tests.broker.erasure.constants import DAY_MS, HTTP, KEY, PERSON, START_MS
from tests.broker.erasure.erasing import erase, traces_of, unfinished
from tests.broker.erasure.issued import check_claims, pinned
from tests.broker.erasure.obstacles import at_stage
from tests.broker.erasure.records import create, create_with_key, values_left, write
from tests.broker.http_asking import ask
from tests.cleaner.evidence.scan.naive_scanner import log_files, records_in, records_of_key


async def test_the_key_42_and_the_value_of_two_braces_are_told_from_those_everywhere(broker: Broker) -> None:
    """The same bytes as values, in headers, in parts of keys and under other keys stay, and refuse no claim."""
    await create(broker)
    await create(broker, "orders", policy="delete")
    everywhere = [Header("42", b"{}"), Header("{}", b"42")]
    for number in range(40):
        write(broker, (b"%d" % number, b"{}"), (b"142", b"42"), codec=number % 5, headers=everywhere)
    write(broker, (b"42", b"{}"), (b"42", b"42"), (b"4", b"2"), (b"{}", b"{}"), codec=2, headers=everywhere)
    write(broker, (b"42", b"{}"), topic="orders")
    erasure = await erase(broker, b"42")
    assert (erasure.state, erasure.certificate["found"][0]["values"]) == ("values-gone", 2)
    assert values_left(broker, b"42") == [None]
    check_claims(data_of(broker), erasure.certificate, b"42")
    kept = {(one.key, one.value) for path in log_files(data_of(broker), "users") for one in records_in(path)}
    assert {(b"7", b"{}"), (b"142", b"42"), (b"{}", b"{}"), (b"4", b"2")} <= kept
    # The same key in a topic that was not named is named, and stays; values under other keys mean nothing.
    assert [one["what"] for one in erasure.certificate["elsewhere"]] == ["same-key"]
    assert len(records_of_key(data_of(broker), "orders", b"42")) == 1


@pytest.mark.parametrize(
    "count", [pytest.param(100, marks=pytest.mark.slow), pytest.param(1000, marks=pytest.mark.long)]
)
async def test_a_key_in_a_thousand_partitions_is_erased_and_verified_over_http(tmp_path: Path, count: int) -> None:
    """One certificate covers all of them and fits into a request."""
    async with broker_at(tmp_path, **HTTP) as broker:
        await create(broker, partitions=count)
        for partition in range(count):
            write(broker, (KEY, PERSON), (b"other", b"stays"), partition=partition)
        erasure = await erase(broker)
        assert erasure.state == "values-gone"
        certificate = erasure.certificate
        assert (len(certificate["claims"]), len(certificate["found"]), len(certificate["done"])) == (
            count,
            count,
            count,
        )
        size = len(json.dumps(certificate))
        assert size > 64 * 1024
        fields = {"certificate": certificate, "public_key": pinned(certificate).hex(), "key": KEY.decode()}
        answer = await ask(broker, "POST", "/v1/verify?wait_ms=60000", fields)
        assert answer.status == 200, answer.body[:300]
        assert answer.json["is_valid"], answer.json["notes"]
        check_claims(data_of(broker), certificate, KEY)


async def test_keys_that_are_too_long_and_texts_that_are_too_long_are_refused(broker: Broker) -> None:
    """Before anything is written; the error does not contain the key."""
    await create(broker)
    for key, reason in ((b"k" * ((1 << 20) + 13), "r"), (KEY, "r" * 1001), (KEY, ""), (KEY, "two\nlines")):
        with pytest.raises(BadArgument) as raised:
            await broker.erase(key, ["users"], reason=reason)
        assert "kkk" not in str(raised.value)
    assert traces_of(broker) == []


async def test_too_many_unfinished_erasures_are_refused(broker: Broker) -> None:
    """The number of erasures that wait for a horizon is bounded."""
    await create_with_key(broker)
    table = broker.services.erasures().table
    table.due.update({str(number): START_MS + DAY_MS for number in range(MAX_UNFINISHED - 1)})
    await erase(broker)
    with pytest.raises(TooMany):
        await erase(broker, b"another")
    table.due.clear()


async def test_a_topic_that_stops_being_compacted_meanwhile_is_reported(broker: Broker) -> None:
    """Nothing is certified, and the certificate states the reason."""
    await create_with_key(broker)

    def change() -> None:
        log = broker.node.topics.log("users", 0)
        log.update_config(replace(log.config, cleanup_policy=frozenset({"delete"})))

    erasure = await erase(broker, progress=at_stage("compacting", change))
    assert (erasure.state, erasure.certificate["claims"]) == ("not-certified", [])
    (step,) = erasure.certificate["done"]
    assert step["not_compacted"].startswith("users is not compacted: its cleanup.policy is delete")
    assert len(unfinished(broker)) == 1
