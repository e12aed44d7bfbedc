"""The administrative APIs on the wire: topics, partitions, configurations, and the broker's description."""

from __future__ import annotations

import struct
from dataclasses import fields
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.dispatch.api_table import TABLE, functions
from diamant.protocol.errors import ErrorCode
from diamant.protocol.kraft.records import FeatureLevelRecord
from diamant.protocol.wire.apis import ADVERTISED, SERVED
from diamant.protocol.wire.schemas import request_class
from diamant.storage.env.env import RealEnv
from diamant.storage.kraft.features import ELIGIBLE_LEADER_REPLICAS_VERSION
from tests.broker.configurations import BROKER, TOPIC, alter, describe
from tests.broker.request_fields import DELETE, SET
from tests.broker.wire import (
    API_VERSIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_LOG_DIRS,
    FIND_COORDINATOR,
    METADATA,
    WireClient,
)
from tests.waiting import wait_until


@pytest.mark.parametrize("version", range(6))
async def test_api_versions_lists_what_is_served(wire: WireClient, version: int) -> None:
    """The answer lists exactly the table's keys with their advertised ranges; Produce is listed from 0, although it begins at
    3.
    """
    response = await wire.call(API_VERSIONS, version, {"client_software_name": "test", "client_software_version": "1"})
    found = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
    assert found == {key: tuple(ADVERTISED[key]) for key in TABLE}
    assert found[0] == (0, 13)
    assert not found.keys() & {88, 89}, "a Streams application with group.protocol=streams must fail at once"
    if version >= 3:
        assert [(feature.name, feature.max_version_level) for feature in response.finalized_features] == [
            ("metadata.version", 30),
            ("group.version", 1),
            ("share.version", 1),
            ("transaction.version", 2),
        ]
        assert response.finalized_features_epoch >= 0


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "code"),
    [
        (None, -1, ErrorCode.NONE),
        ("mine", 1, ErrorCode.NONE),
        ("mine", 2, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("mine", 0, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("mine", -2, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("other", 1, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("", 1, ErrorCode.REBOOTSTRAP_REQUIRED),
        (None, 1, ErrorCode.INVALID_REQUEST),
        (None, -2, ErrorCode.INVALID_REQUEST),
        ("mine", -1, ErrorCode.INVALID_REQUEST),
        ("", -1, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_client_that_means_another_broker_is_told(
    broker: Broker, wire: WireClient, cluster_id: str | None, node_id: int, code: ErrorCode
) -> None:
    """A client names cluster and node, both or none (KIP-1242); a wrong one gets no APIs. The codes are those of Kafka 4.4.0."""
    named = broker.node.metadata.cluster_id if cluster_id == "mine" else cluster_id
    software = {"client_software_name": "test", "client_software_version": "1"}
    answer = await wire.call(API_VERSIONS, 5, {**software, "cluster_id": named, "node_id": node_id})
    assert (answer.error_code, bool(answer.api_keys)) == (code, code is ErrorCode.NONE)
    assert (await wire.call(API_VERSIONS, 5, software)).error_code == ErrorCode.NONE
    # Kafka looks at the software first.
    answer = await wire.call(
        API_VERSIONS, 5, {**software, "client_software_name": "-", "cluster_id": "other", "node_id": 1}
    )
    assert answer.error_code == ErrorCode.INVALID_REQUEST


async def test_api_versions_of_the_future(wire: WireClient) -> None:
    """An unknown version is answered in version 0 with error 35 and the range of ApiVersions."""
    wire.writer.write(wire.frame(API_VERSIONS, 99, b"\x01\x01\x00whatever"))
    correlation_id, body = await wire.receive_frame()
    assert correlation_id == 1
    assert body == struct.pack(">hihhh", 35, 1, 18, 0, 5)
    response = await wire.call(API_VERSIONS, 4, {"client_software_name": "test", "client_software_version": "1"})
    assert response.error_code == ErrorCode.NONE


@pytest.mark.parametrize(("api_key", "version"), [(0, 2), (1, 3), (3, 14), (52, 0), (99, 0), (-1, 0), (71, 0)])
async def test_apis_that_are_not_served_close_the_connection(wire: WireClient, api_key: int, version: int) -> None:
    """Refused versions, unknown keys and APIs without a handler close the connection, since no answer could be parsed."""
    wire.writer.write(wire.frame(api_key, version, bytes(20)))
    assert await wire.is_closed()


def test_each_module_answers_the_api_it_is_listed_for() -> None:
    """The key of a module is that of its row; the four APIs of delegation tokens share a module."""
    keys = {key: getattr(functions(key)[1], "__globals__", {}).get("KEY", key) for key in TABLE}
    assert [*keys.values()] == [*TABLE]


@pytest.mark.parametrize("api_key", TABLE)
async def test_bodies_that_make_no_sense_close_the_connection(broker: Broker, api_key: int) -> None:
    """Lengths and counts of some 32,000, or of 2 billion, in a request of 200 bytes close the connection, in every API and
    version.
    """
    for version in range(SERVED[api_key].min, SERVED[api_key].max + 1):
        if not fields(request_class(api_key, version)):
            continue  # has no body, and what follows a request is not looked at
        async with WireClient(broker.bootstrap_servers) as client:
            client.writer.write(client.frame(api_key, version, b"\x7f" * 200))
            assert await client.is_closed(), version
    async with WireClient(broker.bootstrap_servers) as client:
        assert (await client.call(METADATA, 12, {"topics": None})).topics == ()


def new_topic(name: str, **fields: Any) -> dict[str, Any]:
    """Return a topic of a CreateTopics request."""
    return {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": [], **fields}


@pytest.mark.parametrize("version", range(2, 8))
async def test_create_topics(wire: WireClient, broker: Broker, version: int) -> None:
    """Each version creates; 5 and later return counts and configurations, 7 the id."""
    configs = [{"name": "retention.ms", "value": "1000"}]
    fields = {"topics": [new_topic("t", num_partitions=3, configs=configs)], "timeout_ms": 1000}
    (topic,) = (await wire.call(CREATE_TOPICS, version, fields)).topics
    assert (topic.name, topic.error_code) == ("t", ErrorCode.NONE)
    if version >= 5:
        assert (topic.num_partitions, topic.replication_factor) == (3, 1)
        assert {config.name: config.value for config in topic.configs}["retention.ms"] == "1000"
    if version >= 7:
        assert topic.topic_id == broker.node.topics.by_name["t"].topic_id
    assert broker.node.topics.log("t", 2).config.retention_ms == 1000


async def test_of_a_request_only_what_may_be_is_created(wire: WireClient, broker: Broker) -> None:
    """Refused topics (reasons: `admin_cases`) and duplicates are answered with the reason; the others are created."""
    topics = [new_topic("t"), new_topic("t"), new_topic("a b"), new_topic("good")]
    answers = (await wire.call(CREATE_TOPICS, 7, {"topics": topics, "timeout_ms": 1000})).topics
    assert {topic.name: (topic.error_code, bool(topic.error_message)) for topic in answers} == {
        "t": (ErrorCode.INVALID_REQUEST, True),
        "a b": (ErrorCode.INVALID_TOPIC_EXCEPTION, True),
        "good": (ErrorCode.NONE, False),
    }
    assert list(broker.node.topics.by_name) == ["good"]


async def test_create_topics_can_only_validate(wire: WireClient) -> None:
    """validate_only answers normally, but creates nothing."""
    fields = {"topics": [new_topic("t")], "timeout_ms": 1000, "validate_only": True}
    assert (await wire.call(CREATE_TOPICS, 7, fields)).topics[0].error_code == ErrorCode.NONE
    assert (await wire.call(METADATA, 12, {"topics": None})).topics == ()


async def test_delete_topics(wire: WireClient, broker: Broker, tmp_path: Path) -> None:
    """Topics are deleted by name or id, each with its result; the directory is set aside, and the name can be used again."""
    first = (await wire.create("a")).topic_id
    second = (await wire.create("b")).topic_id
    unknown = uuid4()
    topics = [
        {"name": "a", "topic_id": None},
        {"name": None, "topic_id": second},
        {"name": None, "topic_id": unknown},
        {"name": "absent", "topic_id": None},
        {"name": "a", "topic_id": first},
    ]
    response = await wire.call(DELETE_TOPICS, 6, {"topics": topics, "timeout_ms": 1000})
    assert [(topic.name, topic.error_code) for topic in response.responses] == [
        ("a", ErrorCode.NONE),
        ("b", ErrorCode.NONE),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
        ("absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a", ErrorCode.INVALID_REQUEST),
    ]
    names = [name for name in RealEnv().list_dir(str(tmp_path)) if name.startswith(("a-", "b-"))]
    assert len([name for name in names if name.endswith("-delete")]) == len(names) == 2
    assert (await wire.create("a")).topic_id != first
    assert (await wire.produce("a", [b"x"])).base_offset == 0


async def test_deleted_files_go_after_their_delay(wire: WireClient, broker: Broker, tmp_path: Path) -> None:
    """With file.delete.delay.ms=0 the directory is removed without a further request."""
    await wire.create("t", file_delete_delay_ms="0")
    await wire.call(DELETE_TOPICS, 5, {"topic_names": ["t"], "timeout_ms": 1000})
    await wait_until(lambda: not any(name.startswith("t-") for name in RealEnv().list_dir(str(tmp_path))))


async def test_deletion_can_be_disabled(tmp_path: Path) -> None:
    """delete.topic.enable=false has its own error, and another one in old versions."""
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, delete_topic_enable=False)
    async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t")
        for version, code in ((1, ErrorCode.INVALID_REQUEST), (5, ErrorCode.TOPIC_DELETION_DISABLED)):
            response = await wire.call(DELETE_TOPICS, version, {"topic_names": ["t"], "timeout_ms": 1000})
            assert response.responses[0].error_code == code


async def test_describe_configs(wire: WireClient) -> None:
    """DescribeConfigs gives values with their sources, types, synonyms and documentation; a filter by name."""
    await wire.create("t", retention_ms="5000")
    result = await describe(wire, TOPIC, "t", ["retention.ms", "segment.bytes"])
    found = {config.name: config for config in result.configs}
    assert (found["retention.ms"].value, found["retention.ms"].config_source) == ("5000", 1)
    assert (found["segment.bytes"].value, found["segment.bytes"].config_source) == ("1073741824", 5)
    assert found["segment.bytes"].synonyms
    assert found["retention.ms"].documentation
    assert len((await describe(wire, TOPIC, "t")).configs) > 20
    broker = {config.name: config.value for config in (await describe(wire, BROKER, "1")).configs}
    assert broker["auto.create.topics.enable"] == "true"


async def test_a_changed_configuration_is_in_effect_at_once(wire: WireClient) -> None:
    """max.message.bytes, changed by a client, refuses the next batch; its removal admits it."""
    await wire.create("t")
    assert (await alter(wire, TOPIC, "t", ("max.message.bytes", SET, "100"))).error_code == ErrorCode.NONE
    assert (await wire.produce("t", [bytes(1000)])).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert (await alter(wire, TOPIC, "t", ("max.message.bytes", DELETE, None))).error_code == ErrorCode.NONE
    assert (await wire.produce("t", [bytes(1000)])).error_code == ErrorCode.NONE


async def test_eligible_leader_replicas_keep_the_minimum_for_the_cluster(wire: WireClient, broker: Broker) -> None:
    """With that feature, min.insync.replicas can neither be set for one broker nor removed for all."""
    name = "min.insync.replicas"
    broker.node.metadata.append([FeatureLevelRecord(name=ELIGIBLE_LEADER_REPLICAS_VERSION, feature_level=0)])
    assert (await alter(wire, BROKER, "", (name, SET, "1"))).error_code == ErrorCode.NONE
    assert (await alter(wire, BROKER, "1", (name, SET, "1"))).error_code == ErrorCode.NONE
    assert (await alter(wire, BROKER, "1", (name, DELETE, None))).error_code == ErrorCode.NONE
    broker.node.metadata.append([FeatureLevelRecord(name=ELIGIBLE_LEADER_REPLICAS_VERSION, feature_level=1)])
    own = await alter(wire, BROKER, "1", (name, SET, "1"))
    removed = await alter(wire, BROKER, "", (name, DELETE, None), validate_only=True)
    assert own.error_code == removed.error_code == ErrorCode.INVALID_CONFIG
    assert own.error_message == "Broker-level min.insync.replicas cannot be altered while ELR is enabled."
    assert removed.error_message == "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
    assert (await alter(wire, BROKER, "", (name, SET, "2"))).error_code == ErrorCode.NONE
    assert (await alter(wire, BROKER, "1", (name, DELETE, None))).error_code == ErrorCode.NONE


async def test_broker_configurations_change_topics_that_do_not_set_them(wire: WireClient, broker: Broker) -> None:
    """A dynamic broker default reaches running logs; one for this broker overrides one for all."""
    await wire.create("t")
    await wire.create("own", retention_ms="7")
    assert (await alter(wire, BROKER, "", ("log.retention.ms", SET, "1111"))).error_code == ErrorCode.NONE
    assert broker.node.topics.log("t", 0).config.retention_ms == 1111
    assert (await alter(wire, BROKER, "1", ("log.retention.ms", SET, "2222"))).error_code == ErrorCode.NONE
    assert broker.node.topics.log("t", 0).config.retention_ms == 2222
    assert broker.node.topics.log("own", 0).config.retention_ms == 7
    entries = [
        (entry.name, entry.value, entry.config_source) for entry in (await describe(wire, BROKER, "", None)).configs
    ]
    # The minimum is there from the beginning, as in Kafka's directories with eligible leader replicas.
    assert sorted(entries) == [("log.retention.ms", "1111", 3), ("min.insync.replicas", "1", 3)]
    assert (await alter(wire, BROKER, "1", ("node.id", SET, "5"))).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(1, 6))
async def test_describe_log_dirs(wire: WireClient, version: int) -> None:
    """Sizes of all partitions for null, otherwise of the requested ones; the disk's totals from 4 on."""
    await wire.create("t", partitions=2)
    await wire.produce("t", [bytes(1000)])
    for topics, count in ((None, 2), ([{"topic": "t", "partitions": [0]}], 1), ([], 0)):
        (result,) = (await wire.call(DESCRIBE_LOG_DIRS, version, {"topics": topics})).results
        partitions = [partition for topic in result.topics for partition in topic.partitions]
        assert len(partitions) == count
        if count:
            assert max(partition.partition_size for partition in partitions) > 1000
        if version >= 4:
            assert result.total_bytes > result.usable_bytes > 0


async def test_the_directory_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client cannot resolve a relative path, so DescribeLogDirs has the absolute one, as in Kafka."""
    monkeypatch.chdir(tmp_path)
    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir="data")) as broker:
        async with WireClient(broker.bootstrap_servers) as client:
            response = await client.call(DESCRIBE_LOG_DIRS, 4, {"topics": None})
    assert [result.log_dir for result in response.results] == [str(tmp_path / "data")]


@pytest.mark.parametrize("version", range(7))
async def test_find_coordinator(wire: WireClient, broker: Broker, version: int) -> None:
    """The first answer is COORDINATOR_NOT_AVAILABLE, the second one this broker, for everything; key types unknown to a version
    are refused.
    """
    asked = {"key": "g", "key_type": 0, "coordinator_keys": ["g", "h"]}
    response = await wire.call(FIND_COORDINATOR, version, asked)
    found = response.coordinators if version >= 4 else [response]
    message = None if not version else "" if version >= 4 else "The coordinator is not available."
    assert [
        (entry.error_code, getattr(entry, "error_message", None), entry.node_id, entry.port) for entry in found
    ] == [(ErrorCode.COORDINATOR_NOT_AVAILABLE, message, -1, -1)] * len(found)
    response = await wire.call(FIND_COORDINATOR, version, asked)
    found = response.coordinators if version >= 4 else [response]
    assert [(entry.error_code, entry.node_id, f"{entry.host}:{entry.port}") for entry in found] == [
        (ErrorCode.NONE, 1, broker.bootstrap_servers)
    ] * len(found)
    if version >= 1:
        response = await wire.call(FIND_COORDINATOR, version, {"key": "g", "key_type": 9, "coordinator_keys": ["g"]})
        found = response.coordinators if version >= 4 else [response]
        assert found[0].error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.slow
async def test_a_thousand_partitions_come_in_time(wire: WireClient) -> None:
    """CreateTopics of 1,000 partitions is answered within the clients' timeout, and so is the deletion."""
    assert (await wire.create("big", partitions=1000)).error_code == ErrorCode.NONE
    assert (await wire.produce("big", [b"x"], partition=999)).error_code == ErrorCode.NONE
    response = await wire.call(DELETE_TOPICS, 5, {"topic_names": ["big"], "timeout_ms": 1000})
    assert response.responses[0].error_code == ErrorCode.NONE


async def test_lags_of_the_broker_that_cross(wire: WireClient) -> None:
    """As in Kafka 4.3.1, a topic without own lags is created, by Metadata too; others must resolve the conflict."""
    for name, value in (("max", "1000"), ("min", "100000")):
        changed = await alter(wire, BROKER, "", (f"log.cleaner.{name}.compaction.lag.ms", SET, value))
        assert changed.error_code == ErrorCode.NONE
    refusal = "conflict topic config setting min.compaction.lag.ms (100000) > max.compaction.lag.ms (1000)"
    assert (await wire.create("plain")).error_code == ErrorCode.NONE
    for policy in ("compact", "delete", "compact,delete"):
        refused = await wire.create("refused", cleanup_policy=policy)
        assert (refused.error_code, refused.error_message) == (ErrorCode.INVALID_CONFIG, refusal)
    assert (
        await wire.create("resolved", cleanup_policy="compact", min_compaction_lag_ms="10")
    ).error_code == ErrorCode.NONE
    for code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE):
        found = await wire.call(METADATA, 4, {"topics": [{"name": "auto"}], "allow_auto_topic_creation": True})
        assert found.topics[0].error_code == code
    changed = await alter(wire, TOPIC, "plain", ("retention.ms", SET, "7"))
    assert (changed.error_code, changed.error_message) == (ErrorCode.INVALID_CONFIG, refusal)
