"""Fault injection: the requests that match, the effects on them, and the record of firings."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.dispatch.api_table import ERRORS
from diamant.broker.faults.fault import MAX_FIRINGS
from diamant.broker.faults.fault_requests import MAX_DELAY_MS
from diamant.broker.faults.installed_faults import MAX_FAULTS, TooManyFaults
from diamant.broker.faults.spec import FaultError, FaultSpec
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire import apis
from diamant.protocol.wire.error_response import ErrorAnswer
from diamant.protocol.wire.message_fields import decode_response_fields, message_fields
from diamant.protocol.wire.schema_fields import SchemaField, message_class, schema_fields
from diamant.protocol.wire.schemas import decode_request, encode_request_fields, encode_response_fields
from tests.broker.wire import (
    CREATE_TOPICS,
    DELETE_TOPICS,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    WireClient,
    batch_of,
    fetch_fields,
    produce_fields,
)
from tests.waiting import wait_until


def versions_of(key: int) -> range:
    """Return the served versions of an API."""
    return range(apis.SERVED[key].min, apis.SERVED[key].max + 1)


# -- the place of a code in every answer --------------------------------------------------------------------------------


def sample(struct: type) -> dict[str, Any]:
    """Return fields of a message with one element in each array."""
    return {field.name: [value_of(field)] if field.is_array else value_of(field) for field in schema_fields(struct)}


def value_of(field: SchemaField) -> Any:
    """Return some value of a field's type."""
    if field.struct is not None:
        return sample(field.struct)
    if field.wire_type == "uuid":
        return None
    return {"string": "x", "bytes": b"", "records": b"", "bool": False, "float64": 0.0}.get(field.wire_type or "", 1)


def codes_in(value: Any) -> Iterator[int]:
    """Return every error code in a response's fields."""
    if isinstance(value, list):
        for one in value:
            yield from codes_in(one)
    elif isinstance(value, dict):
        for name, one in value.items():
            if name in ("error_code", "partition_error_code"):
                yield one
            else:
                yield from codes_in(one)


