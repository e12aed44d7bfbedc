"""Calls that wait for their turn, which is somebody else's for as long as that takes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import pytest

from diamant.broker.broker import Broker
from diamant.broker.client.errors import TimedOut
from tests.broker.erasure.cases import KEY, PERSON, create, create_with_key, erase, move_to, write
from tests.broker.erasure.obstacles import TimeLimit
from tests.waiting import wait_until


async def said_at_its_limit(call: Awaitable[object], limit: TimeLimit, is_there: Callable[[], object]) -> str:
    """What a call says that comes to its limit once it is where it waits."""
    waiting = asyncio.ensure_future(call)
    await wait_until(lambda: waiting.done() or bool(is_there()))
    limit.end()
    with pytest.raises(TimedOut) as caught:
        await waiting
    return str(caught.value)


@pytest.mark.slow
async def test_a_call_whose_turn_does_not_come_says_whose_it_is(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction that hangs has no limit of its own: it may be one of hours. It can be cancelled, and others go on then."""
    await create_with_key(broker)
    await create(broker, "orders")
    write(broker, (KEY, PERSON), topic="orders")

    hanging: list[bool] = []

    async def hang(*_arguments: object, **_options: object) -> None:
        hanging.append(True)
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(broker.services.compactions(), "compact", hang)
        limit = TimeLimit(patched)
        own = await said_at_its_limit(erase(broker, timeout_ms=limit.ms), limit, lambda: hanging)
        ((erasure_id, due_ms),) = [(one["id"], one["due_ms"]) for one in broker.services.erasures().queue.unfinished()]
        assert "turn" not in own
        move_to(broker, due_ms)
        await wait_until(lambda: broker.services.erasures().queue.attempts.lock.holder == f"erasure {erasure_id}")
        said = rf"its turn has not come: erasure {erasure_id} .*cancelling that ends it.*; nothing was"
        other = erase(broker, topics=["orders"], timeout_ms=limit.ms)
        assert re.search(
            said, await said_at_its_limit(other, limit, lambda: broker.services.erasures().queue.attempts.waiting)
        )
        redaction = broker.redact("orders", where='key == "a"', reason="ticket 4711", yes_all=True, timeout_ms=limit.ms)
        assert re.search(
            said, await said_at_its_limit(redaction, limit, lambda: broker.services.redactions().queue.attempts.waiting)
        )
    await broker.cancel(erasure_id, reason="it hangs")
    assert (await erase(broker, topics=["orders"])).state == "values-gone"
