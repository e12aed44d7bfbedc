"""A script of administrative requests, with comparable answers: the same requests go to a real Kafka and to this broker.

`SCRIPT` runs from top to bottom on a new broker with node id 1, so that a request may build on earlier ones.
`python -m tests.broker.handlers.admin_cases ADDRESS` runs it on a broker and prints the answers as JSON, which produced
tests/golden/admin; see the README there.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import json
import sys
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from kio.serial import entity_reader
from kio.serial.errors import OutOfBoundValue

from diamant.protocol.wire.apis import response_header_version
from diamant.protocol.wire.schemas import response_class
from tests.broker.request_fields import APPEND, DELETE, SET, SUBTRACT, acl, acl_filter, alteration
from tests.broker.wire import WireClient

METADATA, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS = 3, 19, 20, 21
API_VERSIONS = 18
DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS, DESCRIBE_CONFIGS, ALTER_CONFIGS = 29, 30, 31, 32, 33
ALTER_REPLICA_LOG_DIRS, DESCRIBE_LOG_DIRS, CREATE_PARTITIONS = 34, 35, 37
CREATE_TOKEN, RENEW_TOKEN, EXPIRE_TOKEN, DESCRIBE_TOKEN = 38, 39, 40, 41
ELECT_LEADERS, INCREMENTAL_ALTER_CONFIGS, ALTER_REASSIGNMENTS, LIST_REASSIGNMENTS = 43, 44, 45, 46
DESCRIBE_QUOTAS, ALTER_QUOTAS, DESCRIBE_SCRAM, ALTER_SCRAM = 48, 49, 50, 51
DESCRIBE_QUORUM, UPDATE_FEATURES, DESCRIBE_CLUSTER, UNREGISTER_BROKER = 55, 57, 60, 64
LIST_CONFIG_RESOURCES, DESCRIBE_TOPIC_PARTITIONS = 74, 75

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
EXACT, DEFAULT, ANY = range(3)

SETTLE_S = 0.3
"""After a change: a real Kafka's broker learns of it from its controller, which takes a moment."""


class Case(NamedTuple):
    """One request. `changes`: it changes state that others may see, so the recorder waits a moment after it."""

    name: str
    api_key: int
    version: int
    fields: dict[str, Any]
    changes: bool = False


def _topic(name: str, partitions: int = 1, factor: int = 1, assignments: Any = (), **configs: str | None) -> Any:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": factor,
        "assignments": [{"partition_index": index, "broker_ids": ids} for index, ids in assignments],
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }


def _create(name: str, *topics: Any, version: int = 7, validate_only: bool = False) -> Case:
    fields = {"topics": list(topics), "timeout_ms": 5000, "validate_only": validate_only}
    return Case(name, CREATE_TOPICS, version, fields, changes=not validate_only)


def _delete(name: str, *topics: Any, version: int = 6) -> Case:
    entries = [{"name": topic, "topic_id": None} if isinstance(topic, str) else topic for topic in topics]
    fields = {"topics": entries, "topic_names": [entry["name"] for entry in entries], "timeout_ms": 5000}
    return Case(name, DELETE_TOPICS, version, fields, changes=True)


def _grow(name: str, topic: str, count: int, assignments: Any = None, *, validate_only: bool = False) -> Case:
    entry = {
        "name": topic,
        "count": count,
        "assignments": None if assignments is None else [{"broker_ids": ids} for ids in assignments],
    }
    fields = {"topics": [entry], "timeout_ms": 5000, "validate_only": validate_only}
    return Case(name, CREATE_PARTITIONS, 3, fields, changes=not validate_only)


def _describe(name: str, resource_type: int, resource: str, *keys: str, version: int = 4) -> Case:
    entry = {"resource_type": resource_type, "resource_name": resource, "configuration_keys": list(keys) or None}
    fields = {"resources": [entry], "include_synonyms": True, "include_documentation": False}
    return Case(name, DESCRIBE_CONFIGS, version, fields)


def _alter(
    name: str, resource_type: int, resource: str, *ops: tuple[str, int, str | None], validate_only: bool = False
) -> Case:
    fields = alteration(resource_type, resource, *ops, validate_only=validate_only)
    return Case(name, INCREMENTAL_ALTER_CONFIGS, 1, fields, True)


def _retention(value: str) -> Any:
    return alteration(TOPIC, "plain", ("retention.ms", SET, value))["resources"]


def _replace(name: str, resource_type: int, resource: str, **configs: str | None) -> Case:
    entry = {
        "resource_type": resource_type,
        "resource_name": resource,
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }
    return Case(name, ALTER_CONFIGS, 2, {"resources": [entry], "validate_only": False}, True)


def _elect(name: str, topics: Any, kind: int = 0, version: int = 2) -> Case:
    entries = None if topics is None else [{"topic": topic, "partitions": ids} for topic, ids in topics]
    fields = {"election_type": kind, "topic_partitions": entries, "timeout_ms": 5000}
    return Case(name, ELECT_LEADERS, version, fields)


def _reassign(name: str, topic: str, *partitions: tuple[int, list[int] | None], version: int = 1) -> Case:
    entry = {"name": topic, "partitions": [{"partition_index": index, "replicas": ids} for index, ids in partitions]}
    return Case(name, ALTER_REASSIGNMENTS, version, {"topics": [entry], "timeout_ms": 5000})


def _quotas(name: str, *components: tuple[str, int, str | None], strict: bool = False) -> Case:
    entries = [{"entity_type": kind, "match_type": how, "match": match} for kind, how, match in components]
    return Case(name, DESCRIBE_QUOTAS, 1, {"components": entries, "strict": strict})


def _quota(
    name: str,
    entity: dict[str, str | None],
    *ops: tuple[str, float, bool],
    validate_only: bool = False,
    version: int = 1,
) -> Case:
    entry = {
        "entity": [{"entity_type": kind, "entity_name": text} for kind, text in entity.items()],
        "ops": [{"key": key, "value": value, "remove": remove} for key, value, remove in ops],
    }
    return Case(name, ALTER_QUOTAS, version, {"entries": [entry], "validate_only": validate_only}, True)


def _user_quotas(name: str, *entries: tuple[str, str, float]) -> Case:
    changes = [
        {"entity": [{"entity_type": "user", "entity_name": user}], "ops": [{"key": key, "value": rate}]}
        for user, key, rate in entries
    ]
    return Case(name, ALTER_QUOTAS, 1, {"entries": changes}, True)


