"""The limit that applies to a client, the measurement of rates, and the limits on changes of topics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.security.quotas.client_counts import IDLE_MS, MAX_COUNTS, ClientCounts
from diamant.broker.security.quotas.limits import ClientLimits, Shared
from diamant.broker.security.quotas.mutation_quota import MutationCharge, MutationQuota, TokenBucket
from diamant.broker.security.quotas.rate import Rate, RateWindows
from diamant.protocol.errors import ErrorCode, KafkaError
from tests.broker.security.quotas.stored import entity, stored
from tests.broker.security.quotas.test_quotas import Time

NAME = "producer_byte_rate"
ORDER = [
    ("user_alice_client_app", Shared("alice", "app")),
    ("user_alice_client_", Shared("alice", "app")),
    ("user_alice", Shared("alice", "")),
    ("user__client_app", Shared("alice", "app")),
    ("user__client_", Shared("alice", "app")),
    ("user_", Shared("alice", "")),
    ("client_app", Shared("", "app")),
    ("client_", Shared("", "app")),
]
"""The most specific first, each with those who share its count."""


@pytest.mark.parametrize("position", range(len(ORDER)))
def test_the_most_specific_limit_holds(position: int) -> None:
    """The first limit in order of precedence applies, regardless of less specific ones."""
    left = {text: number + 1.0 for number, (text, _) in enumerate(ORDER)}
    for text, _ in ORDER[:position]:
        del left[text]
    assert ClientLimits(NAME, stored(**left)).find("alice", "app") == (ORDER[position][1], position + 1.0)


@pytest.mark.parametrize("text", ["user_bob", "client_other", "user_bob_client_app", "user_alice_client_other"])
def test_limits_of_others_do_not_count(text: str) -> None:
    """A limit for another user, another client id, or a pair that differs in one part does not apply."""
    assert ClientLimits(NAME, stored(**{text: 1.0})).find("alice", "app") is None


def test_a_client_without_an_id_has_the_limits_of_its_user_alone() -> None:
    """Limits on client ids, including the default one, do not apply to it, as in Kafka."""
    with_client_ids = stored(user_alice_client_=1.0, user__client_=2.0, client_=3.0)
    assert ClientLimits(NAME, with_client_ids).find("alice", "") is None
    assert ClientLimits(NAME, {**with_client_ids, **stored(user_=4.0)}).find("alice", "") == (Shared("alice", ""), 4.0)


def test_other_names_and_addresses_are_left_out() -> None:
    """Limits of another name, or on addresses, are not of this kind."""
    limits = ClientLimits(NAME, {entity("user_alice"): {"consumer_byte_rate": 1.0}, entity("ip_"): {NAME: 1.0}})
    assert not limits
    assert limits.find("alice", "app") is None


GOLDEN = Path(__file__).parents[2] / "golden" / "rates_4.3.1.json"
"""What Rate and TokenBucket of kafka-clients 4.3.1 say after random records: ms, value, rate, window, tokens."""


@pytest.mark.parametrize("case", json.loads(GOLDEN.read_text()))
def test_rates_and_tokens_are_those_of_kafka(case: dict[str, Any]) -> None:
    """After every record, the rate, its time span and the tokens left equal those of Kafka's classes, after pauses of any length
    and deep in debt.
    """
    windows = RateWindows(case["samples"], case["window_ms"])
    rate, bucket = Rate(windows), TokenBucket(windows)
    for now_ms, value, expected_rate, expected_window_ms, tokens in case["steps"]:
        rate.record(value, now_ms)
        assert rate.per_second(now_ms) == pytest.approx(expected_rate)
        assert rate.elapsed_ms(now_ms) == expected_window_ms
        assert bucket.take(value, case["limit"], now_ms) == pytest.approx(tokens)


def test_a_short_time_counts_as_all_windows_but_one() -> None:
    """A new client is not measured as fast: ten seconds' worth in the first millisecond is the rate of ten seconds."""
    rate = Rate(RateWindows(11, 1000))
    rate.record(1000, 5.0)
    assert rate.per_second(5.0) == 100


def test_a_negative_value_undoes_a_recorded_one() -> None:
    """A negative value undoes one recorded in the same window."""
    rate = Rate(RateWindows())
    rate.record(100, 0.0)
    rate.record(900, 10.0)
    rate.record(-900, 10.0)
    assert rate.per_second(10.0) == pytest.approx(100 / 10.01)


def charged(time: Time) -> MutationQuota:
    """Return a limit of one partition per second for alice: eleven at once."""
    quota = MutationQuota(RateWindows(), time)
    quota.counts.set_limits({entity("user_alice"): {"controller_mutation_rate": 1.0}})
    return quota


