"""Responses written together and responses given later: in order, and cancelled with their connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from diamant.broker.network.api import ConnectionInfo
from diamant.broker.network.pending_answer import PendingAnswer
from diamant.broker.network.response_writer import MAX_DELAY_S, MIN_CALLBACKS, Outbox
from diamant.protocol.wire.server_connection import Request
from tests.broker.network.serving import KEY, VERSION, serving
from tests.broker.wire import WireClient
from tests.waiting import wait_until


class Handler:
    """Responds to `later` when the test says so, to other requests with their body."""

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
    """None is handled within `give`, which runs in another's callback."""
    handler = Handler()
    async with serving(handler) as (_, address), WireClient(address) as client:
        client.writer.write(client.frame(KEY, VERSION, b"later") + client.frame(KEY, VERSION, b"next"))
        await wait_until(lambda: handler.pending != [])
        handler.pending[0].give(b"done")
        assert handler.seen == [b"later"]
        assert await client.receive_frame() == (1, b"done")
        assert await client.receive_frame() == (2, b"next")


async def test_an_error_closes_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    """A response that cannot be written does, too. `give` raises in neither case."""
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


async def test_a_pending_answer_is_cancelled_with_its_connection() -> None:
    """The answer is cancelled once, unless it was given."""
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


@pytest.mark.parametrize("error", [None, ValueError("bad")])
async def test_a_pending_answer_can_be_awaited(error: ValueError | None) -> None:
    """The coroutine gets the body or the error. Cancelling it cancels the response."""
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


class Written(list[str]):
    """The bytes written to transports, in order."""

    def transport(self, name: str) -> asyncio.Transport:
        """Return a transport that records its writes."""
        written = self

        class Noting(asyncio.Transport):
            def write(self, data: bytes | bytearray | memoryview) -> None:
                written.append(name + bytes(data).decode())

        return Noting()


async def run_in_one_turn(*callbacks: Callable[[], object]) -> None:
    """Run callbacks in one turn of the loop and wait for its end."""
    loop = asyncio.get_running_loop()
    for callback in callbacks:
        loop.call_soon(callback)
    await asyncio.sleep(0)


async def test_an_answer_alone_is_written_at_once() -> None:
    """An answer is not held back if few or no callbacks are due in the turn."""
    written = Written()
    outbox = Outbox(asyncio.get_running_loop())
    outbox.put(written.transport("a"), b"1", 0.0)
    assert written == ["a1"]


async def test_answers_of_one_turn_go_out_in_their_order_at_its_end() -> None:
    """Answers are written before the next turn; responses of the last callbacks are held back, too."""
    written = Written()
    outbox = Outbox(asyncio.get_running_loop())
    seen: list[int] = []

    def answer(name: str) -> None:
        outbox.put(written.transport(name), b"1", 0.0)
        seen.append(len(written))

    names = [chr(ord("a") + number) for number in range(MIN_CALLBACKS + 3)]
    await run_in_one_turn(*[lambda name=name: answer(name) for name in names])  # type: ignore[misc]
    assert seen == [0] * len(names)
    await asyncio.sleep(0)
    assert written == [f"{name}1" for name in names]


async def test_answers_do_not_wait_for_long() -> None:
    """All are written once the first has waited for MAX_DELAY_S, even within the turn."""
    written = Written()
    outbox = Outbox(asyncio.get_running_loop())
    seen: list[int] = []

    def answer(now_s: float) -> None:
        outbox.put(written.transport("a"), b"1", now_s)
        seen.append(len(written))

    times = [0.0, MAX_DELAY_S / 2, MAX_DELAY_S * 1.5, MAX_DELAY_S * 2, MAX_DELAY_S * 2]
    await run_in_one_turn(*[lambda now_s=now_s: answer(now_s) for now_s in times], lambda: None, lambda: None)  # type: ignore[misc]
    assert seen[:3] == [0, 0, 3]
    await asyncio.sleep(0)
    assert len(written) == len(times)


async def test_a_flush_writes_what_waits_once() -> None:
    """A connection is flushed before it is closed. Nothing is written again at the end of the turn."""
    written = Written()
    outbox = Outbox(asyncio.get_running_loop())

    def answer_and_flush() -> None:
        outbox.put(written.transport("a"), b"1", 0.0)
        assert written == []
        outbox.flush()
        assert written == ["a1"]

    await run_in_one_turn(answer_and_flush, *[lambda: None] * MIN_CALLBACKS)
    await asyncio.sleep(0)
    assert written == ["a1"]


def test_on_another_loop_every_answer_is_written_at_once() -> None:
    """On a loop that does not expose its due callbacks, every answer is written at once."""
    written = Written()
    outbox = Outbox(cast(asyncio.AbstractEventLoop, object()))
    for _ in range(3):
        outbox.put(written.transport("a"), b"1", 0.0)
    assert written == ["a1"] * 3


@pytest.mark.parametrize("count", [2, 20])
async def test_asyncio_still_tells_what_is_due(count: int) -> None:
    """The outbox relies on a private attribute of asyncio's loops: the due callbacks of a turn."""
    rest = getattr(asyncio.get_running_loop(), "_ready", None)
    assert rest is not None
    seen: list[int] = []
    await run_in_one_turn(*[lambda: seen.append(len(rest))] * count)
    assert seen == sorted(seen, reverse=True)
    assert seen[0] - seen[-1] == count - 1
