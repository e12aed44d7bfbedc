"""Parts created on first use."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from diamant.broker.node.lazy import Lazy

THREADS = 4


def test_a_part_is_made_with_its_first_use() -> None:
    """A part is made once; asking for `made` does not create it."""
    made: list[object] = []

    def make() -> object:
        made.append(object())
        return made[-1]

    part = Lazy(make)
    assert (part.made, made) == (None, [])
    assert part() is part() is part.made
    assert len(made) == 1


def test_threads_that_come_at_once_get_the_same_part() -> None:
    """`Broker.faults` may be used from any thread: there must be only one set of faults."""
    barrier, makers = Barrier(THREADS), Barrier(2)

    def make() -> object:
        # Two that were making one at the same time would meet here; one alone gives up waiting.
        try:
            makers.wait(0.2)
        except Exception:
            makers.reset()
        return object()

    part = Lazy(make)

    def use() -> object:
        barrier.wait()
        return part()

    with ThreadPoolExecutor(THREADS) as pool:
        found = [future.result() for future in [pool.submit(use) for _ in range(THREADS)]]
    assert len(set(map(id, found))) == 1
