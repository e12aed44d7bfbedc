"""Counts of what clients took: who shares one, how long they are kept, how many there are."""

from __future__ import annotations

from diamant.broker.security.quotas.client_counts import IDLE_MS, MAX_COUNTS, ClientCounts
from tests.broker.security.quotas.stored import stored


def counts(**limits: float) -> ClientCounts[list[int]]:
    """Counts whose meters are lists."""
    made: ClientCounts[list[int]] = ClientCounts("producer_byte_rate", list)
    made.set_limits(stored(**limits))
    return made


def test_clients_share_what_the_limit_names() -> None:
    """One count for all clients of a user, or for all users of a client id, or for each pair."""
    of_users = counts(user_=1.0)
    assert of_users.of("alice", "a", 0) is of_users.of("alice", "b", 0)
    assert of_users.of("alice", "a", 0) is not of_users.of("bob", "a", 0)
    of_clients = counts(client_=1.0)
    assert of_clients.of("alice", "a", 0) is of_clients.of("bob", "a", 0)
    of_pairs = counts(user__client_=1.0)
    assert len({id(of_pairs.of(user, client, 0)) for user in "xy" for client in "ab"}) == 4


def test_a_changed_limit_keeps_the_count() -> None:
    """Who has taken too much under one limit has done so under the next; without a limit the count goes."""
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
    """A limit for a pair parts the pair's count from that of its user, and gives it back when it goes."""
    made = counts(user_alice=1.0)
    shared = made.of("alice", "a", 0)
    made.set_limits(stored(user_alice=1.0, user_alice_client_a=5.0))
    own = made.of("alice", "a", 0)
    assert own is not shared
    assert made.of("alice", "b", 0) is shared
    made.set_limits(stored(user_alice=1.0))
    assert made.of("alice", "a", 0) is shared


def test_a_count_that_is_not_used_for_an_hour_goes() -> None:
    """It goes when another one is made, and one that is in use stays."""
    made = counts(client_=1.0)
    idle, used = made.of("u", "idle", 0), made.of("u", "used", 0)
    assert made.of("u", "used", IDLE_MS) is used
    made.of("u", "new", IDLE_MS)
    assert [count.shared.client_id for count in made] == ["used", "new"]
    assert made.of("u", "idle", IDLE_MS) is not idle


def test_there_are_never_more_than_the_bound() -> None:
    """Clients that invent an id for each request take the place of those that were used longest ago."""
    made = counts(client_=1.0)
    for number in range(MAX_COUNTS + 5):
        made.of("u", f"c{number}", float(number))
    assert len(list(made)) <= MAX_COUNTS
    left = {count.shared.client_id for count in made}
    assert "c0" not in left
    assert f"c{MAX_COUNTS + 4}" in left


def test_the_average_wait_is_that_of_the_last_minute() -> None:
    """Waits are averaged; without one lately it is 0."""
    count = counts(user_=1.0).of("alice", "a", 0)
    assert count is not None
    assert count.throttle_time_ms(0) == 0
    count.throttled(100, 0)
    count.throttled(300, 1000)
    assert round(count.throttle_time_ms(1000)) == 200
    assert count.throttle_time_ms(120_000) == 0