def sent_and_answered(key: int, version: int, *, is_for_parts: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of a sample request and of its error response, as clients see them."""
    sent = encode_request_fields(key, version, sample(message_class(key, version, "request")))
    request = message_fields(decode_request(key, version, sent))
    code = ErrorCode.REQUEST_TIMED_OUT
    answer = ErrorAnswer(ERRORS[key], key, version, code, "why", is_for_parts=is_for_parts).whole(request)
    assert answer is not None, version
    return request, decode_response_fields(key, version, encode_response_fields(key, version, answer))


@pytest.mark.parametrize("key", ERRORS)
def test_every_api_and_version_can_answer_an_error(key: int) -> None:
    """Every error response encodes, and has the code at exactly one level that clients read."""
    for version in versions_of(key):
        _, response = sent_and_answered(key, version, is_for_parts=False)
        assert ErrorCode.REQUEST_TIMED_OUT in list(codes_in(response)), version


@pytest.mark.parametrize("key", [key for key, shape in ERRORS.items() if shape.mirrors])
def test_the_error_is_in_the_elements_that_the_request_names(key: int) -> None:
    """An error of parts is in the innermost elements, which repeat the request's names."""
    for version in versions_of(key):
        request, response = sent_and_answered(key, version, is_for_parts=True)
        # Old versions of FindCoordinator and LeaveGroup name one thing, at the top.
        for mirror in ERRORS[key].mirrors:
            if mirror.response in response and request.get(mirror.request):
                element = response[mirror.response][0]
                assert ErrorCode.REQUEST_TIMED_OUT in list(codes_in(element)) or ERRORS[key].innermost is not None, (
                    version
                )
                named = {name: value for name, value in element.items() if name in ("name", "topic", "group_id", "key")}
                assert set(named.values()) <= {"x", None}, (version, named)


@pytest.mark.parametrize(
    ("key", "version", "code", "place"),
    [
        (FETCH, 12, "OFFSET_OUT_OF_RANGE", "responses.partitions"),
        (FETCH, 12, "FETCH_SESSION_ID_NOT_FOUND", ""),
        (METADATA, 12, "LEADER_NOT_AVAILABLE", "topics"),
        (METADATA, 13, "REBOOTSTRAP_REQUIRED", ""),
        (9, 1, "NOT_COORDINATOR", "topics.partitions"),
        (9, 7, "NOT_COORDINATOR", ""),
        (9, 8, "NOT_COORDINATOR", "groups"),
        (9, 8, "UNSTABLE_OFFSET_COMMIT", "groups.topics.partitions"),
        (13, 5, "NOT_COORDINATOR", ""),
        (13, 5, "UNKNOWN_MEMBER_ID", "members"),
        (FIND_COORDINATOR, 3, "COORDINATOR_NOT_AVAILABLE", ""),
        (FIND_COORDINATOR, 4, "COORDINATOR_NOT_AVAILABLE", "coordinators"),
    ],
)
def test_codes_stand_where_clients_look_for_them(key: int, version: int, code: str, place: str) -> None:
    """Code and version decide whether the whole response or its parts have the code."""
    request = message_fields(
        decode_request(
            key, version, encode_request_fields(key, version, sample(message_class(key, version, "request")))
        )
    )
    fields: Any = ErrorAnswer(ERRORS[key], key, version, ErrorCode[code], "", is_for_parts=False).whole(request)
    for name in filter(None, place.split(".")):
        assert fields.get("error_code", 0) == 0
        (fields,) = fields[name]
    assert fields["error_code"] == ErrorCode[code]


# -- errors ----------------------------------------------------------------------------------------------------------


async def test_an_error_is_answered_in_place_of_the_request(wire: WireClient, broker: BlockingBroker) -> None:
    """Nothing is appended, and the partition has the code. `after` skips the first requests, `times` ends the fault."""
    await wire.create("t")
    fault = broker.faults.add("Produce", topic="t", after=2, times=2, error="NOT_LEADER_OR_FOLLOWER")
    found = [await wire.produce("t", [b"v"]) for _ in range(6)]
    hit, code = (False, False, True, True, False, False), ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [one.error_code for one in found] == [code if is_hit else ErrorCode.NONE for is_hit in hit]
    assert [one.base_offset for one in found] == [0, 1, -1, -1, 2, 3]
    assert found[2].error_message == f"injected by fault {fault.id}"
    assert (fault.count, fault.matched) == (2, 6)


@pytest.mark.parametrize("version", range(3, 14))
async def test_of_a_request_only_the_named_partition_is_refused(
    wire: WireClient, broker: BlockingBroker, version: int
) -> None:
    """The other partitions are handled: the response has both, in every version, by name and by topic ID."""
    sizes = {"t": 3, "other": 1}
    ids = {name: (await wire.create(name, size)).topic_id for name, size in sizes.items()}
    broker.faults.add(0, topic="t", partition=1, error="KAFKA_STORAGE_ERROR")
    data = [
        {
            "name": name,
            "topic_id": ids[name],
            "partition_data": [{"index": index, "records": batch_of([b"v"])} for index in range(size)],
        }
        for name, size in sizes.items()
    ]
    response = await wire.call(PRODUCE, version, {**produce_fields("t", 0, None), "topic_data": data})
    found = {
        (topic.topic_id if version == 13 else topic.name, one.index): one.error_code
        for topic in response.responses
        for one in topic.partition_responses
    }
    t, other = (ids["t"], ids["other"]) if version == 13 else ("t", "other")
    hit = {(t, 1): ErrorCode.KAFKA_STORAGE_ERROR}
    assert found == dict.fromkeys([(t, 0), (t, 2), (other, 0)], ErrorCode.NONE) | hit
    ends = [broker.node.topics.log(name, index).log_end_offset for name, size in sizes.items() for index in range(size)]
    assert ends == [1, 0, 1, 1]


async def test_an_error_after_applying(wire: WireClient, broker: BlockingBroker) -> None:
    """The records are stored although the response has the error; other partitions have their true result."""
    await wire.create("t", 2)
    with broker.faults.add("Produce", error="REQUEST_TIMED_OUT", after_applying=True, times=1):
        assert (await wire.produce("t", [b"v"])).error_code == ErrorCode.REQUEST_TIMED_OUT
    assert broker.node.topics.log("t", 0).log_end_offset == 1
    with broker.faults.add("Produce", topic="t", partition=1, error="REQUEST_TIMED_OUT", after_applying=True):
        assert (await wire.produce("t", [b"v"], partition=1)).error_code == ErrorCode.REQUEST_TIMED_OUT
        assert (await wire.produce("t", [b"v"])).error_code == ErrorCode.NONE
    assert [broker.node.topics.log("t", index).log_end_offset for index in range(2)] == [2, 1]


async def test_without_an_answer_the_connection_is_closed(wire: WireClient, broker: BlockingBroker) -> None:
    """A failed Produce with acks=0 closes the connection, its only signal."""
    await wire.create("t")
    fault = broker.faults.add("Produce", error="KAFKA_STORAGE_ERROR")
    wire.send(PRODUCE, 9, produce_fields("t", 0, batch_of([b"v"]), acks=0))
    assert await wire.is_closed()
    assert (fault.count, broker.node.topics.log("t", 0).log_end_offset) == (1, 0)


@pytest.mark.parametrize("version", range(4, 13))
async def test_a_fetch_error_is_reported_at_once(wire: WireClient, broker: BlockingBroker, version: int) -> None:
    """The partition has the code and empty records, not null; the others have their data, without the wait for more."""
    await wire.create("t", 2)
    await wire.produce("t", [b"v"], partition=1)
    broker.faults.add("Fetch", topic="t", partition=0, error="OFFSET_OUT_OF_RANGE")
    fields = fetch_fields("t", 0, max_wait_ms=60_000, min_bytes=1 << 20)
    (first,) = fields["topics"][0]["partitions"]
    fields["topics"][0]["partitions"].append({**first, "partition": 1})
    response = await wire.call(FETCH, version, fields)
    partitions = {one.partition_index: one for one in response.responses[0].partitions}
    assert partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert partitions[0].records is not None
    assert partitions[1].error_code == ErrorCode.NONE
    assert len(partitions[1].records) > 61


async def test_a_fetch_in_a_session_is_about_all_that_the_session_is_about(
    wire: WireClient, broker: BlockingBroker
) -> None:
    """An incremental fetch names only changes; the error still reaches the partition, and the session ends."""
    await wire.create("t", 2)
    await wire.produce("t", [b"v"], partition=1)
    fields = fetch_fields("t", 0)
    (first,) = fields["topics"][0]["partitions"]
    fields["topics"][0]["partitions"].append({**first, "partition": 1})
    opened = await wire.call(FETCH, 11, {**fields, "session_epoch": 0})
    assert opened.session_id
    following = {**fields, "topics": [], "session_id": opened.session_id, "session_epoch": 1}
    fault = broker.faults.add("Fetch", topic="t", partition=0, error="NOT_LEADER_OR_FOLLOWER")
    response = await wire.call(FETCH, 11, following)
    codes = {one.partition_index: (one.error_code, bool(one.records)) for one in response.responses[0].partitions}
    assert codes == {0: (ErrorCode.NOT_LEADER_OR_FOLLOWER, False), 1: (ErrorCode.NONE, True)}
    assert (response.session_id, response.error_code) == (0, ErrorCode.NONE)
    assert fault.fired[0].parts == ("t-0", "t-1")
    fault.remove()
    forgotten = [{"topic": "t", "partitions": [0]}]
    fault = broker.faults.add("Fetch", topic="t", partition=0, error="NOT_LEADER_OR_FOLLOWER")
    await wire.call(FETCH, 11, {**following, "forgotten_topics_data": forgotten})
    assert fault.count == 0


async def test_an_error_with_no_place_in_the_answer_does_not_fire(wire: WireClient, broker: BlockingBroker) -> None:
    """A Metadata request for no topics has no field for it in version 9; it is not counted."""
    fault = broker.faults.add("Metadata", error="LEADER_NOT_AVAILABLE")
    assert (await wire.call(METADATA, 9, {"topics": []})).brokers
    assert (fault.count, fault.matched) == (0, 0)


async def test_other_apis_are_answered_by_errors_too(wire: WireClient, broker: BlockingBroker) -> None:
    """APIs are given by name, in any case; creations and deletions of other topics are handled."""
    broker.faults.add("createtopics", topic="bad", error="POLICY_VIOLATION")
    assert (await wire.create("bad")).error_code == ErrorCode.POLICY_VIOLATION
    assert (await wire.create("good")).error_code == ErrorCode.NONE
    assert list(broker.node.topics.by_name) == ["good"]
    broker.faults.add("DeleteTopics", error="REQUEST_TIMED_OUT")
    response = await wire.call(DELETE_TOPICS, 5, {"topic_names": ["good"], "timeout_ms": 1000})
    assert (response.responses[0].name, response.responses[0].error_code) == ("good", ErrorCode.REQUEST_TIMED_OUT)
    assert list(broker.node.topics.by_name) == ["good"]
    broker.faults.add("ListOffsets", error="LEADER_NOT_AVAILABLE", client_id="wi*")
    fields = {"replica_id": -1, "topics": [{"name": "good", "partitions": [{"partition_index": 0, "timestamp": -1}]}]}
    response = await wire.call(LIST_OFFSETS, 5, fields)
    assert response.topics[0].partitions[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE


async def test_loading_coordinators(wire: WireClient, broker: BlockingBroker) -> None:
    """Requests to coordinators are told to retry; an idempotent producer's ID needs none."""
    fault = broker.faults.add(coordinator_loading=True)
    assert fault.spec.api_keys is not None
    assert {8, 9, 11, 12, 13, 14, 25, 26} <= fault.spec.api_keys
    transactional = {"transactional_id": "x", "transaction_timeout_ms": 1000}
    response = await wire.call(INIT_PRODUCER_ID, 4, transactional)
    assert (response.error_code, response.producer_id) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)
    response = await wire.call(INIT_PRODUCER_ID, 4, {**transactional, "transactional_id": None})
    assert response.error_code == ErrorCode.NONE
    assert fault.count == 1


# -- which requests ----------------------------------------------------------------------------------------------------


async def test_probability_is_repeatable(wire: WireClient, broker: BlockingBroker) -> None:
    """The same seed hits the same requests, about as many as specified."""
    await wire.create("t")
    runs = []
    for _ in range(2):
        with broker.faults.add("ListOffsets", probability=0.3, seed=7, error="NOT_LEADER_OR_FOLLOWER"):
            fields = {
                "replica_id": -1,
                "topics": [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}],
            }
            answers = [await wire.call(LIST_OFFSETS, 1, fields) for _ in range(100)]
            runs.append([answer.topics[0].partitions[0].error_code for answer in answers])
    assert runs[0] == runs[1]
    assert 15 <= sum(code != ErrorCode.NONE for code in runs[0]) <= 45


