"""Limits on connections: their rate, in total and by address, and their number."""

from __future__ import annotations

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


def test_too_many_in_all_wait() -> None:
    """Beyond the rate, each connection waits longer than the previous one, by at most one window."""
    made = quotas(NewConnectionLimits(per_second=1))
    assert [made.ask("a").wait_ms for _ in range(10)] == [0] * 10
    assert [made.ask("a").wait_ms for _ in range(2)] == [1000, 1000]
    assert made.throttled == 2


def test_too_many_on_one_listener_wait() -> None:
    """Connections to other listeners are not delayed. Refused connections count neither for the listener nor for the broker."""
    made = quotas(NewConnectionLimits(per_second=20, per_second_of_listener={"A": 1}))
    assert [made.ask("a", "A").wait_ms for _ in range(11)] == [0] * 10 + [1000]
    assert made.ask("a", "B") == Admittance()
    made = quotas(NewConnectionLimits(per_second_of={"bad": 1}, per_second_of_listener={"A": 2}))
    assert [made.ask("bad", "A").refused_ms > 0 for _ in range(40)] == [False] * 10 + [True] * 30
    assert made.ask("a", "A") == Admittance()


def test_too_many_from_one_address_are_refused_and_not_counted() -> None:
    """Other addresses are accepted. Refused connections count neither for the address nor for the broker."""
    made = quotas(NewConnectionLimits(per_second=12, per_second_of={"a": 1}))
    for _ in range(10):
        assert made.ask("a") == Admittance()
    assert all(made.ask("a") == Admittance(refused_ms=1000) for _ in range(1000))
    assert made.ask("b") == Admittance()


def test_the_limit_for_any_address_holds_for_each() -> None:
    """An address with its own limit uses that one."""
    made = quotas(NewConnectionLimits(per_second_of_any=1, per_second_of={"big": 1000}))
    assert [made.ask("a").refused_ms for _ in range(11)] == [0] * 10 + [1000]
    assert [made.ask("b").refused_ms for _ in range(10)] == [0] * 10
    assert {made.ask("big").refused_ms for _ in range(100)} == {0}


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
