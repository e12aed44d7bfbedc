"""Schemas: responses from dicts, requests to dataclasses, byte for byte like kio."""

import random
import subprocess
import sys
from datetime import timedelta
from uuid import UUID

import pytest

from diamant.protocol.errors import ProtocolError
from diamant.protocol.wire.apis import API_NAMES, SERVED
from diamant.protocol.wire.guard import MAX_DURATION_MS
from diamant.protocol.wire.schema_fields import schema_fields
from diamant.protocol.wire.schemas import (
    decode_request,
    element_encoder,
    encode_around,
    encode_request_fields,
    encode_response_fields,
    request_class,
    response_class,
)
from tests.protocol.random_messages import entity, kio_bytes, kio_read, plain, random_fields, served_versions
from tests.protocol.wire.field_names import unknown_fields

PRODUCE, METADATA, OFFSET_COMMIT, FIND_COORDINATOR, HEARTBEAT, CREATE_TOPICS, INIT_PRODUCER_ID = 0, 3, 8, 10, 12, 19, 22


@pytest.mark.parametrize("api_key", SERVED, ids=API_NAMES.get)
def test_messages_of_every_version_are_kios(api_key: int) -> None:
    """For random requests and responses of every served version, the dict encoder and kio's writer agree.

    Requests pass the guard, and are decoded to the original entity.
    """
    rng = random.Random(api_key)
    for key, version in served_versions():
        if key != api_key:
            continue
        request, response = request_class(key, version), response_class(key, version)
        for _ in range(8):
            fields = random_fields(rng, request)
            message = entity(request, fields)
            body = encode_request_fields(key, version, fields)
            assert body == kio_bytes(message), (version, fields)
            assert decode_request(key, version, memoryview(bytearray(body))) == message, version
            fields = random_fields(rng, response)
            assert encode_response_fields(key, version, fields) == kio_bytes(entity(response, fields)), (
                version,
                fields,
            )


@pytest.mark.parametrize("api_key", SERVED, ids=API_NAMES.get)
def test_left_out_fields_take_the_schemas_default(api_key: int) -> None:
    """A response from an empty dict is valid: every field has its default, or is 0, empty or null."""
    for key, version in served_versions():
        if key == api_key:
            struct = response_class(key, version)
            response = plain(kio_read(struct, encode_response_fields(key, version, {})))
            for field in schema_fields(struct):
                if field.has_default:
                    assert response[field.name] == plain(field.default)
                elif field.struct is None or field.is_array:
                    assert not response[field.name]


def test_one_description_serves_all_versions() -> None:
    """One dict serves FindCoordinator up to v3 with its single coordinator, and from v4 on with its list."""
    fields = {
        "throttle_time_ms": 7,
        "error_code": 0,
        "node_id": 1,
        "host": "h",
        "port": 9092,
        "coordinators": [{"key": "g", "node_id": 1, "host": "h", "port": 9092}],
    }
    for version in range(7):
        body = encode_response_fields(FIND_COORDINATOR, version, fields)
        response = kio_read(response_class(FIND_COORDINATOR, version), body)
        if version >= 1:
            assert response.throttle_time == timedelta(milliseconds=7)
        if version >= 4:
            assert response.coordinators[0].host == "h"
        else:
            assert response.port == 9092


@pytest.mark.parametrize("count", [0, 1, 300])
def test_a_response_in_parts_is_the_same(count: int) -> None:
    """Whether an array's elements are encoded with the response or put between its parts."""
    topics = [{"name": f"topic-{number}", "error_code": number} for number in range(count)]
    for version in (5, 9):
        encode = element_encoder(METADATA, version, "topics")
        parts = encode_around(METADATA, version, "topics", [encode(topic) for topic in topics])
        assert b"".join(parts) == encode_response_fields(METADATA, version, {"topics": topics})


NO_TIME = {"responses": [{"name": "t", "partition_responses": [{"log_append_time_ms": None}]}]}


