"""Limits on changes of topics: tokens, debts, and who is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diamant.broker.security.quotas.mutation_quota import MutationCharge, MutationQuota, TokenBucket
from diamant.broker.security.quotas.rate import RateWindows
from diamant.protocol.errors import ErrorCode, KafkaError
from tests.broker.security.quotas.stored import entity
from tests.broker.security.quotas.test_quotas import Time
from tests.broker.security.quotas.test_rate import GOLDEN


@pytest.mark.parametrize("case", json.loads(GOLDEN.read_text()))
def test_tokens_are_those_of_kafka(case: dict[str, Any]) -> None:
    """After every charge there is left what Kafka's class says, also after long pauses and deep in debt."""
    bucket = TokenBucket(RateWindows(case["samples"], case["window_ms"]))
    for now_ms, value, _, _, tokens in case["steps"]:
        assert bucket.take(value, case["limit"], now_ms) == pytest.approx(tokens)


def charged(time: Time) -> MutationQuota:
    """A limit of one partition per second for alice: eleven at once."""
    quota = MutationQuota(RateWindows(), time)
    quota.counts.set_limits({entity("user_alice"): {"controller_mutation_rate": 1.0}})
    return quota


def test_a_strict_request_may_leave_a_debt_and_the_next_is_refused() -> None:
    """As in KIP-599: what begins with tokens is carried out as a whole, what begins in debt is not, and its client waits."""
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
    """Versions that do not know the error are never refused; the time that passed since the charge counts."""
    time = Time()
    older = MutationCharge(charged(time), "alice", "app", is_strict=False)
    older.take(15)
    time.now_s += 1
    assert older.throttle_time_ms() == 3000


def test_without_a_limit_nothing_is_charged() -> None:
    """Other users, and brokers without quotas."""
    for quota, user in ((charged(Time()), "bob"), (None, "alice")):
        charge = MutationCharge(quota, user, "app", is_strict=True)
        charge.take(1000)
        charge.take(1000)
        assert charge.throttle_time_ms() == 0
