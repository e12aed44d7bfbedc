"""The shop: its topics, and three days of business, written with aiokafka and stamped by the shop's clock."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its types forget it

DAY_MS = 86_400_000

CUSTOMERS, NEWSLETTER, ORDERS, INVOICES = "customers", "newsletter", "orders", "invoices"

COUNT = 100
"""Customers, from 1 on."""
FORGOTTEN = "customer-42"
NAME = "Ada Example"
EMAIL = "ada@example.com"
PERSONAL = (NAME, EMAIL)


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic of the shop."""

    partitions: int
    configs: dict[str, str]
    compression: str
    """What its producers use."""
    holds: str


TOPICS = {
    CUSTOMERS: Topic(
        3,
        {"cleanup.policy": "compact", "segment.ms": str(DAY_MS), "delete.retention.ms": str(DAY_MS)},
        "zstd, lz4",
        "name, e-mail, address; key: the customer",
    ),
    NEWSLETTER: Topic(
        1,
        {"cleanup.policy": "compact", "segment.ms": str(DAY_MS), "delete.retention.ms": str(DAY_MS)},
        "none",
        "e-mail, subscriptions; key: the customer",
    ),
    ORDERS: Topic(
        2,
        {"cleanup.policy": "delete", "segment.ms": str(DAY_MS), "retention.ms": str(180 * DAY_MS)},
        "lz4",
        "e-mail inside the order; key: the order",
    ),
    INVOICES: Topic(
        1,
        {"cleanup.policy": "delete", "segment.ms": str(DAY_MS), "retention.ms": str(3653 * DAY_MS)},
        "zstd",
        "name inside the invoice, in Avro; key: the invoice",
    ),
}

INVOICE = {
    "type": "record",
    "name": "Invoice",
    "fields": [
        {"name": "customer", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "cents", "type": "long"},
    ],
}
INVOICE_ID = 1
"""Of the schema, as a registry would have given it."""

QUIET = {"log_level": 2}
"""librdkafka's chat has no place in the story; its errors are raised."""

NowMs = Callable[[], int]


def create_topics(bootstrap: str) -> None:
    """Create them all, and `_schemas` with the schema of the invoices, as a registry does."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    topics = [NewTopic(name, one.partitions, 1, config=one.configs) for name, one in TOPICS.items()]
    topics.append(NewTopic("_schemas", 1, 1, config={"cleanup.policy": "compact"}))
    for future in admin.create_topics(topics).values():
        future.result(20)
    subject = f"{INVOICES}-value"
    key = {"keytype": "SCHEMA", "subject": subject, "version": 1, "magic": 1}
    value = {"subject": subject, "version": 1, "id": INVOICE_ID, "schema": json.dumps(INVOICE)}
    producer = Producer({"bootstrap.servers": bootstrap, **QUIET})
    producer.produce("_schemas", json.dumps(value), json.dumps(key))
    producer.flush(20)


class Shop:
    """Does business, one day at a time; `now_ms` is its clock."""

    def __init__(self, bootstrap: str, now_ms: NowMs) -> None:
        self._bootstrap = bootstrap
        self._now_ms = now_ms
        self._chance = random.Random(42)
        self._orders = 0
        self.days = 0
        self.records = 0
        """Sent so far, aborted ones included."""

    async def do_business(self) -> None:
        """One day: on the first everybody registers, later some move; some order; one checkout goes wrong."""
        self.days += 1
        if self.days == 1:
            changing = list(range(1, COUNT + 1))
        else:
            changing = sorted({42, *self._chance.sample(range(1, COUNT + 1), 25)})
        await self._change_customers(changing)
        await self._change_subscriptions(changing)
        await self._check_out()
        await self._send_invoices()

    async def _change_customers(self, numbers: list[int]) -> None:
        async with self._producer(compression_type="zstd") as producer:
            for number in numbers:
                await self._send(producer, CUSTOMERS, f"customer-{number}", self._customer(number))

    async def _change_subscriptions(self, numbers: list[int]) -> None:
        async with self._producer() as producer:
            for number in numbers:
                lists = self._chance.sample(["offers", "news", "events", "surveys"], 2)
                value = {"email": _email(number), "lists": lists}
                await self._send(producer, NEWSLETTER, f"customer-{number}", value)

    async def _check_out(self) -> None:
        """Orders are transactions: each with the customer's record of it, or neither. The second one of a day is aborted."""
        async with self._producer(compression_type="lz4", transactional_id="checkout") as producer:
            for attempt in range(3):
                await producer.begin_transaction()
                buyers = [*self._chance.sample(range(1, COUNT + 1), 12), 42]
                for number in buyers:
                    self._orders += 1
                    order = f"order-{1000 + self._orders}"
                    await self._send(producer, ORDERS, order, self._order(order, number))
                if attempt == 1:
                    await producer.flush()
                    await producer.abort_transaction()
                    continue
                last = {**self._customer(42), "last_order": order}
                await self._send(producer, CUSTOMERS, FORGOTTEN, last)
                await producer.commit_transaction()

    async def _send_invoices(self) -> None:
        async with self._producer(compression_type="zstd") as producer:
            for number in range(40, 60):
                await self._send(producer, INVOICES, f"invoice-{self.days}-{number}", _invoice(number, 100 * number))

    def _producer(self, **options: Any) -> AIOKafkaProducer:
        # Each day has producers of its own: the broker forgets those that write nothing for a day.
        return AIOKafkaProducer(bootstrap_servers=self._bootstrap, enable_idempotence=True, linger_ms=20, **options)

    async def _send(self, producer: AIOKafkaProducer, topic: str, key: str, value: dict[str, Any] | bytes) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        await producer.send(topic, content, key=key.encode(), timestamp_ms=self._now_ms())
        self.records += 1

    def _customer(self, number: int) -> dict[str, Any]:
        return {
            "name": _name(number),
            "email": _email(number),
            "street": f"{self._chance.randint(1, 99)} Sample Street",
            "phone": f"+00 555 {self._chance.randint(100_000, 999_999)}",
            "since_day": self.days,
        }

    def _order(self, order: str, number: int) -> dict[str, Any]:
        items = [
            {"sku": f"sku-{self._chance.randint(1, 500)}", "count": self._chance.randint(1, 4)}
            for _ in range(self._chance.randint(1, 3))
        ]
        return {"order": order, "items": items, "customer": {"number": f"customer-{number}", "email": _email(number)}}


def _name(number: int) -> str:
    return NAME if number == 42 else f"Customer Number {number}"


def _invoice(number: int, cents: int) -> bytes:
    """In Avro, behind the id of its schema, as serializers write it."""
    name = _name(number).encode()
    fields = [_long(number), _long(1), _long(len(name)), name, _long(cents)]
    return b"\0" + INVOICE_ID.to_bytes(4, "big") + b"".join(fields)


def _long(number: int) -> bytes:
    """A number that is not negative, as Avro writes it."""
    rest, found = 2 * number, bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*found, rest])


def _email(number: int) -> str:
    return EMAIL if number == 42 else f"customer{number}@example.com"
