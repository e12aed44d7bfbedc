"""Three topics of customers' data, written by two services: one uses aiokafka, the other confluent-kafka.

Both have the customer as the key, and still do not agree on a partition for it: aiokafka hashes keys as Java clients do
(murmur2), librdkafka has a hash of its own (CRC-32). In the topic that both write to, one customer lies on two partitions.
"""

from __future__ import annotations

import json
import random
from typing import Any

from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its types forget it

from examples.forget_customer_42.shop import EMAIL, FORGOTTEN, NAME, QUIET

PARTITIONS = 12
CUSTOMERS = 1_000
CHANGES = 3
"""How often each customer's record is written, in each topic that a service writes to."""
PROFILES, DEVICES, CONSENTS = "profiles", "devices", "consents"
TOPICS = {
    PROFILES: ("aiokafka", "zstd", "name, e-mail, address"),
    DEVICES: ("confluent-kafka", "lz4", "e-mail, telephones"),
    CONSENTS: ("both", "none", "e-mail, newsletters; the other service: e-mail, cookies"),
}
"""Who writes to it, how it is compressed, what it holds."""
CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"}
"""Cleaned only when somebody asks for it."""
TIMEOUT_S = 60.0


def create_topics(bootstrap: str) -> None:
    """Create them all."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    topics = [NewTopic(name, PARTITIONS, 1, config=CONFIG) for name in TOPICS]
    for future in admin.create_topics(topics).values():
        future.result(TIMEOUT_S)


async def write_profiles(bootstrap: str) -> int:
    """Be the one service; how many records it has sent."""
    chance = random.Random(1)
    count = 0
    for topic, compression in ((PROFILES, "zstd"), (CONSENTS, None)):
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap, compression_type=compression, linger_ms=20, enable_idempotence=True
        ) as producer:
            for number in _customers():
                value = _profile(number, chance) if topic == PROFILES else _newsletters(number, chance)
                await producer.send(topic, json.dumps(value).encode(), key=_key(number).encode())
                count += 1
    return count


def write_devices(bootstrap: str) -> int:
    """Be the other service; how many records it has sent. TimeoutError if the broker does not take them."""
    chance = random.Random(2)
    count = 0
    for topic, compression in ((DEVICES, "lz4"), (CONSENTS, "none")):
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": compression,
                "linger.ms": 20,
                "enable.idempotence": True,
                **QUIET,
            }
        )
        for number in _customers():
            value = _devices(number, chance) if topic == DEVICES else _cookies(number, chance)
            producer.produce(topic, json.dumps(value).encode(), _key(number).encode())
            count += 1
        if left := producer.flush(TIMEOUT_S):
            raise TimeoutError(f"{left} records were not taken within {TIMEOUT_S:.0f} s")
    return count


def _customers() -> list[int]:
    return [number for _ in range(CHANGES) for number in range(1, CUSTOMERS + 1)]


def _key(number: int) -> str:
    return FORGOTTEN if number == 42 else f"customer-{number}"


def _email(number: int) -> str:
    return EMAIL if number == 42 else f"customer{number}@example.com"


def _profile(number: int, chance: random.Random) -> dict[str, Any]:
    return {
        "name": NAME if number == 42 else f"Customer Number {number}",
        "email": _email(number),
        "street": f"{chance.randint(1, 99)} Sample Street",
    }


def _devices(number: int, chance: random.Random) -> dict[str, Any]:
    return {"email": _email(number), "telephones": [f"+00 555 {chance.randint(100_000, 999_999)}"]}


def _newsletters(number: int, chance: random.Random) -> dict[str, Any]:
    return {"email": _email(number), "newsletters": chance.sample(["offers", "news", "events"], 2)}


def _cookies(number: int, chance: random.Random) -> dict[str, Any]:
    return {"email": _email(number), "cookies": chance.random() < 0.5}