@pytest.mark.parametrize(
    ("client_id", "is_hit"),
    [("wire", True), ("w?re", True), ("*", True), ("wir", False), ("Wire", False), ("[w]ire", True), ("wire-*", False)],
)
async def test_the_client_is_named_or_a_pattern(
    wire: WireClient, broker: BlockingBroker, client_id: str, is_hit: bool
) -> None:
    """A client is selected by its ID, or by a pattern with * ? and [...]; case matters."""
    fault = broker.faults.add(client_id=client_id, throttle_time_ms=5)
    assert (await wire.call(METADATA, 4, {"topics": []})).throttle_time.total_seconds() == (0.005 if is_hit else 0)
    assert fault.count == is_hit


async def test_a_client_without_an_id_fits_no_pattern(wire: WireClient, broker: BlockingBroker) -> None:
    """A client without an id does not even match *."""
    fault = broker.faults.add(client_id="*", drop=True)
    wire.writer.write(wire.frame(18, 0, b"", client_id=None))
    await wire.receive_frame()
    assert fault.matched == 0


async def test_the_first_fault_that_fires_has_the_request(wire: WireClient, broker: BlockingBroker) -> None:
    """Later faults neither see nor count the request; they apply after the first is used up."""
    await wire.create("t")
    first = broker.faults.add("Produce", error="NOT_ENOUGH_REPLICAS", times=1)
    second = broker.faults.add("Produce", error="REQUEST_TIMED_OUT", times=1)
    codes = [(await wire.produce("t", [b"v"])).error_code for _ in range(3)]
    assert codes == [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]
    assert ((first.matched, first.count), (second.matched, second.count)) == ((3, 1), (2, 1))


