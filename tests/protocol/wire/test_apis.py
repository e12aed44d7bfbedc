"""The table of APIs agrees with kio's schemas and with clients' expectations."""

import pytest

from diamant.protocol.wire.apis import (
    ADVERTISED,
    API_NAMES,
    API_VERSIONS,
    PRODUCE,
    SERVED,
    ApiRange,
    is_flexible,
    is_served,
    request_header_version,
    response_header_version,
)
from diamant.protocol.wire.schema_fields import is_flexible_struct, message_class
from tests.effort import some
from tests.protocol.random_messages import served_versions


def test_names_are_kios() -> None:
    """The table names every API that kio has a schema for, under the same key."""
    from kio.schema.index import api_key_map

    assert {key: name.replace("_", "") for key, name in api_key_map.items()} == {
        key: name.lower() for key, name in API_NAMES.items()
    }


def test_every_served_version_has_schemas() -> None:
    """Requests and responses of each served version have a schema, flexible and with the header version of the table."""
    for key, version in some([*served_versions()], every=4):
        for kind, header in (("request", request_header_version), ("response", response_header_version)):
            message = message_class(key, version, kind)
            assert is_flexible_struct(message) == is_flexible(key, version), (key, version, kind)
            expected = f"{kind}_header.v{header(key, version)}"
            assert expected in message.__header_schema__.__module__  # type: ignore[attr-defined]


def test_api_versions_has_the_oldest_header() -> None:
    """A client that asks for versions knows none yet: the response always has header 0."""
    assert {response_header_version(API_VERSIONS, version) for version in range(9)} == {0}


def test_produce_and_join_group_name_low_versions() -> None:
    """Produce 0 is advertised, since librdkafka before 2.11.1 otherwise disables compression; Produce 0-2 is still refused."""
    assert ADVERTISED[PRODUCE] == ApiRange(0, 13)
    assert SERVED[PRODUCE] == ApiRange(3, 13)
    assert not is_served(PRODUCE, 2)
    assert ADVERTISED[11].min == 0


@pytest.mark.parametrize("key", [4, 5, 6, 7, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 71, 72, 73, 80, 81, 93])
def test_apis_between_brokers_are_not_served(key: int) -> None:
    """Controller and inter-broker APIs, removed ones and telemetry are neither advertised nor served."""
    assert key not in ADVERTISED
    assert not is_served(key, 0)


def test_unstable_versions_are_not_served() -> None:
    """InitProducerId 6 (two-phase commit) has a schema, but Kafka does not offer it yet."""
    assert is_served(22, 5)
    assert not is_served(22, 6)


def test_future_versions_count_as_flexible() -> None:
    """A version beyond the known ones has the encoding of the last known one; unknown keys are not flexible."""
    assert is_flexible(API_VERSIONS, 99)
    assert not is_flexible(17, 99)
    assert not is_flexible(999, 0)


def test_ranges_hold_their_ends() -> None:
    """Both ends of a range belong to it."""
    assert [version for version in range(-1, 5) if ApiRange(1, 3).holds(version)] == [1, 2, 3]
