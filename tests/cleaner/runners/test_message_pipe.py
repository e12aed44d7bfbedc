"""Messages of a child, as the broker receives them."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

import pytest

from diamant.cleaner.runners.child_process import READ_BYTES, MessagePipe
from tests.waiting import wait_until

WAIT_S = 60.0
MAX_LINE_BYTES = 2 * READ_BYTES


def pipe() -> tuple[MessagePipe, int]:
    """Return a pipe, and the end that is written."""
    descriptor, other_end = os.pipe()
    return MessagePipe(descriptor, MAX_LINE_BYTES), other_end


async def test_lines_come_whole_and_in_order() -> None:
    """A line is returned once it is complete, in however many writes. Bytes after the last line end are no message."""
    messages, other_end = pipe()
    os.write(other_end, b"one\ntw")
    assert await messages.line(WAIT_S) == b"one"
    os.write(other_end, b"o\n\nrest")
    os.close(other_end)
    assert [await messages.line(WAIT_S) for _ in range(4)] == [b"two", b"", None, None]
    assert messages.is_at_end


async def test_a_line_that_does_not_come_in_time_is_not_lost() -> None:
    """TimeoutError, and the next call has the line."""
    messages, other_end = pipe()
    os.write(other_end, b"half")
    with pytest.raises(TimeoutError):
        await messages.line(0)
    os.write(other_end, b"\n")
    assert await messages.line(WAIT_S) == b"half"
    messages.close()
    os.close(other_end)


async def test_lines_that_came_before_the_close_are_read_after_it() -> None:
    """The descriptor is closed then, or another file's: it is not watched again, although there is room for more."""
    messages, other_end = pipe()
    line = bytes(READ_BYTES - 1)
    writing = asyncio.create_task(asyncio.to_thread(os.write, other_end, 8 * (line + b"\n")))
    await wait_until(lambda: messages._is_paused)
    messages.close()
    assert [await messages.line(WAIT_S) for _ in range(2)] == [line, line]
    with suppress(BrokenPipeError):
        await writing
    os.close(other_end)


async def test_no_more_is_read_than_a_line_of_the_greatest_length() -> None:
    """A writer is held up while nobody receives, and everything arrives once somebody does; a longer line is an error."""
    messages, other_end = pipe()
    lines = [b"%07d" % number for number in range(100_000)]
    writing = asyncio.create_task(asyncio.to_thread(os.write, other_end, b"\n".join([*lines, b""])))
    assert await messages.line(WAIT_S) == lines[0]
    assert not writing.done()
    assert [await messages.line(WAIT_S) for _ in lines[1:]] == lines[1:]
    await writing
    writing = asyncio.create_task(asyncio.to_thread(os.write, other_end, bytes(2 * MAX_LINE_BYTES)))
    with pytest.raises(ValueError, match=f"more than {MAX_LINE_BYTES} bytes"):
        await messages.line(WAIT_S)
    messages.close()
    with suppress(BrokenPipeError):
        await writing
    os.close(other_end)
