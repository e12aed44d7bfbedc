"""Errors of leadership: the leader that they name, epochs, followers that serve fetches."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from diamant.protocol.errors import ErrorCode
from tests.broker.brokers.several import bring_up, create, several, table, take_down
from tests.broker.wire import (
    DELETE_RECORDS,
    FETCH,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    WireClient,
    batch_of,
    fetch_fields,
)
from tests.waiting import wait_until

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
DESCRIBE_PRODUCERS, WRITE_TXN_MARKERS, JOIN_GROUP, FIND_COORDINATOR = 61, 27, 11, 10
TOPIC = 2
"""The type of resource."""


def produce_fields(acks: int = -1) -> dict[str, Any]:
    """Return a request with one record for t-0."""
    data = {"index": 0, "records": bytes(batch_of([b"v"]))}
    return {"acks": acks, "timeout_ms": 1000, "topic_data": [{"name": "t", "partition_data": [data]}]}


async def fetch(wire: WireClient, version: int, topic_id: Any = None, rack: str = "", **partition: int) -> Any:
    """Fetch t-0 from its beginning, outside any session."""
    fields = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, **partition}
    return await wire.call(
        FETCH,
        version,
        {
            "max_wait_ms": 0,
            "min_bytes": 0,
            "max_bytes": 1 << 20,
            "session_epoch": -1,
            "rack_id": rack,
            "topics": [{"topic": "t", "topic_id": topic_id, "partitions": [fields]}],
        },
    )


@pytest.mark.parametrize("version", [9, 10, 12])
async def test_a_produce_to_the_wrong_broker_names_the_leader(version: int) -> None:
    """From version 10 on the response names the leader and its address; before, it has only the code (KIP-951)."""
    async with several() as (broker, wires):
        await create(wires[0], factor=3)
        table(broker).move_leader("t", 0, 2)
        answer = await wires[0].call(PRODUCE, version, produce_fields())
        part = answer.responses[0].partition_responses[0]
        assert part.error_code == NOT_LEADER
        if version >= 10:
            assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (2, 1)
            (node,) = answer.node_endpoints
            assert (node.node_id, node.port, node.rack) == (2, broker.addresses.kafka[1].port, "r2")
        assert (
            not (await wires[1].call(PRODUCE, version, produce_fields())).responses[0].partition_responses[0].error_code
        )


@pytest.mark.parametrize("code", [NOT_LEADER, ErrorCode.FENCED_LEADER_EPOCH])
async def test_a_fetch_names_the_leader(code: ErrorCode) -> None:
    """A fetch at a broker without a replica, or with an old epoch, gets the present leader."""
    async with several() as (broker, wires):
        topic = await create(wires[0], replicas=[[1, 2]])
        table(broker).move_leader("t", 0, 2)
        asked, epoch = (wires[2], -1) if code == NOT_LEADER else (wires[1], 0)
        answer = await fetch(asked, 17, topic.topic_id, current_leader_epoch=epoch)
        part = answer.responses[0].partitions[0]
        assert part.error_code == code
        assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (2, 1)
        assert [(node.node_id, node.port) for node in answer.node_endpoints] == [(2, broker.addresses.kafka[1].port)]


async def test_followers_serve_fetches_from_version_11_on() -> None:
    """An older client has to read from the leader."""
    async with several() as (_, wires):
        await create(wires[0], factor=3)
        await wires[0].produce("t", [b"v"])
        for version, expected in ((10, NOT_LEADER), (11, 0), (12, 0)):
            part = (await fetch(wires[1], version)).responses[0].partitions[0]
            assert (part.error_code, bool(part.records)) == (expected, not expected)


@pytest.mark.parametrize("selector", [RACK_AWARE, None])
async def test_the_leader_refers_consumers_to_their_rack(selector: str | None) -> None:
    """Consumers are referred only with the rack-aware selector, to members of the ISR, and not if the leader is in their rack."""
    config = {} if selector is None else {"replica_selector_class": selector}
    async with several(**config) as (broker, wires):
        await create(wires[0], factor=3)
        await wires[0].produce("t", [b"v"])

        async def preferred(rack: str) -> tuple[int, bool]:
            part = (await fetch(wires[0], 12, rack=rack)).responses[0].partitions[0]
            return part.preferred_read_replica, bool(part.records)

        assert await preferred("r2") == ((2, False) if selector else (-1, True))
        assert await preferred("r1") == (-1, True)
        assert await preferred("elsewhere") == (-1, True)
        take_down(broker, 2)
        assert await preferred("r2") == (-1, True)


async def test_other_data_apis_are_refused_by_followers() -> None:
    """Followers refuse ListOffsets, OffsetForLeaderEpoch, DeleteRecords and WriteTxnMarkers; they answer DescribeProducers, as
    in Kafka.
    """
    async with several() as (_, wires):
        await create(wires[0], factor=3)
        marker = {"producer_id": 1, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0}
        place = {"topics": [{"name": "t", "partition_indexes": [0]}]}
        for wire, expected in ((wires[0], 0), (wires[1], NOT_LEADER)):
            listed = {"name": "t", "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]}
            answer = await wire.call(LIST_OFFSETS, 6, {"replica_id": -1, "topics": [listed]})
            assert answer.topics[0].partitions[0].error_code == expected
            ended = {"topic": "t", "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}
            answer = await wire.call(OFFSET_FOR_LEADER_EPOCH, 4, {"replica_id": -1, "topics": [ended]})
            assert answer.topics[0].partitions[0].error_code == expected
            deleted = {"name": "t", "partitions": [{"partition_index": 0, "offset": 0}]}
            answer = await wire.call(DELETE_RECORDS, 2, {"topics": [deleted], "timeout_ms": 1000})
            assert answer.topics[0].partitions[0].error_code == expected
            assert not (await wire.call(DESCRIBE_PRODUCERS, 0, place)).topics[0].partitions[0].error_code
            answer = await wire.call(WRITE_TXN_MARKERS, 1, {"markers": [{**marker, **place}]})
            assert answer.markers[0].topics[0].partitions[0].error_code == expected


@pytest.mark.parametrize("release", ["a replica comes back", "the minimum is lowered"])
async def test_the_high_watermark_stays_while_too_few_are_in_sync(release: str) -> None:
    """Records of acks=1 are kept, but not read, counted or deleted before enough replicas are in sync."""
    async with several() as (broker, wires), WireClient(broker.addresses.kafka[0].address) as reader:
        await create(wires[0], factor=3, min_insync_replicas="2")
        await wires[0].produce("t", [b"a"])
        take_down(broker, 2)
        take_down(broker, 3)
        answer = await wires[0].call(PRODUCE, 9, produce_fields(acks=1))
        assert answer.responses[0].partition_responses[0].base_offset == 1

        async def ends() -> tuple[int, bool, int]:
            part = (await fetch(wires[0], 12, fetch_offset=1)).responses[0].partitions[0]
            listed = {"name": "t", "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]}
            answer = await wires[0].call(LIST_OFFSETS, 6, {"replica_id": -1, "topics": [listed]})
            return part.high_watermark, bool(part.records), answer.topics[0].partitions[0].offset

        assert await ends() == (1, False, 1)
        deleted = {"name": "t", "partitions": [{"partition_index": 0, "offset": 2}]}
        answer = await wires[0].call(DELETE_RECORDS, 2, {"topics": [deleted], "timeout_ms": 1000})
        assert answer.topics[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        waiting = asyncio.create_task(reader.call(FETCH, 12, fetch_fields("t", 1, max_wait_ms=60_000, min_bytes=1)))
        await wait_until(lambda: len(broker.node.purgatory) == 1)
        if release == "a replica comes back":
            bring_up(broker, 2)
        else:
            change = {"name": "min.insync.replicas", "config_operation": 0, "value": "1"}
            resource = {"resource_type": TOPIC, "resource_name": "t", "configs": [change]}
            await wires[0].call(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})
        assert (await waiting).responses[0].partitions[0].records
        assert await ends() == (2, True, 2)


async def test_epochs_are_those_of_real_moves() -> None:
    """An old epoch is fenced, a future one unknown; the end of each epoch is where the next leader began."""
    async with several() as (broker, wires):
        await create(wires[0], factor=3)
        await wires[0].produce("t", [b"a", b"b"])
        table(broker).move_leader("t", 0, 2)
        await wires[1].produce("t", [b"c"])

        async def end_of(epoch: int, current: int = -1) -> tuple[int, int, int]:
            asked = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
            fields = {"replica_id": -1, "topics": [{"topic": "t", "partitions": [asked]}]}
            part = (await wires[1].call(OFFSET_FOR_LEADER_EPOCH, 4, fields)).topics[0].partitions[0]
            return part.error_code, part.leader_epoch, part.end_offset

        assert await end_of(0) == (0, 0, 2)
        assert await end_of(1) == (0, 1, 3)
        assert (await end_of(1, 0))[0] == ErrorCode.FENCED_LEADER_EPOCH
        assert (await end_of(1, 2))[0] == ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_a_waiting_fetch_learns_of_a_move() -> None:
    """A long fetch at the old leader is answered NOT_LEADER_OR_FOLLOWER at once, with a version that reads leaders only."""
    async with several() as (broker, wires):
        await create(wires[0], factor=3)
        fields = fetch_fields("t", 0, max_wait_ms=60_000, min_bytes=1)
        waiting = asyncio.create_task(wires[0].call(FETCH, 10, fields))
        await wait_until(lambda: len(broker.node.purgatory) == 1)
        table(broker).move_leader("t", 0, 2)
        assert (await waiting).responses[0].partitions[0].error_code == NOT_LEADER


async def test_a_session_belongs_to_its_broker() -> None:
    """The same session id at another broker is not found."""
    async with several() as (_, wires):
        await create(wires[0], factor=3)
        fields = {**fetch_fields("t", 0, max_wait_ms=0), "session_id": 0, "session_epoch": 0}
        session_id = (await wires[0].call(FETCH, 12, fields)).session_id
        assert session_id
        following = {**fields, "session_id": session_id, "session_epoch": 1, "topics": []}
        assert (await wires[1].call(FETCH, 12, following)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert (await wires[0].call(FETCH, 12, following)).error_code == 0


async def test_a_join_that_waits_moves_with_the_coordinator() -> None:
    """The old coordinator answers NOT_COORDINATOR to a parked JoinGroup."""
    async with several(group_initial_rebalance_delay_ms=600_000) as (broker, wires):
        await wires[0].call(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g"]})
        join = {
            "group_id": "g",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        }
        first = await wires[0].call(JOIN_GROUP, 9, join)
        waiting = asyncio.create_task(wires[0].call(JOIN_GROUP, 9, {**join, "member_id": first.member_id}))
        groups = broker.services.groups()
        await wait_until(
            lambda: (group := groups.group("g")) is not None and bool(group.classic and group.classic.members)
        )
        table(broker).move_leader("__consumer_offsets", 0, 2)
        assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR
