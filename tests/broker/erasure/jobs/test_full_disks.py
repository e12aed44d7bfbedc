"""Disks that are full at any point of an erasure: an error that says so, no certificate, and it goes on once there is space."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.client.errors import VerbError
from diamant.storage.env.env import RealFile
from tests.broker.erasure.cases import (
    KEY,
    PERSON,
    RETRY_MS,
    START_MS,
    certificates_of,
    create_with_key,
    env_of,
    erase,
    move_to,
    traces_of,
    values_left,
)
from tests.broker.erasure.obstacles import no_space
from tests.waiting import wait_until


async def test_a_disk_that_is_full_before_the_intent_leaves_everything_as_it_is(broker: Broker) -> None:
    """When the intent cannot be written nothing else is."""
    await create_with_key(broker)
    env_of(broker).fail("rename", "*.intent.tmp", errno.ENOSPC)
    with pytest.raises(VerbError, match="No space left"):
        await erase(broker)
    assert traces_of(broker) == []
    assert values_left(broker) == [PERSON]
    assert broker.services.erasures().queue.unfinished() == []


def fill_up(stage: str, broker: Broker, patched: pytest.MonkeyPatch) -> None:
    """Leave no space from a stage on."""
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
async def test_a_disk_that_is_full_in_the_middle_gives_no_certificate_and_the_erasure_goes_on(
    broker: Broker, stage: str
) -> None:
    """Whichever file it is that cannot be written: an error that says so, and once there is space again it is finished."""
    await create_with_key(broker, others=30)
    with pytest.MonkeyPatch.context() as patched:
        fill_up(stage, broker, patched)
        if stage == "cleaning":
            assert (await erase(broker)).state == "not-certified"
        else:
            with pytest.raises(VerbError, match="No space left") as raised:
                await erase(broker)
            assert KEY.decode() not in str(raised.value)
            del raised  # its traceback has the file that was written to, and so keeps that on the disk
        # What could not be written down after a certificate does not make it untrue.
        found = certificates_of(broker, "*")
        assert [path.name.split(".")[1] for path in found] == {"3": ["values-gone"], "cleaning": ["not-certified"]}.get(
            stage, []
        )
    env_of(broker).faults = ()
    assert len(broker.services.erasures().queue.unfinished()) == 1
    move_to(broker, START_MS + RETRY_MS)
    await wait_until(
        lambda: (
            certificates_of(broker, "values-gone") != [] and not broker.services.erasures().queue.attempts.is_at_work
        )
    )
    assert values_left(broker) == [None]
