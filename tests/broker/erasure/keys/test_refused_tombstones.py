"""Partitions that take no tombstone, or no writes, get no claim and a remedy; the others are erased."""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.erasure.erase.erase_result import EraseFailed
from diamant.cleaner.evidence.certificates.page import certificate_page
from tests.broker.erasure.brokers import broker_at, data_of, move_to
from tests.broker.erasure.constants import PERSON
from tests.broker.erasure.erasing import erase, unfinished, wait_idle
from tests.broker.erasure.issued import certified_at, only_certificate, wait_certified
from tests.broker.erasure.records import create, write
from tests.broker.redaction import test_redacting as redacting
from tests.cleaner.evidence.scan.naive_scanner import files_with, records_of_key

KEY = b"k" * 400
TOPICS = ("orders", "users")


async def filled(broker: Broker) -> None:
    """A value of the key in each topic."""
    for topic in TOPICS:
        await create(broker, topic)
        write(broker, (KEY, PERSON), topic=topic)


def limit(broker: Broker, most: int) -> None:
    """Set `max.message.bytes` of `orders`, regardless of its records."""
    log = broker.node.topics.log("orders", 0)
    log.config = replace(log.config, max_message_bytes=most)


async def test_a_tombstone_over_a_lowered_limit_is_reported_once_and_written_when_the_limit_is_raised(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The certificate states both sizes and the remedy; the value in the other topic is removed at once."""
    await filled(broker)
    limit(broker, 300)
    with caplog.at_level(logging.WARNING):
        erasure = await erase(broker, KEY, TOPICS)
        assert (erasure.state, files_with(data_of(broker) / "users-0", PERSON)) == ("not-certified", [])
        (refused,) = erasure.certificate["not_certified"]
        assert (refused["topic"], refused["state"]) == ("orders", "no-tombstone")
        reason = refused["problems"][0]["reason"]
        assert "470 bytes, and max.message.bytes of the topic allows 300: raise it" in reason
        assert "would have 470 bytes" in certificate_page(erasure.certificate)
        assert erasure.next_due_ms is not None
        move_to(broker, erasure.next_due_ms)
        await wait_idle(broker)
    assert [one.getMessage() for one in caplog.records if "470 bytes" in one.getMessage()] == [
        f"erasure {erasure.id}: orders-0: {reason}"
    ]
    limit(broker, 1000)
    due_ms = unfinished(broker)[0]["due_ms"]
    certificate = await certified_at(broker, due_ms, "values-gone")
    assert (sorted(one["topic"] for one in certificate["claims"]), certificate["not_certified"]) == ([*TOPICS], [])
    assert files_with(data_of(broker), PERSON) == []


async def test_a_partition_that_refuses_writes_holds_no_other_up(broker: Broker) -> None:
    """The partition needs manual repair, and is retried at least once an hour."""
    await filled(broker)
    broker.node.topics.log("orders", 0).write_failure = OSError(errno.EIO, os.strerror(errno.EIO), "somewhere")
    erasure = await erase(broker, KEY, TOPICS)
    assert [(one["topic"], one["state"]) for one in erasure.certificate["not_certified"]] == [
        ("orders", "no-tombstone")
    ]
    assert "restart the broker" in erasure.certificate["not_certified"][0]["problems"][0]["reason"]
    assert files_with(data_of(broker) / "users-0", PERSON) == []
    for _ in range(9):
        before_ms = broker.env.clock.now_ms()
        due_ms = unfinished(broker)[0]["due_ms"]
        move_to(broker, due_ms)
        await wait_idle(broker)
    assert due_ms - before_ms == 64 * 60_000
    assert only_certificate(broker, "not-certified")["ended"] is None


async def test_a_start_is_a_reason_to_try_again_at_once(tmp_path: Path) -> None:
    """A restart is part of the remedy, so the next attempt follows at once."""
    async with broker_at(tmp_path) as broker:
        await filled(broker)
        broker.node.topics.log("orders", 0).write_failure = OSError(errno.EIO, os.strerror(errno.EIO), "somewhere")
        assert (await erase(broker, KEY, TOPICS)).state == "not-certified"
    async with broker_at(tmp_path) as broker:
        await wait_certified(broker, "values-gone")
        assert files_with(data_of(broker), PERSON) == []


async def test_tombstones_of_others_are_removed_at_once_although_one_partition_refuses_writes(broker: Broker) -> None:
    """The partition's segment cannot be closed, which is reported; the erasure continues."""
    await filled(broker)
    erasure = await erase(broker, KEY, TOPICS)
    assert erasure.state == "values-gone"
    broker.node.topics.log("orders", 0).write_failure = OSError(errno.EIO, os.strerror(errno.EIO), "somewhere")
    with pytest.raises(EraseFailed, match="orders-0: refuses writes"):
        await broker.erase_now(erasure.id, confirm_groups_behind=True)
    assert [topic for topic in TOPICS if records_of_key(data_of(broker), topic, KEY)] == ["orders"]
    assert [one["id"] for one in unfinished(broker)] == [erasure.id]


async def test_a_redaction_leaves_a_partition_that_refuses_writes_and_says_so(broker: Broker) -> None:
    """The records of the others are removed, and only they count."""
    await create(broker, "events", partitions=2, policy="delete")
    for partition in range(2):
        write(broker, (b"a", redacting.ORDER), (b"b", redacting.OTHER), topic="events", partition=partition)
    broker.node.topics.log("events", 0).write_failure = OSError(errno.EIO, os.strerror(errno.EIO), "somewhere")
    redaction = await broker.redact("events", where=redacting.WHERE, reason="ticket 4711")
    assert (redaction.state, redaction.removed) == ("not-certified", 1)
    (refused,) = redaction.certificate["not_certified"]
    assert (refused["partition"], refused["state"]) == (0, "records-present")
    assert any("restart the broker" in one["reason"] for one in refused["problems"])
    assert [one["partition"] for one in redaction.certificate["claims"]] == [1]
    assert files_with(data_of(broker) / "events-1", redacting.ORDER) == []
