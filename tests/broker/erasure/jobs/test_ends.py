"""The end of an erasure despite failing renames, clocks that step back, full disks and unexpected errors; growing pauses."""

from __future__ import annotations

import asyncio
import errno
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.erasure.erase.erase_result import EraseFailed
from diamant.broker.operation_errors import OperationError
from diamant.storage import names
from diamant.storage.env.env import RealFile
from diamant.storage.log.segment_removal import delete_oldest
from tests.broker.erasure.brokers import broker_at, clock_of, data_of, env_of, move_to
from tests.broker.erasure.constants import DAY_MS, KEY, PERSON, RETRY_MS, START_MS
from tests.broker.erasure.erasing import erase, intents_of, traces_of, unfinished, wait_idle
from tests.broker.erasure.issued import certificates_of, only_certificate
from tests.broker.erasure.obstacles import no_space, stopped
from tests.broker.erasure.records import create_with_key, values_left, write
from tests.waiting import wait_until


@pytest.fixture
def _broken_renames(broker: Broker) -> None:
    """Renames of last certificates fail until a test clears the faults."""
    env_of(broker).fail("rename", f"*{names.PENDING_SUFFIX}", errno.EIO)


@pytest.mark.usefixtures("_broken_renames")
async def test_a_last_certificate_that_could_not_get_its_name_gets_it_by_the_next_attempt(broker: Broker) -> None:
    """The intent is removed by then, so only the name is left to give. Then the job counts as done."""
    await create_with_key(broker)
    with pytest.raises(EraseFailed, match="Input/output error"):
        await erase(broker, now=True)
    assert (intents_of(broker), certificates_of(broker, "key-gone")) == ([], [])
    move_to(broker, START_MS + RETRY_MS)
    await wait_idle(broker)
    assert (
        certificates_of(broker, "key-gone"),
        len(unfinished(broker)),
        broker.services.erasures().table.done,
    ) == ([], 1, 0)
    env_of(broker).faults = ()
    move_to(broker, START_MS + DAY_MS)
    await wait_until(lambda: unfinished(broker) == [])
    assert only_certificate(broker, "key-gone")["state"] == "key-gone"
    assert list(data_of(broker).glob(f"*{names.PENDING_SUFFIX}")) == []
    assert (broker.services.erasures().table.done, broker.services.erasures().table.failed) == (1, 0)


async def test_a_clock_that_stepped_back_does_not_undo_the_last_word(tmp_path: Path) -> None:
    """`key-gone` stays the last certificate, whatever times the certificates have."""
    async with broker_at(tmp_path) as broker:
        await create_with_key(broker)
        erasure = await erase(broker)
    async with broker_at(tmp_path, START_MS - DAY_MS) as broker:
        assert (await broker.erase_now(erasure.id, confirm_groups_behind=True)).state == "key-gone"
        assert (await broker.services.certificates().last(erasure.id))["state"] == "key-gone"
        assert (await broker.erase_now(erasure.id)).state == "key-gone"


async def wait_held(broker: Broker, count: int) -> None:
    """Wait until this number of attempts has failed."""
    await wait_until(lambda: broker.services.erasures().table.held == count)