# -- time and connections ----------------------------------------------------------------------------------------------


async def test_held_requests_are_answered_in_order_after_the_release(wire: WireClient, broker: BlockingBroker) -> None:
    """`release` answers in the connection's order; other connections continue, and nothing was handled before."""
    await wire.create("t")
    fault = broker.faults.add("Produce", hold=True)
    first = wire.send(PRODUCE, 9, produce_fields("t", 0, batch_of([b"v"])))
    second = wire.send(METADATA, 4, {"topics": []})
    await fault.until_fired()
    assert (fault.held, broker.node.topics.log("t", 0).log_end_offset) == (1, 0)
    async with WireClient(broker.bootstrap_servers) as other:
        assert (await other.call(METADATA, 4, {"topics": []})).brokers
    assert fault.release() == 1
    assert (await wire.receive(PRODUCE, 9, first)).responses
    await wire.receive(METADATA, 4, second)
    assert (fault.held, broker.node.topics.log("t", 0).log_end_offset) == (0, 1)


async def test_a_held_fetch_is_answered_with_what_there_is_then(wire: WireClient, broker: BlockingBroker) -> None:
    """New data does not end the hold; removing the fault does."""
    await wire.create("t")
    fault = broker.faults.add("Fetch", topic="t", hold=True)
    async with WireClient(broker.bootstrap_servers) as consumer:
        sent = consumer.send(FETCH, 11, fetch_fields("t", 0, max_wait_ms=1))
        await fault.until_fired()
        await wire.produce("t", [b"v"])
        fault.remove()
        response = await consumer.receive(FETCH, 11, sent)
    assert len(response.responses[0].partitions[0].records) > 61


