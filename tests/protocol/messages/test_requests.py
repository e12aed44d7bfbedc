"""Hand-written request decoders return the same values as kio, in every version."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from diamant.broker.handlers.groups.consumer_group_heartbeat import decode as decode_consumer_group_heartbeat
from diamant.protocol.errors import ProtocolError
from diamant.protocol.messages.fetch import decode_fetch_request
from diamant.protocol.messages.heartbeat import decode_heartbeat_request
from diamant.protocol.messages.offset_commit import decode_offset_commit_request, decode_txn_offset_commit_request
from diamant.protocol.messages.produce import decode_produce_request
from diamant.protocol.wire.schemas import decode_request, encode_request_fields, request_class
from tests.effort import examples
from tests.protocol.offset_topics import TOPIC_ID, offsets_by_hand, offsets_by_kio, topic_fields
from tests.protocol.random_messages import random_fields
from tests.protocol.wire.test_fuzz_requests import damage

FETCH = 1
LONGEST_BY_KIO_MS = 8_640_000_000_000_000
"""Largest duration, as in datetime."""


class Case(NamedTuple):
    """A request with a hand-written decoder."""

    key: int
    versions: range
    decode: Callable[[int, memoryview], Any]
    by_hand: Callable[[Any], object]
    """Convert a decoded request to plain values."""
    by_kio: Callable[[Any], object]
    """Convert kio's request to the same values; fields missing in a version get the decoder's defaults."""
    fields: Callable[[random.Random], dict[str, Any]]
    """Return a request to damage."""


def milliseconds(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


DEFAULTS = {
    **dict.fromkeys(
        ("current_leader_epoch", "last_fetched_epoch", "log_start_offset", "session_epoch", "generation_id"), -1
    ),
    **{"session_id": 0, "rack_id": "", "member_id": "", "forgotten_topics_data": ()},
}
"""The decoder's value of a field that a version does not have; None for others."""


def picked(message: Any, *names: str) -> tuple[Any, ...]:
    """Return some fields of kio's message."""
    return tuple(getattr(message, name, DEFAULTS.get(name)) for name in names)


def produce_values(request: Any) -> object:
    topics = [
        (*picked(topic, "name", "topic_id"), [picked(one, "index", "records") for one in topic.partition_data])
        for topic in request.topic_data
    ]
    return request.transactional_id, request.acks, milliseconds(request.timeout), topics


def fetch_values(request: Any) -> object:
    names = ("partition", "current_leader_epoch", "fetch_offset", "last_fetched_epoch", "log_start_offset")
    topics = [
        (*picked(topic, "topic", "topic_id"), [picked(one, *names, "partition_max_bytes") for one in topic.partitions])
        for topic in request.topics
    ]
    (forgotten,) = picked(request, "forgotten_topics_data")
    return (
        milliseconds(request.max_wait),
        *picked(request, "min_bytes", "max_bytes", "isolation_level", "session_id", "session_epoch"),
        topics,
        [(*picked(topic, "topic", "topic_id"), list(topic.partitions)) for topic in forgotten],
        *picked(request, "rack_id"),
        getattr(request, "replica_state", request).replica_id,
    )


def offset_commit_values(request: Any) -> object:
    return (
        *picked(request, "group_id", "generation_id_or_member_epoch", "member_id", "group_instance_id"),
        milliseconds(request.retention_time) if hasattr(request, "retention_time") else -1,
        offsets_by_kio(request.topics),
    )


def offset_commit_by_hand(request: Any) -> object:
    retention_ms = max(min(request.retention_time_ms, LONGEST_BY_KIO_MS), -LONGEST_BY_KIO_MS)
    return (*request[:4], retention_ms, offsets_by_hand(request.topics))


def txn_offset_commit_values(request: Any) -> object:
    names = ("transactional_id", "group_id", "producer_id", "producer_epoch", "generation_id", "member_id")
    return (*picked(request, *names, "group_instance_id"), offsets_by_kio(request.topics))


def heartbeat_values(request: Any) -> object:
    return picked(request, "group_id", "generation_id", "member_id", "group_instance_id")


def consumer_group_heartbeat_values(request: Any) -> object:
    names, owned = request.subscribed_topic_names, request.topic_partitions
    return (
        *picked(request, "group_id", "member_id", "member_epoch", "instance_id", "rack_id"),
        milliseconds(request.rebalance_timeout),
        None if names is None else list(names),
        *picked(request, "subscribed_topic_regex", "server_assignor"),
        None if owned is None else [(entry.topic_id, entry.partitions) for entry in owned],
    )


