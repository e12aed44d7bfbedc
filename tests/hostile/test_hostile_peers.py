"""Hostile peers against a broker in a process: cheap ones in every run, all of them in their full sizes when asked."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.hostile.cases import CASES
from tests.hostile.measuring import Target, measured, prepare, target
from tests.hostile.prober import INTERVAL_S, with_omitted

CHEAP = (
    "frames begun",
    "frames of 2 GB announced",
    "slow readers",
    "batches that are bombs",
    "users guessed",
    "HTTP: headers",
    "HTTP: bodies that are bombs",
    "TLS: stalled",
    "TLS: garbage",
)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A broker with all listeners."""
    with target(tmp_path_factory.mktemp("attacked")) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("case", CHEAP)
async def test_an_attack_leaves_memory_descriptors_and_log_in_their_bounds(attacked: Target, case: str) -> None:
    """Whatever the peers do; how long the second client waits is measured on a quiet machine alone."""
    await prepare(attacked)
    figures = await measured(attacked, case, partial(CASES[case].attack, size=CASES[case].small))
    assert figures.broken() in ([], ["p99"])
    assert "Traceback" not in attacked.process.log


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
async def test_an_attack_in_full_size_delays_no_other_client(attacked: Target, case: str) -> None:
    """A second client is answered within the bound at p99, in processor time of the broker, and nothing else breaks its own."""
    await prepare(attacked)
    figures = await measured(attacked, case, partial(CASES[case].attack, size=CASES[case].full))
    assert figures.broken() == []
    assert "Traceback" not in attacked.process.log


def test_a_long_wait_counts_as_the_requests_that_were_not_sent() -> None:
    """A client that waits for a second would have sent a hundred requests."""
    assert len(with_omitted([1.0])) == round(1 / INTERVAL_S)
    assert [round(one) for one in with_omitted([0.001, 0.025])] == [1, 15, 25]
