"""Requests by API, their latencies and errors, bytes and connections, lags, transactions and faults on `/metrics`."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.dispatch.api_table import ERRORS
from diamant.broker.metrics import coordinators as coordinator_metrics
from diamant.broker.network import request_metrics
from diamant.broker.network.request_metrics import LATENCY_BOUNDS_MS, MAX_ANSWERS_ASIDE, RequestMetrics
from diamant.broker.transactions.coordinator import TransactionCoordinator
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.error_codes import MAX_CODES, error_code_finder
from diamant.protocol.wire.message_fields import decode_response_fields
from diamant.protocol.wire.schema_fields import message_class
from diamant.protocol.wire.schemas import encode_response_fields
from diamant.storage.env.clocks import Clock, SettableClock
from diamant.storage.env.env import RealEnv
from tests.broker.faults.test_installed_faults import codes_in, sample, versions_of
from tests.broker.groups.offsets.offset_requests import find_coordinator
from tests.broker.metrics.test_metrics import scrape, value
from tests.broker.request_fields import offset_commit
from tests.broker.wire import FETCH, METADATA, PRODUCE, WireClient, batch_of, fetch_fields, produce_fields
from tests.waiting import wait_until

REQUESTS = "kafka_network_requestmetrics_"
LAG = "kafka_consumergroup_lag"
GROUPS = "kafka_coordinator_group_groupmetadatamanager_num"
OFFSET_COMMIT, INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN = 8, 22, 24


# -- error codes in answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ERRORS)
def test_error_codes_are_found_in_every_answer(key: int) -> None:
    """The codes equal those that decoding finds, in the same order, for every API and version."""
    for version in versions_of(key):
        fields = sample(message_class(key, version, "response"))
        body = encode_response_fields(key, version, fields)
        found = error_code_finder(key, version)(body)
        expected = [code for code in codes_in(decode_response_fields(key, version, body)) if code]
        assert (version, found) == (version, expected)
        assert (version, error_code_finder(key, version)(_without_codes(key, version, fields))) == (version, [])


def _without_codes(key: int, version: int, fields: dict[str, Any]) -> bytes:
    def cleared(value: Any) -> Any:
        if isinstance(value, list):
            return [cleared(one) for one in value]
        if isinstance(value, dict):
            return {name: 0 if "error_code" in name else cleared(one) for name, one in value.items()}
        return value

    return encode_response_fields(key, version, cleared(fields))


def test_of_a_long_answer_the_beginning_is_looked_at() -> None:
    """The number of codes read is limited: a response of 100,000 partitions does not block the loop."""
    partitions = [{"partition_index": index, "error_code": 3} for index in range(5 * MAX_CODES)]
    body = encode_response_fields(OFFSET_COMMIT, 8, {"topics": [{"name": "t", "partitions": partitions}]})
    assert len(error_code_finder(OFFSET_COMMIT, 8)(body)) == MAX_CODES


# -- requests ----------------------------------------------------------------------------------------------------------


async def test_requests_are_counted_by_api_and_version(wire: WireClient, broker: Broker) -> None:
    """Each is counted after its response; fetches have two names, as in Kafka. acks=0 counts without a response."""
    await wire.create("t")
    for version in (9, 9, 12):
        await wire.produce("t", [b"v"], version=version)
    wire.send(PRODUCE, 9, produce_fields("t", 0, batch_of([b"v"]), acks=0))
    await wire.call(FETCH, 11, fetch_fields("t", 0))
    found = await scrape(broker)
    assert value(found, f"{REQUESTS}requests_total", request="Produce", version="9") == 3
    assert value(found, f"{REQUESTS}requests_total", request="Produce", version="12") == 1
    assert value(found, f"{REQUESTS}requests_total", request="FetchConsumer", version="11") == 1
    assert value(found, f"{REQUESTS}totaltimems_count", request="Produce") == 4
    assert value(found, f"{REQUESTS}totaltimems_bucket", request="Produce", le="+Inf") == 4
    assert value(found, f"{REQUESTS}totaltimems_sum", request="Produce") > 0


async def test_latencies_fall_into_buckets(wire: WireClient, broker: Broker) -> None:
    """The latency of a fetch includes its wait. Buckets are cumulative, with inclusive bounds."""
    await wire.create("t")
    await wire.call(FETCH, 11, fetch_fields("t", 0, max_wait_ms=30))
    found = await scrape(broker)
    assert value(found, f"{REQUESTS}totaltimems_bucket", request="Fetch", le="10.0") == 0
    assert value(found, f"{REQUESTS}totaltimems_bucket", request="Fetch", le="10000.0") == 1
    assert value(found, f"{REQUESTS}totaltimems_sum", request="Fetch") >= 30
    counted = RequestMetrics()
    for latency_ms in (0.1, 0.11, 10_000, 10_001):
        counted.answered(0, 9, latency_ms / 1000, None, 0)
    (row,) = counted.rows()
    assert [row.buckets[position] for position in (0, 1, len(LATENCY_BOUNDS_MS) - 1, len(LATENCY_BOUNDS_MS))] == [1] * 4


async def test_large_answers_are_counted_too(wire: WireClient, broker: Broker) -> None:
    """Responses sent by sendfile count after their last byte, with their bytes on the wire."""
    await wire.create("t")
    for _ in range(3):
        await wire.produce("t", [b"v" * 900_000])
    before = await scrape(broker)
    await wire.call(FETCH, 11, fetch_fields("t", 0, max_bytes=1 << 30, partition_max_bytes=1 << 30))
    found = await scrape(broker)
    assert value(found, f"{REQUESTS}totaltimems_count", request="Fetch") == 1
    sent = value(found, "diamant_sent_bytes_total") - value(before, "diamant_sent_bytes_total")
    assert 2_700_000 < sent < 2_701_000


async def test_errors_are_counted_by_code(wire: WireClient, broker: Broker) -> None:
    """Errors count per partition: from encoded responses, from Produce and Fetch handlers, and from faults."""
    await wire.create("t")
    await wire.create("t")
    await wire.produce("none", [b"v"])
    await wire.call(FETCH, 11, fetch_fields("t", 99))
    for _ in range(MAX_ANSWERS_ASIDE + 5):  # the first ones are put aside, the others read at once
        await wire.call(METADATA, 9, {"topics": [{"name": "no such/name"}]})
    broker.faults.add("Produce", error="NOT_LEADER_OR_FOLLOWER", times=2)
    for _ in range(2):
        await wire.produce("t", [b"v"])
    found = await scrape(broker)

    def errors(request: str, error: str) -> float:
        return value(found, f"{REQUESTS}errors_total", request=request, error=error)

    assert errors("CreateTopics", "TOPIC_ALREADY_EXISTS") == 1
    assert errors("Produce", "UNKNOWN_TOPIC_OR_PARTITION") == 1
    assert errors("Produce", "NOT_LEADER_OR_FOLLOWER") == 2
    assert errors("Fetch", "OFFSET_OUT_OF_RANGE") == 1
    assert errors("FetchConsumer", "OFFSET_OUT_OF_RANGE") == 1
    assert errors("Metadata", "INVALID_TOPIC_EXCEPTION") == MAX_ANSWERS_ASIDE + 5
    assert value(found, "diamant_faults_fired_total", effect="error", request="Produce") == 2
    assert value(found, "diamant_faults") == 1


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, os.strerror(errno.EMFILE)), ImportError("Too many open files")]
)
def test_codes_that_cannot_be_read_for_lack_of_descriptors(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """What finds them cannot be imported: the codes put aside stay uncounted, all else counts, and so do later codes."""

    def refuse(api_key: int, version: int) -> NoReturn:
        raise error

    body = encode_response_fields(OFFSET_COMMIT, 8, {"topics": [{"name": "t", "partitions": [{"error_code": 3}]}]})
    answers = MAX_ANSWERS_ASIDE + 2  # the last but one has those put aside read, the last is read by `rows`
    counted = RequestMetrics()
    with monkeypatch.context() as patch:
        patch.setattr(request_metrics, "error_code_finder", refuse)
        for _ in range(answers):
            counted.answered(OFFSET_COMMIT, 8, 0.001, body, 10)
        (row,) = counted.rows()
        assert (sum(row.buckets), row.sent_bytes, row.errors) == (answers, 10 * answers, {})
    counted.answered(OFFSET_COMMIT, 8, 0.001, body, 10)
    (row,) = counted.rows()
    assert (sum(row.buckets), row.errors) == (answers + 1, {3: 1})


async def test_versions_of_the_future_take_no_room(broker: Broker) -> None:
    """All unsupported versions of ApiVersions count as the version of the response."""
    async with WireClient(broker.bootstrap_servers) as client:
        for version in range(100, 200):
            client.writer.write(client.frame(18, version, b""))
            await client.receive_frame()
    assert [(row.api_key, row.version, sum(row.buckets)) for row in broker.services.server.metrics.rows()] == [
        (18, 0, 100)
    ]


async def test_connections_and_bytes(wire: WireClient, broker: Broker) -> None:
    """Counts every byte received and sent, and every connection accepted and closed."""
    request = wire.frame(18, 0, b"")
    for _ in range(3):
        async with WireClient(broker.bootstrap_servers) as client:
            client.writer.write(request)
            await client.receive_frame()
    await wait_until(lambda: len(broker.services.server.connections) <= 1)
    found = await scrape(broker)
    assert value(found, "diamant_connections_created_total") == 4
    assert value(found, "diamant_connections_closed_total") == 3
    assert value(found, "diamant_received_bytes_total") == 3 * len(request)
    assert value(found, "diamant_sent_bytes_total") > 300


# -- coordinators ------------------------------------------------------------------------------------------------------


async def commit(wire: WireClient, group_id: str, topic: str, offsets: dict[int, int]) -> None:
    """Commit offsets without being a member."""
    await find_coordinator(wire, group_id)
    fields = offset_commit(group_id, (topic, [(index, offset, "") for index, offset in offsets.items()]))
    async with asyncio.timeout(60):
        while True:
            response = await wire.call(OFFSET_COMMIT, 7, fields)
            codes = {one.error_code for one in response.topics[0].partitions}
            if not codes & {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}:
                break
    assert codes == {ErrorCode.NONE}


async def test_groups_and_their_lag(wire: WireClient, broker: Broker) -> None:
    """Shows groups by state, and the lag of each group in each partition."""
    await wire.create("t", 2)
    await wire.produce("t", [b"a", b"b", b"c"])
    found = await scrape(broker)
    assert not [name for name, _ in found if name.startswith((LAG, GROUPS))]
    await commit(wire, "g", "t", {0: 1, 1: 0})
    await commit(wire, "other", "t", {0: 3})
    found = await scrape(broker)
    assert value(found, LAG, consumergroup="g", topic="t", partition="0") == 2
    assert value(found, LAG, consumergroup="g", topic="t", partition="1") == 0
    assert value(found, LAG, consumergroup="other", topic="t", partition="0") == 0
    assert value(found, "kafka_consumergroup_current_offset", consumergroup="g", topic="t", partition="0") == 1
    assert value(found, f"{GROUPS}groups") == 2
    assert value(found, f"{GROUPS}groupsempty") == 2
    assert value(found, f"{GROUPS}groupsstable") == 0
    assert value(found, f"{GROUPS}offsets") == 3
    assert value(found, "diamant_groups", type="classic", state="Empty") == 2
    assert value(found, "diamant_consumergroup_lags_left_out") == 0


@pytest.mark.slow
async def test_only_the_greatest_lags_are_shown(wire: WireClient, broker: Broker) -> None:
    """Their number is limited; a metric has the number of the rest."""
    await wire.create("t")
    await wire.produce("t", [b"v"] * 10)
    for offset in (9, 2, 5, 0):
        await commit(wire, f"g{offset}", "t", {0: offset})
    figures = await coordinator_metrics.take_groups(broker.services.groups(), broker.node.topics, max_lags=2)
    assert figures is not None
    assert {(lag.group_id, lag.lag) for lag in figures.lags} == {("g0", 10), ("g2", 8)}
    assert figures.lags_left_out == 2


async def test_open_transactions_and_their_age(tmp_path: Path) -> None:
    """Shows ids by state, and the age of each open transaction by the broker's clock."""
    clock = SettableClock(1_700_000_000_000)
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path)
    async with Broker(config, env=RealEnv(clock)) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t")
        await find_coordinator(wire, "x", 1)
        async with asyncio.timeout(60):
            while True:
                response = await wire.call(
                    INIT_PRODUCER_ID, 3, {"transactional_id": "x", "transaction_timeout_ms": 60_000, "producer_id": -1}
                )
                if response.error_code == ErrorCode.NONE:
                    break
        fields = {
            "v3_and_below_transactional_id": "x",
            "v3_and_below_producer_id": response.producer_id,
            "v3_and_below_producer_epoch": response.producer_epoch,
            "v3_and_below_topics": [{"name": "t", "partitions": [0]}],
        }
        await wire.call(ADD_PARTITIONS_TO_TXN, 3, fields)
        clock.advance_ms(2500)
        found = await scrape(broker)
        assert value(found, "diamant_transactions_open") == 1
        assert value(found, "diamant_transaction_open_age_seconds", transactional_id="x") == 2.5
        assert value(found, "diamant_transactional_ids", state="Ongoing") == 1


def test_of_open_transactions_the_oldest_are_shown() -> None:
    """Their number is limited; the count covers all."""
    opened = [
        SimpleNamespace(transactional_id=f"x{start_ms}", start_ms=start_ms, state=SimpleNamespace(label="Ongoing"))
        for start_ms in range(1_010)
    ]
    store = SimpleNamespace(open_transactions=opened, transactions={one.transactional_id: one for one in opened})
    coordinator = SimpleNamespace(store=store)
    clock = SimpleNamespace(now_ms=lambda: 2_000)
    figures = coordinator_metrics.take_transactions(cast(TransactionCoordinator, coordinator), cast(Clock, clock))
    assert figures is not None
    assert [(one.transactional_id, one.age_ms) for one in figures.open] == [(f"x{n}", 2_000 - n) for n in range(1_000)]
    assert (figures.open_count, figures.states) == (1_010, (("Ongoing", 1_010),))
