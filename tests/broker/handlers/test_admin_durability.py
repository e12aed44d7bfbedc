"""Effects of administrative requests: kept over restarts, in effect at once, and readable in the metadata log."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.protocol.errors import ErrorCode
from diamant.protocol.kraft.records import QuotaEntity
from diamant.storage.env.env import RealEnv
from diamant.storage.kraft.features import RELEASES
from diamant.storage.kraft.format import format_directory
from tests.broker.groups.share.share_requests import SHARE_GROUP_DESCRIBE, wait_for_coordinator
from tests.broker.handlers.admin_cases import (
    ALTER_QUOTAS,
    ALTER_SCRAM,
    BROKER,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_QUORUM,
    DESCRIBE_QUOTAS,
    DESCRIBE_SCRAM,
    DESCRIBE_TOPIC_PARTITIONS,
    GROUP,
    INCREMENTAL_ALTER_CONFIGS,
    LOGGER,
    METRICS,
    SET,
    UNREGISTER_BROKER,
    UPDATE_FEATURES,
)
from tests.broker.request_fields import DELETE, alteration
from tests.broker.wire import (
    API_VERSIONS,
    DELETE_TOPICS,
    FETCH,
    PRODUCE,
    WireClient,
    batch_of,
    fetch_fields,
    produce_fields,
)

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


async def alter(wire: WireClient, resource_type: int, name: str, key: str, value: str) -> None:
    """Set one configuration."""
    answer = await wire.call(INCREMENTAL_ALTER_CONFIGS, 1, alteration(resource_type, name, (key, SET, value)))
    assert answer.responses[0].error_code == ErrorCode.NONE, answer.responses[0].error_message


async def configs(wire: WireClient, resource_type: int, name: str) -> dict[str, str | None]:
    """Return all configurations of a resource."""
    resource = {"resource_type": resource_type, "resource_name": name, "configuration_keys": None}
    answer = await wire.call(DESCRIBE_CONFIGS, 4, {"resources": [resource]})
    assert answer.results[0].error_code == ErrorCode.NONE
    return {config.name: config.value for config in answer.results[0].configs}


async def set_credential(wire: WireClient, user: str, salted_password: bytes) -> ErrorCode:
    """Set a user's SCRAM-SHA-256 credential; return the error."""
    kind = {"name": user, "mechanism": 1, "iterations": 4096}
    credential = {**kind, "salt": b"salt", "salted_password": salted_password}
    answer = await wire.call(ALTER_SCRAM, 0, {"deletions": [], "upsertions": [credential]})
    return ErrorCode(answer.results[0].error_code)


async def set_quota(wire: WireClient, entity: list[dict[str, Any]], value: float, *, remove: bool = False) -> ErrorCode:
    """Set or remove an entity's producer_byte_rate; return the error."""
    entry = {"entity": entity, "ops": [{"key": "producer_byte_rate", "value": value, "remove": remove}]}
    answer = await wire.call(ALTER_QUOTAS, 1, {"entries": [entry], "validate_only": False})
    return ErrorCode(answer.entries[0].error_code)


async def update_feature(wire: WireClient, name: str, level: int, kind: int) -> Any:
    """Finalize a level."""
    update = {"feature": name, "max_version_level": level, "upgrade_type": kind}
    return await wire.call(UPDATE_FEATURES, 2, {"feature_updates": [update], "validate_only": False})


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    """Credentials, quotas, features and configurations of groups and client metrics are in the metadata log."""
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path)
    async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
        assert await set_credential(wire, "alice", b"p" * 32) is ErrorCode.NONE
        assert await set_quota(wire, [{"entity_type": "user", "entity_name": None}], 5.0) is ErrorCode.NONE
        await alter(wire, GROUP, "g", "consumer.session.timeout.ms", "50000")
        await alter(wire, METRICS, "m", "interval.ms", "5000")
        await alter(wire, BROKER, "", "message.max.bytes", "2000000")
        assert (await update_feature(wire, "metadata.version", 30, UPGRADE)).error_code == ErrorCode.NONE
        await wire.create("after.the.upgrade")
    async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
        users = (await wire.call(DESCRIBE_SCRAM, 0, {"users": None})).results
        assert [(user.user, user.credential_infos[0].iterations) for user in users] == [("alice", 4096)]
        (quota,) = (await wire.call(DESCRIBE_QUOTAS, 1, {"components": [], "strict": False})).entries
        assert (quota.entity[0].entity_name, quota.values[0].value) == (None, 5.0)
        assert (await configs(wire, GROUP, "g"))["consumer.session.timeout.ms"] == "50000"
        assert (await configs(wire, METRICS, "m"))["interval.ms"] == "5000"
        assert (await configs(wire, BROKER, ""))["message.max.bytes"] == "2000000"
        assert broker.node.metadata.image.metadata_version == 30
        assert "after.the.upgrade" in broker.node.topics.by_name