def produce_fields(_rng: random.Random) -> dict[str, Any]:
    topic = {"name": "t", "topic_id": TOPIC_ID, "partition_data": [{"index": 2, "records": b"batch"}]}
    return {"transactional_id": "txn", "topic_data": [topic]}


def fetch_fields(rng: random.Random) -> dict[str, Any]:
    """Return a Fetch request, sometimes that of a session without changes."""
    if rng.random() < 0.2:
        return {}
    partitions = [{"partition": 3, "partition_max_bytes": 99}]
    return {
        "topics": [{"topic": "t", "topic_id": TOPIC_ID, "partitions": partitions}],
        "forgotten_topics_data": [{"topic": "u", "topic_id": TOPIC_ID, "partitions": [1, 2]}],
        "rack_id": "r",
    }


def commit_fields(rng: random.Random) -> dict[str, Any]:
    """Return an OffsetCommit or TxnOffsetCommit request of two topics, with or without metadata per row."""
    texts = rng.choices(("", "", "", None, "m"), k=rng.randrange(4))
    topics = [topic_fields(texts), topic_fields(texts)]
    return {"transactional_id": "x", "group_id": "g", "producer_id": 7, "member_id": "m", "topics": topics}


def heartbeat_fields(_rng: random.Random) -> dict[str, Any]:
    """Return a request of either heartbeat."""
    return {"group_id": "group", "member_id": "member", "rebalance_timeout_ms": -1, "group_instance_id": "instance"}


CASES = {
    "Produce": Case(
        0, range(3, 14), decode_produce_request,
        lambda request: (*request[:3], [(*topic[:2], [tuple(p) for p in topic.partitions]) for topic in request.topics]),
        produce_values, produce_fields,
    ),
    "Fetch": Case(
        FETCH, range(4, 19), decode_fetch_request,
        lambda request: (
            *request[:6],
            [(*topic[:2], [tuple(partition) for partition in topic.partitions]) for topic in request.topics],
            [(*topic[:2], list(topic.partitions)) for topic in request.forgotten_topics],
            *request[8:],
        ),
        fetch_values, fetch_fields,
    ),
    "OffsetCommit": Case(
        8, range(2, 11), decode_offset_commit_request, offset_commit_by_hand, offset_commit_values, commit_fields
    ),
    "Heartbeat": Case(12, range(5), decode_heartbeat_request, tuple, heartbeat_values, heartbeat_fields),
    "TxnOffsetCommit": Case(
        28, range(6), decode_txn_offset_commit_request,
        lambda request: (*request[:-1], offsets_by_hand(request.topics)),
        txn_offset_commit_values, commit_fields,
    ),
    "ConsumerGroupHeartbeat": Case(
        68, range(2), decode_consumer_group_heartbeat, tuple, consumer_group_heartbeat_values, heartbeat_fields
    ),
}  # fmt: skip
in_every_version = pytest.mark.parametrize(
    ("case", "version"),
    [pytest.param(case, version, id=f"{name}-{version}") for name, case in CASES.items() for version in case.versions],
)


def by_hand(case: Case, version: int, body: bytes) -> object:
    return case.by_hand(case.decode(version, memoryview(bytearray(body))))


def by_kio(case: Case, version: int, body: bytes) -> object:
    return case.by_kio(decode_request(case.key, version, body))


@in_every_version
def test_requests_are_read_as_kio_reads_them(case: Case, version: int) -> None:
    """Random requests, with tagged fields, yield the same values, with or without extra bytes at the end, as in Kafka."""
    struct = request_class(case.key, version)
    for seed in range(50):
        rng = random.Random(seed)
        for fields in (random_fields(rng, struct, max_elements=4), case.fields(rng)):
            body = encode_request_fields(case.key, version, fields)
            expected = by_kio(case, version, body)
            assert by_hand(case, version, body) == expected, f"seed {seed}"
            assert by_hand(case, version, body + b"\0ab") == expected, f"seed {seed}"


@in_every_version
def test_damaged_requests_are_read_as_kio_reads_them(case: Case, version: int) -> None:
    """Damaged requests that the guard or kio refuses raise ProtocolError; those accepted have the same values."""
    rng = random.Random(version)
    whole = encode_request_fields(case.key, version, case.fields(rng))
    for size in range(len(whole)):
        with pytest.raises(ProtocolError):
            case.decode(version, memoryview(whole[:size]))
    accepted = 0
    for _ in range(examples(300)):
        body = damage(rng, encode_request_fields(case.key, version, case.fields(rng)))
        try:
            expected = by_kio(case, version, body)
        except ProtocolError:
            # The decoder does not parse unused tagged fields of Fetch.
            if case.key != FETCH or version < 12:
                with pytest.raises(ProtocolError):
                    case.decode(version, memoryview(body))
            continue
        accepted += 1
        assert by_hand(case, version, body) == expected, body.hex()
    assert accepted