@pytest.mark.parametrize("after_applying", [False, True])
async def test_a_delay_comes_before_or_after(wire: WireClient, broker: BlockingBroker, after_applying: bool) -> None:
    """With or without `after_applying` the response is delayed; only with it are the records stored at once."""
    await wire.create("t")
    fault = broker.faults.add("Produce", delay_ms=60_000, after_applying=after_applying)
    sent = wire.send(PRODUCE, 9, produce_fields("t", 0, batch_of([b"v"])))
    await fault.until_fired()
    assert broker.node.topics.log("t", 0).log_end_offset == after_applying
    fault.release()
    assert (await wire.receive(PRODUCE, 9, sent)).responses[0].partition_responses[0].error_code == ErrorCode.NONE


async def test_a_short_delay_ends_by_itself(wire: WireClient, broker: BlockingBroker) -> None:
    """The response follows after the given milliseconds."""
    broker.faults.add("Metadata", delay_ms=30)
    began = asyncio.get_running_loop().time()
    await wire.call(METADATA, 4, {"topics": []})
    assert asyncio.get_running_loop().time() - began >= 0.03


async def test_a_delayed_request_ends_with_its_connection(wire: WireClient, broker: BlockingBroker) -> None:
    """A delayed request is not handled if its client has disconnected."""
    await wire.create("t")
    fault = broker.faults.add("Produce", hold=True)
    async with WireClient(broker.bootstrap_servers) as gone:
        gone.send(PRODUCE, 9, produce_fields("t", 0, batch_of([b"v"])))
        await fault.until_fired()
    await wait_until(lambda: not fault.held)
    assert broker.node.topics.log("t", 0).log_end_offset == 0


@pytest.mark.parametrize("after_applying", [False, True])
async def test_a_connection_is_dropped_before_or_after(
    wire: WireClient, broker: BlockingBroker, after_applying: bool
) -> None:
    """There is no response; with `after_applying` the records are stored. Other connections stay open."""
    await wire.create("t")
    fault = broker.faults.add("Produce", drop=True, after_applying=after_applying)
    async with WireClient(broker.bootstrap_servers) as dropped:
        dropped.send(PRODUCE, 9, produce_fields("t", 0, batch_of([b"v"])))
        assert await dropped.is_closed()
    assert (fault.count, broker.node.topics.log("t", 0).log_end_offset) == (1, after_applying)
    assert (await wire.call(METADATA, 4, {"topics": []})).brokers


