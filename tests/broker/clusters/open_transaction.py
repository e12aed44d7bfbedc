"""A transaction that stays open until the end of a `with`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from diamant.broker.client.kafka_client import KafkaClient
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.protocol.wire.apis import PRODUCE

FIND_COORDINATOR, INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN = 10, 22, 24, 26


class OpenTransaction:
    """A transactional producer that has written one record to partition 0 of a topic."""

    def __init__(self, client: KafkaClient, topic: str) -> None:
        self._client = client
        self._name = f"holds-{topic}"
        fields = {
            "transactional_id": self._name,
            "transaction_timeout_ms": 600_000,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        answer = self._ask(INIT_PRODUCER_ID, fields, 4)
        self.producer_id: int = answer["producer_id"]
        self._producer = {
            "transactional_id": self._name, "producer_id": self.producer_id, "producer_epoch": answer["producer_epoch"]
        }  # fmt: skip
        added = {**self._producer, "topics": [{"name": topic, "partitions": [0]}]}
        self._ask(ADD_PARTITIONS, {f"v3_and_below_{name}": value for name, value in added.items()}, 3)
        batch = build_batch(
            [Record(0, 1, b"held", b"1")],
            producer_id=self.producer_id,
            producer_epoch=answer["producer_epoch"],
            base_sequence=0,
            is_transactional=True,
        )
        (leader,) = client.led(topic, [0])
        fields = {
            "transactional_id": self._name,
            "acks": -1,
            "timeout_ms": 30_000,
            "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": bytes(batch)}]}],
        }
        answer = client.broker(leader).ask(PRODUCE, fields, most=11)
        assert not answer["responses"][0]["partition_responses"][0]["error_code"], answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ask(END_TXN, {**self._producer, "committed": False}, 4)

    def _ask(self, api_key: int, fields: Mapping[str, object], most: int) -> Mapping[str, Any]:
        """Ask the coordinator until it has loaded, and has finished what it did before."""
        while True:
            coordinator = self._client.ask_any(
                FIND_COORDINATOR, {"key": self._name, "key_type": 1, "coordinator_keys": [self._name]}
            )["coordinators"][0]
            if not coordinator["error_code"]:
                answer = self._client.broker(coordinator["node_id"]).ask(api_key, fields, most=most)
                codes = str(answer)
                if "error_code': 51" not in codes and "error_code': 1" not in codes:
                    return answer
