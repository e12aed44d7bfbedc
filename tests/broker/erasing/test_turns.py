"""Calls that wait for their turn, which is somebody else's for as long as that takes."""

from __future__ import annotations

import asyncio

import pytest

from diamant.broker.broker import Broker
from diamant.broker.verbs.errors import TimedOut
from tests.broker.erasing.cases import KEY, PERSON, create, create_with_key, erase, move_to, write
from tests.waiting import wait_until

TIMEOUT_MS = 1_000
"""Time enough for a call to come to the point where it waits for its turn."""


@pytest.mark.slow
async def test_a_call_whose_turn_does_not_come_says_whose_it_is(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction that hangs has no limit of its own: it may be one of hours. It can be cancelled, and others go on then."""
    await create_with_key(broker)
    await create(broker, "orders")
    write(broker, (KEY, PERSON), topic="orders")

    async def hang(*_arguments: object, **_options: object) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(broker, "compact", hang)
        with pytest.raises(TimedOut) as own:
            await erase(broker, timeout_ms=100)
        ((erasure_id, due_ms),) = [(one["id"], one["due_ms"]) for one in broker.erasures.unfinished()]
        assert "turn" not in str(own.value)
        move_to(broker, due_ms)
        await wait_until(lambda: broker.erasures.lock.holder == f"erasure {erasure_id}")
        said = rf"its turn has not come: erasure {erasure_id} .*diamant cancel.*; nothing was"
        with pytest.raises(TimedOut, match=said):
            await erase(broker, topics=["orders"], timeout_ms=TIMEOUT_MS)
        with pytest.raises(TimedOut, match=said):
            await broker.redact("orders", where='key == "a"', reason="ticket 4711", yes_all=True, timeout_ms=TIMEOUT_MS)
    await broker.cancel(erasure_id, reason="it hangs")
    assert (await erase(broker, topics=["orders"])).state == "values-gone"
