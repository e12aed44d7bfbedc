"""Limits on connections: their rate, in total and by address, and their number."""

from __future__ import annotations

from typing import Any

import pytest

from diamant.broker.security.quotas import connection_quotas
from diamant.broker.security.quotas.connection_quotas import (
    Admittance,
    ConnectionQuotas,
    NewConnectionLimits,
    plain_address,
    rates_by_host,
)
from diamant.broker.security.quotas.rate import RateWindows
from tests.broker.security.quotas.stored import entity
from tests.broker.security.quotas.test_quotas import Time


def quotas(limits: NewConnectionLimits, time: Time | None = None) -> ConnectionQuotas:
    """Quotas with these limits."""
    made = ConnectionQuotas(RateWindows(), time or Time())
    made.limits = limits
    return made


ADMITTED, WAITS, REFUSED = Admittance(), Admittance(wait_ms=1000), Admittance(refused_ms=1000)
RATES: dict[str, tuple[dict[str, Any], list[str], list[Admittance]]] = {
    "beyond the rate in all, each waits, by at most one window": (
        {"per_second": 1},
        ["a"] * 12,
        [ADMITTED] * 10 + [WAITS] * 2,
    ),
    "those of another listener do not wait": (
        {"per_second": 20, "per_second_of_listener": {"A": 1}},
        ["a A"] * 11 + ["a B"],
        [ADMITTED] * 10 + [WAITS, ADMITTED],
    ),
    "refused ones do not count for a listener": (
        {"per_second_of": {"bad": 1}, "per_second_of_listener": {"A": 2}},
        ["bad A"] * 40 + ["a A"],
        [ADMITTED] * 10 + [REFUSED] * 30 + [ADMITTED],
    ),
    "nor for the broker or the address; other addresses are accepted": (
        {"per_second": 12, "per_second_of": {"a": 1}},
        ["a"] * 1010 + ["b"],
        [ADMITTED] * 10 + [REFUSED] * 1000 + [ADMITTED],
    ),
    "the limit for any address holds for each without its own": (
        {"per_second_of_any": 1, "per_second_of": {"big": 1000}},
        ["a"] * 11 + ["b"] * 10 + ["big"] * 100,
        [ADMITTED] * 10 + [REFUSED] + [ADMITTED] * 110,
    ),
}
"""Limits, connections (address and listener), and what becomes of them."""


@pytest.mark.parametrize(("limits", "asked", "answers"), RATES.values(), ids=RATES)
def test_connections_beyond_a_rate_wait(limits: dict[str, Any], asked: list[str], answers: list[Admittance]) -> None:
    """Too many connections in all, or of a listener, wait; too many from one address are refused."""
    made = quotas(NewConnectionLimits(**limits))
    assert [made.ask(*one.split()) for one in asked] == answers
    assert made.throttled == len(answers) - answers.count(ADMITTED)


def test_an_address_that_waited_is_let_in_again() -> None:
    """The rate of an address falls as time passes."""
    time = Time()
    made = quotas(NewConnectionLimits(per_second_of={"a": 1}), time)
    refused = [made.ask("a").refused_ms > 0 for _ in range(11)]
    time.now_s += 12
    assert refused[-1]
    assert made.ask("a") == Admittance()


def test_an_address_may_have_so_many_connections() -> None:
    """Overrides apply to single addresses."""
    made = quotas(NewConnectionLimits(at_once_of_any=2, at_once_of={"b": 1}))
    assert [made.may_have("a", 2), made.may_have("a", 3)] == [True, False]
    assert [made.may_have("b", 1), made.may_have("b", 2)] == [True, False]


def test_addresses_that_come_once_are_forgotten() -> None:
    """The number of stored rates stays within the bound."""
    time = Time()
    made = quotas(NewConnectionLimits(per_second_of_any=1), time)
    for number in range(connection_quotas.MAX_COUNTS + 10):
        time.now_s += 0.001
        made.ask(str(number))
    assert len(made._of) <= connection_quotas.MAX_COUNTS


def test_limits_come_from_the_metadata_log() -> None:
    """Limits are by address or name, None for any address. Limits of users are not included."""
    stored = {
        entity("ip_10.0.0.7"): {"connection_creation_rate": 5.0},
        entity("ip_"): {"connection_creation_rate": 50.0},
        entity("user_alice"): {"producer_byte_rate": 1.0},
    }
    assert rates_by_host(stored) == {"10.0.0.7": 5, None: 50}
    assert [plain_address(text) for text in ("10.0.0.7", "::0001", "build")] == ["10.0.0.7", "::1", None]