@pytest.mark.parametrize(
    ("api_key", "version", "fields", "expected"),
    [
        (HEARTBEAT, 1, {"throttle_time_ms": 5}, b"\x00\x00\x00\x05\x00\x00"),
        (HEARTBEAT, 1, {"throttle_time": 5}, b"\x00\x00\x00\x05\x00\x00"),
        (PRODUCE, 3, NO_TIME, b"\xff" * 8),
        # Beyond kio's enumeration.
        (HEARTBEAT, 0, {"error_code": 1234}, (1234).to_bytes(2, "big")),
        (CREATE_TOPICS, 7, {"topics": [{"name": "t", "topic_id": None}]}, bytes(16)),
        (CREATE_TOPICS, 7, {"topics": [{"name": "t", "topic_id": UUID(int=7)}]}, UUID(int=7).bytes),
    ],
)
def test_values_on_the_wire(api_key: int, version: int, fields: dict[str, object], expected: bytes) -> None:
    """Durations are ints of milliseconds, with or without _ms in their name; a time of None is -1, an id of None zero; an
    error code is any int16.
    """
    assert expected in encode_response_fields(api_key, version, fields)


def test_a_wrong_value_names_its_field() -> None:
    """A value of the wrong type fails with a note that says which field it was for."""
    with pytest.raises(Exception, match="required argument") as caught:
        encode_response_fields(FIND_COORDINATOR, 0, {"port": "9092"})
    assert "'port'" in caught.value.__notes__[0]


@pytest.mark.parametrize("version", [0, 4])
def test_null_where_null_is_not_allowed_is_refused(version: int) -> None:
    """None for a string or array that is not nullable is an error, not a broken response."""
    with pytest.raises(TypeError, match="must not be None"):
        encode_response_fields(FIND_COORDINATOR, 0, {"host": None})
    with pytest.raises(TypeError, match="must not be None"):
        encode_response_fields(METADATA, version, {"brokers": None})


def test_unknown_fields_are_found() -> None:
    """Misspelled names are reported with their path, names of any served version are not."""
    fields = {"throttle_time_ms": 0, "topics": [{"name": "a", "nmae": "b", "partitions": [{"leader": 1}]}], "x": 1}
    assert unknown_fields(METADATA, "response", fields) == ["topics.nmae", "topics.partitions.leader", "x"]
    assert unknown_fields(METADATA, "response", {"cluster_id": None, "error_code": 0}) == []


@pytest.mark.parametrize(("api_key", "version"), [(0, 2), (1, 3), (INIT_PRODUCER_ID, 6), (4, 0), (999, 0), (52, 0)])
def test_an_api_that_is_not_served_is_refused(api_key: int, version: int) -> None:
    """Unknown APIs, versions out of range and APIs between brokers have no schema here, even if kio has one."""
    with pytest.raises(ProtocolError, match="is not served"):
        decode_request(api_key, version, b"")


@pytest.mark.parametrize("retention", [(1 << 63) - 1, -(1 << 63)])
def test_a_duration_beyond_timedelta_is_brought_within(retention: int) -> None:
    """OffsetCommit v2 with a retention of Long.MAX_VALUE is decoded as the longest duration passed to kio."""
    body = encode_request_fields(OFFSET_COMMIT, 2, {"group_id": "g", "retention_time_ms": retention})
    longest = timedelta(milliseconds=MAX_DURATION_MS)
    assert decode_request(OFFSET_COMMIT, 2, body).retention_time == (longest if retention > 0 else -longest)


@pytest.mark.parametrize(
    ("api_key", "version", "body", "what"),
    [(HEARTBEAT, 0, b"\0\1\xff" + bytes(6), "HeartbeatRequest v0"), (METADATA, 4, b"\0\0\0\0\2", "MetadataRequest v4")],
    ids=["text that is no UTF-8", "a boolean that is neither 0 nor 1"],
)
def test_a_value_that_kio_refuses_is_a_protocol_error(api_key: int, version: int, body: bytes, what: str) -> None:
    """It is the client's fault, and the error names the request."""
    with pytest.raises(ProtocolError, match=what):
        decode_request(api_key, version, body)


@pytest.mark.slow
def test_schemas_are_imported_on_use() -> None:
    """Kio's modules are imported one (API, version) at a time, since all of them take a second and 50 MB.

    Hypothesis, which kio would import for its tests, is left alone, and can be imported afterwards.
    """
    program = """
import sys
import diamant.protocol.wire.schemas as schemas
assert not [name for name in sys.modules if name.startswith("kio")]
schemas.decode_request(3, 12, bytes((0, 1, 0, 0)))
loaded = [name for name in sys.modules if name.startswith("kio.schema.") and name.endswith((".request", ".response"))]
assert sorted(loaded) == ["kio.schema.metadata.v12.request", "kio.schema.metadata.v12.response"], loaded
assert "kio.serial" in sys.modules and "hypothesis" not in sys.modules
import hypothesis
"""
    subprocess.run([sys.executable, "-c", program], check=True)
