"""TxnOffsetCommit by ids of topics (KIP-1319), with the codes that Apache Kafka 4.4.0 answered to the same requests."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from diamant.broker.broker import Broker
from diamant.protocol.errors import ErrorCode
from tests.broker.transactions.txn_wire import TXN_OFFSET_COMMIT, TxnProducer
from tests.broker.wire import WireClient

HEARTBEAT, DELETE_GROUPS, OFFSET_FETCH = 68, 42, 9
SCRIPT = [
    # group, generation or epoch relative to the present one, member, topic, version, code
    ("new", -1, "", "t", 6, ErrorCode.NONE),
    ("missing", 3, "m", "t", 6, ErrorCode.GROUP_ID_NOT_FOUND),
    ("missing", 3, "m", "t", 5, ErrorCode.ILLEGAL_GENERATION),
    ("new", -1, "", "unknown", 6, ErrorCode.UNKNOWN_TOPIC_ID),
    ("new", -1, "", "zero", 6, ErrorCode.UNKNOWN_TOPIC_ID),
    ("members", 0, "present", "t", 6, ErrorCode.NONE),
    ("members", -1, "present", "t", 6, ErrorCode.STALE_MEMBER_EPOCH),
    ("members", 1, "present", "t", 6, ErrorCode.STALE_MEMBER_EPOCH),
    ("members", -1, "present", "t", 5, ErrorCode.ILLEGAL_GENERATION),
    ("members", 0, "absent", "t", 6, ErrorCode.UNKNOWN_MEMBER_ID),
]


@pytest.fixture
async def txn(wire: WireClient) -> TxnProducer:
    """A producer whose coordinator can be used."""
    producer = TxnProducer(wire, "txn")
    await producer.wait_for_coordinator("members")
    await producer.wait_for_init()
    return producer


async def committed(wire: WireClient, group: str) -> list[tuple[str, int]]:
    """Return the committed offsets of a group."""
    groups = [{"group_id": group, "topics": None}]
    answer = await wire.call(OFFSET_FETCH, 8, {"groups": groups, "require_stable": True})
    return [(topic.name, one.committed_offset) for topic in answer.groups[0].topics for one in topic.partitions]


async def test_commits_by_topic_id_are_answered_as_by_kafka(broker: Broker, wire: WireClient, txn: TxnProducer) -> None:
    """From version 6 on, unknown ids, missing groups and stale members have codes of their own; the rest is committed."""
    await wire.create("t")
    member = {
        "group_id": "members",
        "member_id": "",
        "member_epoch": 0,
        "rebalance_timeout_ms": 30_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }
    joined = await wire.call(HEARTBEAT, 0, member)
    ids = {"t": broker.node.topics.by_name["t"].topic_id, "unknown": uuid4(), "zero": UUID(int=0)}
    found = []
    for group, epoch, who, topic, version, _ in SCRIPT:
        of_group = group == "members"
        named: dict[str, Any] = {"topic_id": ids[topic]} if version >= 6 else {"name": topic}
        partition = {"partition_index": 0, "committed_offset": 7, "committed_metadata": None}
        request = {
            "transactional_id": "txn",
            "group_id": group,
            "producer_id": txn.producer_id,
            "producer_epoch": txn.epoch,
            "generation_id_or_member_epoch" if version >= 6 else "generation_id": epoch
            + (joined.member_epoch if of_group else 0),
            "member_id": joined.member_id if who == "present" else who,
            "topics": [named | {"partitions": [partition]}],
        }
        answer = await wire.call(TXN_OFFSET_COMMIT, version, request)
        found.append(ErrorCode(answer.topics[0].partitions[0].error_code))
        if version >= 6:
            assert answer.topics[0].topic_id == (ids[topic] if topic != "zero" else None)
    assert found == [code for *_, code in SCRIPT]
    assert await txn.end(commit=True) == "NONE"
    assert await committed(wire, "new") == await committed(wire, "members") == [("t", 7)]


async def test_deleted_groups_have_a_message(wire: WireClient, txn: TxnProducer) -> None:
    """The message in DeleteGroups 3 is null, since Kafka fills it for streams groups only."""
    del txn
    answer = await wire.call(DELETE_GROUPS, 3, {"groups_names": ["g"]})
    assert [(one.error_code, one.error_message) for one in answer.results] == [(ErrorCode.GROUP_ID_NOT_FOUND, None)]