HOSTILE_LENGTHS = {
    "Produce": {
        "topics: 2^31-1": (3, b"\xff\xff\x00\x01\x00\x00\x00\x00\x7f\xff\xff\xff"),
        "topics: null": (3, b"\xff\xff\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff"),
        "transactional id: length -2": (3, b"\xff\xfe\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00"),
        "name: null": (3, b"\xff\xff\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\xff\xff\x00\x00\x00\x00"),
        "records: length -2": (
            3,
            b"\xff\xff\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01\x00\x00\x00\x00\xff\xff\xff\xfe",
        ),
        "name: no UTF-8": (3, b"\xff\xff\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x01\xff\x00\x00\x00\x00"),
        "topics: 2^35-1": (9, b"\x00\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff\x7f"),
        "topics: 2^32-2": (9, b"\x00\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff\x0f"),
        "topics: endless varint": (9, b"\x00\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff"),
        "topics: null, compact": (9, b"\x00\x00\x01\x00\x00\x00\x00\x00\x00"),
        "name: null, compact": (9, b"\x00\x00\x01\x00\x00\x00\x00\x02\x00\x01\x00\x00"),
        "records: 2^32-2": (
            9,
            b"\x00\x00\x01\x00\x00\x00\x00\x02\x02t\x02\x00\x00\x00\x00\xff\xff\xff\xff\x0f\x00\x00\x00",
        ),
        "tag: 2^32-1 bytes": (9, b"\x00\x00\x01\x00\x00\x00\x00\x01\x01\x00\xff\xff\xff\xff\x0f"),
    },
    "Fetch": {
        "topics: 2^31-1": (4, bytes(17) + b"\x7f\xff\xff\xff"),
        "topics: null": (4, bytes(17) + b"\xff\xff\xff\xff"),
        "name: null": (4, bytes(17) + b"\x00\x00\x00\x01\xff\xff\x00\x00\x00\x00"),
        "topics: 2^35-1": (12, bytes(25) + b"\xff\xff\xff\xff\x7f"),
        "topics: 2^32-2": (12, bytes(25) + b"\xff\xff\xff\xff\x0f"),
        "topics: null, compact": (12, bytes(25) + b"\x00"),
        "name: null, compact": (12, bytes(25) + b"\x02\x00\x01\x00\x01\x01\x00"),
        "forgotten partitions: 2^32-2": (12, bytes(25) + b"\x01\x02\x02t\xff\xff\xff\xff\x0f"),
        "rack: null": (12, bytes(25) + b"\x01\x01\x00\x00"),
        "tag: 2^32-1 bytes": (15, bytes(21) + b"\x01\x01\x01\x01\x01\xff\xff\xff\xff\x0f"),
        "replica state: 2 bytes": (15, bytes(21) + b"\x01\x01\x01\x01\x01\x02ab"),
    },
    "OffsetCommit": {
        "topics: 2^31-1": (2, b"\0\1g\0\0\0\1\0\1m" + b"\xff" * 8 + b"\x7f\xff\xff\xff"),
        "topics: null": (2, b"\0\1g\0\0\0\1\0\1m" + b"\xff" * 12),
        "topics: 2^35-1": (8, b"\2g\0\0\0\1\2m\0\xff\xff\xff\xff\x7f"),
        "group: null": (2, b"\xff\xff\0\0\0\1\0\1m" + b"\xff" * 8 + b"\0\0\0\0"),
        "member: null": (2, b"\0\1g\0\0\0\1\xff\xff" + b"\xff" * 8 + b"\0\0\0\0"),
    },
    "Heartbeat": {"group: null": (4, b"\0\0\0\0\1\2m\0\0"), "member: null": (4, b"\2g\0\0\0\1\0\0\0")},
}


@pytest.mark.parametrize(
    ("case", "version", "body"),
    [
        pytest.param(CASES[name], *row, id=f"{name}, {what}")
        for name, rows in HOSTILE_LENGTHS.items()
        for what, row in rows.items()
    ],
)
def test_hostile_lengths_are_refused(case: Case, version: int, body: bytes) -> None:
    """Impossible counts and lengths, forbidden nulls and invalid text raise ProtocolError."""
    with pytest.raises(ProtocolError):
        case.decode(version, memoryview(body))
