"""Erasures that cannot be completed are retried with growing pauses, and rely on the scan's findings."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace

import pytest

from diamant.broker.broker import Broker
from diamant.storage.log.segment_removal import delete_oldest
from tests.broker.erasure.brokers import clock_of, data_of, env_of, move_to
from tests.broker.erasure.constants import DAY_MS, RETRY_MS, START_MS
from tests.broker.erasure.erasing import erase, unfinished, wait_idle
from tests.broker.erasure.issued import certificates_of
from tests.broker.erasure.obstacles import stopped
from tests.broker.erasure.records import create_with_key, write
from tests.waiting import wait_until


def due_ms(broker: Broker) -> int:
    """The due time of the only erasure."""
    (one,) = unfinished(broker)
    due: int = one["due_ms"]
    return due


async def next_pauses(broker: Broker, count: int) -> list[int]:
    """Run this number of attempts; return the pause after each."""
    pauses = []
    for _ in range(count):
        move_to(broker, due_ms(broker))
        await wait_idle(broker)
        pauses.append(due_ms(broker) - clock_of(broker).now_ms())
    return pauses


@pytest.mark.parametrize("obstacle", ["the tombstone cannot go", "the certificate cannot be written"])
async def test_what_cannot_be_done_is_tried_less_and_less_often(broker: Broker, obstacle: str) -> None:
    """Each attempt compacts all affected partitions; the state saved by a failed one does not make it due at once."""
    await create_with_key(broker)
    log = broker.node.topics.log("users", 0)
    if obstacle == "the tombstone cannot go":
        await erase(broker)
        log.update_config(replace(log.config, cleanup_policy=frozenset({"delete"})))
    else:
        log.update_config(replace(log.config, max_message_bytes=20))
        assert (await erase(broker)).state == "not-certified"
        env_of(broker).fail("write_atomically", "*.not-certified.json", errno.ENOSPC)
    assert await next_pauses(broker, 4) == [RETRY_MS, 2 * RETRY_MS, 4 * RETRY_MS, 8 * RETRY_MS]


async def test_an_attempt_is_under_way_until_its_failure_is_counted(broker: Broker) -> None:
    """Neither a waiting call nor a resume by a moved clock runs in between."""
    await create_with_key(broker)
    erasure = await erase(broker)
    env_of(broker).before("read_bytes", "*.intent", stopped)
    for failures in (1, 2):
        move_to(broker, due_ms(broker))
        async with asyncio.timeout(60):
            for is_at_work in (False, True):
                while broker.services.erasures().queue.attempts.is_at_work is is_at_work:
                    await asyncio.sleep(0)
        assert broker.services.erasures().table.failures == {erasure.id: failures}


async def test_attempts_that_fail_are_made_less_and_less_often(broker: Broker) -> None:
    """Up to an hour apart, for any obstacle; the first success resets the pause."""
    await create_with_key(broker)
    await erase(broker)
    env_of(broker).before("read_bytes", "*.intent", stopped)
    pauses = await next_pauses(broker, 9)
    env_of(broker).faults = ()
    assert [pause // RETRY_MS for pause in pauses] == [1, 2, 4, 8, 16, 32, 64, 64, 64]
    move_to(broker, due_ms(broker))
    await wait_until(lambda: unfinished(broker) == [])
    assert broker.services.erasures().table.failures == {}


async def test_a_topic_that_is_not_compacted_any_more_is_certified_when_retention_has_removed_all(
    broker: Broker,
) -> None:
    """Without values nothing needs compaction; until then the certificate lists them."""
    await create_with_key(broker)
    write(broker, (b"another", b"x" * 700))
    erasure = await erase(broker)
    assert erasure.state == "values-gone"
    log = broker.node.topics.log("users", 0)
    log.update_config(replace(log.config, cleanup_policy=frozenset({"delete"})))
    move_to(broker, START_MS + DAY_MS)
    await wait_idle(broker)
    assert certificates_of(broker, "key-gone") == []
    log.roll()
    delete_oldest(log, len(log.segments) - 1)
    await next_pauses_until_over(broker)
    assert len(certificates_of(broker, "key-gone")) == 1


async def next_pauses_until_over(broker: Broker) -> None:
    """Move the clock to each next attempt until the last one."""
    move_to(broker, due_ms(broker))
    await wait_until(lambda: unfinished(broker) == [])


async def test_the_last_word_is_the_certificate_that_was_issued_last(broker: Broker) -> None:
    """A restored value's certificate supersedes the earlier one that claims it gone, until the next."""
    await create_with_key(broker)
    log = data_of(broker) / "users-0" / "00000000000000000000.log"
    old = log.read_bytes()
    erasure = await erase(broker)
    assert (await broker.services.certificates().last(erasure.id))["state"] == "values-gone"
    copy = log.with_suffix(".log.swap")
    # The intent is closed, and the last scan is next.
    env_of(broker).before("rename", "*.intent.tmp", lambda: copy.write_bytes(old))
    move_to(broker, START_MS + DAY_MS)
    await wait_idle(broker)
    env_of(broker).faults = ()
    assert len(certificates_of(broker, "values-gone")) == 1
    last = await broker.services.certificates().last(erasure.id)
    assert (last["state"], last["ended"]) == ("not-certified", None)
    copy.unlink()
    await next_pauses_until_over(broker)
    assert (await broker.services.certificates().last(erasure.id))["state"] == "key-gone"
