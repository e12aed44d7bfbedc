"""Produce, Fetch, ListOffsets and OffsetForLeaderEpoch on the wire."""

from __future__ import annotations

from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.apis import SERVED
from tests.broker.fetching import fetch, partition_of, values_of
from tests.broker.request_fields import list_offsets
from tests.broker.wire import (
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    WireClient,
    batch_of,
    fetch_fields,
    produce_fields,
)
from tests.waiting import wait_until


@pytest.mark.parametrize("version", range(3, 14))
async def test_every_produce_version_appends(wire: WireClient, broker: Broker, version: int) -> None:
    """Offsets count up, the answer has base offset and log start, and the bytes are read back as sent."""
    topic_id = (await wire.create("t")).topic_id
    for base in (0, 2):
        fields = produce_fields("t", 0, batch_of([b"a", b"b"]))
        fields["topic_data"][0]["topic_id"] = topic_id
        response = await wire.call(PRODUCE, version, fields)
        result = response.responses[0].partition_responses[0]
        assert (result.error_code, result.base_offset) == (ErrorCode.NONE, base)
    assert values_of((await fetch(wire, "t", 0)).records) == [b"a", b"b"] * 2


@pytest.mark.parametrize("version", range(4, 19))
async def test_every_fetch_version_reads(wire: WireClient, version: int) -> None:
    """Each version returns whole batches, high watermark and log start; v13+ by topic id."""
    topic_id = (await wire.create("t")).topic_id
    await wire.produce("t", [b"a", b"b"])
    await wire.produce("t", [b"c"])
    fields = fetch_fields("t", 1)
    fields["topics"][0]["topic_id"] = topic_id
    partition = partition_of(await wire.call(FETCH, version, fields))
    assert (partition.error_code, partition.high_watermark, partition.last_stable_offset) == (ErrorCode.NONE, 3, 3)
    assert values_of(partition.records) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("topic", "partition", "records", "expected"),
    [
        ("absent", 0, batch_of([b"a"]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 7, batch_of([b"a"]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 0, None, ErrorCode.INVALID_RECORD),
        ("t", 0, b"", ErrorCode.INVALID_RECORD),
        ("t", 0, batch_of([b"a"]) + batch_of([b"b"]), ErrorCode.INVALID_RECORD),
        (
            "t",
            0,
            batch_of([b"a"], producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
    ],
    ids=[
        "no such topic",
        "no such partition",
        "null",
        "no records",
        "two batches",
        "transactional",
    ],
)
async def test_produce_refuses(
    wire: WireClient, topic: str, partition: int, records: bytes | None, expected: ErrorCode
) -> None:
    """A refused batch gets its code and offset -1; nothing is stored."""
    await wire.create("t")
    response = await wire.call(PRODUCE, 12, produce_fields(topic, partition, records))
    result = response.responses[0].partition_responses[0]
    assert (result.error_code, result.base_offset) == (expected, -1)
    assert (await fetch(wire, "t", 0)).high_watermark == 0


async def test_acks_0_has_no_answer_and_failure_closes(wire: WireClient, broker: Broker) -> None:
    """A success is silent, and the next request is answered; a failure closes the connection."""
    await wire.create("t")
    wire.send(PRODUCE, 9, produce_fields("t", 0, batch_of([b"a"]), acks=0))
    assert (await fetch(wire, "t", 0)).high_watermark == 1
    wire.send(PRODUCE, 9, produce_fields("absent", 0, batch_of([b"a"]), acks=0))
    assert await wire.is_closed()


async def test_produce_to_many_partitions_answers_each(wire: WireClient) -> None:
    """With valid and invalid partitions in one request, each has its own result, in order."""
    await wire.create("t", partitions=3)
    fields = produce_fields("t", 0, batch_of([b"a"]))
    fields["topic_data"][0]["partition_data"] = [{"index": index, "records": batch_of([b"x"])} for index in (2, 9, 0)]
    response = await wire.call(PRODUCE, 9, fields)
    results = response.responses[0].partition_responses
    assert [(result.index, result.error_code, result.base_offset) for result in results] == [
        (2, ErrorCode.NONE, 0),
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (0, ErrorCode.NONE, 0),
    ]


async def test_log_append_time_is_answered(wire: WireClient) -> None:
    """A LogAppendTime topic returns the timestamp to the producer."""
    await wire.create("t", message_timestamp_type="LogAppendTime")
    result = await wire.produce("t", [b"a"], timestamp=1)
    assert result.log_append_time is not None
    (record,) = iter_records(bytes((await fetch(wire, "t", 0)).records))
    assert record.timestamp == round(result.log_append_time.timestamp() * 1000)


async def test_an_idempotent_producer_may_repeat_itself(wire: WireClient) -> None:
    """A repeated batch gets its first offset and is stored once; a gap in the sequence is refused."""
    await wire.create("t")
    answer = await wire.call(INIT_PRODUCER_ID, 4, {"transactional_id": None, "transaction_timeout_ms": 60_000})
    producer: dict[str, Any] = {"producer_id": int(answer.producer_id), "producer_epoch": 0}
    offsets = [
        (await wire.produce("t", [b"a"], **producer, base_sequence=sequence)).base_offset for sequence in (0, 1, 0, 1)
    ]
    assert offsets == [0, 1, 0, 1]
    result = await wire.produce("t", [b"a"], **producer, base_sequence=5)
    assert result.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await fetch(wire, "t", 0)).high_watermark == 2


async def test_producer_ids_are_unique(wire: WireClient) -> None:
    """With more producers than ids in one block, no id is given twice."""
    fields = {"transactional_id": None, "transaction_timeout_ms": 60_000}
    first = wire.send(INIT_PRODUCER_ID, 4, fields)
    for _ in range(1500):
        wire.send(INIT_PRODUCER_ID, 4, fields)
    ids = [(await wire.receive(INIT_PRODUCER_ID, 4, first + number)).producer_id for number in range(1501)]
    assert len(set(ids)) == 1501


async def test_a_fetch_waits_for_min_bytes(wire: WireClient, broker: Broker) -> None:
    """One small batch does not complete a fetch that needs more; the next one does, and both are returned."""
    await wire.create("t", partitions=2)
    fields = fetch_fields("t", 0, max_wait_ms=60_000, min_bytes=len(batch_of([b"a"])) + 1)
    partitions = fields["topics"][0]["partitions"]
    partitions.append({**partitions[0], "partition": 1})
    correlation_id = wire.send(FETCH, 12, fields)
    await wait_until(lambda: len(broker.node.purgatory) > 0)
    async with WireClient(broker.bootstrap_servers) as producer:
        await producer.produce("t", [b"a"], partition=1)
        assert len(broker.node.purgatory) == 1
        await producer.produce("t", [b"b"], partition=0)
    response = await wire.receive(FETCH, 12, correlation_id)
    found = {part.partition_index: values_of(part.records) for part in response.responses[0].partitions}
    assert found == {0: [b"b"], 1: [b"a"]}


async def test_a_fetch_that_finds_nothing_ends_with_its_time(wire: WireClient) -> None:
    """At the timeout, the records are empty, not null; at once without a wait."""
    await wire.create("t")
    for max_wait_ms in (0, 10):
        partition = await fetch(wire, "t", 0, max_wait_ms=max_wait_ms)
        assert partition.records is not None
        assert len(partition.records) == 0


async def test_deleting_a_topic_answers_waiting_fetches(wire: WireClient, broker: Broker) -> None:
    """A long poll on a deleted topic ends with an error, before its timeout."""
    topic_id = (await wire.create("t")).topic_id
    fields = fetch_fields("t", 0, max_wait_ms=60_000)
    fields["topics"][0]["topic_id"] = topic_id
    async with WireClient(broker.bootstrap_servers) as other, WireClient(broker.bootstrap_servers) as third:
        by_name = wire.send(FETCH, 12, fields)
        by_id = other.send(FETCH, 16, fields)
        await wait_until(lambda: len(broker.node.purgatory) >= 2)
        await third.call(DELETE_TOPICS, 6, {"topics": [{"name": "t", "topic_id": None}], "timeout_ms": 1000})
        assert partition_of(await wire.receive(FETCH, 12, by_name)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert partition_of(await other.receive(FETCH, 16, by_id)).error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_a_disconnected_fetch_is_forgotten(broker: Broker) -> None:
    """A client that disconnects during its wait leaves no state behind."""
    async with WireClient(broker.bootstrap_servers) as client:
        await client.create("t")
        client.send(FETCH, 12, fetch_fields("t", 0, max_wait_ms=60_000))
        await wait_until(lambda: len(broker.node.purgatory) > 0)
    await wait_until(lambda: len(broker.node.purgatory) == 0)


async def test_the_budget_of_a_fetch(wire: WireClient) -> None:
    """The first batch is whole even if it is larger than all limits; later partitions stay within the budget."""
    await wire.create("t", partitions=3)
    for index in range(3):
        await wire.produce("t", [bytes(50_000)], partition=index)
        await wire.produce("t", [bytes(50_000)], partition=index)
    fields = fetch_fields("t", 0, max_bytes=110_000, partition_max_bytes=10)
    partitions = fields["topics"][0]["partitions"]
    fields["topics"][0]["partitions"] = [
        {**partitions[0], "partition": 1},
        {**partitions[0], "partition": 0, "partition_max_bytes": 60_000},
        {**partitions[0], "partition": 2, "partition_max_bytes": 60_000},
    ]
    response = await wire.call(FETCH, 11, fields)
    counts = [(part.partition_index, len(values_of(part.records))) for part in response.responses[0].partitions]
    assert counts == [(1, 1), (0, 1), (2, 0)]


@pytest.mark.parametrize(("offset", "leader_epoch", "expected"), [(5, -1, 1), (-1, -1, 1), (0, 0, 0), (0, 3, 75)])
async def test_fetch_errors(wire: WireClient, offset: int, leader_epoch: int, expected: int) -> None:
    """Offsets outside the log and future epochs are refused at once, whatever the client's wait."""
    await wire.create("t")
    await wire.produce("t", [b"a"])
    partition = await fetch(wire, "t", offset, leader_epoch=leader_epoch, max_wait_ms=60_000)
    assert partition.error_code == expected
    assert partition.records is not None


async def test_an_empty_fetch_is_answered_at_once(wire: WireClient) -> None:
    """Without partitions there is nothing to wait for."""
    fields = fetch_fields("t", 0, max_wait_ms=60_000)
    fields["topics"] = []
    assert (await wire.call(FETCH, 12, fields)).responses == ()


async def test_large_answers_cross_segments_and_the_socket(wire: WireClient) -> None:
    """Megabytes read in several fetches equal the produced ones."""
    await wire.create("t", segment_bytes="1048576")
    payloads = [bytes([number]) * 300_000 for number in range(12)]
    for payload in payloads:
        await wire.produce("t", [payload])
    found: list[bytes | None] = []
    while len(found) < len(payloads):
        partition = await fetch(wire, "t", len(found), max_bytes=50_000_000, partition_max_bytes=10_000_000)
        found += values_of(partition.records)
    assert found == payloads


@pytest.mark.parametrize("version", range(SERVED[LIST_OFFSETS].min, SERVED[LIST_OFFSETS].max + 1))
async def test_offsets_by_time(wire: WireClient, version: int) -> None:
    """Each version answers its special timestamps, and times before, between and after the records."""
    await wire.create("t")
    for timestamp in (1000, 3000, 2000):
        await wire.produce("t", [b"a"], timestamp=timestamp)
    expected = {-1: (-1, 3), -2: (-1, 0), 0: (1000, 0), 1001: (3000, 1), 3000: (3000, 1), 3001: (-1, -1)}
    expected |= {-3: (3000, 1)} if version >= 7 else {}
    expected |= {-4: (-1, 0)} if version >= 8 else {}
    expected |= {-5: (-1, -1)} if version >= 9 else {}
    expected |= {-6: (-1, -1)} if version >= 11 else {}
    for timestamp, found in expected.items():
        response = await wire.call(LIST_OFFSETS, version, list_offsets("t", 0, timestamp))
        partition = response.topics[0].partitions[0]
        assert (partition.error_code, partition.timestamp, partition.offset) == (ErrorCode.NONE, *found), timestamp


async def test_list_offsets_errors(wire: WireClient) -> None:
    """Unknown topics, meaningless timestamps and fenced epochs get their codes."""
    await wire.create("t")
    for fields, version, code in (
        (list_offsets("absent"), 7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (list_offsets("t", 0, -3), 6, ErrorCode.UNSUPPORTED_VERSION),
        (list_offsets("t", 0, -99), 11, ErrorCode.UNSUPPORTED_VERSION),
        (list_offsets("t", leader_epoch=9), 7, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ):
        response = await wire.call(LIST_OFFSETS, version, fields)
        assert response.topics[0].partitions[0].error_code == code


async def test_the_end_of_a_leader_epoch(wire: WireClient) -> None:
    """OffsetForLeaderEpoch of the current epoch is the log end; an unknown one has none."""
    await wire.create("t")
    await wire.produce("t", [b"a", b"b"])
    for version in (2, 3, 4):
        for epoch, expected in ((0, (0, 2)), (9, (-1, -1))):
            partition = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
            response = await wire.call(
                OFFSET_FOR_LEADER_EPOCH,
                version,
                {"replica_id": -1, "topics": [{"topic": "t", "partitions": [partition]}]},
            )
            found = response.topics[0].partitions[0]
            assert (found.error_code, found.leader_epoch, found.end_offset) == (ErrorCode.NONE, *expected)


async def test_delete_records_moves_the_log_start(wire: WireClient) -> None:
    """Records below the offset are out of range at once; -1 deletes all; compacted topics refuse."""
    await wire.create("t")
    await wire.create("compacted", cleanup_policy="compact")
    for _ in range(4):
        await wire.produce("t", [b"a"])

    async def delete(topic: str, offset: int) -> tuple[int, int]:
        partition = {"partition_index": 0, "offset": offset}
        fields = {"topics": [{"name": topic, "partitions": [partition]}], "timeout_ms": 1000}
        result = (await wire.call(DELETE_RECORDS, 2, fields)).topics[0].partitions[0]
        return int(result.error_code), result.low_watermark

    assert await delete("t", 3) == (ErrorCode.NONE, 3)
    assert (await fetch(wire, "t", 2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert await delete("t", 2) == (ErrorCode.NONE, 3)
    assert await delete("t", 99) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert await delete("t", -1) == (ErrorCode.NONE, 4)
    assert await delete("compacted", 0) == (ErrorCode.POLICY_VIOLATION, -1)
    assert await delete("absent", 0) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


@pytest.mark.parametrize("version", [0, 1, 4, 8, 9, 12, 13])
async def test_metadata_creates_what_it_is_asked_for(wire: WireClient, version: int) -> None:
    """The first answer is UNKNOWN_TOPIC_OR_PARTITION, as Kafka's; the second one has the topic, and it is usable."""
    asked = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
    answers = [(await wire.call(METADATA, version, asked)).topics[0] for _ in range(2)]
    assert [(topic.name, topic.error_code, len(topic.partitions)) for topic in answers] == [
        ("new", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0),
        ("new", ErrorCode.NONE, 1),
    ]
    assert (await wire.produce("new", [b"a"])).error_code == ErrorCode.NONE


async def test_metadata_creates_nothing_unless_allowed(wire: WireClient) -> None:
    """With allow_auto_topic_creation=false, invalid and reserved names: an error and no topic."""
    for name, allowed, code in (
        ("absent", False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("in valid", True, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("x" * 250, True, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("__cluster_metadata", True, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        response = await wire.call(METADATA, 12, {"topics": [{"name": name}], "allow_auto_topic_creation": allowed})
        assert response.topics[0].error_code == code
    assert (await wire.call(METADATA, 12, {"topics": None})).topics == ()


async def test_a_metadata_answer_is_never_stale(wire: WireClient) -> None:
    """Answers are cached; the next one after a creation, growth or deletion shows the change."""

    async def all_topics() -> dict[Any, int]:
        response = await wire.call(METADATA, 12, {"topics": None})
        return {topic.name: len(topic.partitions) for topic in response.topics}

    assert await all_topics() == {}
    assert await all_topics() == {}
    await wire.create("a", partitions=2)
    assert await all_topics() == {"a": 2}
    await wire.call(37, 3, {"topics": [{"name": "a", "count": 5, "assignments": None}], "timeout_ms": 1000})
    assert await all_topics() == {"a": 5}
    await wire.call(DELETE_TOPICS, 5, {"topic_names": ["a"], "timeout_ms": 1000})
    assert await all_topics() == {}


async def test_metadata_names_this_broker(wire: WireClient, broker: Broker) -> None:
    """One broker, which is the controller, at the advertised address; the cluster id is 22 characters of base64."""
    response = await wire.call(METADATA, 13, {"topics": []})
    (node,) = response.brokers
    assert (node.node_id, f"{node.host}:{node.port}") == (1, broker.bootstrap_servers)
    assert response.controller_id == 1
    assert len(response.cluster_id) == 22


async def test_librdkafka_asks_for_all_topics_with_stray_bytes(wire: WireClient) -> None:
    """Librdkafka 2.16 sends three zero bytes after a null array; it gets its answer all the same."""
    await wire.create("t")
    wire.writer.write(wire.frame(METADATA, 13, bytes.fromhex("00000000010000")))
    response = await wire.receive(METADATA, 13)
    assert [topic.name for topic in response.topics] == ["t"]


async def test_two_clients_create_the_same_topic_at_once(broker: Broker) -> None:
    """Concurrent auto-creation creates one topic, which the second request finds; CreateTopics then gets TOPIC_ALREADY_EXISTS."""
    async with WireClient(broker.bootstrap_servers) as first, WireClient(broker.bootstrap_servers) as second:
        fields = {"topics": [{"name": "t"}], "allow_auto_topic_creation": True}
        create = {"topics": [{"name": "t", "num_partitions": 1, "replication_factor": 1}], "timeout_ms": 1000}
        ids = [client.send(METADATA, 12, fields) for client in (first, second)]
        second.send(CREATE_TOPICS, 7, create)
        answers = [await client.receive(METADATA, 12, number) for client, number in zip((first, second), ids)]
        codes = [answer.topics[0].error_code for answer in answers]
        assert sorted(codes) == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert (await second.receive(CREATE_TOPICS, 7)).topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
