"""Answers that are written together, and those that are not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from diamant.broker.network.response_writer import MAX_DELAY_S, MIN_CALLBACKS, Outbox


class Written(list[str]):
    """What transports were given, in order."""

    def transport(self, name: str) -> asyncio.Transport:
        """A transport that notes what it is to write."""
        written = self

        class Noting(asyncio.Transport):
            def write(self, data: bytes | bytearray | memoryview) -> None:
                written.append(name + bytes(data).decode())

        return Noting()


async def run_in_one_turn(*callbacks: Callable[[], object]) -> None:
    """Run callbacks one after the other in one turn of the loop, and wait until it is over."""
    loop = asyncio.get_running_loop()
    for callback in callbacks:
        loop.call_soon(callback)
    await asyncio.sleep(0)


async def test_an_answer_alone_is_written_at_once() -> None:
    """Nothing else is due in this turn, or hardly anything."""
    written = Written()
    outbox = Outbox(asyncio.get_running_loop())
    outbox.put(written.transport("a"), b"1", 0.0)
    assert written == ["a1"]


async def test_answers_of_one_turn_go_out_in_their_order_at_its_end() -> None:
    """Before what comes in the next turn; the last callbacks of the turn wait with the others."""
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
    """Once the first has waited for MAX_DELAY_S all go out, though the turn is not over."""
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
    """What is to be closed is flushed before; nothing is written a second time at the end of the turn."""
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
    """One that does not tell what is due is not asked for anything."""
    written = Written()
    outbox = Outbox(cast(asyncio.AbstractEventLoop, object()))
    for _ in range(3):
        outbox.put(written.transport("a"), b"1", 0.0)
    assert written == ["a1"] * 3


@pytest.mark.parametrize("count", [2, 20])
async def test_asyncio_still_tells_what_is_due(count: int) -> None:
    """The attribute of asyncio's loops that this rests on: callbacks of the turn that are not run yet."""
    rest = getattr(asyncio.get_running_loop(), "_ready", None)
    assert rest is not None
    seen: list[int] = []
    await run_in_one_turn(*[lambda: seen.append(len(rest))] * count)
    assert seen == sorted(seen, reverse=True)
    assert seen[0] - seen[-1] == count - 1