def _quota_of_types_twice(name: str, count: int = 1) -> Case:
    named = [{"entity_type": "user", "entity_name": user} for user in ("v", None, "w")]
    change = {"entity": named, "ops": [{"key": _RATE, "value": 1.0}]}
    return Case(name, ALTER_QUOTAS, 1, {"entries": [change] * count, "validate_only": True}, True)


def _quorum(name: str, topic: str, partition: int = 0, version: int = 2) -> Case:
    wanted = [{"topic_name": topic, "partitions": [{"partition_index": partition}]}]
    return Case(name, DESCRIBE_QUORUM, version, {"topics": wanted})


def _reassignments(name: str, topic: str) -> Case:
    wanted = [{"name": topic, "partition_indexes": [0]}]
    return Case(name, LIST_REASSIGNMENTS, 0, {"topics": wanted, "timeout_ms": 5000})


def _delete_records(name: str, topic: str, offset: int) -> Case:
    return Case(name, DELETE_RECORDS, 2, {"topics": [{"name": topic, "partitions": [{"offset": offset}]}]})


def _software(name: str, version: str, api_version: int = 4) -> Case:
    fields = {"client_software_name": name, "client_software_version": version}
    return Case(f"software: {name!r} {version!r}, version {api_version}", API_VERSIONS, api_version, fields)


def _scram(name: str, upsertions: Any = (), deletions: Any = ()) -> Case:
    fields = {
        "deletions": [{"name": user, "mechanism": mechanism} for user, mechanism in deletions],
        "upsertions": [
            {
                "name": user,
                "mechanism": mechanism,
                "iterations": iterations,
                "salt": b"saltsalt",
                "salted_password": b"p" * (32 if mechanism == 1 else 64),
            }
            for user, mechanism, iterations in upsertions
        ],
    }
    return Case(name, ALTER_SCRAM, 0, fields, True)


def _scram_users(name: str, *users: str) -> Case:
    return Case(name, DESCRIBE_SCRAM, 0, {"users": [{"name": user} for user in users] or None})