def test_a_strict_request_may_leave_a_debt_and_the_next_is_refused() -> None:
    """As in KIP-599, a request that starts with tokens is executed as a whole. One that starts in debt is refused."""
    time = Time()
    quota = charged(time)
    first = MutationCharge(quota, "alice", "app", is_strict=True)
    first.take(15)
    assert first.throttle_time_ms() == 0
    second = MutationCharge(quota, "alice", "app", is_strict=True)
    with pytest.raises(KafkaError) as refused:
        second.take(1)
    assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert second.throttle_time_ms() == 4000
    time.now_s += 4
    third = MutationCharge(quota, "alice", "app", is_strict=True)
    third.take(1)
    assert third.throttle_time_ms() == 0


def test_an_older_request_is_carried_out_and_its_client_waits() -> None:
    """Versions without the error code are never refused. The time since the charge counts towards the wait."""
    time = Time()
    older = MutationCharge(charged(time), "alice", "app", is_strict=False)
    older.take(15)
    time.now_s += 1
    assert older.throttle_time_ms() == 3000


def test_without_a_limit_nothing_is_charged() -> None:
    """Other users, and brokers without quotas, are charged nothing."""
    for quota, user in ((charged(Time()), "bob"), (None, "alice")):
        charge = MutationCharge(quota, user, "app", is_strict=True)
        charge.take(1000)
        charge.take(1000)
        assert charge.throttle_time_ms() == 0


def counts(**limits: float) -> ClientCounts[list[int]]:
    """Counts whose meters are lists."""
    made: ClientCounts[list[int]] = ClientCounts("producer_byte_rate", list)
    made.set_limits(stored(**limits))
    return made


def test_clients_share_what_the_limit_names() -> None:
    """There is one count for all clients of a user, for all users of a client id, or for each pair."""
    of_users = counts(user_=1.0)
    assert of_users.of("alice", "a", 0) is of_users.of("alice", "b", 0)
    assert of_users.of("alice", "a", 0) is not of_users.of("bob", "a", 0)
    of_clients = counts(client_=1.0)
    assert of_clients.of("alice", "a", 0) is of_clients.of("bob", "a", 0)
    of_pairs = counts(user__client_=1.0)
    assert len({id(of_pairs.of(user, client, 0)) for user in "xy" for client in "ab"}) == 4


def test_a_changed_limit_keeps_the_count() -> None:
    """Usage under one limit counts under its replacement. Without a limit the count is dropped."""
    made = counts(user_=1.0)
    count = made.of("alice", "a", 0)
    assert count is not None
    made.set_limits(stored(user_alice=2.0))
    assert made.of("alice", "a", 0) is count
    assert count.limit == 2.0
    made.set_limits({})
    assert made.of("alice", "a", 0) is None
    assert list(made) == []


def test_a_count_moves_to_the_entity_whose_limit_holds() -> None:
    """A limit on a pair gives the pair a count of its own. Its removal returns the pair to the user's count."""
    made = counts(user_alice=1.0)
    shared = made.of("alice", "a", 0)
    made.set_limits(stored(user_alice=1.0, user_alice_client_a=5.0))
    own = made.of("alice", "a", 0)
    assert own is not shared
    assert made.of("alice", "b", 0) is shared
    made.set_limits(stored(user_alice=1.0))
    assert made.of("alice", "a", 0) is shared


def test_a_count_that_is_not_used_for_an_hour_goes() -> None:
    """An unused count is dropped when another one is created. A count in use is kept."""
    made = counts(client_=1.0)
    idle, used = made.of("u", "idle", 0), made.of("u", "used", 0)
    assert made.of("u", "used", IDLE_MS) is used
    made.of("u", "new", IDLE_MS)
    assert [count.shared.client_id for count in made] == ["used", "new"]
    assert made.of("u", "idle", IDLE_MS) is not idle


def test_there_are_never_more_than_the_bound() -> None:
    """Clients that invent an id for each request displace the least recently used counts."""
    made = counts(client_=1.0)
    for number in range(MAX_COUNTS + 5):
        made.of("u", f"c{number}", float(number))
    assert len(list(made)) <= MAX_COUNTS
    left = {count.shared.client_id for count in made}
    assert "c0" not in left
    assert f"c{MAX_COUNTS + 4}" in left


def test_the_average_wait_is_that_of_the_last_minute() -> None:
    """Throttle times are averaged; without a recent one the average is 0."""
    count = counts(user_=1.0).of("alice", "a", 0)
    assert count is not None
    assert count.throttle_time_ms(0) == 0
    count.throttled(100, 0)
    count.throttled(300, 1000)
    assert round(count.throttle_time_ms(1000)) == 200
    assert count.throttle_time_ms(120_000) == 0
