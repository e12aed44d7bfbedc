"""Responses of replicas: those that prove nothing do not count as read, and of the others nothing is left out or read twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import pack
from typing import Any, cast

import pytest

from diamant.broker.client.kafka_client import KafkaClient
from diamant.broker.client.kafka_connection import ConnectionFailed
from diamant.broker.clusters.fetching import Stretch, read_stretches
from diamant.broker.clusters.searching import KeySearch, replica_read
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import ErrorCode
from diamant.protocol.primitives import encode_string
from tests.builder import make_batch, make_log

KEY = b"customer-4711-of-the-shop"


def response(records: bytes = b"", *, preferred: int = -1, code: int = 0, high_watermark: int = 10) -> memoryview:
    """Return a response to Fetch, version 11, about one partition."""
    partition = pack(">ihqqqii", 0, code, high_watermark, high_watermark, 0, -1, preferred)
    head = pack(">ihii", 0, 0, 0, 1) + encode_string("t") + pack(">i", 1)
    return memoryview(head + partition + pack(">i", len(records)) + records)


def accepted(body: memoryview) -> Stretch:
    """Return a replica that is to be read up to offset 10, after this response and without patience."""
    one = Stretch("t", 0, 1, 0, 10)
    one.accept(body, timeout_s=-1)
    one.accept(body, timeout_s=-1)
    return one


def test_whole_batches_are_read() -> None:
    """The stretch is done once its batches reach the end."""
    found = accepted(response(bytes(build_batch([Record(9, 1, b"k", b"v")], base_offset=9))))
    assert (found.next_offset, found.is_done, found.problem) == (10, True, "")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (response(preferred=2), "REPLICA_NOT_AVAILABLE"),
        (response(bytes(build_batch([Record(9, 1, b"k", b"v")], base_offset=9))[:-1]), "no whole batch"),
        (response(code=ErrorCode.TOPIC_AUTHORIZATION_FAILED), "TOPIC_AUTHORIZATION_FAILED"),
        (response(high_watermark=9), "high watermark is 9"),
    ],
    ids=["refers to another replica", "cut batch", "refused", "behind"],
)
def test_a_response_without_what_was_asked_is_a_problem(body: memoryview, problem: str) -> None:
    """A leader that refers to another replica, a cut batch, a refusal or a replica that is behind has not been read."""
    found = accepted(body)
    assert problem in found.problem
    assert found.next_offset < 10


def test_a_batch_that_ends_before_the_offset_that_was_asked_for_is_a_problem() -> None:
    """The last offset of its header is damaged: asked for again, the same batch would come for ever."""
    damaged = bytearray(build_batch([Record(4, 1, b"k", b"v"), Record(9, 1, b"k", b"v")], base_offset=4))
    damaged[23:27] = pack(">i", 0)
    one, _ = read(Broker([response(bytes(damaged))] * 2), 10)
    assert (one.next_offset, one.is_done) == (5, True)
    assert "its batches end before the requested offset 5" in one.problem


@pytest.mark.parametrize("deadline_s", [None, 1e12])
def test_a_throttled_response_is_asked_for_again(deadline_s: float | None) -> None:
    """It has no partition, and its time is not the replica's: a replica that lags gets as much longer."""
    one = Stretch("t", 0, 1, 0, 10)
    one._deadline = deadline_s
    assert not one.accept(memoryview(pack(">ihii", 2500, 0, 0, 0)), timeout_s=-1)
    assert (one.problem, one.is_done, one.next_offset) == ("", False, 0)
    assert one._deadline == (None if deadline_s is None else deadline_s + 2.5)


class Broker:
    """A client, and its connection to a broker: it answers each fetch with the next of some responses."""

    timeout_s = 1.0

    piece_bytes = 1 << 20
    breaks_at = -1
    """The connection is lost once, after this piece of a response."""

    def __init__(self, answers: Sequence[memoryview | None], *, fails_at: int = -1) -> None:
        """None: the connection is lost; so is it at the request `fails_at`."""
        self.answers = list(answers)
        self.asked: list[int] = []
        self.forgotten = 0
        self.fails_at = fails_at

    def broker(self, _: int) -> Broker:
        return self

    def forget(self, _: int) -> None:
        self.forgotten += 1

    def send(self, _api_key: int, _version: int, fields: dict[str, Any]) -> None:
        self.asked.append(fields["topics"][0]["partitions"][0]["fetch_offset"])
        if len(self.asked) - 1 == self.fails_at:
            raise ConnectionFailed("broken pipe")

    def arriving(
        self, _api_key: int, _version: int, memory: memoryview, _piece_bytes: int
    ) -> Iterator[tuple[memoryview, bool]]:
        """Each response arrives in pieces of `piece_bytes`."""
        answer = self.answers.pop(0)
        if answer is None:
            raise ConnectionFailed("reset")
        for at in range(self.piece_bytes, len(answer), self.piece_bytes):
            memory[:at] = answer[:at]
            yield memory[:at], False
            if self.breaks_at == at:
                self.breaks_at = -1
                raise ConnectionFailed("reset")
        memory[: len(answer)] = answer
        yield memory[: len(answer)], True