@pytest.mark.parametrize(("cut", "expected"), [(True, 0.5), (3, 3), (0, 0), (1_000_000, -1)])
async def test_an_answer_is_cut(wire: WireClient, broker: BlockingBroker, cut: bool | int, expected: float) -> None:
    """Half of the frame arrives, or the given bytes, at most all but one; then the connection ends."""
    await wire.create("t")
    await wire.produce("t", [b"v" * 100_000])
    whole = len((await wire.call(FETCH, 11, fetch_fields("t", 0))).responses[0].partitions[0].records)
    broker.faults.add("Fetch", cut=cut)
    async with WireClient(broker.bootstrap_servers) as client:
        client.send(FETCH, 11, fetch_fields("t", 0))
        arrived = await client.reader.read()
    (size,) = (int.from_bytes(arrived[:4], "big") + 4,) if len(arrived) >= 4 else (0,)
    wanted = {0.5: size // 2, -1: size - 1}.get(expected, expected)
    assert len(arrived) == wanted
    assert whole > 100_000


async def test_requests_after_a_drop_are_not_carried_out(wire: WireClient, broker: BlockingBroker) -> None:
    """Later requests on a dropped connection are lost."""
    await wire.create("t")
    broker.faults.add("Metadata", drop=True, times=1)
    async with WireClient(broker.bootstrap_servers) as dropped:
        dropped.send(METADATA, 4, {"topics": []})
        dropped.send(PRODUCE, 9, produce_fields("t", 0, batch_of([b"v"])))
        assert await dropped.is_closed()
    assert broker.node.topics.log("t", 0).log_end_offset == 0


@pytest.mark.parametrize(
    ("key", "version"),
    [(PRODUCE, 3), (PRODUCE, 12), (FETCH, 4), (FETCH, 12), (METADATA, 3), (METADATA, 13), (CREATE_TOPICS, 7), (18, 3)],
)
async def test_throttle_time_is_reported(wire: WireClient, broker: BlockingBroker, key: int, version: int) -> None:
    """Every version with the field has the throttle time; the rest of the response is normal."""
    await wire.create("t")
    await wire.produce("t", [b"v"])
    requests: dict[int, dict[str, Any]] = {
        PRODUCE: produce_fields("t", 0, batch_of([b"v"])),
        FETCH: fetch_fields("t", 0),
        METADATA: {"topics": None},
        CREATE_TOPICS: {"topics": [{"name": "n", "num_partitions": 1, "replication_factor": 1}], "timeout_ms": 1000},
        18: {"client_software_name": "x", "client_software_version": "1"},
    }
    fault = broker.faults.add(key, throttle_time_ms=1234)
    response = await wire.call(key, version, requests[key])
    assert response.throttle_time.total_seconds() == 1.234
    assert fault.count == 1
    if key == FETCH:
        assert len(response.responses[0].partitions[0].records) > 61


# -- metadata ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(14))
async def test_stale_metadata_without_the_topic(wire: WireClient, broker: BlockingBroker, version: int) -> None:
    """By name the topic is unknown and not created; it is missing among all topics. Brokers are listed as usual."""
    await wire.create("old")
    await wire.create("new")
    with broker.faults.add(topic="new", stale={"missing": True}):
        response = await wire.call(METADATA, version, {"topics": [{"name": "new"}, {"name": "old"}]})
        codes = {topic.name: topic.error_code for topic in response.topics}
        assert codes == {"new": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "old": ErrorCode.NONE}
        assert len(response.brokers) == 1
        response = await wire.call(METADATA, version, {"topics": [] if version == 0 else None})
        assert [topic.name for topic in response.topics] == ["old"]
    with broker.faults.add(topic="never", stale={"missing": True}):
        await wire.call(METADATA, version, {"topics": [{"name": "never"}]})
    assert sorted(broker.node.topics.by_name) == ["new", "old"]


@pytest.mark.parametrize("version", [0, 1, 8, 12])
async def test_stale_metadata_with_another_leader(wire: WireClient, broker: BlockingBroker, version: int) -> None:
    """A topic or a partition gets another leader: a broker at the address in the fault."""
    await wire.create("t", 2)
    await wire.create("other")
    broker.faults.add(topic="t", partition=1, stale={"leader_id": 7, "port": 4, "host": "gone"})
    response = await wire.call(METADATA, version, {"topics": [{"name": "t"}, {"name": "other"}]})
    leaders = {
        (topic.name, partition.partition_index): partition.leader_id
        for topic in response.topics
        for partition in topic.partitions
    }
    assert leaders == {("t", 0): 1, ("t", 1): 7, ("other", 0): 1}
    assert [(one.node_id, one.host, one.port) for one in response.brokers][1:] == [(7, "gone", 4)]


async def test_other_stale_metadata(wire: WireClient, broker: BlockingBroker) -> None:
    """Stale metadata name a broker that has moved, fewer partitions, an older epoch, or no leader at all."""
    await wire.create("t", 3)
    ask = {"topics": [{"name": "t"}]}
    with broker.faults.add(stale={"port": 4}):
        assert [one.port for one in (await wire.call(METADATA, 9, ask)).brokers] == [4]
    with broker.faults.add(stale={"partition_count": 1, "leader_epoch": 0}):
        (topic,) = (await wire.call(METADATA, 9, ask)).topics
        assert [(one.partition_index, one.leader_epoch) for one in topic.partitions] == [(0, 0)]
    with broker.faults.add(stale={"leader_id": -1}):
        (topic,) = (await wire.call(METADATA, 9, ask)).topics
        assert {(one.leader_id, one.error_code) for one in topic.partitions} == {(-1, ErrorCode.LEADER_NOT_AVAILABLE)}


async def test_errors_of_described_topics(wire: WireClient, broker: BlockingBroker) -> None:
    """A topic's error is in the topic, a partition's in the partition, even if all topics are requested."""
    await wire.create("t", 2)
    await wire.create("other")
    for topics in ([{"name": "t"}, {"name": "other"}], None):
        with broker.faults.add("Metadata", topic="t", error="TOPIC_AUTHORIZATION_FAILED"):
            found = {one.name: one for one in (await wire.call(METADATA, 12, {"topics": topics})).topics}
            assert (found["t"].error_code, found["t"].partitions) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ())
            assert (found["other"].error_code, len(found["other"].partitions)) == (ErrorCode.NONE, 1)
        with broker.faults.add("Metadata", topic="t", partition=1, error="LEADER_NOT_AVAILABLE"):
            found = {one.name: one for one in (await wire.call(METADATA, 12, {"topics": topics})).topics}
            partitions = [(one.error_code, one.leader_id) for one in found["t"].partitions]
            assert partitions == [(ErrorCode.NONE, 1), (ErrorCode.LEADER_NOT_AVAILABLE, -1)]
    with broker.faults.add("Metadata", error="REBOOTSTRAP_REQUIRED"):
        assert (await wire.call(METADATA, 13, {"topics": None})).error_code == ErrorCode.REBOOTSTRAP_REQUIRED


