"""The batches in `__consumer_offsets`, compared with those of Kafka: its cleaner will not rewrite any others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.topics.names import GROUP_OFFSETS_TOPIC
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.header import BatchHeader
from tests.broker.groups.offsets.offset_requests import NONE, commit
from tests.broker.transactions.txn_wire import TxnProducer
from tests.broker.wire import WireClient
from tests.golden_groups import consumer_offsets_log


def data_batches(data: bytes) -> Iterator[BatchHeader]:
    """All but the markers."""
    return (header for _, header in iter_headers(data) if not header.is_control)


@pytest.mark.slow
async def test_sequences_are_those_of_kafka(broker: Broker, wire: WireClient, tmp_path: Path) -> None:
    """Every batch begins with sequence 0, with a producer and without; Kafka's cleaner fails on one with a producer and -1."""
    txn = TxnProducer(wire, "id")
    await txn.wait_for_coordinator("g")
    await txn.wait_for_init()
    await wire.create("t")
    for offset in (1, 2):
        assert await txn.commit_offset("g", "t", offset, version=5) == "NONE"
        assert await txn.end(commit=True, version=5) == "NONE"
        assert await commit(wire, "g", {("t", 0): offset + 10}) == [NONE]
    partition = broker.services.groups().log.topic.partition_of("g")
    written = (tmp_path / f"{GROUP_OFFSETS_TOPIC}-{partition}" / f"{0:020d}.log").read_bytes()
    for log in (written, consumer_offsets_log()):
        found = {(header.is_transactional, header.base_sequence) for header in data_batches(log)}
        assert found == {(False, 0), (True, 0)}