def read(broker: Broker, end: int) -> tuple[Stretch, list[int]]:
    """Read a replica; return it, and the first offsets of the batches that were handed over."""
    one, found = Stretch("t", 0, 1, 0, end), list[int]()

    def take(_: Stretch, data: memoryview) -> None:
        found.extend(header.base_offset for _, header in iter_headers(data))

    read_stretches(cast("KafkaClient", broker), [one], take)
    return one, found


LOG = bytes(make_log(*[("a=1", "b=2")] * 5))
"""Five batches of two records."""
SIZE = len(LOG) // 5


HEAD = len(response())


@pytest.mark.parametrize("piece_bytes", [HEAD, HEAD + 1, HEAD + SIZE - 1, HEAD + SIZE, HEAD + 2 * SIZE + 1])
def test_batches_are_taken_as_they_arrive(piece_bytes: int) -> None:
    """Each once it is whole, wherever a response is cut, and in order. One response is read within one segment."""
    broker = Broker([response(LOG)])
    broker.piece_bytes = piece_bytes
    one, found = read(broker, 10)
    assert found == [0, 2, 4, 6, 8]
    assert (one.bytes, one.segments, one.is_done, one.problem) == (len(LOG), [0], True, "")


def test_batches_taken_before_the_connection_breaks_are_not_read_again() -> None:
    """The next request begins after them. What it brings does not begin a segment, for all that is known."""
    broker = Broker([response(LOG), response(LOG[2 * SIZE :])])
    broker.piece_bytes, broker.breaks_at = HEAD + 2 * SIZE, HEAD + 2 * SIZE
    one, found = read(broker, 10)
    assert (broker.asked, found) == ([0, 4], [0, 2, 4, 6, 8])
    assert (one.bytes, one.segments, one.problem) == (len(LOG), [0], "")


def test_what_fails_while_batches_are_taken_ends_the_reading() -> None:
    """It reaches the caller, and the connection is closed, on which responses are still to come."""

    def take(_one: Stretch, _data: memoryview) -> None:
        raise ValueError("no")

    broker = Broker([response(LOG[at : at + SIZE]) for at in range(0, len(LOG), SIZE)])
    with pytest.raises(ValueError, match="no"):
        read_stretches(cast("KafkaClient", broker), [Stretch("t", 0, 1, 0, 10)], take)
    assert (len(broker.answers), broker.forgotten) == (4, 1)


def test_a_response_that_is_lost_is_asked_for_again() -> None:
    """Nothing is left out, and nothing is handed over twice."""
    broker = Broker([response(LOG[:SIZE]), None, response(LOG[SIZE:])])
    one, found = read(broker, 10)
    assert (broker.asked, broker.forgotten) == ([0, 2, 2], 1)
    assert found == [0, 2, 4, 6, 8]
    assert (one.next_offset, one.bytes, one.problem) == (10, len(LOG), "")


def test_a_request_that_cannot_be_sent_does_not_lose_the_response_before_it() -> None:
    """The batches that were received are handed over, though the broker has closed the connection since."""
    first, second = list(iter_headers(LOG))[1:3]
    broker = Broker([response(LOG[: second[0]]), response(LOG[second[0] :])], fails_at=1)
    one, found = read(broker, 10)
    assert first[1].base_offset in found
    assert (found, broker.asked, one.problem) == ([0, 2, 4, 6, 8], [0, 4, 4], "")


@pytest.mark.parametrize("codec", range(5))
def test_the_key_is_found_with_any_codec(codec: int) -> None:
    """A record of the key, and its bytes in another value."""
    records = [Record(1, 1, KEY, b"{}"), Record(2, 1, b"other", b"of " + KEY)]
    log = make_batch() + build_batch(records, base_offset=1, codec=codec) + make_batch(base_offset=3)
    one, search = Stretch("t", 0, 1, 0, 4), KeySearch(KEY, ["t"], b"secret")
    (found,) = search.read(cast("KafkaClient", Broker([response(bytes(log), high_watermark=4)])), [one])
    result = replica_read(one, found, 4, is_leader=True, is_in_sync=True)
    assert [value.offset for value in result.values] == [1]
    assert (result.same_bytes, result.batches, result.bytes, result.problem) == ((2,), 3, len(log), "")
    assert result.planted == result.planted_found > 0