# -- what a test sees --------------------------------------------------------------------------------------------------


async def test_firings_are_remembered(wire: WireClient, broker: BlockingBroker) -> None:
    """A bounded number of firings has client, API and partitions; the count continues."""
    await wire.create("t")
    fault = broker.faults.add("Produce", error="NOT_ENOUGH_REPLICAS")
    for _ in range(MAX_FIRINGS + 5):
        await wire.produce("t", [b"v"], version=9)
    assert (len(fault.fired), fault.count) == (MAX_FIRINGS, MAX_FIRINGS + 5)
    firing = fault.fired[-1]
    assert (firing.api, firing.api_version, firing.client_id, firing.parts) == ("Produce", 9, "wire", ("t-0",))
    assert firing.peer.startswith("127.0.0.1:")


async def test_waiting_for_a_fault_ends(wire: WireClient, broker: BlockingBroker) -> None:
    """The wait ends with the firings, or with a report of what was seen; the loop's thread must await, others may block."""
    fault = broker.faults.add("Metadata", throttle_time_ms=1)
    with pytest.raises(RuntimeError, match="until_fired"):
        fault.wait_fired()
    with pytest.raises(TimeoutError, match=r"has fired 0 times within 0\.01 s, expected 1; 0 requests matched"):
        await fault.until_fired(timeout=0.01)
    with pytest.raises(TimeoutError, match=r"has fired 0 times within 0\.01 s"):
        await asyncio.to_thread(fault.wait_fired, timeout=0.01)
    waiting = asyncio.gather(fault.until_fired(2), asyncio.to_thread(fault.wait_fired, 2))
    for _ in range(2):
        await wire.call(METADATA, 4, {"topics": []})
    await waiting


def test_any_thread_may_use_them(tmp_path: Path) -> None:
    """Several threads can use faults at once."""
    with Broker(data_dir=tmp_path) as broker, ThreadPoolExecutor(4) as threads:

        def add_and_remove(_: int) -> None:
            for _ in range(50):
                broker.faults.add("Produce", drop=True).remove()

        assert list(threads.map(add_and_remove, range(4))) == [None] * 4
        assert broker.faults.list() == []


async def test_without_faults_nothing_stands_in_the_way(wire: WireClient, broker: BlockingBroker) -> None:
    """Before the first fault and after the last, the server calls the dispatcher directly."""
    dispatcher = broker.services.server.dispatch
    assert not broker.services.faults.made is not None
    one, two = broker.faults.add(drop=True), broker.faults.add(drop=True)
    assert broker.services.server.dispatch is not dispatcher
    one.remove()
    assert broker.services.server.dispatch is not dispatcher
    two.remove()
    two.remove()
    assert broker.services.server.dispatch is dispatcher


async def test_a_broker_that_stops_lets_everything_go(tmp_path: Path) -> None:
    """A held request is answered, and the broker stops."""
    async with asyncio.timeout(60), Broker(data_dir=tmp_path) as broker:
        fault = broker.faults.add("Metadata", hold=True)
        client = WireClient(broker.bootstrap_servers)
        await client.__aenter__()
        client.send(METADATA, 4, {"topics": []})
        await fault.until_fired()
        await broker.stop()
        assert (await client.receive(METADATA, 4)).brokers
        await client.__aexit__(None, None, None)


