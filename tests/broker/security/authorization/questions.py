"""Questions about access: requests of every API, and the ACLs and clients with which they are asked of a real Kafka and of ours.

Each `Scenario` has some ACLs; each of its clients (a user at an address) asks its questions. Topics `users` and `orders`, group
`g` with a committed offset, and transactional id `tx` are there; `missing` is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from diamant.broker.acl import (
    CLUSTER_NAME,
    Acl,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from tests.broker.request_fields import acl, acl_filter
from tests.broker.wire import batch_of, fetch_fields

Fields: TypeAlias = dict[str, Any]
MakeFields: TypeAlias = Callable[[Mapping[str, UUID]], Fields]
"""The fields of a request, with the ids of topics by name."""

ALICE, BOB = "alice", "bob"
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTION, USER = ResourceType.TRANSACTIONAL_ID, ResourceType.USER


class Question(NamedTuple):
    """A request without effect, or one whose effect does not change the responses to others."""

    name: str
    api_key: int
    version: int
    fields: MakeFields


class Client(NamedTuple):
    """A user that connects from an address of this machine."""

    user: str = ALICE
    host: str = HERE


class Scenario(NamedTuple):
    """ACLs, and the questions asked while exactly these exist."""

    name: str
    acls: Sequence[Acl]
    clients: Sequence[Client] = (Client(),)
    questions: Sequence[str] = ()
    """Names of questions; none: all that may be asked everywhere."""


def _ask(name: str, api_key: int, version: int, **fields: Any) -> Question:
    return Question(name, api_key, version, lambda _ids: fields)


def _transactional_batch() -> bytes:
    return batch_of([b"x"], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)


def _produce(version: int, name: str, topic: str, *, transactional_id: str | None = None) -> Question:
    def fields(ids: Mapping[str, UUID]) -> Fields:
        records = batch_of([b"x"]) if transactional_id is None else _transactional_batch()
        entry = {"name": topic, "topic_id": ids.get(topic, UUID(int=77 << 64))}
        entry["partition_data"] = [{"index": 0, "records": records}]
        return {"transactional_id": transactional_id, "acks": -1, "timeout_ms": 1000, "topic_data": [entry]}

    return Question(name, 0, version, fields)


def _fetch(version: int, name: str, *topics: str, replica_id: int = -1) -> Question:
    def fields(ids: Mapping[str, UUID]) -> Fields:
        found = fetch_fields("", 0, max_bytes=1000, partition_max_bytes=100)
        (partition,) = found["topics"][0]["partitions"]
        wanted = [
            {"topic": topic, "topic_id": ids.get(topic, UUID(int=77 << 64)), "partitions": [partition]}
            for topic in topics
        ]
        return {**found, "replica_id": replica_id, "topics": wanted}

    return Question(name, 1, version, fields)


def _both(key: str = "name", **fields: Any) -> list[Fields]:
    """Topics `users` and `missing`, each with these fields."""
    return [{key: name, **fields} for name in ("users", "missing")]


def _metadata(version: int, name: str, *topics: str | None, creates: bool = False) -> Question:
    wanted = None if topics == (None,) else [{"name": topic, "topic_id": None} for topic in topics]
    return _ask(
        name,
        3,
        version,
        topics=wanted,
        allow_auto_topic_creation=creates,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )


def _by_id(name: str, key: int, version: int, make: Callable[[UUID], Fields]) -> Question:
    return Question(name, key, version, lambda ids: make(ids["users"]))


_ACL_FILTER = acl_filter(2, "no such name", pattern=3, operation=3, permission_type=3)
_NEW_ACL = acl(2, "", "User:z", 3)
_SOME_MS = {"timeout_ms": 1000}
_CHECKED = {**_SOME_MS, "validate_only": True}
_CONSUMER = {"replica_id": -1, "isolation_level": 0}
_STATIC = {"group_instance_id": None}
_ASKED_AS = {"include_authorized_operations": True}
_FIRST = [{"partition_index": 0}]
_PARTITION_0 = {"partition_indexes": [0]}
_PAGE = {"response_partition_limit": 10, "cursor": None}
_PRODUCER = {"producer_id": 7, "producer_epoch": 0}
_NEW_PRODUCER = {"producer_id": -1, "producer_epoch": -1}
_SESSION = {"session_timeout_ms": 10000, "rebalance_timeout_ms": 10000}
_JOIN = {**_SESSION, "member_id": "", "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}]}
_MEMBER = {"group_id": "g", "generation_id": 1, "member_id": "m", **_STATIC}
_NO_MEMBER = {"generation_id_or_member_epoch": -1, "member_id": "", **_STATIC}
_LEAVING = [{"member_id": "m", "group_instance_id": None, "reason": None}]
_CONFIG = {"name": "retention.ms", "value": "1000"}
_RESOURCES = ((2, "users"), (2, "missing"), (4, "1"), (8, "1"), (16, "m"), (32, "g"))
_OFFSETS = [{"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": None}]
_HEARTBEAT = {
    **{"group_id": "kip848", "member_id": "wAAAAAAAAAAAAAAAAAAAAA", "member_epoch": 5, "instance_id": None},
    **{"rack_id": None, "rebalance_timeout_ms": -1, "subscribed_topic_regex": None},
    **{"server_assignor": None, "topic_partitions": None},
}
_SHARE_MEMBER = {"group_id": "kip932", "member_id": "wAAAAAAAAAAAAAAAAAAAAA"}
_SHARE_HEARTBEAT = {**_SHARE_MEMBER, "member_epoch": 5, "rack_id": None}
_STATE: Fields = {"state_epoch": 0, "leader_epoch": 0}
_SHARE_FETCH = {
    **_SHARE_MEMBER, "share_session_epoch": 5, "min_bytes": 1, "max_bytes": 1, "max_records": 1, "batch_size": 1,
    "max_wait_ms": 0, "topics": [], "forgotten_topics_data": [],
}  # fmt: skip
_MARKER = {"transaction_result": False, "coordinator_epoch": 0, "topics": [{"name": "missing", **_PARTITION_0}]}
_VERIFIED = {"transactional_id": "ty", "verify_only": True, "topics": [{"name": "users", "partitions": [0]}]}
_IN_TRANSACTION = {f"v3_and_below_{name}": value for name, value in {"transactional_id": "ty", **_PRODUCER}.items()}
_OFFSETS_IN_TRANSACTION = {"transactional_id": "ty", "group_id": "g", "generation_id": -1, "member_id": "", **_STATIC}
_QUOTA = {"key": "producer_byte_rate", "value": 1.0, "remove": False}
_FEATURE = {"feature": "no.such.feature", "max_version_level": 1, "upgrade_type": 1}


def _new(*names: str) -> list[Fields]:
    return [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []} for name in names
    ]


def _resources(count: int = len(_RESOURCES), **fields: Any) -> list[Fields]:
    return [{"resource_type": kind, "resource_name": name, **fields} for kind, name in _RESOURCES[:count]]


_DATA = (
    _produce(9, "produce", "users"),
    _produce(9, "produce: missing topic", "missing"),
    _produce(13, "produce: by id", "users"),
    _produce(13, "produce: by unknown id", "missing"),
    _produce(9, "produce: transactional", "users", transactional_id="tx"),
    _fetch(12, "fetch", "users", "missing"),
    _fetch(16, "fetch: by id", "users", "missing"),
    _ask(
        "list offsets", 2, 7, **_CONSUMER,
        topics=_both(partitions=[{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -2}]),
    ),
    _ask("delete records", 21, 2, topics=_both(partitions=[{"partition_index": 0, "offset": 0}]), **_SOME_MS),
    _ask(
        "offset for leader epoch", 23, 4, replica_id=-1,
        topics=_both("topic", partitions=[{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]),
    ),
    _ask("describe producers", 61, 0, topics=_both(**_PARTITION_0)),
    _ask("alter replica log dirs", 34, 2, dirs=[{"path": "/no", "topics": [{"name": "users", "partitions": [0]}]}]),
    *(_ask(f"describe log dirs: version {v}", 35, v, topics=[{"topic": "users", "partitions": [0]}]) for v in (1, 4)),
)  # fmt: skip
_TOPICS = (
    _metadata(12, "metadata: all", None),
    _metadata(9, "metadata: named", "users", "missing"),
    _metadata(1, "metadata: version 1", "users", "missing"),
    _metadata(9, "metadata: bad name", "sp ace"),
    _metadata(9, "metadata: creating an internal topic", "__cluster_metadata", creates=True),
    _by_id(
        "metadata: by id", 3, 12,
        lambda topic_id: {"topics": [{"name": None, "topic_id": topic_id}], "allow_auto_topic_creation": False},
    ),
    _ask("create topics", 19, 7, topics=_new("users", "fresh"), **_CHECKED),
    _ask("create topics: one named twice", 19, 7, topics=_new("twice", "twice", "fresh"), **_CHECKED),
    _ask("delete topics: missing", 20, 6, topics=[{"name": "missing", "topic_id": None}], **_SOME_MS),
    _ask("delete topics: version 4", 20, 4, topic_names=["missing"], **_SOME_MS),
    _ask("delete topics: unknown id", 20, 6, topics=[{"name": None, "topic_id": UUID(int=5 << 64)}], **_SOME_MS),
    _ask("create partitions", 37, 3, topics=_both(count=1, assignments=None), **_CHECKED),
    _ask(
        "elect leaders", 43, 2, election_type=0, topic_partitions=[{"topic": "users", "partitions": [0]}], timeout_ms=9000
    ),
    _ask(
        "alter reassignments", 45, 0, **_SOME_MS,
        topics=[{"name": "users", "partitions": [{"partition_index": 0, "replicas": None}]}],
    ),
    _ask("list reassignments", 46, 0, **_SOME_MS, topics=None),
    _ask("describe topic partitions: all", 75, 0, topics=[], **_PAGE),
    _ask("describe topic partitions", 75, 0, topics=_both(), **_PAGE),
)  # fmt: skip
_GROUPS = (
    *(
        _ask(f"offset commit: version {v}", 8, v, group_id="g", **_NO_MEMBER, topics=_both(partitions=_OFFSETS))
        for v in (2, 8)
    ),
    *(
        _ask(f"offset fetch: version {v}", 9, v, group_id="g", require_stable=False, topics=_both(**_PARTITION_0))
        for v in (1, 5)
    ),
    _ask(
        "offset fetch: groups", 9, 8, require_stable=False,
        groups=[{"group_id": "g", "topics": _both(**_PARTITION_0)}, {"group_id": "h", "topics": None}],
    ),
    _ask("offset fetch: all topics", 9, 8, require_stable=False, groups=[{"group_id": "g", "topics": None}]),
    _ask("find coordinator", 10, 3, key="g", key_type=0),
    _ask("find coordinator: several", 10, 4, coordinator_keys=["g", "h"], key_type=0),
    _ask("find coordinator: transaction", 10, 4, coordinator_keys=["tx", "ty"], key_type=1),
    _ask("join group", 11, 7, group_id="g2", **_JOIN, **_STATIC, reason=None),
    _ask("heartbeat", 12, 4, **_MEMBER),
    _ask("leave group", 13, 4, group_id="g", members=_LEAVING),
    _ask("leave group: version 1", 13, 1, group_id="g", member_id="m"),
    _ask("sync group", 14, 5, **_MEMBER, protocol_type="consumer", protocol_name="range", assignments=[]),
    _ask("describe groups", 15, 5, groups=["g", "h"], **_ASKED_AS),
    _ask("list groups", 16, 4, states_filter=[]),
    _ask("delete groups", 42, 2, groups_names=["h", "i"]),
    _ask("offset delete", 47, 0, group_id="g", topics=[{"name": "missing", "partitions": _FIRST}]),
    _ask("offset delete: another group", 47, 0, group_id="h", topics=_both(partitions=_FIRST)),
    _ask("consumer group heartbeat", 68, 1, **_HEARTBEAT, subscribed_topic_names=None),
    _ask("consumer group heartbeat: topics", 68, 1, **_HEARTBEAT, subscribed_topic_names=["users", "missing"]),
    _ask("consumer group describe", 69, 1, group_ids=["g", "h"], **_ASKED_AS),
    _ask("share group heartbeat", 76, 1, **_SHARE_HEARTBEAT, subscribed_topic_names=None),
    _ask("share group heartbeat: topics", 76, 1, **_SHARE_HEARTBEAT, subscribed_topic_names=["users", "missing"]),
    _ask("share group describe", 77, 1, group_ids=["g", "h"], **_ASKED_AS),
    _ask("share fetch", 78, 2, **_SHARE_FETCH),
    _ask("share acknowledge", 79, 2, **_SHARE_MEMBER, share_session_epoch=5, topics=[]),
    *(
        _ask(name, key, 0, group_id="g", topics=[{"topic_id": UUID(int=77), "partitions": [{"partition": 0, **fields}]}])
        for name, key, fields in (
            ("initialize share group state", 83, {"state_epoch": 0, "start_offset": 0}),
            ("read share group state", 84, {"leader_epoch": 0}),
            ("write share group state", 85, {**_STATE, "start_offset": 0, "state_batches": []}),
            ("delete share group state", 86, {}),
            ("read share group state summary", 87, {"leader_epoch": 0}),
        )
    ),
    _ask(
        "describe share group offsets", 90, 1,
        groups=[{"group_id": "h", "topics": _both("topic_name", partitions=[0])}, {"group_id": "g", "topics": None}],
    ),
    _ask(
        "alter share group offsets", 91, 0, group_id="g",
        topics=_both("topic_name", partitions=[{"partition_index": 0, "start_offset": 0}]),
    ),
    _ask("delete share group offsets", 92, 0, group_id="h", topics=_both("topic_name")),
)  # fmt: skip
_TRANSACTIONS = (
    _ask("init producer id", 22, 4, transactional_id=None, transaction_timeout_ms=1, **_NEW_PRODUCER),
    _ask("init producer id: transactional", 22, 4, transactional_id="ty", transaction_timeout_ms=0, **_NEW_PRODUCER),
    _ask(
        "add partitions to txn", 24, 3, **_IN_TRANSACTION,
        v3_and_below_topics=[{"name": name, "partitions": [0]} for name in ("users", "orders")],
    ),
    _ask("add partitions to txn: of brokers", 24, 5, transactions=[{**_VERIFIED, **_PRODUCER}]),
    _ask("add offsets to txn", 25, 3, transactional_id="ty", **_PRODUCER, group_id="g"),
    _ask("end txn", 26, 3, transactional_id="ty", **_PRODUCER, committed=True),
    _ask("write txn markers", 27, 1, markers=[]),
    _ask("write txn markers: one", 27, 1, markers=[{**_PRODUCER, **_MARKER}]),
    _ask("txn offset commit", 28, 3, **_OFFSETS_IN_TRANSACTION, **_PRODUCER, topics=_both(partitions=_OFFSETS)),
    _ask("describe transactions", 65, 0, transactional_ids=["tx", "ty"]),
    _ask("list transactions", 66, 0, state_filters=[], producer_id_filters=[]),
)  # fmt: skip
_CLUSTER = (
    _ask("api versions", 18, 3, client_software_name="x", client_software_version="1"),
    _ask("describe acls", 29, 3, **_ACL_FILTER),
    _ask("create acls", 30, 3, creations=[_NEW_ACL]),
    _ask("delete acls", 31, 3, filters=[_ACL_FILTER]),
    _ask(
        "describe configs", 32, 4, resources=_resources(configuration_keys=["no.such.key"]),
        include_synonyms=False, include_documentation=False,
    ),
    _ask("alter configs", 33, 2, resources=_resources(2, configs=[_CONFIG]), validate_only=True),
    _ask("incremental alter configs", 44, 1, resources=_resources(configs=[]), validate_only=True),
    _ask(
        "describe client quotas", 48, 1, strict=False,
        components=[{"entity_type": "user", "match_type": 0, "match": "zz"}],
    ),
    _ask(
        "alter client quotas", 49, 1, validate_only=True,
        entries=[{"entity": [{"entity_type": "user", "entity_name": "zz"}], "ops": [_QUOTA]}],
    ),
    _ask("describe scram", 50, 0, users=[{"name": "zz"}]),
    _ask("alter scram", 51, 0, deletions=[{"name": "zz", "mechanism": 1}], upsertions=[]),
    _ask("describe quorum", 55, 0, topics=[{"topic_name": "no such topic", "partitions": [{"partition_index": 7}]}]),
    _ask("update features", 57, 1, feature_updates=[_FEATURE], **_CHECKED),
    _ask("describe cluster", 60, 0, include_cluster_authorized_operations=True),
    _ask("unregister broker", 64, 0, broker_id=77),
    _ask("list config resources", 74, 1, resource_types=[2, 32]),
)  # fmt: skip

_EVERYWHERE_ASKED = (*_DATA, *_TOPICS, *_GROUPS, *_TRANSACTIONS, *_CLUSTER)
_WHERE_DENIED = (
    _fetch(12, "denied: fetch as a follower", "users", replica_id=1),
    _metadata(9, "denied: metadata that creates", "users_made", creates=True),
    _ask("denied: delete topics", 20, 6, topics=[{"name": "users", "topic_id": None}], timeout_ms=1000),
    _ask("denied: delete topics, version 4", 20, 4, topic_names=["users"], timeout_ms=1000),
    _by_id(
        "denied: delete topics by id", 20, 6,
        lambda topic_id: {"topics": [{"name": None, "topic_id": topic_id}], "timeout_ms": 1000},
    ),
    _ask("denied: delete groups", 42, 2, groups_names=["g"]),
)  # fmt: skip
"""Asked only where they have no effect, as they are denied."""

QUESTIONS: dict[str, Question] = {question.name: question for question in (*_EVERYWHERE_ASKED, *_WHERE_DENIED)}
"""By name."""
ALL = tuple(question.name for question in _EVERYWHERE_ASKED)
DENIED = tuple(question.name for question in _WHERE_DENIED)


def allow(
    operation: Operation,
    kind: ResourceType = TOPIC,
    name: str = "users",
    *,
    user: str = ALICE,
    host: str = "*",
    is_prefix: bool = False,
    permission: PermissionType = PermissionType.ALLOW,
) -> Acl:
    """Return an ACL; by default it allows alice something on topic users."""
    pattern = PatternType.PREFIXED if is_prefix else PatternType.LITERAL
    return Acl(kind, name, pattern, f"User:{user}", host, operation, permission)


def deny(operation: Operation, kind: ResourceType = TOPIC, name: str = "users", **options: Any) -> Acl:
    """Return an ACL that denies it."""
    return allow(operation, kind, name, permission=PermissionType.DENY, **options)


_EVERYWHERE = ((TOPIC, "users"), (GROUP, "g"), (TRANSACTION, "ty"), (CLUSTER, CLUSTER_NAME))
_FOR_PATTERNS = (
    "produce", "fetch", "fetch: by id", "list offsets", "metadata: all", "metadata: named", "offset fetch: groups",
    "find coordinator: several", "describe groups", "list groups", "init producer id", "describe configs",
    "delete topics: missing", "describe transactions", "describe cluster",
)  # fmt: skip
_READ, _WRITE, _ALL, _DESCRIBE = Operation.READ, Operation.WRITE, Operation.ALL, Operation.DESCRIBE
_CLIENTS = (Client(), Client(BOB), Client(ALICE, ELSEWHERE))

SCENARIOS: tuple[Scenario, ...] = (
    Scenario("no ACL", ()),
    *(
        Scenario(f"{operation.name} on one of each", [allow(operation, kind, name) for kind, name in _EVERYWHERE])
        for operation in Operation
        if Operation.ALL <= operation <= Operation.IDEMPOTENT_WRITE
    ),
    Scenario("the group alone", [allow(_READ, GROUP, "g")]),
    Scenario("the transaction alone", [allow(_WRITE, TRANSACTION, "ty")]),
    Scenario("the transaction and the group", [allow(_WRITE, TRANSACTION, "ty"), allow(_READ, GROUP, "g")]),
    Scenario(
        "the transaction and one of two topics", [allow(_WRITE, TRANSACTION, "ty"), allow(_WRITE, TOPIC, "orders")]
    ),
    Scenario("nothing", (), questions=DENIED),
    Scenario("describe", [allow(_DESCRIBE, name="users", is_prefix=True)], questions=DENIED),
    Scenario("read", [allow(_READ, name="users", is_prefix=True), allow(_READ, GROUP, "g")], questions=DENIED),
    *(
        Scenario(name, acls, _CLIENTS, _FOR_PATTERNS)
        for name, acls in [
            ("prefixed", [allow(_READ, TOPIC, "us", is_prefix=True), allow(_DESCRIBE, GROUP, "g", is_prefix=True)]),
            ("every topic and group", [allow(_READ, TOPIC, "*"), allow(_READ, GROUP, "*")]),
            ("a prefix that is a whole name", [allow(_ALL, TOPIC, "users", is_prefix=True)]),
            ("a prefix longer than the name", [allow(_ALL, TOPIC, "users2", is_prefix=True)]),
            ("an asterisk as prefix", [allow(_ALL, TOPIC, "*", is_prefix=True)]),
            ("denied to everybody", [allow(_ALL, TOPIC, "*"), deny(_READ, user="*")]),
            ("denied by prefix", [allow(_ALL, TOPIC, "*"), deny(_ALL, TOPIC, "u", is_prefix=True)]),
            ("denied everywhere", [allow(_ALL), deny(_ALL, TOPIC, "*")]),
            ("describe denied, read allowed", [allow(_READ), deny(_DESCRIBE)]),
            ("read denied, describe stays", [allow(_ALL), deny(_READ)]),
            ("from here", [allow(_ALL, host=HERE), allow(_READ, GROUP, "g", host=HERE)]),
            ("not from elsewhere", [allow(_ALL, user="*"), deny(_ALL, user="*", host=ELSEWHERE)]),
            ("everybody", [allow(_WRITE, user="*"), allow(_DESCRIBE, CLUSTER, CLUSTER_NAME, user="*")]),
            ("somebody else", [allow(_ALL, user="carol"), allow(_ALL, GROUP, "*", user="carol")]),
            ("another type of principal", [allow(_ALL)._replace(principal="Group:alice")]),
            ("any write, but all denied", [allow(_WRITE, TOPIC, "a"), deny(_WRITE, TOPIC, "*")]),
            ("any write, one denied", [allow(_WRITE, TOPIC, "a", is_prefix=True), deny(_WRITE, TOPIC, "ab")]),
            ("any write, its prefix denied", [allow(_WRITE, TOPIC, "ab"), deny(_WRITE, TOPIC, "a", is_prefix=True)]),
            ("any write, only elsewhere", [allow(_WRITE, TOPIC, "a", host=ELSEWHERE)]),
        ]
    ),
)

WITHOUT_ACL_ALLOWED: tuple[Scenario, ...] = tuple(
    Scenario(f"allow.everyone.if.no.acl.found: {name}", acls, (Client(), Client(BOB)), _FOR_PATTERNS)
    for name, acls in [
        ("no ACL", []),
        ("one for the other", [allow(_DESCRIBE, user=BOB), allow(_READ, GROUP, "g", user=BOB)]),
        ("one denied", [deny(_READ)]),
        ("a prefix", [allow(_WRITE, name="us", is_prefix=True)]),
        ("everything has one", [allow(_READ, name="*", user=BOB)]),
        ("one that is denied everything", [deny(_ALL, CLUSTER, CLUSTER_NAME), deny(_ALL, name="*")]),
    ]
)
"""For brokers with that setting."""

MIXED = Scenario(
    "a mixture",
    [
        allow(_READ, name="us", is_prefix=True),
        deny(_READ, user="*", host=ELSEWHERE),
        allow(_DESCRIBE, GROUP, "*"),
        allow(Operation.ALTER, CLUSTER, CLUSTER_NAME, user=BOB),
        allow(_WRITE, TRANSACTION, "ty", user=BOB),
        allow(_ALL, USER, "User:alice", user=BOB),
    ],
    _CLIENTS,
)
"""For directories that go from one broker to the other."""