async def test_scram_keys_are_those_of_rfc_5802(broker: Broker, wire: WireClient) -> None:
    """Stored and server key equal those of the example in RFC 7677; neither password nor salted password is stored."""
    salt = bytes.fromhex("5b6d99689d124ae292aaf2e3b2c3e4b8")
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    assert await set_credential(wire, "user", salted) is ErrorCode.NONE
    (credential,) = broker.node.metadata.image.scram_credentials.values()
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    assert credential.stored_key == hashlib.sha256(client_key).digest()
    assert credential.server_key == hmac.digest(salted, b"Server Key", "sha256")


async def test_an_entity_is_the_same_in_any_order(broker: Broker, wire: WireClient) -> None:
    """User and client id in either order are one quota, whichever broker wrote it."""
    user, client = {"entity_type": "user", "entity_name": "u"}, {"entity_type": "client-id", "entity_name": "c"}
    assert await set_quota(wire, [user, client], 1.0) is ErrorCode.NONE
    assert await set_quota(wire, [client, user], 2.0) is ErrorCode.NONE
    assert broker.node.metadata.image.quotas == {
        (QuotaEntity("client-id", "c"), QuotaEntity("user", "u")): {"producer_byte_rate": 2.0}
    }
    assert await set_quota(wire, [client, user], 0.0, remove=True) is ErrorCode.NONE
    assert broker.node.metadata.image.quotas == {}


async def test_a_quota_that_is_no_number_is_refused(broker: Broker, wire: WireClient) -> None:
    """NaN is refused, as in Kafka 4.4; 4.3 accepts it, and then compares with it."""
    user = {"entity_type": "user", "entity_name": "u"}
    assert await set_quota(wire, [user], float("nan")) is ErrorCode.INVALID_REQUEST
    assert broker.node.metadata.image.quotas == {}


async def test_texts_that_a_kafka_could_not_read_back_are_refused(broker: Broker, wire: WireClient) -> None:
    """With more than 32,767 bytes of UTF-8 in a name or value, nothing is written."""
    before = broker.node.metadata.end_offset
    long = "\u00e9" * 16_384
    assert await set_credential(wire, long, b"p" * 32) is ErrorCode.INVALID_REQUEST
    assert await set_quota(wire, [{"entity_type": "user", "entity_name": long}], 1.0) is ErrorCode.INVALID_REQUEST
    for name, key, value in [(long, "metrics", "a"), ("m", long, "a"), ("m", "metrics", long)]:
        answer = await wire.call(INCREMENTAL_ALTER_CONFIGS, 1, alteration(METRICS, name, (key, SET, value)))
        assert answer.responses[0].error_code == ErrorCode.INVALID_REQUEST
    assert broker.node.metadata.end_offset == before


async def test_an_entity_named_twice_is_left_alone(broker: Broker, wire: WireClient) -> None:
    """Kafka answers an error but applies the first change; here an error means that nothing has changed."""
    entries = [
        {
            "entity": [{"entity_type": "user", "entity_name": "u"}],
            "ops": [{"key": "producer_byte_rate", "value": value, "remove": False}],
        }
        for value in (1.0, 2.0)
    ]
    answer = await wire.call(ALTER_QUOTAS, 1, {"entries": entries, "validate_only": False})
    assert answer.entries[0].error_code == ErrorCode.INVALID_REQUEST
    assert broker.node.metadata.image.quotas == {}


async def test_finalized_features_are_reported_with_a_higher_epoch(tmp_path: Path) -> None:
    """A directory of Kafka 4.0 can be raised to our level. Java clients adopt new features only if their epoch has
    grown.
    """
    format_directory(RealEnv(), str(tmp_path), features={"metadata.version": 25, "group.version": 1})
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path)
    told = []
    async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
        for _ in range(2):
            answer = await wire.call(API_VERSIONS, 4, {"client_software_name": "t", "client_software_version": "1"})
            levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
            told.append((levels["metadata.version"], answer.finalized_features_epoch))
            assert (await update_feature(wire, "metadata.version", 30, UPGRADE)).error_code == ErrorCode.NONE
    assert [level for level, _ in told] == [25, 30]
    assert told[1][1] > told[0][1]


async def update_features(wire: WireClient, levels: dict[str, int], kind: int) -> Any:
    """Finalize several levels at once."""
    updates = [{"feature": name, "max_version_level": level, "upgrade_type": kind} for name, level in levels.items()]
    return await wire.call(UPDATE_FEATURES, 2, {"feature_updates": updates, "validate_only": False})


