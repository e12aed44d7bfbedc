"""A plain transactional producer: sends each request as told, and returns the names of error codes."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, NamedTuple

from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.batches.control import ControlType, parse_control_type
from diamant.protocol.errors import ErrorCode
from diamant.protocol.primitives import read_compact_array_length, read_compact_string
from diamant.protocol.wire.schemas import encode_request_fields
from tests.broker.wire import (
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    WireClient,
    batch_of,
    fetch_fields,
    produce_fields,
)

ADD_PARTITIONS, ADD_OFFSETS, END_TXN, WRITE_MARKERS, TXN_OFFSET_COMMIT = 24, 25, 26, 27, 28
OFFSET_FETCH, DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 9, 61, 65, 66

GROUP_KEY, TRANSACTION_KEY = 0, 1
WAIT_S = 60
POLL_S = 0.02


class Described(NamedTuple):
    """One entry of DescribeTransactions; kio cannot read a start time of -1."""

    code: str
    state: str
    producer_id: int
    producer_epoch: int
    partitions: list[tuple[str, int]]
    timeout_ms: int
    start_ms: int


def name_of(code: Any) -> str:
    """Kafka's name of an error code."""
    return ErrorCode(int(code)).name


class TxnProducer:
    """One transactional id on one connection; `producer_id` and `epoch` are the broker's last ones."""

    def __init__(self, wire: WireClient, transactional_id: str) -> None:
        self.wire = wire
        self.transactional_id = transactional_id
        self.producer_id = -1
        self.epoch = -1

    # Finding out who one is

    async def wait_for_coordinator(self, group: str | None = None) -> None:
        """Create the coordinators' topics, and return once they can be used."""
        keys = [(TRANSACTION_KEY, self.transactional_id)] + ([] if group is None else [(GROUP_KEY, group)])
        async with asyncio.timeout(WAIT_S):
            for key_type, key in keys:
                while True:
                    request = {"key_type": key_type, "coordinator_keys": [key]}
                    answer = await self.wire.call(FIND_COORDINATOR, 4, request)
                    if not answer.coordinators[0].error_code:
                        break
                    await asyncio.sleep(POLL_S)
            while (await self.describe()).code in ("NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"):
                await asyncio.sleep(POLL_S)

    async def init(
        self,
        *,
        producer_id: int = -1,
        epoch: int = -1,
        timeout_ms: int = 60_000,
        version: int = 5,
        transactional_id: str | None = "",
    ) -> str:
        """Send InitProducerId; adopt the answer."""
        response = await self.wire.call(
            INIT_PRODUCER_ID,
            version,
            {
                "transactional_id": self.transactional_id if transactional_id == "" else transactional_id,
                "transaction_timeout_ms": timeout_ms,
                "producer_id": producer_id,
                "producer_epoch": epoch,
            },
        )
        if not response.error_code:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        return name_of(response.error_code)

    async def wait_for_init(self, **request: Any) -> None:
        """Initialize, with as many retries as necessary."""
        async with asyncio.timeout(WAIT_S):
            while (code := await self.init(**request)) != "NONE":
                assert code in ("CONCURRENT_TRANSACTIONS", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"), code
                await asyncio.sleep(POLL_S)

    # A transaction

    async def add(
        self,
        *partitions: tuple[str, int],
        version: int = 3,
        verify: bool = False,
        producer_id: int | None = None,
        epoch: int | None = None,
        transactional_id: str | None = None,
    ) -> list[str]:
        """Send AddPartitionsToTxn; return one code per partition, in the order of the request."""
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        named = self._named(producer_id, epoch, transactional_id)
        entries = [{"name": topic, "partitions": indexes} for topic, indexes in topics.items()]
        if version >= 4:
            request = {"transactions": [{**named, "verify_only": verify, "topics": entries}]}
            response = await self.wire.call(ADD_PARTITIONS, version, request)
            assert not response.error_code
            results = response.results_by_transaction[0].topic_results
        else:
            request = {f"v3_and_below_{key}": value for key, value in named.items()}
            request["v3_and_below_topics"] = entries
            results = (await self.wire.call(ADD_PARTITIONS, version, request)).results_by_topic_v3_and_below
        codes = {
            (topic.name, each.partition_index): name_of(each.partition_error_code)
            for topic in results
            for each in topic.results_by_partition
        }
        return [codes[partition] for partition in partitions]

    async def add_offsets(
        self, group: str, *, version: int = 3, epoch: int | None = None, transactional_id: str | None = None
    ) -> str:
        """Send AddOffsetsToTxn."""
        request = {**self._named(None, epoch, transactional_id), "group_id": group}
        return name_of((await self.wire.call(ADD_OFFSETS, version, request)).error_code)

    async def produce(self, topic: str, sequence: int, **options: Any) -> str:
        """Produce as `produce_result`; return the name of the error."""
        return name_of((await self.produce_result(topic, sequence, **options)).error_code)

    async def produce_result(
        self,
        topic: str,
        sequence: int,
        *,
        partition: int = 0,
        version: int = 9,
        values: tuple[bytes, ...] = (b"value",),
        producer_id: int | None = None,
        epoch: int | None = None,
        transactional_id: str | None = "",
        is_transactional: bool = True,
    ) -> Any:
        """Produce one batch, by default like TV1 clients; return the partition's result."""
        batch = batch_of(
            values,
            producer_id=self.producer_id if producer_id is None else producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
        request = produce_fields(topic, partition, batch)
        request["transactional_id"] = self.transactional_id if transactional_id == "" else transactional_id
        return (await self.wire.call(PRODUCE, version, request)).responses[0].partition_responses[0]

    async def commit_offset(
        self,
        group: str,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        version: int = 3,
        producer_id: int | None = None,
        epoch: int | None = None,
        transactional_id: str | None = None,
        member_id: str = "",
        generation: int = -1,
    ) -> str:
        """Send TxnOffsetCommit of one partition."""
        entry = {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        request = {
            **self._named(producer_id, epoch, transactional_id),
            "group_id": group,
            "generation_id": generation,
            "member_id": member_id,
            "group_instance_id": None,
            "topics": [{"name": topic, "partitions": [entry]}],
        }
        return name_of((await self.wire.call(TXN_OFFSET_COMMIT, version, request)).topics[0].partitions[0].error_code)

    async def end(
        self,
        *,
        commit: bool,
        version: int = 3,
        producer_id: int | None = None,
        epoch: int | None = None,
        transactional_id: str | None = None,
    ) -> str:
        """Send EndTxn; adopt the epoch of version 5."""
        request = {**self._named(producer_id, epoch, transactional_id), "committed": commit}
        response = await self.wire.call(END_TXN, version, request)
        if not response.error_code and version >= 5:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        return name_of(response.error_code)

    def _named(self, producer_id: int | None, epoch: int | None, transactional_id: str | None) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id if transactional_id is None else transactional_id,
            "producer_id": self.producer_id if producer_id is None else producer_id,
            "producer_epoch": self.epoch if epoch is None else epoch,
        }

    # What there is to see

    async def describe(self, transactional_id: str | None = None) -> Described:
        """DescribeTransactions of one id."""
        wanted = self.transactional_id if transactional_id is None else transactional_id
        body = encode_request_fields(DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [wanted]})
        self.wire.writer.write(self.wire.frame(DESCRIBE_TRANSACTIONS, 0, body))
        _, frame = await self.wire.receive_frame()
        view = memoryview(frame)
        end = len(view)
        count, position = read_compact_array_length(view, 1 + 4, end)
        assert count == 1
        (code,) = struct.unpack_from(">h", view, position)
        found, position = read_compact_string(view, position + 2, end)
        assert found == wanted
        state, position = read_compact_string(view, position, end)
        timeout_ms, start_ms, producer_id, epoch = struct.unpack_from(">iqqh", view, position)
        count, position = read_compact_array_length(view, position + 22, end)
        partitions = []
        for _ in range(count):
            topic, position = read_compact_string(view, position, end)
            size, position = read_compact_array_length(view, position, end)
            partitions += [(topic or "", index) for index in struct.unpack_from(f">{size}i", view, position)]
            position += 4 * size + 1
        return Described(name_of(code), state or "", producer_id, epoch, sorted(partitions), timeout_ms, start_ms)

    async def wait_for_end(self) -> Described:
        """Return the transaction once it has ended; the producer adopts its epoch, as no other client has it."""
        async with asyncio.timeout(WAIT_S):
            while (described := await self.describe()).state.startswith("Prepare"):
                await asyncio.sleep(POLL_S)
        return described

    async def producers(self, topic: str, partition: int = 0) -> dict[int, Any]:
        """DescribeProducers of one partition, by producer id."""
        request = {"topics": [{"name": topic, "partition_indexes": [partition]}]}
        response = await self.wire.call(DESCRIBE_PRODUCERS, 0, request)
        return {each.producer_id: each for each in response.topics[0].partitions[0].active_producers}

    async def write_marker(
        self,
        topic: str,
        partition: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        epoch: int,
        version: int = 1,
        tv: int = 0,
    ) -> str:
        """WriteTxnMarkers for one partition."""
        marker = {
            "producer_id": self.producer_id,
            "producer_epoch": epoch,
            "transaction_result": commit,
            "coordinator_epoch": coordinator_epoch,
            "transaction_version": tv,
            "topics": [{"name": topic, "partition_indexes": [partition]}],
        }
        response = await self.wire.call(WRITE_MARKERS, version, {"markers": [marker]})
        return name_of(response.markers[0].topics[0].partitions[0].error_code)

    async def list(self, *, pattern: str | None = None, states: tuple[str, ...] = (), **filters: Any) -> dict[str, str]:
        """ListTransactions: state by id."""
        request = {"state_filters": list(states), "transactional_id_pattern": pattern, **filters}
        response = await self.wire.call(LIST_TRANSACTIONS, 2, request)
        assert not response.error_code, name_of(response.error_code)
        return {each.transactional_id: each.transaction_state for each in response.transaction_states}


async def started(
    wire: WireClient, *, topic: str = "t", partitions: int = 3, transactional_id: str = "id", **init: Any
) -> TxnProducer:
    """Return an initialized producer, a topic, and the topics of both coordinators."""
    txn = TxnProducer(wire, transactional_id)
    await txn.wait_for_coordinator("g")
    await wire.create(topic, partitions)
    await txn.wait_for_init(**init)
    return txn


# -- a consumer ----------------------------------------------------------------------------------------------------------


async def read_committed(wire: WireClient, topic: str, partition: int = 0) -> list[bytes]:
    """Values delivered to a consumer with isolation.level=read_committed, filtered as clients do."""
    values: list[bytes] = []
    request = fetch_fields(topic, 0, partition=partition, max_bytes=1 << 24, partition_max_bytes=1 << 24)
    request["isolation_level"] = 1
    response = await wire.call(FETCH, 12, request)
    fetched = response.responses[0].partitions[0]
    assert not fetched.error_code, name_of(fetched.error_code)
    aborted = list(fetched.aborted_transactions or ())
    assert aborted == sorted(aborted, key=lambda each: each.first_offset), "clients rely on this order"
    hidden: set[int] = set()
    data = bytes(fetched.records or b"")
    for position, header in iter_headers(data):
        while aborted and aborted[0].first_offset <= header.last_offset:
            hidden.add(aborted.pop(0).producer_id)
        records = list(iter_records(data, position))
        if header.is_control:
            if parse_control_type(records[0].key) is ControlType.ABORT:
                hidden.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in hidden):
            values += [record.value or b"" for record in records]
    return values


async def wait_for_committed_offset(wire: WireClient, group: str, topic: str, partition: int = 0) -> tuple[str, int]:
    """Send OffsetFetch until no transaction is open; return a code, and the offset or -1."""
    request = {
        "group_id": group,
        "topics": [{"name": topic, "partition_indexes": [partition]}],
        "require_stable": True,
    }
    async with asyncio.timeout(WAIT_S):
        while True:
            response = await wire.call(OFFSET_FETCH, 7, request)
            if name_of(response.error_code) not in ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"):
                break
            await asyncio.sleep(POLL_S)
    assert not response.error_code, name_of(response.error_code)
    found = response.topics[0].partitions[0]
    return name_of(found.error_code), found.committed_offset