async def test_faults_are_bounded(broker: BlockingBroker) -> None:
    """At the limit, further faults are refused; removing all makes room."""
    for _ in range(MAX_FAULTS):
        broker.faults.add("Fetch", topic="none", drop=True)
    with pytest.raises(TooManyFaults, match=f"{MAX_FAULTS} faults are installed"):
        broker.faults.add(drop=True)
    assert broker.faults.clear() == MAX_FAULTS
    assert broker.faults.list() == []


async def test_a_broken_request_is_refused_as_ever(wire: WireClient, broker: BlockingBroker) -> None:
    """Faults do not change the handling of undecodable requests and unknown versions."""
    fault = broker.faults.add(topic="t", error="NOT_LEADER_OR_FOLLOWER")
    wire.writer.write(wire.frame(PRODUCE, 9, b"\xff" * 50))
    assert await wire.is_closed()
    async with WireClient(broker.bootstrap_servers) as other:
        other.writer.write(other.frame(PRODUCE, 99, b""))
        assert await other.is_closed()
    assert fault.matched == 0


def test_a_broker_that_does_not_run_has_no_faults(tmp_path: Path) -> None:
    """A fault cannot be installed before the broker's loop runs."""
    with pytest.raises(RuntimeError, match="is not running"):
        _ = Broker(BrokerConfig(data_dir=tmp_path)).faults


def test_the_fixture_removes_what_a_test_added(diamant_faults: Any, diamant_broker: BlockingBroker) -> None:
    """`diamant_faults` removes a test's faults; the next test checks that."""
    diamant_faults.add("Produce", client_id="nobody", drop=True)
    assert diamant_broker.faults is diamant_faults


def test_no_fault_of_another_test_is_left(diamant_faults: Any) -> None:
    """The previous test's fault is gone."""
    assert diamant_faults.list() == []


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "the fault has no effect: expected one of error, delay_ms"),
        ({"api": "Prodce", "drop": True}, "api: 'Prodce' is unknown"),
        ({"api": 9999, "drop": True}, "api: 9999 is unknown"),
        ({"api": True, "drop": True}, "api: True is unknown"),
        ({"api": [], "drop": True}, "api: the list is empty"),
        ({"error": "NO_SUCH"}, "error: 'NO_SUCH' is unknown"),
        ({"error": 4711}, "error: 4711 is unknown"),
        ({"error": True}, "error: True is unknown"),
        ({"error": 0}, "error: NONE is not an error"),
        ({"delay_ms": -1}, "delay_ms: expected 0 to"),
        ({"delay_ms": MAX_DELAY_MS + 1}, "delay_ms: expected 0 to"),
        ({"delay_ms": 1.5}, "delay_ms: expected integer, got"),
        ({"delay_ms": "5"}, "delay_ms: expected integer, got"),
        ({"drop": 1}, "drop: expected boolean, got int"),
        ({"drop": True, "times": 0}, "times: expected 1 to"),
        ({"drop": True, "topic": ""}, "topic: expected a string"),
        ({"drop": True, "topic": 5}, "topic: expected string, got int"),
        ({"drop": True, "partition": 0}, "partition: needs a topic"),
        ({"drop": True, "probability": 0}, "probability: expected a number above 0"),
        ({"drop": True, "probability": float("nan")}, "probability: expected a number above 0"),
        ({"drop": True, "seed": 1}, "seed: needs a probability"),
        ({"drop": True, "error": 3}, "error and drop cannot be combined in one fault"),
        ({"hold": True, "delay_ms": 3}, "hold and delay_ms cannot be combined"),
        ({"stale": {}}, "stale: expected an object"),
        ({"stale": True}, "stale: expected object, got bool"),
        ({"stale": {"leader": 1}}, "stale.leader: unknown field"),
        ({"stale": {"port": 70000}}, "stale.port: expected an integer from 0 to 65535"),
        ({"stale": {"missing": True, "port": 1}}, "missing excludes all other fields"),
        ({"stale": {"missing": True}, "api": "Fetch"}, "stale: applies only to Metadata"),
        ({"dlay_ms": 5}, "dlay_ms: unknown field; expected one of after, after_applying, api"),
    ],
)
def test_an_impossible_fault_is_refused(values: dict[str, Any], message: str) -> None:
    """The error has the field, its valid values, and the value given."""
    with pytest.raises(FaultError) as raised:
        FaultSpec.make(**values)
    assert message in str(raised.value)
