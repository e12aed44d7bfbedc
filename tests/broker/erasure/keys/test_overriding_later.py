"""A horizon that is to be overridden by an attempt that fails: who is behind is asked again, and remembered."""

from __future__ import annotations

import errno
from functools import partial

import pytest

from diamant.broker.broker import Broker
from diamant.broker.erasure.erase.erase_result import EraseFailed
from diamant.cleaner.erasure.intent import intent_files
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from tests.broker.erasure.cases import (
    DAY_MS,
    KEY,
    PERSON,
    RETRY_MS,
    START_MS,
    certificates_of,
    certified_at,
    commit,
    create,
    create_with_key,
    data_of,
    env_of,
    erase,
    fill,
    intents_of,
    move_to,
    values_left,
    wait_idle,
    write,
)
from tests.broker.erasure.obstacles import at_stage


def fill_up(broker: Broker) -> None:
    """Leave no space for segments without tombstones."""
    env_of(broker).fail("create_new", "*.cleaned", errno.ENOSPC)


async def test_a_group_that_comes_before_the_next_attempt_is_not_passed_over_unasked(broker: Broker) -> None:
    """Nobody was behind when somebody asked, and nobody has confirmed anything: the tombstone waits for its horizon."""
    await create_with_key(broker)
    with pytest.raises(EraseFailed, match="No space left"):
        await erase(broker, is_now=True, progress=at_stage("removing tombstones", partial(fill_up, broker)))
    env_of(broker).faults = ()
    commit(broker, (1, "late"))
    move_to(broker, START_MS + RETRY_MS)
    await wait_idle(broker)
    assert certificates_of(broker, "key-gone") == []
    assert values_left(broker) == [None]
    assert [one["due_ms"] for one in broker.services.erasures().queue.unfinished()] == [START_MS + DAY_MS]
    certificate = await certified_at(broker, START_MS + DAY_MS, "key-gone")
    assert certificate["overrides"] == []


async def test_who_missed_a_tombstone_is_on_the_disk_before_it_goes(broker: Broker) -> None:
    """Stopped in between, the next attempt finds the group further on; it stands in the certificate all the same."""
    commit(broker, (1, "billing"))
    await create_with_key(broker)
    noted: list[tuple[str, ...]] = []

    def note() -> None:
        key = SigningKey.load(str(broker.config["diamant.certificate.key.file"]))
        (intent,) = intents_of(broker)
        intent_id = intent.name.removeprefix("diamant-erasure-").removesuffix(".intent")
        noted.extend(intent_files(broker.env, str(data_of(broker))).read(intent_id, key).overrides.values())

    def stop_behind() -> None:
        env_of(broker).before("create_new", "*.log.cleaned", note)
        env_of(broker).fail("remove", "*.log.deleted", errno.ENOSPC)

    with pytest.raises(EraseFailed, match="No space left"):
        await erase(broker, is_now=True, is_confirmed=True, progress=at_stage("removing tombstones", stop_behind))
    env_of(broker).faults = ()
    assert noted == [("billing",)]
    commit(broker, (1, "another"), (2, "billing"))
    certificate = await certified_at(broker, START_MS + RETRY_MS, "key-gone")
    assert [one["groups_that_had_not_passed_it"] for one in certificate["overrides"]] == [["another", "billing"]]
    assert certificate["lost_tombstones"] == []


@pytest.mark.parametrize(("offset", "is_refused"), [(1, True), (2, False)])
async def test_behind_a_tombstone_that_was_there_already_is_who_has_not_passed_it(
    broker: Broker, offset: int, is_refused: bool
) -> None:
    """Not who is behind the end of the log, where the claim ends."""
    commit(broker, (offset, "reader"))
    await create(broker)
    write(broker, (KEY, PERSON))
    write(broker, (KEY, None))
    fill(broker)
    erasure = await erase(broker, is_now=True)
    assert erasure.is_now_refused == is_refused
    assert erasure.groups_behind == ({"users-0": ["reader"]} if is_refused else {})
    assert [one["below_offset"] for one in erasure.certificate["claims"]] == [32]
    assert [one["tombstone_found_at"] for one in erasure.certificate["done"]] == [1]