async def test_an_upgrade_to_a_release_of_kafka(tmp_path: Path) -> None:
    """`kafka-features upgrade --release-version 4.4` raises all features, those for share and streams groups, too; with eligible
    leader replicas, min.insync.replicas becomes a setting of the cluster, with the value of the broker's file.
    """
    format_directory(RealEnv(), str(tmp_path), features={"metadata.version": 22, "group.version": 1})
    properties = {"min.insync.replicas": "2"}
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, properties=properties)
    async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
        await alter(wire, BROKER, "1", "min.insync.replicas", "3")
        elr = {"eligible.leader.replicas.version": 1}
        answer = await update_features(wire, elr, UPGRADE)
        assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert answer.error_message.endswith("it depends on metadata.version level 23")
        answer = await update_features(wire, {**RELEASES["4.4"], "kraft.version": 1}, UPGRADE)
        assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
    async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
        assert broker.node.metadata.image.features == RELEASES["4.4"]
        assert (await configs(wire, BROKER, ""))["min.insync.replicas"] == "2"
        assert broker.node.metadata.image.configs.get((4, "1"), {}) == {}


@pytest.mark.parametrize(
    ("present", "level", "kind", "refusal"),
    [
        (31, 30, SAFE_DOWNGRADE, None),
        (29, 23, SAFE_DOWNGRADE, None),
        (30, 29, SAFE_DOWNGRADE, "might delete metadata information."),
        (32, 31, SAFE_DOWNGRADE, "from 32 to 31. Refusing to perform the requested downgrade because it might delete"),
        (33, 32, UNSAFE_DOWNGRADE, "Unsafe metadata downgrade is not supported in this version."),
        (33, 7, UNSAFE_DOWNGRADE, "Unsafe metadata downgrade is not supported in this version."),
        (31, 30, UPGRADE, "without setting the upgrade type to either safe or unsafe downgrade."),
        (30, 33, SAFE_DOWNGRADE, "Can't downgrade to a newer version."),
        (33, 34, UPGRADE, "Local controller 1 only supports versions 7-33"),
    ],
)
async def test_levels_of_metadata_go_down_where_no_record_could_be_lost(
    tmp_path: Path, present: int, level: int, kind: int, refusal: str | None
) -> None:
    """metadata.version goes down, safely or not, as long as no level in between has changed the records, as in Kafka."""
    format_directory(RealEnv(), str(tmp_path), features={"metadata.version": present})
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path)
    async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
        answer = await update_feature(wire, "metadata.version", level, kind)
        assert broker.node.metadata.image.metadata_version == (present if refusal else level)
    assert answer.error_code == (ErrorCode.INVALID_UPDATE_VERSION if refusal else ErrorCode.NONE)
    assert refusal is None or refusal in answer.error_message


async def test_share_groups_are_advertised_and_end_with_their_feature(wire: WireClient) -> None:
    """As Kafka 4.3.1, ApiVersions has share.version; at level 0 every request of share groups gets UNSUPPORTED_VERSION."""

    async def level() -> int | None:
        answer = await wire.call(API_VERSIONS, 4, {"client_software_name": "t", "client_software_version": "1"})
        assert ("share.version", 0) in {(one.name, one.min_version) for one in answer.supported_features}
        return next((one.max_version_level for one in answer.finalized_features if one.name == "share.version"), None)

    async def code() -> int:
        answer = await wire.call(SHARE_GROUP_DESCRIBE, 1, {"group_ids": ["g"]})
        return int(answer.groups[0].error_code)

    await wait_for_coordinator(wire, "g")
    assert (await level(), await code()) == (1, ErrorCode.GROUP_ID_NOT_FOUND)
    assert (await update_feature(wire, "share.version", 2, UPGRADE)).error_code == ErrorCode.NONE
    assert await level() == 2
    assert (await update_feature(wire, "share.version", 0, SAFE_DOWNGRADE)).error_code == ErrorCode.NONE
    assert (await level(), await code()) == (None, ErrorCode.UNSUPPORTED_VERSION)


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger of the package; restored afterwards."""
    found = logging.getLogger("diamant.broker.dispatch.dispatcher")
    level = found.level
    yield found
    found.setLevel(level)


async def test_levels_of_loggers_are_set_and_taken_away(wire: WireClient, logger: logging.Logger) -> None:
    """Levels have log4j's names, including TRACE and FATAL; without its own level a logger has its parent's. A validated change
    has no effect.
    """
    for text, level in [("DEBUG", logging.DEBUG), ("TRACE", 5), ("FATAL", logging.CRITICAL), ("WARN", logging.WARNING)]:
        await alter(wire, LOGGER, "1", logger.name, text)
        assert logger.level == level
        assert (await configs(wire, LOGGER, "1"))[logger.name] == text
    change = alteration(LOGGER, "1", (logger.name, SET, "ERROR"), validate_only=True)
    await wire.call(INCREMENTAL_ALTER_CONFIGS, 1, change)
    assert logger.level == logging.WARNING
    await wire.call(INCREMENTAL_ALTER_CONFIGS, 1, alteration(LOGGER, "1", (logger.name, DELETE, None)))
    assert logger.level == logging.NOTSET
    assert "root" in await configs(wire, LOGGER, "1")


async def test_we_do_not_unregister_ourselves(broker: Broker, wire: WireClient) -> None:
    """The broker's own id is refused, as it could not continue."""
    answer = await wire.call(UNREGISTER_BROKER, 0, {"broker_id": 1})
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert 1 in broker.node.metadata.image.brokers


