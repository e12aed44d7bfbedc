"""The script: what clients ask three brokers while leaders move and brokers go and come back.

Topics: `t`, three replicas per partition, of which two must be in sync; `pair` on brokers 1 and 2; `lone` on broker 2 alone. The
internal topics have one partition per broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.broker.brokers.step_run import Answered, Ask, Change, Step, Until, UntilAnswered
from tests.broker.request_fields import alteration, list_offsets, offset_commit
from tests.broker.wire import (
    CREATE_TOPICS,
    DELETE_RECORDS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    FETCH,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    batch_of,
    fetch_fields,
    produce_fields,
)

OFFSET_COMMIT, OFFSET_FETCH, JOIN_GROUP, HEARTBEAT, DESCRIBE_GROUPS, DELETE_GROUPS = 8, 9, 11, 12, 15, 42
ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, WRITE_TXN_MARKERS, TXN_OFFSET_COMMIT = 24, 25, 26, 27, 28
ELECT_LEADERS, ALTER_REASSIGNMENTS, LIST_REASSIGNMENTS = 43, 45, 46
DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, GROUP_HEARTBEAT, GROUP_DESCRIBE = 61, 65, 68, 69
ALTER_CONFIGS, DESCRIBE_LOG_DIRS, DESCRIBE_TOPIC_PARTITIONS = 33, 35, 75
BROKER, BROKER_LOGGER = 4, 8
"""Types of resources."""
SET, DELETE = 0, 1

EACH = ([1, 2, 3], [2, 3, 1], [3, 1, 2])
"""Replicas of three partitions: each broker leads one."""
PREFERRED, UNCLEAN = 0, 1


def produce(name: str, broker: int, version: int = 9, partition: int = 0, *, topic: str = "t", **more: Any) -> Ask:
    """Produce one record."""
    is_pending = more.pop("is_pending", False)
    fields = produce_fields(topic, partition, batch_of([b"value"]), **more)
    fields["topic_data"][0]["topic_id"] = topic
    fields["timeout_ms"] = 30_000
    return Ask(f"produce v{version}: {name}", broker, PRODUCE, version, fields, is_pending)


def fetch(
    name: str,
    broker: int,
    version: int = 12,
    offset: int = 0,
    *,
    topic: str = "t",
    rack: str = "",
    last_epoch: int = -1,
    is_pending: bool = False,
    session: dict[str, Any] | None = None,
    **more: Any,
) -> Ask:
    """Fetch from one partition."""
    fields = fetch_fields(topic, offset, **more)
    fields["topics"][0]["topic_id"] = topic
    fields["topics"][0]["partitions"][0]["last_fetched_epoch"] = last_epoch
    fields |= {"rack_id": rack, **(session or {})}
    keeps = ("session_id",) if session else ()
    return Ask(f"fetch v{version}: {name}", broker, FETCH, version, fields, is_pending, keeps)


def offsets(name: str, broker: int, timestamp: int = -1, *, version: int = 7, topic: str = "t", epoch: int = -1) -> Ask:
    """List an offset of partition 0."""
    return Ask(
        f"list offsets v{version}: {name}",
        broker,
        LIST_OFFSETS,
        version,
        list_offsets(topic, 0, timestamp, leader_epoch=epoch),
    )


def epoch_end(name: str, broker: int, epoch: int, current: int = -1, *, topic: str = "t") -> Ask:
    """Ask where a leader epoch ends."""
    partition = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
    fields = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [partition]}]}
    return Ask(f"epoch end: {name}", broker, OFFSET_FOR_LEADER_EPOCH, 4, fields)


def metadata(name: str, broker: int, *topics: str, version: int = 12) -> Ask:
    """Ask for topics."""
    fields = {"topics": [{"topic_id": None, "name": topic} for topic in topics], "allow_auto_topic_creation": False}
    return Ask(f"metadata: {name}", broker, METADATA, version, fields)


def describe(name: str, broker: int, *topics: str) -> Ask:
    """DescribeTopicPartitions: with eligible leader replicas."""
    fields = {"topics": [{"name": topic} for topic in topics], "response_partition_limit": 2000, "cursor": None}
    return Ask(f"describe: {name}", broker, DESCRIBE_TOPIC_PARTITIONS, 0, fields)


def cluster(name: str, broker: int, *, fenced: bool = True) -> Ask:
    """DescribeCluster."""
    fields = {"include_cluster_authorized_operations": False, "endpoint_type": 1, "include_fenced_brokers": fenced}
    return Ask(f"cluster: {name}", broker, DESCRIBE_CLUSTER, 2, fields)


def create(name: str, topic: str, assignments: Sequence[list[int]] = (), *, factor: int = -1, **configs: str) -> Ask:
    """Create a topic, by default with given replicas."""
    entry = {
        "name": topic,
        "num_partitions": -1 if assignments else 1,
        "replication_factor": factor,
        "assignments": [{"partition_index": index, "broker_ids": ids} for index, ids in enumerate(assignments)],
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }
    fields = {"topics": [entry], "timeout_ms": 30_000, "validate_only": False}
    return Ask(f"create: {name}", 1, CREATE_TOPICS, 4, fields)


def elect(name: str, broker: int, topic: str, partition: int = 0, kind: int = PREFERRED) -> Ask:
    """Elect a leader."""
    fields = {
        "election_type": kind,
        "topic_partitions": [{"topic": topic, "partitions": [partition]}],
        "timeout_ms": 30_000,
    }
    return Ask(f"elect: {name}", broker, ELECT_LEADERS, 2, fields)


def reassign(name: str, topic: str, replicas: list[int] | None, partition: int = 0) -> Ask:
    """Reassign a partition."""
    entry = {"name": topic, "partitions": [{"partition_index": partition, "replicas": replicas}]}
    return Ask(f"reassign: {name}", 1, ALTER_REASSIGNMENTS, 0, {"topics": [entry], "timeout_ms": 30_000})


def coordinator(name: str, broker: int, key: str, kind: int = 0) -> Ask:
    """Find a coordinator."""
    fields = {"key_type": kind, "coordinator_keys": [key]}
    return Ask(f"coordinator: {name}", broker, FIND_COORDINATOR, 4, fields)


def _new_topics() -> Iterator[Step]:
    internal = {"cleanup_policy": "compact", "min_insync_replicas": "1"}
    yield create("offsets", "__consumer_offsets", EACH, **internal)
    yield create("transactions", "__transaction_state", EACH, **internal)
    yield create("t", "t", EACH, min_insync_replicas="2")
    yield create("pair", "pair", [[1, 2]], min_insync_replicas="1")
    yield create("lone", "lone", [[2]], min_insync_replicas="1")
    yield create("four replicas of three brokers", "wide", factor=4)
    yield create("replicas on an unknown broker", "odd", [[1, 9]])
    yield create("a broker twice", "odd", [[1, 1]])
    for topic, replicas in (("t", (1, 2, 3)), ("pair", (1, 2)), ("lone", (2,))):
        yield Until(topic, 0, replicas[0], replicas)
    for broker in (1, 2, 3):
        yield metadata(f"at {broker}", broker, "t", "pair", "lone")
    yield describe("all in sync", 2, "t", "lone")
    yield cluster("all up", 3)


def _wrong_brokers() -> Iterator[Step]:
    yield produce("leader", 1)
    for version in (3, 9, 10, 12, 13):
        yield produce("follower", 2, version)
    yield produce("follower, acks=1", 3, acks=1)
    yield produce("not a replica", 3, 12, topic="pair")
    yield produce("not a replica, before hints", 3, topic="pair")
    for broker in (2, 3):
        yield UntilAnswered(fetch("", broker, 11), lambda answer: _high_watermark(answer) == 1)
    yield fetch("leader", 1)
    for version in (4, 10, 11, 12, 16, 18):
        yield fetch("follower", 2, version)
    for version in (10, 12, 16):
        yield fetch("not a replica", 3, version, topic="pair")
    for version in (9, 12, 16):
        yield fetch("leader, later epoch", 1, version, leader_epoch=5)
    yield fetch("follower, later epoch", 2, 16, leader_epoch=5)
    yield fetch("follower, this epoch", 2, 16, leader_epoch=0)
    yield fetch("beyond the end of a follower", 2, 12, 7)
    yield fetch("client in the rack of a follower", 1, 12, rack="r2")
    yield fetch("client in the leader's rack", 1, 12, rack="r1")
    yield fetch("client in no rack of a broker", 1, 12, rack="r9")
    yield fetch("client in another follower's rack, at a follower", 2, 12, rack="r3")
    yield fetch("client in a rack, before KIP-392", 1, 10, rack="r2")
    for timestamp, which in ((-1, "end"), (-2, "start"), (-3, "greatest time"), (0, "time")):
        yield offsets(f"follower, {which}", 2, timestamp)
    yield offsets("leader", 1)
    yield offsets("leader, later epoch", 1, epoch=5)
    yield offsets("follower, later epoch", 2, epoch=5)
    yield offsets("follower, version 1", 2, version=1)
    yield offsets("not a replica", 3, topic="pair")
    yield epoch_end("leader", 1, 0)
    yield epoch_end("follower", 2, 0)
    yield epoch_end("not a replica", 3, 0, topic="pair")
    yield epoch_end("leader, later epoch", 1, 0, 5)
    for broker in (1, 2):
        partition = {"partition_index": 0, "offset": 0}
        fields = {"topics": [{"name": "t", "partitions": [partition]}], "timeout_ms": 30_000}
        yield Ask(f"delete records at {broker}", broker, DELETE_RECORDS, 2, fields)
        fields = {"topics": [{"name": "t", "partition_indexes": [0]}]}
        yield Ask(f"describe producers at {broker}", broker, DESCRIBE_PRODUCERS, 0, fields)
    fields = {"topics": [{"name": "pair", "partition_indexes": [0]}]}
    yield Ask("describe producers, not a replica", 3, DESCRIBE_PRODUCERS, 0, fields)
    marker = {"producer_id": 7, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0}
    for broker in (2, 3):
        topics = [{"name": name, "partition_indexes": [0]} for name in ("t", "pair")]
        yield Ask(f"markers at {broker}", broker, WRITE_TXN_MARKERS, 1, {"markers": [{**marker, "topics": topics}]})


def _high_watermark(answer: Any) -> int:
    if isinstance(answer, str):
        return -1
    return int(answer["responses"][0]["partitions"][0]["high_watermark"])


def _coordinators() -> Iterator[Step]:
    """The groups g0 to g2 and the transactional ids of these names have three different coordinators."""
    for key in ("g0", "g1", "g2"):
        for kind, what in ((0, "group"), (1, "transaction")):
            ask = coordinator(f"{what} {key}", 1, key, kind)
            yield UntilAnswered(ask, lambda answer: not answer["coordinators"][0]["error_code"])
            yield ask
            yield coordinator(f"{what} {key}, at 3", 3, key, kind)
    for broker in (1, 2, 3):
        yield from _at_coordinator("g1", broker)


def _at_coordinator(key: str, broker: int) -> Iterator[Step]:
    commit = offset_commit(key, ("t", [(0, 1, None)]))
    if broker == 1:  # a coordinator that is still loading is no answer to compare
        asks = [Ask("", one, OFFSET_COMMIT, 8, commit) for one in (1, 2, 3)]
        yield from (UntilAnswered(ask, lambda answer: _commit_code(answer) != 14) for ask in asks)
    yield Ask(f"offset commit at {broker}", broker, OFFSET_COMMIT, 8, commit)
    fetched = {"groups": [{"group_id": key, "topics": None}]}
    yield Ask(f"offset fetch at {broker}", broker, OFFSET_FETCH, 8, fetched)
    yield Ask(f"heartbeat at {broker}", broker, HEARTBEAT, 4, {"group_id": key, "generation_id": 1, "member_id": "m"})
    join = {"group_id": key, "session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000, "member_id": "unknown"}
    join |= {"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}]}
    yield Ask(f"join at {broker}", broker, JOIN_GROUP, 7, join)
    yield Ask(f"describe groups at {broker}", broker, DESCRIBE_GROUPS, 5, {"groups": [key]})
    beat = {"group_id": "c1", "member_id": "unknown", "member_epoch": 5}
    yield Ask(f"group heartbeat at {broker}", broker, GROUP_HEARTBEAT, 1, beat)
    yield Ask(f"group describe at {broker}", broker, GROUP_DESCRIBE, 0, {"group_ids": [key]})
    init = {"transactional_id": key, "transaction_timeout_ms": 30_000, "producer_id": -1, "producer_epoch": -1}
    ask = Ask(f"init producer at {broker}", broker, INIT_PRODUCER_ID, 4, init)
    yield UntilAnswered(ask, lambda answer: answer["error_code"] in (0, 16))
    yield ask
    producer = {"transactional_id": key, "producer_id": 999, "producer_epoch": 0}
    partitions = {"v3_and_below_topics": [{"name": "t", "partitions": [0]}]}
    wire_names = {f"v3_and_below_{name}": value for name, value in producer.items()}
    yield Ask(
        f"add partitions at {broker}",
        broker,
        ADD_PARTITIONS_TO_TXN,
        3,
        {**producer, **wire_names, **partitions, "topics": partitions["v3_and_below_topics"]},
    )
    yield Ask(f"add offsets at {broker}", broker, ADD_OFFSETS_TO_TXN, 3, {**producer, "group_id": key})
    yield Ask(f"end transaction at {broker}", broker, END_TXN, 3, {**producer, "committed": True})
    topic = {"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": None}]}
    fields = {**producer, "group_id": key, "topics": [topic]}
    yield Ask(f"transactional commit at {broker}", broker, TXN_OFFSET_COMMIT, 3, fields)
    if broker != 3:  # its start is in no answer that kio can read
        yield Ask(f"describe transactions at {broker}", broker, DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [key]})


def _commit_code(answer: Any) -> int:
    return int(answer["topics"][0]["partitions"][0]["error_code"])


def _sessions_and_configs() -> Iterator[Step]:
    yield fetch("new session", 1, 12, session={"session_epoch": 0, "session_id": 0})
    again = {"session_epoch": 1, "session_id": lambda kept: kept["session_id"], "topics": []}
    yield Ask("fetch v12: session at another broker", 2, FETCH, 12, {**fetch_fields("t", 0), **again})
    yield Ask("fetch v12: session again", 1, FETCH, 12, {**fetch_fields("t", 0), **again})
    for broker, name in ((1, "1"), (1, "2"), (2, "2"), (1, "9")):
        resource = {"resource_type": 4, "resource_name": name, "configuration_keys": ["broker.rack", "node.id"]}
        yield Ask(f"configs of {name} at {broker}", broker, DESCRIBE_CONFIGS, 4, {"resources": [resource]})
    yield Ask(
        "log dirs at 3",
        3,
        DESCRIBE_LOG_DIRS,
        4,
        {"topics": [{"topic": "pair", "partitions": [0]}, {"topic": "t", "partitions": [0]}]},
    )
    yield elect("preferred, leads already", 1, "t")
    yield elect("unclean, has a leader", 1, "t", kind=UNCLEAN)
    yield elect("unknown topic", 2, "missing")


def _one_down() -> Iterator[Step]:
    yield fetch("waits at the leader that goes", 1, 12, 1, max_wait_ms=30_000, is_pending=True)
    yield Change("down", 1)
    yield Answered("fetch v12: waits at the leader that goes")
    yield Until("t", 0, 2, (2, 3), (2, 3))
    yield Until("t", 1, 2, (2, 3), (2, 3))
    yield Until("pair", 0, 2, (2,), (2, 3))
    yield metadata("1 down", 2, "t", "pair", "lone")
    yield metadata("1 down, asked at 1", 1, "t")
    yield describe("1 down", 3, "t", "pair")
    yield cluster("1 down", 2)
    yield cluster("1 down, without fenced brokers", 2, fenced=False)
    yield produce("old follower leads", 2)
    yield produce("hint after a move", 3, 12)
    yield fetch("new leader, old epoch", 2, 12, leader_epoch=0)
    yield fetch("new leader, old epoch, with endpoints", 2, 16, leader_epoch=0)
    yield fetch("new leader, its epoch", 2, 12, leader_epoch=1)
    yield fetch("follower, old epoch", 3, 16, leader_epoch=0)
    yield fetch("new leader, read up to the old epoch's end", 2, 12, 1, last_epoch=0)
    yield fetch("new leader, read further than the old epoch", 2, 12, 2, last_epoch=0)
    yield offsets("new leader, old epoch", 2, epoch=0)
    yield offsets("new leader", 2)
    yield epoch_end("new leader, old epoch current", 2, 0, 0)
    yield epoch_end("of the old epoch", 2, 0, 1)
    yield epoch_end("of the new epoch", 2, 1, 1)
    yield epoch_end("of a future epoch", 2, 2, 1)
    for key in ("g0", "g1", "g2"):
        ask = coordinator(f"group {key}, 1 down", 2, key)
        yield UntilAnswered(ask, lambda answer: answer["coordinators"][0]["node_id"] in (2, 3))
        yield ask
    yield elect("preferred, 1 down", 2, "t")
    yield at(create("three replicas, 1 down", "late", factor=3), 2)
    yield at(create("replicas on a broker that is down", "later", [[1, 2, 3]]), 2)
    yield at(create("replicas only on a broker that is down", "latest", [[1]]), 2)
    yield Until("later", 0, 2, (2, 3), (2, 3))
    yield metadata("created while 1 is down", 3, "later")


def at(ask: Ask, broker: int) -> Ask:
    """Return the same request at another broker."""
    return Ask(ask.name, broker, ask.api_key, ask.version, ask.fields, ask.is_pending, ask.keeps)


def _too_few_in_sync() -> Iterator[Step]:
    yield Change("down", 3)
    yield Until("t", 0, 2, (2,), (2,))
    yield metadata("1 and 3 down", 2, "t")
    yield describe("1 and 3 down", 2, "t")
    yield produce("acks=all, one in sync", 2)
    yield produce("acks=all, one in sync, version 3", 2, 3)
    yield produce("acks=1, one in sync", 2, acks=1)
    yield fetch("one in sync", 2, 12)
    yield offsets("one in sync", 2)
    yield Change("up", 3)
    yield Until("t", 0, 2, (2, 3), (2, 3))
    yield metadata("3 up", 3, "t")
    yield describe("3 up", 2, "t")
    yield produce("acks=all, two in sync", 2)
    yield UntilAnswered(fetch("", 2), lambda answer: _high_watermark(answer) == 4)
    yield fetch("two in sync", 2, 12, 2)
    yield Change("up", 1)
    yield Until("t", 0, 2, (1, 2, 3))
    yield Until("pair", 0, 2, (1, 2))
    yield Until("later", 0, 2, (1, 2, 3))
    yield metadata("all up again", 1, "t", "pair", "later")


def _elections() -> Iterator[Step]:
    yield fetch("waits at the leader that hands over", 2, 12, 4, max_wait_ms=30_000, leader_epoch=1, is_pending=True)
    yield fetch("waits at the leader, version 10", 2, 10, 4, max_wait_ms=30_000, leader_epoch=1, is_pending=True)
    yield elect("preferred", 3, "t")
    yield Until("t", 0, 1, (1, 2, 3))
    yield Answered("fetch v10: waits at the leader, version 10")
    yield metadata("after the election", 2, "t")
    yield produce("to the old leader", 2, 12)
    yield produce("to the new leader", 1, 12)
    yield Answered("fetch v12: waits at the leader that hands over")
    yield reassign("other order", "t", [3, 1, 2])
    yield metadata("after another order", 1, "t")
    yield elect("preferred of the new order", 1, "t")
    yield Until("t", 0, 3, (1, 2, 3))
    yield reassign("without the leader", "t", [2, 1])
    yield Until("t", 0, 2, (1, 2))
    yield metadata("after the leader left", 1, "t")
    yield produce("no longer a replica", 3, 12)
    yield reassign("to an unknown broker", "t", [1, 9])
    yield reassign("to no broker", "t", [])
    yield reassign("to a broker twice", "t", [1, 1])
    yield reassign("of an unknown topic", "missing", [1])
    yield reassign("none to cancel", "t", None)
    yield reassign("back to three", "t", [1, 2, 3])
    yield Until("t", 0, 2, (1, 2, 3))
    yield Ask("reassignments in progress", 1, LIST_REASSIGNMENTS, 0, {"topics": None, "timeout_ms": 30_000})
    yield metadata("back to three", 1, "t")
    yield elect("preferred of three", 1, "t")
    yield Until("t", 0, 1, (1, 2, 3))


def _all_replicas_down() -> Iterator[Step]:
    yield produce("lone", 2, topic="lone")
    yield Change("down", 2)
    yield Until("lone", 0, -1, (), (1, 3))
    yield metadata("lone down", 1, "lone")
    yield metadata("lone down, version 0", 1, "lone", version=0)
    yield describe("lone down", 1, "lone")
    for version in (9, 12):
        yield produce("lone down", 1, version, topic="lone")
    for version in (10, 12, 16):
        yield fetch("lone down", 1, version, topic="lone")
    yield offsets("lone down", 1, topic="lone")
    yield elect("preferred, lone down", 1, "lone")
    yield elect("unclean, lone down", 1, "lone", kind=UNCLEAN)
    yield Change("up", 2)
    yield Until("lone", 0, 2, (2,))
    yield metadata("lone up", 3, "lone")
    yield fetch("lone up", 2, topic="lone")


def _without_answers() -> Iterator[Step]:
    yield Until("t", 0, 1, (1, 2, 3))
    yield Change("hard", 2)
    yield Until("t", 0, 1, (1, 3), (1, 3))
    yield Change("hard", 3)
    yield Until("t", 0, 1, (1,), (1,))
    yield produce("others silent", 1, 12)
    yield metadata("2 and 3 silent", 1, "t", "lone")
    yield metadata("2 and 3 silent, asked at 2", 2, "t")
    yield cluster("2 and 3 silent", 1)
    yield Change("up", 2)
    yield Change("up", 3)
    yield Until("t", 0, 1, (1, 2, 3))
    yield Until("lone", 0, 2, (2,))
    yield metadata("all answer again", 2, "t", "pair", "lone")


def _configs_of_brokers() -> Iterator[Step]:
    """Configurations of one broker and of all, at that broker and at another one, and of brokers that there are not."""
    keys = ["broker.rack", "node.id", "log.cleaner.threads", "message.max.bytes"]

    def described(when: str, name: str, broker: int, kind: int = BROKER) -> Ask:
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        fields = {"resources": [resource], "include_synonyms": True}
        return Ask(f"{when}: configs of {kind} {name!r} at {broker}", broker, DESCRIBE_CONFIGS, 4, fields)

    def altered(
        what: str, name: str, broker: int, key: str, value: str | None, kind: int = BROKER, **more: bool
    ) -> Ask:
        fields = alteration(kind, name, (key, DELETE if value is None else SET, value), **more)
        return Ask(
            f"alter configs: {what} of {kind} {name!r} at {broker}", broker, INCREMENTAL_ALTER_CONFIGS, 1, fields
        )

    for broker in (1, 3):
        for name in ("0", "1", "2", "7", "-1", "x", ""):
            yield described("new", name, broker)
            for kind in (BROKER, BROKER_LOGGER):
                key, value = ("log.cleaner.threads", "2") if kind == BROKER else ("kafka.server", "DEBUG")
                yield altered("checked", name, broker, key, value, kind, validate_only=True)
        yield described("new", "2", broker, BROKER_LOGGER)
    yield altered("own", "2", 2, "log.cleaner.threads", "2")
    yield altered("all", "", 3, "message.max.bytes", "2000000")
    yield altered("read-only", "2", 2, "broker.rack", "elsewhere")
    yield altered("read-only", "", 2, "node.id", "5")
    yield altered("unknown", "2", 2, "my.own", "value")
    whole = {"resource_type": BROKER, "resource_name": "2", "configs": [{"name": "log.cleaner.threads", "value": "3"}]}
    for broker in (1, 2):
        fields = {"resources": [whole], "validate_only": True}
        yield Ask(f"alter configs: whole of '2' at {broker}", broker, ALTER_CONFIGS, 2, fields)
    for broker in (1, 2, 3):
        yield described("altered", str(broker), broker)
        yield described("altered", "", broker)
    yield altered("own, back", "2", 2, "log.cleaner.threads", None)
    yield altered("all, back", "", 1, "message.max.bytes", None)
    yield described("back", "2", 2)
    yield described("back", "", 2)


STEPS: tuple[Step, ...] = (
    *_new_topics(),
    *_wrong_brokers(),
    *_coordinators(),
    *_sessions_and_configs(),
    *_one_down(),
    *_too_few_in_sync(),
    *_elections(),
    *_all_replicas_down(),
    *_without_answers(),
    *_configs_of_brokers(),
)
