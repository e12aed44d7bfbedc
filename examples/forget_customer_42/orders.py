"""The orders as a consumer of committed records gets them, by aiokafka."""

from __future__ import annotations

import asyncio
import json

from aiokafka import AIOKafkaConsumer, TopicPartition

from examples.forget_customer_42.shop import ORDERS, TOPICS

TIMEOUT_S = 60.0
FETCH_MS = 200


async def committed_orders(bootstrap: str) -> dict[tuple[int, int], str]:
    """Read all of them: e-mail by partition and offset. TimeoutError after a minute."""
    found = {}
    partitions = [TopicPartition(ORDERS, one) for one in range(TOPICS[ORDERS].partitions)]
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    async with asyncio.timeout(TIMEOUT_S), consumer:
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        while not all([await consumer.position(one) >= ends[one] for one in partitions]):
            for partition, records in (await consumer.getmany(timeout_ms=FETCH_MS)).items():
                for record in records:
                    email = json.loads(record.value)["customer"]["email"]
                    found[partition.partition, record.offset] = email
    return found
