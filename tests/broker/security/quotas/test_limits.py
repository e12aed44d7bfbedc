"""The limit that holds for a client: Kafka's order of precedence."""

from __future__ import annotations

import pytest

from diamant.broker.security.quotas.limits import ClientLimits, Shared
from tests.broker.security.quotas.stored import entity, stored

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
    """Of all limits from one on, the first holds, whatever stands behind it."""
    left = {text: number + 1.0 for number, (text, _) in enumerate(ORDER)}
    for text, _ in ORDER[:position]:
        del left[text]
    assert ClientLimits(NAME, stored(**left)).find("alice", "app") == (ORDER[position][1], position + 1.0)


@pytest.mark.parametrize("text", ["user_bob", "client_other", "user_bob_client_app", "user_alice_client_other"])
def test_limits_of_others_do_not_count(text: str) -> None:
    """A limit for another user, another client id, or a pair of which one is another, is no limit."""
    assert ClientLimits(NAME, stored(**{text: 1.0})).find("alice", "app") is None


def test_a_client_without_an_id_has_the_limits_of_its_user_alone() -> None:
    """ClientLimits with a client id, also those for any, pass it over, as in Kafka."""
    with_client_ids = stored(user_alice_client_=1.0, user__client_=2.0, client_=3.0)
    assert ClientLimits(NAME, with_client_ids).find("alice", "") is None
    assert ClientLimits(NAME, {**with_client_ids, **stored(user_=4.0)}).find("alice", "") == (Shared("alice", ""), 4.0)


def test_other_names_and_addresses_are_left_out() -> None:
    """ClientLimits of another name, or for addresses, are none of this kind."""
    limits = ClientLimits(NAME, {entity("user_alice"): {"consumer_byte_rate": 1.0}, entity("ip_"): {NAME: 1.0}})
    assert not limits
    assert limits.find("alice", "app") is None