async def test_an_error_that_nobody_expects_is_tried_again_like_others(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected error is retried with growing pauses; the log states its location, not its text, which may hold a key."""
    await create_with_key(broker)
    await erase(broker)

    def fail() -> None:
        raise KeyError(KEY)

    env_of(broker).before("rename", "*.intent.tmp", fail)
    with caplog.at_level(logging.ERROR):
        pauses = []
        for count in (1, 2, 3):
            (one,) = unfinished(broker)
            now_ms = max(START_MS + DAY_MS, one["due_ms"])
            move_to(broker, now_ms)
            await wait_held(broker, count)
            pauses.append(unfinished(broker)[0]["due_ms"] - now_ms)
    env_of(broker).faults = ()
    assert pauses == [RETRY_MS, 2 * RETRY_MS, 4 * RETRY_MS]
    assert "KeyError" in caplog.text
    assert "test_ends.py" in caplog.text
    assert KEY.decode() not in caplog.text
    move_to(broker, unfinished(broker)[0]["due_ms"])
    await wait_until(lambda: broker.services.erasures().table.done == 1)
    assert unfinished(broker) == []


async def test_a_disk_that_is_full_before_the_intent_leaves_everything_as_it_is(broker: Broker) -> None:
    """If the intent cannot be written, nothing else is written either."""
    await create_with_key(broker)
    env_of(broker).fail("rename", "*.intent.tmp", errno.ENOSPC)
    with pytest.raises(OperationError, match="No space left"):
        await erase(broker)
    assert traces_of(broker) == []
    assert values_left(broker) == [PERSON]
    assert unfinished(broker) == []


def fill_up(stage: str, broker: Broker, patched: pytest.MonkeyPatch) -> None:
    """Make writes fail for lack of space from a stage on."""
    if stage == "tombstone":
        real_append = RealFile.append

        def append(file: RealFile, *buffers: Any) -> None:
            if "/users-0/" in file.path and file.path.endswith(".log"):
                no_space()
            real_append(file, *buffers)

        patched.setattr(RealFile, "append", append)
    elif stage == "cleaning":
        env_of(broker).fail("create_new", "*.cleaned", errno.ENOSPC)
    elif stage == "certificate":
        env_of(broker).fail("write_atomically", "*diamant-erasure*", errno.ENOSPC)
    else:
        env_of(broker).fail("rename", "*.intent.tmp", errno.ENOSPC, after=int(stage))


@pytest.mark.parametrize("stage", ["1", "2", "3", "tombstone", "cleaning", "certificate"])
async def test_a_disk_that_is_full_in_the_middle_gives_no_certificate_and_the_erasure_continues(
    broker: Broker, stage: str
) -> None:
    """Whichever file fails, the error says so, and the erasure completes once there is space."""
    await create_with_key(broker, others=30)
    with pytest.MonkeyPatch.context() as patched:
        fill_up(stage, broker, patched)
        if stage == "cleaning":
            assert (await erase(broker)).state == "not-certified"
        else:
            with pytest.raises(OperationError, match="No space left") as raised:
                await erase(broker)
            assert KEY.decode() not in str(raised.value)
            del raised  # its traceback has the file that was written to, and so keeps that on the disk
        # What could not be written down after a certificate does not make it untrue.
        found = certificates_of(broker, "*")
        assert [path.name.split(".")[1] for path in found] == {"3": ["values-gone"], "cleaning": ["not-certified"]}.get(
            stage, []
        )
    env_of(broker).faults = ()
    assert len(unfinished(broker)) == 1
    move_to(broker, START_MS + RETRY_MS)
    await wait_until(lambda: certificates_of(broker, "values-gone") != [] and not broker.services.erasures().table.busy)
    assert values_left(broker) == [None]


def due_ms(broker: Broker) -> int:
    """Return the due time of the only erasure."""
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
async def test_a_failing_erasure_is_retried_ever_later(broker: Broker, obstacle: str) -> None:
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
    """Neither a waiting call nor a resume by a moved clock runs between an attempt and the count of its failure."""
    await create_with_key(broker)
    erasure = await erase(broker)
    env_of(broker).before("read_bytes", "*.intent", stopped)
    for failures in (1, 2):
        move_to(broker, due_ms(broker))
        async with asyncio.timeout(60):
            for is_busy in (False, True):
                while bool(broker.services.erasures().table.busy) is is_busy:
                    await asyncio.sleep(0)
        assert broker.services.erasures().table.failures == {erasure.id: failures}


async def test_attempts_that_fail_are_made_less_and_less_often(broker: Broker) -> None:
    """The pause between attempts grows to an hour, for any obstacle; the first success resets it."""
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
