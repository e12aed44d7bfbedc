"""Responses of replicas that prove nothing: none of them counts as read."""

from __future__ import annotations

from struct import pack

import pytest

from diamant.broker.clusters.fetching import Stretch
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import ErrorCode
from diamant.protocol.primitives import encode_string


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


@pytest.mark.parametrize("deadline_s", [None, 1e12])
def test_a_throttled_response_is_asked_for_again(deadline_s: float | None) -> None:
    """It has no partition, and its time is not the replica's: a replica that lags gets as much longer."""
    one = Stretch("t", 0, 1, 0, 10)
    one._deadline = deadline_s
    assert not one.accept(memoryview(pack(">ihii", 2500, 0, 0, 0)), timeout_s=-1)
    assert (one.problem, one.is_done, one.next_offset) == ("", False, 0)
    assert one._deadline == (None if deadline_s is None else deadline_s + 2.5)
