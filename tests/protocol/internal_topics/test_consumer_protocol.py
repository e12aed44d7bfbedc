"""The consumer protocol: bytes equal kio's, and other data are read within bounds."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diamant.protocol.errors import ProtocolError
from diamant.protocol.internal_topics.consumer_protocol import (
    Assignment,
    Subscription,
    empty_assignment,
    encode_assignment,
    parse_assignment,
    parse_subscription,
    protocol_version,
    subscribed_topics,
)
from tests.protocol.internal_topics.subscriptions import encode_subscription
from tests.protocol.random_messages import kio_bytes

NAMES = st.text("abc.é", min_size=0, max_size=5)
PARTITIONS = st.dictionaries(NAMES, st.lists(st.integers(0, 1 << 30), max_size=3).map(tuple), max_size=3)
SUBSCRIPTIONS = st.builds(
    Subscription,
    st.lists(NAMES, max_size=4).map(tuple),
    st.none() | st.binary(max_size=9),
    PARTITIONS,
    st.integers(-1, 100),
    st.none() | NAMES,
)


def encoded(name: str, version: int, **fields: Any) -> bytes:
    """Encode a message of the consumer protocol with kio."""
    module = import_module(f"kio.schema.consumer_protocol_{name}.v{version}.data")
    for key in fields.keys() & {"owned_partitions", "assigned_partitions"}:
        fields[key] = tuple(
            module.TopicPartition(topic=topic, partitions=of_it) for topic, of_it in fields[key].items()
        )
    return version.to_bytes(2, "big") + kio_bytes(getattr(module, f"ConsumerProtocol{name.title()}")(**fields))


@pytest.mark.parametrize("version", range(4))
def test_subscription_as_others_write_it(version: int) -> None:
    """A subscription of each version is read, and written, as kio writes it: each version adds a field."""
    expected = Subscription(*(("a", "b"), b"u", {"a": (0, 2), "b": ()}, 7, "r")[: 2 + version])
    data = encoded("subscription", version, **dict([*expected._asdict().items()][: 2 + version]))
    assert parse_subscription(data) == expected
    assert encode_subscription(expected, version) == data
    assert subscribed_topics(data) == ["a", "b"]
    assert protocol_version(data) == version


@pytest.mark.parametrize("version", range(4))
def test_assignment_as_others_write_it(version: int) -> None:
    """An assignment of each version is read, and written, as kio writes it."""
    partitions = {"a": (1,), "b": (0, 2)}
    data = encoded("assignment", version, assigned_partitions=partitions, user_data=None)
    assert parse_assignment(data) == Assignment(partitions)
    assert encode_assignment(partitions, version=version) == data


def test_empty_assignment() -> None:
    """The empty assignment has no partitions."""
    assert empty_assignment() == b"\x00\x00" + b"\x00\x00\x00\x00" + b"\xff\xff\xff\xff"
    assert parse_assignment(empty_assignment()) == Assignment({})


def test_a_topic_in_pieces() -> None:
    """A topic that occurs twice has the partitions of both occurrences."""
    piece = b"\x00\x01t\x00\x00\x00\x01"
    data = b"\x00\x00\x00\x00\x00\x02" + piece + b"\x00\x00\x00\x00" + piece + b"\x00\x00\x00\x05" + b"\xff\xff\xff\xff"
    assert parse_assignment(data).partitions == {"t": (0, 5)}


def test_versions_to_come() -> None:
    """An unknown higher version is read as the highest known one, ignoring further bytes."""
    data = encode_subscription(Subscription(("a",), None, {"a": (1,)}, 3, "r"))
    assert parse_subscription(b"\x00\x09" + data[2:] + b"more") == parse_subscription(data)


@given(SUBSCRIPTIONS)
def test_subscriptions_come_back(subscription: Subscription) -> None:
    """Subscriptions survive encoding and parsing."""
    assert parse_subscription(encode_subscription(subscription)) == subscription


def test_every_proper_prefix_is_refused() -> None:
    """Every proper prefix is refused, but topics can be read once they are complete."""
    data = encode_subscription(Subscription(("topic",), b"u", {"topic": (1, 2)}, 1, "rack"))
    for size in range(len(data)):
        with pytest.raises(ProtocolError):
            parse_subscription(data[:size])
    assert subscribed_topics(data[:13]) == ["topic"]
    assignment = encode_assignment({"topic": (1, 2)}, b"u")
    for size in range(len(assignment)):
        with pytest.raises(ProtocolError):
            parse_assignment(assignment[:size])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\xff\xff\x00\x00\x00\x00",
        b"\x00\x00\x7f\xff\xff\xff",
        b"\x00\x00\xff\xff\xff\xff",
        b"\x00\x00\x00\x00\x00\x01\xff\xff",
        b"\x00\x00\x00\x00\x00\x01\x00\x02\xff\xfe",
    ],
)
def test_counts_beyond_the_data_and_invalid_text_are_refused(data: bytes) -> None:
    """Counts beyond the data, null topics and invalid text raise ProtocolError."""
    with pytest.raises(ProtocolError):
        subscribed_topics(data)
    with pytest.raises(ProtocolError):
        parse_subscription(data)


@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    """Whatever the bytes, there is a value or a ProtocolError."""
    for parse in (subscribed_topics, parse_subscription, parse_assignment):
        try:
            parse(data)
        except ProtocolError:
            pass


@pytest.mark.parametrize("parse", [parse_subscription, parse_assignment, subscribed_topics])
def test_errors_tell_nothing_of_what_members_put_there(parse: Callable[[bytes], object]) -> None:
    """Error texts contain only lengths and positions: they are logged, and the data belong to members."""
    secret = b"customer 42"
    for data in (
        b"\0\1\0\0\0\1\0\x0c" + secret + b"\xff",
        b"\0\1\0\0\0\1\0\x30" + secret,
        b"\0\1\x7f\xff\xff\xff" + secret,
        b"\0\1\0\0\0\2\0\x0b" + secret + b"\0",
    ):
        with pytest.raises(ProtocolError) as raised:
            parse(data)
        text = str(raised.value)
        assert not [one for one in ("customer", secret.hex()[:8], "0xff") if one in text]
