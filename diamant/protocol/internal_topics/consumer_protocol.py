"""The opaque data that consumers in classic groups exchange: ConsumerProtocolSubscription and ConsumerProtocolAssignment.

    subscription   version int16, topics [string], user data bytes?,
                   [1+: owned partitions [topic string, partitions [int32]]], [2+: generation int32], [3+: rack string?]
    assignment     version int16, partitions [topic string, partitions [int32]], user data bytes?

Arrays have an int32 count, strings an int16 length, bytes an int32 length; -1 means null. New versions only add fields at the
end, so like Kafka we read versions above 3 as version 3. Clients may send anything, so all counts are checked against the
remaining bytes, and invalid data raise ProtocolError.

Source: ConsumerProtocol, ConsumerProtocolSubscription.json, ConsumerProtocolAssignment.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import error as StructError
from typing import NamedTuple

from diamant.protocol.errors import ProtocolError
from diamant.protocol.primitives import (
    INT16,
    INT32,
    MAX_ELEMENTS,
    encode_bytes,
    encode_string,
    read_array_length,
    read_string,
)

PROTOCOL_TYPE = "consumer"

HIGHEST_VERSION = 3
FIRST_WITH_OWNED_PARTITIONS = 1
FIRST_WITH_GENERATION = 2
FIRST_WITH_RACK = 3

NO_GENERATION = -1


class Subscription(NamedTuple):
    """The subscription of a consumer. `owned_partitions` maps topics to the partitions that the consumer currently owns."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: Mapping[str, tuple[int, ...]] = {}
    generation_id: int = NO_GENERATION
    rack_id: str | None = None


class Assignment(NamedTuple):
    """The assignment that the group's leader computed for a consumer. `partitions` maps topics to partitions."""

    partitions: Mapping[str, tuple[int, ...]]
    user_data: bytes | None = None


def subscribed_topics(metadata: bytes) -> list[str]:
    """Return the topics of a subscription of any version, ignoring the rest. Raises ProtocolError if they are malformed."""
    try:
        return _read_topics(memoryview(metadata))[0]
    except (IndexError, StructError, UnicodeDecodeError) as error:
        raise _unreadable("subscription", metadata, error) from None


def parse_subscription(metadata: bytes) -> Subscription:
    """Parse a subscription from a member's metadata. Raises ProtocolError if it is malformed."""
    view = memoryview(metadata)
    try:
        topics, position = _read_topics(view)
        version = protocol_version(metadata)
        user_data, position = _read_bytes(view, position)
        owned: dict[str, tuple[int, ...]] = {}
        generation_id = NO_GENERATION
        rack_id = None
        if version >= FIRST_WITH_OWNED_PARTITIONS:
            owned, position = _read_topic_partitions(view, position)
        if version >= FIRST_WITH_GENERATION:
            (generation_id,) = INT32.unpack_from(view, position)
            position += 4
        if version >= FIRST_WITH_RACK:
            rack_id, position = read_string(view, position, len(view))
        return Subscription(tuple(topics), user_data, owned, generation_id, rack_id)
    except (IndexError, StructError, UnicodeDecodeError) as error:
        raise _unreadable("subscription", metadata, error) from None


def parse_assignment(assignment: bytes) -> Assignment:
    """Parse a consumer's assignment. Raises ProtocolError if it is malformed."""
    view = memoryview(assignment)
    try:
        protocol_version(assignment)
        partitions, position = _read_topic_partitions(view, 2)
        user_data, position = _read_bytes(view, position)
        return Assignment(partitions, user_data)
    except (IndexError, StructError, UnicodeDecodeError) as error:
        raise _unreadable("assignment", assignment, error) from None


def protocol_version(data: bytes) -> int:
    """Return the version at the start of a subscription or assignment. Raises ProtocolError if it is missing or negative."""
    if len(data) < 2:
        raise ProtocolError(f"got {len(data)} bytes, expected a 2-byte version first")
    (version,) = INT16.unpack_from(data)
    if version < 0:
        raise ProtocolError(f"version of the consumer protocol is {version}, expected 0 or more")
    return int(version)


def encode_assignment(
    partitions: Mapping[str, Sequence[int]], user_data: bytes | None = None, version: int = HIGHEST_VERSION
) -> bytes:
    """Encode an assignment. All versions have the same fields."""
    return INT16.pack(version) + _topic_partitions(partitions) + encode_bytes(user_data)


def empty_assignment() -> bytes:
    """Return an empty assignment that every consumer can read (version 0)."""
    return _EMPTY_ASSIGNMENT


def _read_topics(view: memoryview) -> tuple[list[str], int]:
    protocol_version(view.tobytes() if len(view) < 2 else bytes(view[:2]))
    count, position = read_array_length(view, 2, len(view))
    topics = []
    for _ in range(count):
        topic, position = _read_text(view, position)
        topics.append(topic)
    return topics, position


def _read_text(view: memoryview, position: int) -> tuple[str, int]:
    text, position = read_string(view, position, len(view))
    if text is None:
        raise ProtocolError(f"topic name is null before position {position}")
    return text, position


def _read_topic_partitions(view: memoryview, position: int) -> tuple[dict[str, tuple[int, ...]], int]:
    count, position = read_array_length(view, position, len(view))
    partitions: dict[str, tuple[int, ...]] = {}
    for _ in range(count):
        topic, position = _read_text(view, position)
        size, position = read_array_length(view, position, len(view))
        stop = position + 4 * size
        if size > MAX_ELEMENTS or stop > len(view):
            raise ProtocolError(f"{size} partitions at position {position}, but {len(view) - position} bytes are left")
        numbers = tuple(number for (number,) in INT32.iter_unpack(view[position:stop]))
        # A topic may occur more than once.
        partitions[topic] = partitions.get(topic, ()) + numbers
        position = stop
    return partitions, position


def _read_bytes(view: memoryview, position: int) -> tuple[bytes | None, int]:
    (size,) = INT32.unpack_from(view, position)
    position += 4
    if size < 0:
        return None, position
    if size > len(view) - position:
        raise ProtocolError(f"{size} bytes at position {position}, but {len(view) - position} bytes are left")
    return view[position : position + size].tobytes(), position + size


def _topic_partitions(partitions: Mapping[str, Sequence[int]]) -> bytes:
    parts = [INT32.pack(len(partitions))]
    for topic, numbers in partitions.items():
        parts += [encode_string(topic), INT32.pack(len(numbers)), *(INT32.pack(number) for number in numbers)]
    return b"".join(parts)


def _unreadable(what: str, data: bytes, error: Exception) -> ProtocolError:
    # The message contains none of the bytes, which are arbitrary client data and must not leak into logs.
    return ProtocolError(f"{len(data)} bytes that are not a consumer {what}: {_reason(error)}")


def _reason(error: Exception) -> str:
    """Return the error's message, without the invalid byte that Python's message about UTF-8 quotes."""
    return f"invalid UTF-8 at byte {error.start} of a string" if isinstance(error, UnicodeDecodeError) else str(error)


_EMPTY_ASSIGNMENT = encode_assignment({}, version=0)
