"""Responses under quotas: the throttle time, and the field that carries it."""

from __future__ import annotations

from typing import Any

import pytest

from diamant.broker.security.quotas.quotas import Quotas
from diamant.broker.security.quotas.rate import RateWindows
from diamant.broker.security.quotas.rate_quota import NETWORK_S
from diamant.protocol.messages.produce import ProducePartitionResult, ProduceTopicResult, encode_produce_response
from diamant.protocol.wire.message_fields import decode_response_fields
from diamant.protocol.wire.schemas import encode_response_fields
from diamant.protocol.wire.server_connection import Request
from tests.broker.security.quotas.stored import entity

PRODUCE, METADATA, HEARTBEAT, API_VERSIONS, WRITE_TXN_MARKERS = 0, 3, 12, 18, 27


class Time:
    """A clock that a test moves, in seconds."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def quotas(time: Time, **limits: float) -> Quotas:
    """Quotas with limits for user alice."""
    made = Quotas(RateWindows(), RateWindows(), time)
    made.set_limits({entity("user_alice"): limits})
    return made


def request(key: int, version: int, size: int = 0) -> Request:
    """Return a request of `size` bytes behind its header."""
    return Request(key, version, 1, "app", memoryview(bytearray(size)))


def produce_answer(version: int) -> bytes:
    """Return the answer to a Produce."""
    part = ProducePartitionResult(0, 0, 0, -1, 0)
    return encode_produce_response(version, [ProduceTopicResult("t", None, [part])])


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_produce_beyond_the_quota_waits_in_proportion_to_the_excess(version: int) -> None:
    """Twice what the quota allows in all windows waits for as long as the windows last; the response says so."""
    time = Time()
    made = quotas(time, producer_byte_rate=1000)
    body, waits_ms = made.answer("alice", request(PRODUCE, version, 9_900), produce_answer(version), 0.0)
    assert (body, waits_ms) == (produce_answer(version), 0)
    body, waits_ms = made.answer("alice", request(PRODUCE, version, 10_000), produce_answer(version), 0.0)
    assert waits_ms == pytest.approx(10_000, rel=0.01)
    answer = decode_response_fields(PRODUCE, version, as_bytes(body))
    assert answer["throttle_time_ms"] == waits_ms
    assert answer["responses"][0]["partition_responses"][0]["base_offset"] == 0


def test_without_an_answer_the_connection_waits_all_the_same() -> None:
    """The bytes of a Produce with acks=0 are counted; its time is not."""
    made = quotas(Time(), producer_byte_rate=10, request_percentage=0.1)
    body, waits_ms = made.answer("alice", request(PRODUCE, 9, 1_000), None, 1.0)
    assert body is None
    assert waits_ms > 1000, "longer than what request_percentage asks for at most"


@pytest.mark.parametrize(("key", "version"), [(METADATA, 3), (METADATA, 12), (HEARTBEAT, 4), (API_VERSIONS, 4)])
def test_time_beyond_the_limit_makes_every_answer_wait(key: int, version: int) -> None:
    """A limit on the thread's time applies to all APIs, and no wait exceeds one window."""
    made = quotas(Time(), request_percentage=10)
    plain = encode_response_fields(key, version, EMPTY[key])
    body, waits_ms = made.answer("alice", request(key, version), plain, 5.0)
    assert waits_ms == 1000
    answer = decode_response_fields(key, version, as_bytes(body))
    assert answer == {**decode_response_fields(key, version, plain), "throttle_time_ms": 1000}


def test_a_version_without_the_field_waits_untold() -> None:
    """Heartbeat v0 has no field for the time: the response is unchanged, and the connection waits."""
    made = quotas(Time(), request_percentage=10)
    plain = encode_response_fields(HEARTBEAT, 0, {"error_code": 0})
    assert made.answer("alice", request(HEARTBEAT, 0), plain, 5.0) == (plain, 1000)


def test_each_request_is_charged_for_the_network() -> None:
    """Requests without handling time still use the thread, so enough of them exceed the limit."""
    made = quotas(Time(), request_percentage=1)
    plain = encode_response_fields(HEARTBEAT, 4, EMPTY[HEARTBEAT])
    waits = [made.answer("alice", request(HEARTBEAT, 4), plain, 0.0)[1] for _ in range(6000)]
    assert waits.index(next(filter(None, waits))) == pytest.approx(10 * 0.01 / NETWORK_S, rel=0.01)


def test_the_longer_wait_counts() -> None:
    """A Produce that exceeds both limits waits once, for the longer time."""
    made = quotas(Time(), producer_byte_rate=100, request_percentage=1)
    _, waits_ms = made.answer("alice", request(PRODUCE, 9, 10_000), produce_answer(9), 5.0)
    assert waits_ms > 1000
    (count,) = made.produce.counts
    (of_time,) = made.request.counts
    now_ms = made.now_s() * 1000
    assert round(count.throttle_time_ms(now_ms)) == waits_ms
    assert of_time.throttle_time_ms(now_ms) == 0


def test_others_and_what_brokers_ask_do_not_wait() -> None:
    """A user without a limit, and requests between brokers, are not throttled."""
    made = quotas(Time(), request_percentage=1, producer_byte_rate=1)
    assert made.answer("bob", request(PRODUCE, 9, 1 << 20), b"body", 9.0) == (b"body", 0)
    assert made.answer("alice", request(WRITE_TXN_MARKERS, 1), b"body", 9.0) == (b"body", 0)


def test_a_fetch_may_read_what_the_windows_hold_and_no_more() -> None:
    """A larger fetch could never be answered with records."""
    fetch = quotas(Time(), consumer_byte_rate=1000).throttle("alice", "app")
    assert fetch is not None
    assert fetch.max_bytes(1 << 20) == 10_000
    assert fetch.max_bytes(500) == 500


def test_a_throttled_fetch_is_not_charged() -> None:
    """The response is empty, so no bytes are counted."""
    time = Time()
    made = quotas(time, consumer_byte_rate=1000)
    waits = []
    for size in (9_000, 5_000, 5_000):
        fetch = made.throttle("alice", "app")
        assert fetch is not None
        waits.append(fetch.throttle_time_ms(size))
    assert waits == [0, 4000, 4000]


def test_a_fetch_is_charged_for_the_time_before_it_waits() -> None:
    """A long poll takes no time of the thread while it waits."""
    time = Time()
    made = quotas(time, request_percentage=1)
    fetch = made.throttle("alice", "app")
    assert fetch is not None
    time.now_s += 0.01
    fetch.wait()
    time.now_s += 30
    assert fetch.throttle_time_ms(0) == 0
    assert [count.meter.per_second(time.now_s * 1000) for count in made.request.counts] == [
        pytest.approx(0.1, rel=0.01)
    ]


def test_without_limits_there_is_nothing_to_ask() -> None:
    """Quotas without limits are false, and fetches skip them."""
    made = quotas(Time(), consumer_byte_rate=1000)
    assert made
    made.set_limits({})
    assert not made
    assert made.throttle("alice", "app") is None


def as_bytes(body: Any) -> bytes:
    """Return a body in one piece."""
    return bytes(body) if isinstance(body, bytes | bytearray | memoryview) else b"".join(body)


EMPTY: dict[int, dict[str, Any]] = {
    METADATA: {"brokers": [], "cluster_id": "c", "controller_id": 1, "topics": []},
    HEARTBEAT: {"error_code": 0},
    API_VERSIONS: {"error_code": 0, "api_keys": [], "finalized_features_epoch": 7},
}
