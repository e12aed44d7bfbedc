"""Answers that come later, without futures: given to their connections at once, cancelled with them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from diamant.broker.network.api import ConnectionInfo
from diamant.broker.network.pending_answer import PendingAnswer
from diamant.protocol.wire.connection import Request
from tests.broker.network.serving import KEY, VERSION, serving
from tests.broker.wire import WireClient
from tests.waiting import wait_until


class Handler:
    """Answers requests `later` when the test wants it, others with their body."""

    def __init__(self) -> None:
        self.pending: list[PendingAnswer] = []
        self.seen: list[bytes] = []
        self.cancelled = 0

    def __call__(self, _: ConnectionInfo, request: Request) -> Any:
        self.seen.append(bytes(request.body))
        if request.body != b"later":
            return bytes(request.body)
        self.pending.append(PendingAnswer(self._cancel))
        return self.pending[-1]

    def _cancel(self) -> None:
        self.cancelled += 1


async def test_requests_behind_it_have_their_turn_after_it() -> None:
    """None is handled within `give`, which is called amid the work of others."""
    handler = Handler()
    async with serving(handler) as (_, address), WireClient(address) as client:
        client.writer.write(client.frame(KEY, VERSION, b"later") + client.frame(KEY, VERSION, b"next"))
        await wait_until(lambda: handler.pending != [])
        handler.pending[0].give(b"done")
        assert handler.seen == [b"later"]
        assert await client.receive_frame() == (1, b"done")
        assert await client.receive_frame() == (2, b"next")


async def test_an_error_closes_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    """So does an answer that cannot be written; `give` raises neither."""
    handler = Handler()
    async with serving(handler) as (server, address), WireClient(address) as other:
        for error, body in ((ValueError("bad"), None), (None, [object()])):
            async with WireClient(address) as client:
                client.writer.write(client.frame(KEY, VERSION, b"later"))
                await wait_until(lambda: handler.pending != [])
                handler.pending.pop().give(body, error)  # type: ignore[arg-type]
                assert await client.is_closed()
        other.writer.write(other.frame(KEY, VERSION, b"other"))
        assert await other.receive_frame() == (1, b"other")
        assert len(server.connections) == 1
    assert caplog.text.count("connection closed") == 2


async def test_it_is_cancelled_with_its_connection() -> None:
    """Once, and not when it has been given."""
    handler = Handler()
    async with serving(handler) as (server, address):
        for is_given in (False, True):
            async with WireClient(address) as client:
                client.writer.write(client.frame(KEY, VERSION, b"later"))
                await wait_until(lambda: handler.pending != [])
                answer = handler.pending.pop()
                if is_given:
                    answer.give(b"")
            await wait_until(lambda: not server.connections)
            answer.cancel()
            assert handler.cancelled == 1


async def test_a_stop_waits_for_it() -> None:
    """The connection closes after the answer."""
    handler = Handler()
    async with serving(handler) as (server, address), WireClient(address) as client:
        client.writer.write(client.frame(KEY, VERSION, b"later"))
        await wait_until(lambda: handler.pending != [])
        closing = asyncio.create_task(server.close(60))
        await asyncio.sleep(0)
        handler.pending[0].give(b"done")
        assert await client.receive_frame() == (1, b"done")
        assert await client.is_closed()
        await closing


@pytest.mark.parametrize("error", [None, ValueError("bad")])
async def test_it_can_be_awaited(error: ValueError | None) -> None:
    """The coroutine gets the body or the error; one that is cancelled cancels the answer."""
    handler = Handler()
    answers = [PendingAnswer(handler._cancel) for _ in range(3)]
    tasks = [asyncio.ensure_future(answer) for answer in answers]
    await asyncio.sleep(0)
    answers[0].give(None if error else b"done", error)
    tasks[1].cancel()
    answers[2].give(b"late")
    tasks[2].cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert found[0] == (error or b"done")
    assert isinstance(found[1], asyncio.CancelledError)
    assert isinstance(found[2], asyncio.CancelledError)
    assert handler.cancelled == 1