async def test_the_quorum_has_our_log(broker: Broker, wire: WireClient) -> None:
    """The quorum has one voter, with the offsets and the epoch of the metadata log."""
    await wire.create("t")
    topic = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
    answer = await wire.call(DESCRIBE_QUORUM, 2, {"topics": [topic]})
    partition = answer.topics[0].partitions[0]
    assert (partition.leader_id, partition.leader_epoch) == (1, broker.node.metadata.epoch)
    assert partition.high_watermark == broker.node.metadata.end_offset == partition.current_voters[0].log_end_offset
    assert partition.current_voters[0].replica_directory_id == broker.node.metadata.directory_id
    assert [listener.name for listener in answer.nodes[0].listeners] == ["CONTROLLER"]


async def test_pages_join_to_everything(wire: WireClient) -> None:
    """Following the cursor with any limit returns each partition of each topic once, in order."""
    for name, count in [("c", 3), ("a", 5), ("b", 1)]:
        await wire.create(name, count)
    expected = [(name, index) for name, count in [("a", 5), ("b", 1), ("c", 3)] for index in range(count)]
    for limit in (1, 2, 3, 5, 100):
        found, cursor = [], None
        while True:
            answer = await wire.call(
                DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": [], "response_partition_limit": limit, "cursor": cursor}
            )
            page = [
                (topic.name, partition.partition_index) for topic in answer.topics for partition in topic.partitions
            ]
            assert len(page) <= limit
            found += page
            if answer.next_cursor is None:
                break
            cursor = {
                "topic_name": answer.next_cursor.topic_name,
                "partition_index": answer.next_cursor.partition_index,
            }
        assert found == expected


async def test_names_of_one_request_that_collide(wire: WireClient) -> None:
    """Kafka creates both, although it would refuse the second later; here the first wins at once."""
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in ("x.y", "x_y")]
    answer = await wire.call(CREATE_TOPICS, 7, {"topics": topics, "timeout_ms": 1000})
    assert {topic.name: topic.error_code for topic in answer.topics} == {
        "x.y": ErrorCode.NONE,
        "x_y": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }


async def test_old_ids_are_unknown_to_produce_and_fetch(wire: WireClient) -> None:
    """A client with the deleted topic's id gets an error, and neither writes to nor reads from the new one."""
    old = (await wire.create("t")).topic_id
    await wire.call(DELETE_TOPICS, 5, {"topic_names": ["t"], "timeout_ms": 1000})
    new = (await wire.create("t")).topic_id
    for topic_id, code in ((old, ErrorCode.UNKNOWN_TOPIC_ID), (new, ErrorCode.NONE)):
        fields = produce_fields("t", 0, batch_of([b"x"]))
        fields["topic_data"][0]["topic_id"] = topic_id
        answer = await wire.call(PRODUCE, 13, fields)
        assert answer.responses[0].partition_responses[0].error_code == code
        fetch = fetch_fields("t", 0)
        fetch["topics"][0]["topic_id"] = topic_id
        partition = (await wire.call(FETCH, 13, fetch)).responses[0].partitions[0]
        assert partition.error_code == code
        assert bool(partition.records) == (code is ErrorCode.NONE)


async def test_a_new_topic_of_the_same_name_knows_no_old_producers(wire: WireClient) -> None:
    """Producer state is deleted with the topic: the same sequence is new in the new topic, not a duplicate."""
    await wire.create("t")
    batch: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    assert (await wire.produce("t", [b"x"], **batch)).base_offset == 0
    assert (await wire.produce("t", [b"x"], **batch)).base_offset == 0  # a duplicate
    await wire.call(DELETE_TOPICS, 5, {"topic_names": ["t"], "timeout_ms": 1000})
    await wire.create("t")
    assert (await wire.produce("t", [b"x"], **batch)).base_offset == 0
    fetched = await wire.call(FETCH, 12, fetch_fields("t", 0))
    assert fetched.responses[0].partitions[0].high_watermark == 1