def _features(
    name: str, *updates: tuple[str, int, int], validate_only: bool = False, version: int = 2, changes: bool = True
) -> Case:
    entries = [
        {"feature": feature, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": kind != 1}
        for feature, level, kind in updates
    ]
    fields = {"feature_updates": entries, "validate_only": validate_only, "timeout_ms": 5000}
    return Case(name, UPDATE_FEATURES, version, fields, changes)


def _partitions(name: str, *topics: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Case:
    position = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    fields = {
        "topics": [{"name": topic} for topic in topics],
        "response_partition_limit": limit,
        "cursor": position,
    }
    return Case(name, DESCRIBE_TOPIC_PARTITIONS, 0, fields)


def _metadata(name: str, *topics: str, version: int = 13) -> Case:
    fields = {"topics": [{"name": topic, "topic_id": None} for topic in topics], "allow_auto_topic_creation": False}
    return Case(name, METADATA, version, fields)


_ACL = acl(2, "t", "User:a", 3)
_ACL_FILTER = acl_filter(2, "t", pattern=3, operation=3, permission_type=3)

_RATE = "producer_byte_rate"
_LIMITS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")

SCRIPT: tuple[Case, ...] = (
    *(
        _software(name, version)
        for name, version in [
            *[("", ""), ("client", ""), ("", "1"), (" ", "1"), ("-client", "1"), ("client", "-1"), ("client-", "1")],
            *[
                ("client", "1."),
                (".client", "1"),
                ("a client", "1"),
                ("a_client", "1"),
                ("client", "1+1"),
                ("\u00fc", "1"),
            ],
            *[("client", "1\n"), ("client/1", "1")],
        ]
    ),
    _software("", "1", api_version=3),
    _features("features: newest metadata.version", ("metadata.version", 30, 1)),
    # With eligible leader replicas, which a new Kafka has, min.insync.replicas is set for the whole cluster.
    _features("features: no eligible leader replicas", ("eligible.leader.replicas.version", 0, 2)),
    _alter("broker: no cluster-wide min.insync.replicas", BROKER, "", ("min.insync.replicas", DELETE, None)),
    # Topics
    _create("create", _topic("plain"), _topic("wide", 3), _topic("compact", 1, 1, cleanup_policy="compact")),
    _create("create: exists", _topic("plain")),
    _create("create: default counts", _topic("defaults", -1, -1)),
    _create("create: twice in a request", _topic("twice"), _topic("twice")),
    _create("create: with a dot", _topic("c.d")),
    _create("create: collides with an existing topic", _topic("c_d")),
    *(
        _create(f"create: invalid name {index}", _topic(name))
        for index, name in enumerate(["", ".", "..", "sp ace", "ünicode", "x" * 250, "__cluster_metadata", "sl/ash"])
    ),
    _create("create: longest name", _topic("y" * 249)),
    _create("create: no partitions", _topic("zero", 0)),
    _create("create: negative partitions", _topic("negative", -2)),
    _create("create: no replicas", _topic("none", 1, 0)),
    _create("create: negative replicas", _topic("none", 1, -2)),
    _create("create: two replicas", _topic("two", 1, 2)),
    _create("create: three replicas of three partitions", _topic("three", 3, 3)),
    _create("create: too many partitions", _topic("many", 10_001)),
    _create("create: assigned", _topic("assigned", -1, -1, [(0, [1]), (1, [1])])),
    _create("create: assigned and counted", _topic("both", 2, -1, [(0, [1])])),
    _create("create: assigned and replicated", _topic("both", -1, 1, [(0, [1])])),
    _create("create: assigned to an unknown broker", _topic("away", -1, -1, [(0, [2])])),
    _create("create: assigned to a broker twice", _topic("double", -1, -1, [(0, [1, 1])])),
    _create("create: assigned to none", _topic("nobody", -1, -1, [(0, [])])),
    _create("create: assigned with a gap", _topic("gap", -1, -1, [(0, [1]), (2, [1])])),
    _create("create: assigned twice", _topic("again", -1, -1, [(0, [1]), (0, [1])])),
    _create("create: assigned unevenly", _topic("uneven", -1, -1, [(0, [1]), (1, [1, 2])])),
    _create("create: unknown config", _topic("c1", no_such_config="1")),
    _create("create: config not a number", _topic("c2", retention_ms="soon")),
    _create("create: config out of range", _topic("c3", segment_bytes="1")),
    _create("create: config null", _topic("c4", retention_ms=None)),
    _create("create: config empty", _topic("c5", retention_ms="")),
    _create("create: cleanup.policy wrong", _topic("c6", cleanup_policy="shred")),
    _create("create: cleanup.policy empty", _topic("c7", cleanup_policy="")),
    _create("create: cleanup.policy both", _topic("c8", cleanup_policy="compact,delete")),
    _create("create: lags in conflict", _topic("c9", min_compaction_lag_ms="10", max_compaction_lag_ms="5")),
    _create("create: min.insync.replicas zero", _topic("c10", min_insync_replicas="0")),
    _create("create: remote storage", _topic("c11", remote_storage_enable="true")),
    _create("create: validate only", _topic("dry", 2), validate_only=True),
    _create("create: validate only, bad", _topic("dry", 2, 5), validate_only=True),
    _create("create: nothing"),
    _create("create: version 4", _topic("old", 2), version=4),
    _create("create: version 2, two replicas", _topic("old2", 1, 2), version=2),
    _metadata("metadata: known, unknown, invalid", "plain", "missing", "sp ace", ""),
    _metadata("metadata: compact", "compact"),
    _metadata("metadata: internal topics before they are", "__consumer_offsets", "__transaction_state"),
    _metadata("metadata: the metadata log", "__cluster_metadata"),
    _metadata("metadata: unknown, version 4", "missing", version=4),
    Case(
        "metadata: unknown id",
        METADATA,
        12,
        {"topics": [{"name": None, "topic_id": UUID(int=77 << 64)}], "allow_auto_topic_creation": True},
    ),
    _grow("grow", "plain", 2, [[1]]),
    _grow("grow: same", "plain", 2),
    _grow("grow: fewer", "wide", 1),
    _grow("grow: zero", "wide", 0),
    _grow("grow: negative", "wide", -1),
    _grow("grow: unknown", "missing", 3),
    _grow("grow: unknown broker", "wide", 4, [[2]]),
    _grow("grow: two replicas", "wide", 4, [[1, 2]]),
    _grow("grow: too few assignments", "wide", 5, [[1]]),
    _grow("grow: too many assignments", "wide", 4, [[1], [1]]),
    _grow("grow: empty assignment", "wide", 4, [[]]),
    _grow("grow: no assignments", "wide", 4, []),
    _grow("grow: validate only", "wide", 9, validate_only=True),
    Case(
        "grow: twice in a request",
        CREATE_PARTITIONS,
        3,
        {"topics": [{"name": "wide", "count": 5}, {"name": "wide", "count": 6}], "timeout_ms": 5000},
    ),
    # Pages of partitions
    _partitions("partitions: two", "wide", "plain"),
    _partitions("partitions: unknown and invalid", "zzz", "sp ace", "plain"),
    _partitions("partitions: one named twice", "plain", "plain"),
    _partitions("partitions: limit", "wide", "plain", "assigned", limit=3),
    _partitions("partitions: from a cursor", "wide", "plain", "assigned", limit=3, cursor=("plain", 1)),
    _partitions("partitions: from a topic that is gone", "wide", "plain", limit=3, cursor=("q", 7)),
    _partitions("partitions: from beyond the partitions", "wide", "plain", cursor=("plain", 9)),
    _partitions("partitions: from beyond all", "wide", "plain", cursor=("zzz", 0)),
    _partitions("partitions: the end of a topic is the limit", "plain", "wide", limit=2),
    _partitions("partitions: all, limited", limit=4),
    _partitions("partitions: all, from a cursor", limit=3, cursor=("compact", 0)),
    _partitions("partitions: all, from a topic that is gone", limit=3, cursor=("d", 5)),
    _partitions("partitions: all, from beyond all", limit=3, cursor=("zzzz", 0)),
    _partitions("partitions: all, with a negative cursor", limit=3, cursor=("compact", -1)),
    _partitions("partitions: from a topic that does not exist", "wide", "q", "plain", limit=3, cursor=("q", 7)),
    _partitions("partitions: from a topic that was not asked for", "wide", "plain", limit=3, cursor=("compact", 0)),
    _partitions("partitions: from before all", "wide", "plain", limit=3, cursor=("a", 0)),
    _partitions("partitions: negative limit", "wide", limit=-5),
    _partitions("partitions: unknown, limited", "aaa", "plain", limit=1),
    _partitions("partitions: negative cursor", "plain", cursor=("plain", -1)),
    _partitions("partitions: limit zero", "plain", limit=0),
    # Replicas of one broker
    _elect("elect: preferred", [("plain", [0, 1])]),
    _elect("elect: unclean", [("plain", [0])], 1),
    _elect("elect: all", None),
    _elect("elect: unknown", [("missing", [0]), ("plain", [9])]),
    _elect("elect: nothing", []),
    _elect("elect: unknown type", [("plain", [0])], 7),
    _elect("elect: unclean, all", None, 1),
    _elect("elect: version 0", [("plain", [0])], version=0),
    _elect("elect: version 1, all", None, version=1),
    _reassign("reassign: as it is", "plain", (0, [1])),
    _reassign("reassign: unknown broker", "plain", (0, [2])),
    _reassign("reassign: two replicas", "plain", (0, [1, 2])),
    _reassign("reassign: none", "plain", (0, [])),
    _reassign("reassign: the same broker twice", "plain", (0, [1, 1])),
    _reassign("reassign: negative", "plain", (0, [-1])),
    _reassign("reassign: cancel", "plain", (0, None)),
    _reassign("reassign: unknown partition", "plain", (7, [1])),
    _reassign("reassign: unknown topic", "missing", (0, [1])),
    _reassign("reassign: cancel of an unknown topic", "missing", (0, None)),
    _reassign("reassign: version 0", "plain", (0, [1]), version=0),
    Case("reassign: nothing", ALTER_REASSIGNMENTS, 1, {"topics": [], "timeout_ms": 5000}),
    Case("reassignments: all", LIST_REASSIGNMENTS, 0, {"topics": None, "timeout_ms": 5000}),
    _reassignments("reassignments: some", "plain"),
    _reassignments("reassignments: unknown", "missing"),
    *(
        Case(
            f"move to a directory: {name}",
            ALTER_REPLICA_LOG_DIRS,
            version,
            {"dirs": [{"path": path, "topics": [{"name": topic, "partitions": [0, 9]}]}]},
        )
        for name, path, topic, version in [
            ("unknown directory", "/nowhere", "plain", 2),
            ("unknown topic", "/nowhere", "missing", 2),
            ("relative", "nowhere", "plain", 2),
            ("version 1", "/nowhere", "plain", 1),
        ]
    ),
    *(
        Case(
            f"move to a directory: ours, {topic}",
            ALTER_REPLICA_LOG_DIRS,
            2,
            {"dirs": [{"path": "@log_dir", "topics": [{"name": topic, "partitions": [0, 9]}]}]},
        )
        for topic in ("plain", "missing")
    ),
    Case("directories: all", DESCRIBE_LOG_DIRS, 5, {"topics": [{"topic": "plain", "partitions": [0, 1, 5]}]}),
    Case("directories: unknown", DESCRIBE_LOG_DIRS, 4, {"topics": [{"topic": "missing", "partitions": [0]}]}),
    Case("directories: nothing", DESCRIBE_LOG_DIRS, 1, {"topics": []}),
    # The cluster
    Case("cluster", DESCRIBE_CLUSTER, 2, {"include_cluster_authorized_operations": True, "endpoint_type": 1}),
    Case("cluster: version 0", DESCRIBE_CLUSTER, 0, {"include_cluster_authorized_operations": False}),
    Case("cluster: controllers", DESCRIBE_CLUSTER, 2, {"endpoint_type": 2}),
    Case("cluster: of unknown type", DESCRIBE_CLUSTER, 2, {"endpoint_type": 7}),
    Case("cluster: with fenced ones", DESCRIBE_CLUSTER, 2, {"endpoint_type": 1, "include_fenced_brokers": True}),
    *(_quorum(f"quorum: version {version}", "__cluster_metadata", version=version) for version in (0, 1, 2)),
    _quorum("quorum: wrong topic", "plain"),
    _quorum("quorum: wrong partition", "__cluster_metadata", 1),
    Case("quorum: nothing", DESCRIBE_QUORUM, 2, {"topics": []}),
    Case("unregister: unknown", UNREGISTER_BROKER, 0, {"broker_id": 7}),
    Case("unregister: negative", UNREGISTER_BROKER, 0, {"broker_id": -1}),
    # Features
    _features("features: unknown", ("no.such.feature", 1, 1)),
    _features("features: too high", ("group.version", 9, 1)),
    _features("features: negative", ("group.version", -1, 1)),
    _features("features: down by an upgrade", ("group.version", 0, 1)),
    _features("features: unknown type", ("group.version", 1, 0)),
    _features("features: unknown type 9", ("group.version", 1, 9)),
    _features("features: twice", ("group.version", 1, 1), ("group.version", 1, 1)),
    _features("features: as it is", ("group.version", 1, 1)),
    _features("features: down, validate only", ("group.version", 0, 2), validate_only=True),
    _features("features: down", ("group.version", 0, 2)),
    _features("features: up again", ("group.version", 1, 1)),
    _features("features: up by a downgrade", ("transaction.version", 2, 2), validate_only=True),
    _features("features: several, one bad", ("group.version", 1, 1), ("transaction.version", 9, 1)),
    _features("features: metadata.version too high", ("metadata.version", 99, 1)),
    _features("features: metadata.version down", ("metadata.version", 24, 2), validate_only=True),
    _features("features: metadata.version down, unsafe", ("metadata.version", 24, 3), validate_only=True),
    _features("features: kraft.version as it is", ("kraft.version", 1, 1)),
    _features("features: kraft.version down", ("kraft.version", 0, 2)),
    _features("features: metadata.version too low", ("metadata.version", 1, 2)),
    _features("features: metadata.version zero", ("metadata.version", 0, 2)),
    _features("features: kraft.version too high", ("kraft.version", 7, 1)),
    _features("features: version 1", ("no.such.feature", 1, 1), version=1),
    _features("features: version 0", ("no.such.feature", 1, 1), version=0),
    _features("features: nothing", version=2),
    # Access control without an authorizer
    *(Case(f"acls: version {version}", DESCRIBE_ACLS, version, _ACL_FILTER) for version in (1, 3)),
    Case("acls: create", CREATE_ACLS, 3, {"creations": [_ACL]}),
    Case("acls: create two", CREATE_ACLS, 1, {"creations": [_ACL, _ACL]}),
    Case("acls: create nothing", CREATE_ACLS, 3, {"creations": []}),
    Case("acls: delete", DELETE_ACLS, 3, {"filters": [_ACL_FILTER]}),
    Case("acls: delete nothing", DELETE_ACLS, 3, {"filters": []}),
    # Delegation tokens without a secret, on a connection without a principal
    Case("token: create", CREATE_TOKEN, 3, {"renewers": [], "max_lifetime_ms": -1}),
    Case("token: create, version 1", CREATE_TOKEN, 1, {"renewers": [], "max_lifetime_ms": -1}),
    Case("token: renew", RENEW_TOKEN, 2, {"hmac": b"x", "renew_period_ms": -1}),
    Case("token: expire", EXPIRE_TOKEN, 2, {"hmac": b"x", "expiry_time_period_ms": -1}),
    Case("token: describe", DESCRIBE_TOKEN, 3, {"owners": None}),
    Case("token: describe, version 1", DESCRIBE_TOKEN, 1, {"owners": []}),
    # SCRAM
    _scram_users("scram: none"),
    _scram("scram: set", [("alice", 1, 4096), ("bob", 2, 8192)]),
    _scram("scram: second mechanism", [("alice", 2, 4096)]),
    _scram_users("scram: all"),
    _scram_users("scram: some", "bob", "carol"),
    _scram_users("scram: one user twice", "bob", "bob"),
    _scram("scram: too few iterations", [("dora", 1, 4095)]),
    _scram("scram: too many iterations", [("dora", 1, 16385)]),
    _scram("scram: most iterations", [("emil", 1, 16384)]),
    _scram("scram: no iterations", [("dora", 1, 0)]),
    _scram("scram: unknown mechanism", [("dora", 0, 4096)]),
    _scram("scram: mechanism 3", [("dora", 3, 4096)]),
    _scram("scram: no name", [("", 1, 4096)]),
    _scram("scram: twice", [("fay", 1, 4096), ("fay", 1, 4096)]),
    _scram("scram: twice in two mechanisms", [("fay", 1, 4096), ("fay", 2, 4096)]),
    _scram("scram: set and deleted", [("alice", 1, 5000)], [("alice", 1)]),
    _scram("scram: set one, delete another mechanism", [("alice", 1, 5000)], [("alice", 2)]),
    _scram("scram: delete unknown", [], [("nobody", 1)]),
    _scram("scram: delete no name", [], [("", 1)]),
    _scram("scram: delete unknown mechanism", [], [("bob", 7)]),
    _scram("scram: one bad, one good", [("gil", 1, 4096), ("hal", 1, 1)]),
    _scram("scram: delete", [], [("bob", 2), ("emil", 1)]),
    _scram("scram: delete the same twice", [], [("gil", 1), ("gil", 1)]),
    _scram("scram: nothing"),
    *(
        Case(
            f"scram: {name}",
            ALTER_SCRAM,
            0,
            {
                "deletions": [],
                "upsertions": [
                    {"name": "ida", "mechanism": 1, "iterations": 4096, "salt": salt, "salted_password": password}
                ],
            },
            True,
        )
        for name, salt, password in [
            ("no salt", b"", b"p" * 32),
            ("no password", b"salt", b""),
            ("short password", b"s", b"p"),
        ]
    ),
    _scram_users("scram: all that is left"),
    # Quotas
    _quotas("quotas: none"),
    _quota("quota: user", {"user": "ann"}, ("producer_byte_rate", 1000.0, False)),
    _quota("quota: user and client", {"user": "ann", "client-id": "c"}, ("consumer_byte_rate", 2000.0, False)),
    _quota("quota: default user", {"user": None}, ("request_percentage", 50.0, False)),
    _quota("quota: default client", {"client-id": None}, ("producer_byte_rate", 3.0, False)),
    _quota("quota: address", {"ip": "10.9.8.7"}, ("connection_creation_rate", 10.0, False)),
    _quota("quota: default address", {"ip": None}, ("connection_creation_rate", 11000.0, False)),
    _quota("quota: controller", {"user": "ann"}, ("controller_mutation_rate", 5.0, False)),
    _quota("quota: version 0", {"client-id": "d"}, ("producer_byte_rate", 4.0, False), version=0),
    _quota("quota: validate only", {"user": "dry"}, ("producer_byte_rate", 1.0, False), validate_only=True),
    _quota("quota: unknown key", {"user": "ann"}, ("no_such_rate", 1.0, False)),
    _quota("quota: remove unknown key", {"user": "ann"}, ("no_such_rate", 1.0, True)),
    _quota("quota: unknown entity", {"planet": "mars"}, ("producer_byte_rate", 1.0, False)),
    _quota("quota: empty entity type", {"": "mars"}, ("producer_byte_rate", 1.0, False)),
    _quota("quota: no entity", {}, ("producer_byte_rate", 1.0, False)),
    _quota("quota: empty name", {"user": ""}, ("producer_byte_rate", 1.0, False)),
    _quota("quota: address and user", {"ip": "10.9.8.7", "user": "a"}, ("connection_creation_rate", 1.0, False)),
    _quota("quota: not an address", {"ip": "not an address"}, ("connection_creation_rate", 1.0, False)),
    _quota("quota: address with a user's key", {"ip": "10.9.8.7"}, ("producer_byte_rate", 1.0, False)),
    _quota("quota: user with an address's key", {"user": "a"}, ("connection_creation_rate", 1.0, False)),
    _quota("quota: negative", {"user": "a"}, ("producer_byte_rate", -1.0, False)),
    _quota("quota: zero", {"user": "a"}, ("producer_byte_rate", 0.0, False)),
    _quota("quota: half a byte", {"user": "half"}, ("producer_byte_rate", 0.5, False)),
    _quota("quota: half a percent", {"user": "half"}, ("request_percentage", 0.5, False)),
    _quota("quota: tiny", {"user": "half"}, ("request_percentage", 1e-9, False)),
    _quota("quota: key twice", {"user": "a"}, ("producer_byte_rate", 1.0, False), ("producer_byte_rate", 2.0, False)),
    _quota("quota: nothing to do", {"user": "a"}),
    _quota("quota: beyond an int", {"ip": "10.9.8.7"}, ("connection_creation_rate", 2.0**31, False)),
    _quota("quota: largest int", {"ip": "10.9.8.7"}, ("connection_creation_rate", 2.0**31 - 1, False)),
    _quota("quota: endless", {"user": "endless"}, ("request_percentage", float("inf"), False)),
    _quota("quota: endless bytes", {"user": "endless"}, ("producer_byte_rate", float("inf"), False)),
    _quota("quota: almost whole", {"user": "almost"}, ("producer_byte_rate", 5.0000001, False)),
    _quota("quota: host name", {"ip": "localhost"}, ("connection_creation_rate", 30000.0, False)),
    _quota("quota: remove what is not there", {"user": "nobody"}, ("producer_byte_rate", 0.0, True)),
    _quota("quota: beyond a long", {"user": "long"}, ("producer_byte_rate", 1e30, False)),
    _user_quotas("quota: entity twice", ("w", _RATE, 1.0), ("w", _RATE, 2.0)),
    _quota_of_types_twice("quota: a type twice"),
    _quota_of_types_twice("quota: a type twice, and the entity twice", count=2),
    _quota("quota: remove what was named twice", {"user": "w"}, ("producer_byte_rate", 0.0, True)),
    _user_quotas("quota: one bad, one good", ("good", _RATE, 1.0), ("bad", _RATE, -2.0)),
    *(
        _quota(
            f"quota: limits {index}", {"user": f"user {index}"}, *[(_LIMITS[number], 9.0, False) for number in numbers]
        )
        for index, numbers in enumerate([(0, 2), (1, 0), (3, 2, 1), (2, 0, 1), (0, 1, 2, 3), (3, 1, 0, 2)])
    ),
    _quota("quota: limits one by one", {"user": "bob"}, ("producer_byte_rate", 9.0, False)),
    _quota("quota: limits one by one, the second", {"user": "bob"}, ("request_percentage", 9.0, False)),
    _quota("quota: client before user", {"client-id": "d", "user": "carl"}, ("producer_byte_rate", 9.0, False)),
    _user_quotas(
        "quota: many entities",
        *((f"one of many {index}", _RATE if index % 3 else "no_such_rate", 9.0) for index in range(14)),
    ),
    _quotas("quotas: all"),
    _quotas("quotas: all, strict", strict=True),
    _quotas("quotas: of a user", ("user", EXACT, "ann")),
    _quotas("quotas: of a user, strict", ("user", EXACT, "ann"), strict=True),
    _quotas("quotas: of a user and any client", ("user", EXACT, "ann"), ("client-id", ANY, None)),
    _quotas("quotas: of the default user", ("user", DEFAULT, None)),
    _quotas("quotas: of the default user with a name", ("user", DEFAULT, "x")),
    _quotas("quotas: of any user", ("user", ANY, None)),
    _quotas("quotas: of any client, strict", ("client-id", ANY, None), strict=True),
    _quotas("quotas: of addresses", ("ip", ANY, None)),
    _quotas("quotas: of an address and a user", ("ip", ANY, None), ("user", ANY, None)),
    _quotas("quotas: unknown entity", ("planet", ANY, None)),
    _quotas("quotas: empty entity", ("", ANY, None)),
    _quotas("quotas: entity twice", ("user", ANY, None), ("user", EXACT, "ann")),
    _quotas("quotas: unknown match", ("user", 9, None)),
    _quotas("quotas: exact without a name", ("user", EXACT, None)),
    _quotas("quotas: any with a name", ("user", ANY, "x")),
    _quota("quota: remove", {"user": "ann"}, ("producer_byte_rate", 0.0, True), ("controller_mutation_rate", 0, True)),
    _quotas("quotas: of a user after a removal", ("user", EXACT, "ann"), strict=True),
    # Configurations of topics
    _describe("configs: topic", TOPIC, "compact", "cleanup.policy", "retention.ms", "no.such.config"),
    _describe("configs: topic unknown", TOPIC, "missing"),
    _describe("configs: topic without a name", TOPIC, ""),
    _describe("configs: topic with an invalid name", TOPIC, "sp ace"),
    _alter("topic: set", TOPIC, "plain", ("retention.ms", SET, "1000"), ("segment.bytes", SET, "2097152")),
    _alter("topic: append", TOPIC, "plain", ("cleanup.policy", APPEND, "compact")),
    _alter("topic: subtract", TOPIC, "plain", ("cleanup.policy", SUBTRACT, "delete")),
    _alter("topic: append to a number", TOPIC, "plain", ("retention.ms", APPEND, "1")),
    _alter("topic: delete what is not set", TOPIC, "plain", ("max.message.bytes", DELETE, None)),
    _alter("topic: unknown", TOPIC, "plain", ("no.such.config", SET, "1")),
    _alter("topic: delete unknown", TOPIC, "plain", ("no.such.config", DELETE, None)),
    _alter("topic: not a number", TOPIC, "plain", ("retention.ms", SET, "soon")),
    _alter("topic: null", TOPIC, "plain", ("retention.ms", SET, None)),
    _alter("topic: twice", TOPIC, "plain", ("retention.ms", SET, "1"), ("retention.ms", SET, "2")),
    _alter("topic: unknown operation", TOPIC, "plain", ("retention.ms", 9, "1")),
    _alter("topic: missing", TOPIC, "missing", ("retention.ms", SET, "1")),
    _alter("topic: validate only", TOPIC, "plain", ("retention.ms", SET, "77"), validate_only=True),
    _alter("topic: one bad, one good", TOPIC, "plain", ("retention.ms", SET, "55"), ("segment.ms", SET, "x")),
    _alter("topic: nothing", TOPIC, "plain"),
    _describe("configs: topic after changes", TOPIC, "plain", "retention.ms", "segment.bytes", "cleanup.policy"),
    _replace("topic: replace", TOPIC, "plain", retention_ms="2000"),
    _replace("topic: replace by nonsense", TOPIC, "plain", retention_ms="later"),
    _replace("topic: replace by null", TOPIC, "plain", retention_ms=None),
    _replace("topic: replace, missing", TOPIC, "missing", retention_ms="1"),
    _describe("configs: topic after a replacement", TOPIC, "plain", "retention.ms", "segment.bytes"),
    Case(
        "topic: a resource twice",
        INCREMENTAL_ALTER_CONFIGS,
        1,
        {"resources": [*_retention("1"), *_retention("2")]},
    ),
    # Configurations of brokers
    _describe("configs: advertised.listeners", BROKER, "1", "advertised.listeners", version=4),
    _describe(
        "configs: broker", BROKER, "1", "message.max.bytes", "num.partitions", "log.retention.hours", "broker.rack"
    ),
    _describe("configs: broker defaults, none set", BROKER, ""),
    _describe("configs: unknown name", BROKER, "1", "no.such.config"),
    _describe("configs: other broker", BROKER, "7"),
    _describe("configs: broker not a number", BROKER, "one"),
    _describe("configs: negative broker", BROKER, "-1"),
    _alter("broker: dynamic", BROKER, "1", ("log.cleaner.threads", SET, "2")),
    _alter("broker: dynamic default", BROKER, "", ("message.max.bytes", SET, "2000000")),
    _alter("broker: own over default", BROKER, "1", ("message.max.bytes", SET, "3000000")),
    _alter("broker: read-only", BROKER, "1", ("num.partitions", SET, "3")),
    _alter("broker: read-only, of no use here", BROKER, "1", ("queued.max.requests", SET, "3")),
    _alter("broker: dynamic, of no use here", BROKER, "1", ("num.io.threads", SET, "8")),
    _alter("broker: dynamic, of no use here, deleted", BROKER, "1", ("num.io.threads", DELETE, None)),
    _alter("broker: delete read-only", BROKER, "1", ("num.partitions", DELETE, None)),
    _alter("broker: read-only default", BROKER, "", ("node.id", SET, "3")),
    _alter("broker: per broker only, as default", BROKER, "", ("advertised.listeners", SET, "PLAINTEXT://x:1")),
    _alter("broker: not a number", BROKER, "1", ("message.max.bytes", SET, "big")),
    _alter("broker: out of range", BROKER, "1", ("message.max.bytes", SET, "-5")),
    _alter("broker: unknown", BROKER, "1", ("no.such.config", SET, "1")),
    _describe("configs: broker, unknown that was set", BROKER, "1", "no.such.config"),
    _alter("broker: unknown default", BROKER, "", ("no.such.config", SET, "2")),
    _describe("configs: broker defaults, unknown that was set", BROKER, "", "no.such.config"),
    _describe("configs: broker, unknown default", BROKER, "1", "no.such.config"),
    *(
        _alter(f"broker: {key} for {broker or 'all'}", BROKER, broker, (key, SET, value), validate_only=True)
        for key, value in [
            ("ssl.truststore.type", "JKS"),
            ("ssl.keystore.location", "file"),
            ("listener.name.plaintext.ssl.client.auth", "none"),
            ("ssl.client.auth", "none"),
            ("sasl.jaas.config", "config"),
        ]
        for broker in ("1", "")
    ),
    _alter("broker: delete ssl.truststore.type", BROKER, "1", ("ssl.truststore.type", DELETE, None)),
    _alter("broker: delete unknown", BROKER, "1", ("no.such.config", DELETE, None)),
    _alter("broker: delete unknown default", BROKER, "", ("no.such.config", DELETE, None)),
    _alter("broker: other", BROKER, "7", ("message.max.bytes", SET, "1")),
    _alter("broker: not a number as name", BROKER, "one", ("message.max.bytes", SET, "1")),
    _alter("broker: append to a number", BROKER, "1", ("message.max.bytes", APPEND, "1")),
    _alter("broker: append to a list", BROKER, "1", ("log.cleanup.policy", APPEND, "compact")),
    _describe("configs: broker list", BROKER, "1", "log.cleanup.policy"),
    _alter("broker: delete what is not set", BROKER, "1", ("max.connections", DELETE, None)),
    _alter("broker: validate only", BROKER, "1", ("message.max.bytes", SET, "5000000"), validate_only=True),
    _alter("broker: too many cleaners", BROKER, "1", ("log.cleaner.threads", SET, "9")),
    _describe("configs: broker after changes", BROKER, "1", "message.max.bytes", "log.cleaner.threads"),
    _describe("configs: broker defaults", BROKER, "", "message.max.bytes"),
    _describe("configs: topic under changed defaults", TOPIC, "wide", "max.message.bytes"),
    _alter("broker: remove", BROKER, "1", ("message.max.bytes", DELETE, None), ("log.cleaner.threads", DELETE, None)),
    _alter("broker: remove list", BROKER, "1", ("log.cleanup.policy", DELETE, None)),
    _alter("broker: remove default", BROKER, "", ("message.max.bytes", DELETE, None)),
    _replace("broker: replace", BROKER, "1", message_max_bytes="4000000"),
    _describe("configs: broker after a replacement", BROKER, "1", "message.max.bytes"),
    _replace("broker: replace by nothing", BROKER, "1"),
    _replace("broker: replace read-only", BROKER, "1", num_partitions="4"),
    _replace("broker: replace, other", BROKER, "9", message_max_bytes="4000000"),
    # Loggers
    _describe("configs: logger", LOGGER, "1", "no.such.logger"),
    _describe("configs: logger of no broker", LOGGER, ""),
    _describe("configs: logger of another broker", LOGGER, "9"),
    _describe("configs: logger not a number", LOGGER, "x"),
    _alter("logger: unknown level", LOGGER, "1", ("root", SET, "LOUD")),
    _alter("logger: unknown", LOGGER, "1", ("no.such.logger.at.all", SET, "DEBUG")),
    _alter("logger: delete root", LOGGER, "1", ("root", DELETE, None)),
    _alter("logger: append", LOGGER, "1", ("root", APPEND, "DEBUG")),
    _alter("logger: subtract", LOGGER, "1", ("root", SUBTRACT, "DEBUG")),
    _alter("logger: null", LOGGER, "1", ("root", SET, None)),
    _alter("logger: lower case", LOGGER, "1", ("root", SET, "info"), validate_only=True),
    _alter("logger: of another broker", LOGGER, "9", ("root", SET, "INFO")),
    _alter("logger: of no broker", LOGGER, "", ("root", SET, "INFO")),
    _replace("logger: replace", LOGGER, "1", root="INFO"),
    # Groups
    _describe("configs: group", GROUP, "g", "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"),
    _describe("configs: group without a name", GROUP, ""),
    _alter("group: set", GROUP, "g", ("consumer.session.timeout.ms", SET, "50000")),
    _alter("group: set interval", GROUP, "g", ("consumer.heartbeat.interval.ms", SET, "6000")),
    _describe("configs: group after changes", GROUP, "g", "consumer.session.timeout.ms"),
    _alter("group: timeout too small", GROUP, "g", ("consumer.session.timeout.ms", SET, "44999")),
    _alter("group: timeout too large", GROUP, "g", ("consumer.session.timeout.ms", SET, "60001")),
    _alter("group: interval too small", GROUP, "g", ("consumer.heartbeat.interval.ms", SET, "4999")),
    _alter("group: interval too large", GROUP, "g", ("consumer.heartbeat.interval.ms", SET, "15001")),
    _alter("group: not a number", GROUP, "g", ("consumer.session.timeout.ms", SET, "long")),
    _alter("group: timeout below interval", GROUP, "g", ("consumer.assignment.interval.ms", SET, "15001")),
    _alter("group: assignment interval", GROUP, "g", ("consumer.assignment.interval.ms", SET, "10")),
    _alter("group: zero", GROUP, "g", ("consumer.session.timeout.ms", SET, "0")),
    _alter("group: unknown", GROUP, "g", ("no.such.config", SET, "1")),
    _alter("group: null", GROUP, "g", ("consumer.session.timeout.ms", SET, None)),
    _alter("group: append", GROUP, "g", ("consumer.session.timeout.ms", APPEND, "1")),
    _alter("group: without a name", GROUP, "", ("consumer.session.timeout.ms", SET, "50000")),
    _alter("group: validate only", GROUP, "h", ("consumer.session.timeout.ms", SET, "50000"), validate_only=True),
    _replace("group: replace", GROUP, "g", consumer_session_timeout_ms="51000"),
    _describe("configs: group after a replacement", GROUP, "g", "consumer.heartbeat.interval.ms"),
    # Subscriptions to client metrics
    _describe("configs: client metrics", METRICS, "m"),
    _describe("configs: client metrics without a name", METRICS, ""),
    _alter("metrics: set", METRICS, "m", ("interval.ms", SET, "5000"), ("metrics", SET, "a,b")),
    _alter("metrics: match", METRICS, "m", ("match", SET, "client_id=abc.*")),
    _describe("configs: client metrics after changes", METRICS, "m"),
    _alter("metrics: interval too small", METRICS, "m", ("interval.ms", SET, "99")),
    _alter("metrics: interval too large", METRICS, "m", ("interval.ms", SET, "3600001")),
    _alter("metrics: not a number", METRICS, "m", ("interval.ms", SET, "often")),
    _alter("metrics: bad match", METRICS, "m", ("match", SET, "planet=mars")),
    _alter("metrics: bad pattern", METRICS, "m", ("match", SET, "client_id=[")),
    _alter("metrics: no pattern", METRICS, "m", ("match", SET, "client_id")),
    _alter("metrics: unknown", METRICS, "m", ("no.such.config", SET, "1")),
    _alter("metrics: without a name", METRICS, "", ("interval.ms", SET, "5000")),
    _alter("metrics: append", METRICS, "m", ("metrics", APPEND, "c")),
    _replace("metrics: replace", METRICS, "m", interval_ms="6000"),
    _describe("configs: client metrics after a replacement", METRICS, "m"),
    _describe("configs: unknown type", 99, "x"),
    _describe("configs: type 0", 0, "x"),
    _alter("alter: unknown type", 99, "x", ("a", SET, "1")),
    _replace("unknown type: replace", 99, "x", a="1"),
    # What has configurations
    Case("resources: version 0", LIST_CONFIG_RESOURCES, 0, {}),
    *(
        Case(f"resources: {types}", LIST_CONFIG_RESOURCES, 1, {"resource_types": types})
        for types in ([], [TOPIC], [BROKER], [LOGGER], [METRICS], [GROUP], [GROUP, METRICS], [99], [TOPIC, 0])
    ),
    # Internal topics and deletion
    _delete_records("records: unknown", "missing", 0),
    _delete_records("records: beyond", "wide", 5),
    _delete_records("records: negative", "wide", -2),
    _delete_records("records: compacted", "compact", 0),
    _delete_records("records: to the end", "wide", -1),
    _create("create: an internal topic", _topic("__transaction_state", 3)),
    _metadata("metadata: internal topic", "__transaction_state"),
    _partitions("partitions: internal topic", "__transaction_state"),
    _delete_records("records: of an internal topic", "__transaction_state", 0),
    _delete("delete: internal topic", "__transaction_state"),
    _delete("delete", "compact", "old"),
    _delete("delete: unknown", "missing"),
    _delete("delete: twice in a request", "wide", "wide"),
    _delete("delete: invalid name", "sp ace"),
    _delete("delete: no name", ""),
    _delete("delete: the metadata log", "__cluster_metadata"),
    _delete("delete: neither name nor id", {"name": None, "topic_id": None}),
    _delete("delete: name and id", {"name": "wide", "topic_id": UUID(int=5 << 64)}),
    _delete("delete: unknown id", {"name": None, "topic_id": UUID(int=5 << 64)}),
    _delete("delete: version 1", "missing", version=1),
    _metadata("metadata: after deletion", "compact"),
    _partitions("partitions: after deletion", "compact"),
)

_MASKED = {
    "cluster_id",
    "host",
    "port",
    "log_dir",
    "total_bytes",
    "usable_bytes",
    "partition_size",
    "high_watermark",
    "log_end_offset",
    "last_fetch_timestamp",
    "last_caught_up_timestamp",
    "replica_directory_id",
    "leader_epoch",
    "documentation",
}
"""Values that differ from run to run: only whether there is one is compared."""

_ORDERED = {DESCRIBE_TOPIC_PARTITIONS, DESCRIBE_QUOTAS, ALTER_QUOTAS}
"""APIs that promise an order, or whose order is that of hash maps that depend on the request and what is stored alone."""


def comparable(api_key: int, answer: Any) -> Any:
    """Return an answer as JSON values: random values are masked, lists without a promised order are sorted."""
    return _plain(answer, "", api_key in _ORDERED)


def _plain(value: Any, name: str, is_ordered: bool) -> Any:
    if dataclasses.is_dataclass(value):
        return {
            field.name: _plain(getattr(value, field.name), field.name, is_ordered)
            for field in dataclasses.fields(value)
            if field.name != "throttle_time"
        }
    if isinstance(value, tuple | list):
        values = [_plain(element, name, is_ordered) for element in value]
        return values if is_ordered or name == "synonyms" else sorted(values, key=json.dumps)
    if value is None or value == "":
        return value
    if isinstance(value, str) and "://" in value:
        return "addresses"
    if name in _MASKED:
        return "set" if value not in (-1, 0) else value
    if isinstance(value, UUID):
        return "an id"
    if isinstance(value, enum.IntEnum):
        return value.name.upper()
    if isinstance(value, timedelta):
        return round(value / timedelta(milliseconds=1))
    if isinstance(value, datetime):
        return "a time"
    if isinstance(value, bytes):
        return value.hex()
    return value


async def wait_for_the_controller(settle_s: float) -> None:
    """Wait a moment. For recording only: no condition shows that a broker has seen all metadata."""
    await asyncio.sleep(settle_s)


def _with_log_dir(fields: Any, log_dir: str) -> Any:
    """Replace "@log_dir" by the broker's directory."""
    if isinstance(fields, dict):
        return {name: _with_log_dir(value, log_dir) for name, value in fields.items()}
    if isinstance(fields, list):
        return [_with_log_dir(value, log_dir) for value in fields]
    return log_dir if fields == "@log_dir" else fields


def _decoded(case: Case, body: bytes) -> Any:
    try:
        answer, size = entity_reader(response_class(case.api_key, case.version))(body, 0)
    except OutOfBoundValue:  # kio knows no points in time before 1970
        return body.hex()
    assert size == len(body), case.name
    return comparable(case.api_key, answer)


async def run_script(address: str, settle_s: float = 0.0) -> dict[str, Any]:
    """Send all of `SCRIPT`; return the answers by case, or "closed" if the broker closed the connection."""
    answers: dict[str, Any] = {}
    log_dir = ""
    async with WireClient(address) as client:
        answer = await client.call(DESCRIBE_LOG_DIRS, 4, {"topics": []})
        log_dir = answer.results[0].log_dir
    for case in SCRIPT:
        assert case.name not in answers, case.name
        async with WireClient(address) as client:
            try:
                client.send(case.api_key, case.version, _with_log_dir(case.fields, log_dir))
                _, body = await client.receive_frame()
                answers[case.name] = _decoded(case, body[response_header_version(case.api_key, case.version) :])
            except (asyncio.IncompleteReadError, ConnectionError):
                answers[case.name] = "closed"
            except TimeoutError:
                answers[case.name] = "no answer"
        if settle_s and case.changes:
            await wait_for_the_controller(settle_s)
    return answers


if __name__ == "__main__":
    recorded = asyncio.run(run_script(sys.argv[1], SETTLE_S))
    lines = [f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in recorded.items()]
    print("{" + ",\n".join(lines) + "}")
