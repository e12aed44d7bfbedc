"""The limit on memory for requests: who waits, who goes on, and that nothing is counted twice or forgotten."""

from __future__ import annotations

from diamant.broker.network.request_memory import RequestMemory


def test_frames_are_admitted_while_anything_is_left() -> None:
    """The last admitted frame may exceed the limit; the next one waits until it has been answered."""
    memory = RequestMemory(100)
    admitted: list[str] = []
    assert memory.admit(60, "a", lambda: None)
    assert memory.admit(60, "b", lambda: None)
    assert not memory.admit(10, "c", lambda: admitted.append("c"))
    assert memory.available_bytes == -20
    memory.release(60)
    assert admitted == ["c"]
    assert memory.available_bytes == 30


def test_waiting_frames_are_admitted_in_their_order_and_none_overtakes() -> None:
    """While somebody waits, a small frame that would fit waits behind."""
    memory = RequestMemory(10)
    admitted: list[str] = []
    assert memory.admit(10, "a", lambda: None)
    assert not memory.admit(50, "b", lambda: admitted.append("b"))
    assert not memory.admit(1, "c", lambda: admitted.append("c"))
    memory.forget("nobody")
    memory.release(10)
    assert admitted == ["b"]
    memory.release(50)
    assert admitted == ["b", "c"]


def test_a_connection_that_goes_stops_waiting() -> None:
    """A forgotten waiter is not admitted; what it would have taken is left for others."""
    memory = RequestMemory(10)
    memory.take(10)
    assert not memory.admit(5, "gone", lambda: None)
    memory.forget("gone")
    memory.release(10)
    assert memory.available_bytes == 10
