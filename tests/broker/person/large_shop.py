"""A shop of 12 topics with the data of its customers in every form, and the places where people are identified in it.

    await create_shop(broker)
    written = await asyncio.to_thread(write_shop, broker.bootstrap_servers, 20)

Records are made from the number of a customer alone, so each run has the same. The map of the shop is `SHOP_MAP`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import fastavro
from confluent_kafka import Producer
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from diamant.broker.broker import Broker
from diamant.cleaner.values.schemas_topic import SCHEMAS_TOPIC
from tests.cleaner.values.framed import confluent, registered

COMPACT = {"cleanup_policy": "compact"}
DELETE = {"cleanup_policy": "delete"}
TOPICS: dict[str, dict[str, Any]] = {
    "customers": COMPACT,
    "accounts": COMPACT,
    "orders": DELETE,
    "shipments": DELETE,
    "clicks": DELETE,
    "newsletter": COMPACT,
    "payments": DELETE,
    "tickets": DELETE,
    "ratings": DELETE,
    "transfers": DELETE,
    "logins": DELETE,
    "loyalty": COMPACT,
}
"""The configurations of each topic. Each has two partitions."""

CODECS = {"customers": "lz4", "orders": "zstd", "clicks": "zstd", "payments": "lz4", "accounts": "gzip"}
TRANSACTIONAL = "payments"

PLANTED = {
    "customers": {"key", "value.customer_id", "value.email", "value.phone", "value.device_id"},
    "accounts": {"key", "value.account_id", "value.customer_id", "value.email", "value.phone"},
    "orders": {"key", "value.customer_id", "value.contact.email"},
    "shipments": {"key", "value.order_id", "value.recipient.phone"},
    "clicks": {"value.device", "value.user.id"},
    "newsletter": {"key", "value.email"},
    "payments": {"value.customer", "value.payer_email"},
    "tickets": {"value.from", "value.customer_number", "value.callback"},
    "ratings": {"value.customer_id"},
    "transfers": {"value.sender.customer_id", "value.receiver.customer_id"},
    "logins": {"header.user", "value.device"},
    "loyalty": {"key", "value.email"},
}
"""The 32 places of identifiers."""

SHOP_MAP: dict[str, Any] = {
    "version": 1,
    "topics": {
        "customers": {
            "identity": {"customer_id": "key"},
            "learns": {"email": "value.email", "phone": "value.phone", "device": "value.device_id"},
            "fields": {"value.name": "user.name", "value.address.street": "user.contact.address.street"},
            "do": "erase-key",
        },
        "accounts": {
            "identity": {"customer_id": "value.customer_id"},
            "fields": {"value.email": "user.contact.email", "value.phone": "user.contact.phone_number"},
            "do": "remove-record",
        },
        "orders": {
            "identity": {"customer_id": "value.customer_id"},
            "learns": {"order_id": "key"},
            "fields": {"value.contact.email": "user.contact.email"},
            "do": {"blank": ["value.contact.email"], "with": "null"},
            "keep": {"until": "P10Y", "because": "tax law"},
        },
        "shipments": {"identity": {"order_id": "key"}, "do": "remove-record"},
        "clicks": {"identity": {"device": "value.device"}, "do": "remove-record"},
        "newsletter": {"identity": {"email": "key"}, "do": "erase-key"},
        "payments": {
            "identity": {"customer_id": "value.customer"},
            "do": {"blank": ["value.payer_email"]},
            "keep": {"until": "P10Y", "because": "tax law"},
        },
        "tickets": {"identity": {"email": "value.from"}, "do": "remove-record"},
        "ratings": {"identity": {"customer_id": "value.customer_id"}, "do": "remove-record"},
        "transfers": [
            {
                "identity": {"customer_id": "value.sender.customer_id"},
                "fields": {"value.sender.name": "user.name"},
                "do": {"blank": ["value.sender.name"]},
            },
            {
                "identity": {"customer_id": "value.receiver.customer_id"},
                "fields": {"value.receiver.name": "user.name"},
                "do": {"blank": ["value.receiver.name"]},
            },
        ],
        "logins": {"identity": {"customer_id": "header.user"}, "do": "remove-record"},
        "loyalty": {"identity": {"customer_id": "key"}, "do": "erase-key"},
    },
}

ADDRESS = {
    "type": "record",
    "name": "Address",
    "namespace": "shop",
    "fields": [{"name": "street", "type": "string"}, {"name": "city", "type": "string"}],
}
CUSTOMER = {
    "type": "record",
    "name": "Customer",
    "namespace": "shop",
    "fields": [
        {"name": "customer_id", "type": "string"},
        {"name": "name", "type": "string", "default": "", "confluent:tags": ["PII"]},
        {"name": "email", "type": ["null", "string"], "default": None, "confluent:tags": ["PII", "EMAIL"]},
        {"name": "phone", "type": ["null", "string"], "default": None},
        {"name": "device_id", "type": ["null", "string"], "default": None},
        {"name": "address", "type": ["null", "shop.Address"], "default": None},
        {"name": "level", "type": {"type": "enum", "name": "Level", "symbols": ["BASIC", "GOLD"]}, "default": "BASIC"},
        {"name": "labels", "type": {"type": "map", "values": "string"}, "default": {}},
    ],
}
SHIPMENT = {
    "type": "record",
    "name": "Shipment",
    "namespace": "shop",
    "fields": [
        {"name": "order_id", "type": "string"},
        {
            "name": "recipient",
            "type": {
                "type": "record",
                "name": "Recipient",
                "fields": [
                    {"name": "phone", "type": ["null", "string"], "default": None},
                    {"name": "city", "type": "string"},
                ],
            },
        },
        {"name": "parcels", "type": {"type": "array", "items": "long"}},
        {"name": "sent_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
PAYMENT = {
    "type": "record",
    "name": "Payment",
    "namespace": "shop",
    "fields": [
        {"name": "payment_id", "type": "string"},
        {"name": "customer", "type": "long"},
        {"name": "payer_email", "type": ["null", "string"], "default": None},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "currency", "type": "string"},
    ],
}
ADDRESS_ID, CUSTOMER_ID, SHIPMENT_ID, PAYMENT_ID, ACCOUNT_ID, RATING_ID, LOYALTY_ID = range(101, 108)

PROTO = """\
syntax = "proto3";
package shop;
message Account {
  string account_id = 1;
  int64 customer_id = 2;
  oneof contact { string email = 3; string phone = 4; }
  repeated string roles = 5;
}
message Rating { int64 customer_id = 1; string sku = 2; int32 stars = 3; string text = 4; }
message Loyalty { int64 points = 1; string email = 2; string tier = 3; }
"""
_INT64, _STRING, _INT32 = (
    getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{kind}") for kind in ("INT64", "STRING", "INT32")
)
_MESSAGES: dict[str, list[tuple[str, Any]]] = {
    "Account": [
        ("account_id", _STRING),
        ("customer_id", _INT64),
        ("email", _STRING),
        ("phone", _STRING),
        ("roles", _STRING),
    ],
    "Rating": [("customer_id", _INT64), ("sku", _STRING), ("stars", _INT32), ("text", _STRING)],
    "Loyalty": [("points", _INT64), ("email", _STRING), ("tier", _STRING)],
}
_OF_SCHEMA = {ACCOUNT_ID: "Account", RATING_ID: "Rating", LOYALTY_ID: "Loyalty"}


def _message_classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="shop_of_tests.proto", package="shop", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields, 1):
            label = 3 if field == "roles" else 1
            added = message.field.add(name=field, number=number, type=kind, label=label)
            if name == "Account" and field in ("email", "phone"):
                added.oneof_index = 0
        if name == "Account":
            message.oneof_decl.add(name="contact")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}")) for name in _MESSAGES}


_CLASSES = _message_classes()
_NAMED: dict[str, Any] = {}
fastavro.parse_schema(ADDRESS, named_schemas=_NAMED)
_AVRO = {
    CUSTOMER_ID: fastavro.parse_schema(CUSTOMER, named_schemas=_NAMED),
    SHIPMENT_ID: fastavro.parse_schema(SHIPMENT),
    PAYMENT_ID: fastavro.parse_schema(PAYMENT),
}


class ShopRecord(NamedTuple):
    """One record, and the customers whose data it has."""

    topic: str
    key: bytes | None
    value: bytes | None
    people: tuple[int, ...]
    headers: tuple[tuple[str, bytes], ...] = ()


class Customer(NamedTuple):
    """The identifiers of one customer."""

    number: int

    @property
    def customer_id(self) -> str:
        return str(100_000 + self.number * 7)

    @property
    def name(self) -> str:
        return f"{_FIRST[self.number % len(_FIRST)]} {_LAST[self.number // len(_FIRST) % len(_LAST)]}"

    @property
    def email(self) -> str:
        return f"{self.name.lower().replace(' ', '.')}.{self.number}@example.com"

    @property
    def phone(self) -> str:
        return f"+4930{5_550_000 + self.number * 13}"

    @property
    def device(self) -> str:
        return f"d{(self.number + 1) * 2_654_435_761 % 2**32:08x}-{self.number:05d}"

    def order_id(self, count: int) -> str:
        """Return the number of one of the customer's orders."""
        return f"O-{self.number * 10 + count:07d}"

    @property
    def identifiers(self) -> set[str]:
        """All texts that identify the customer and no other."""
        return {self.customer_id, self.email, self.phone, self.device}


_FIRST = (
    "Ada",
    "Ben",
    "Cleo",
    "Dan",
    "Eva",
    "Finn",
    "Gina",
    "Hugo",
    "Iris",
    "Jan",
    "Kim",
    "Leo",
    "Mia",
    "Nils",
    "Olga",
)
_LAST = (
    "Adler",
    "Brandt",
    "Conrad",
    "Dietz",
    "Ebert",
    "Falk",
    "Graf",
    "Hahn",
    "Imhof",
    "Jung",
    "Kern",
    "Lang",
    "Moser",
)
_SKUS = ("4006381333931", "4012345678901", "4023456789012")


def shop_records(people: int) -> Iterator[ShopRecord]:
    """Yield the records of a shop with so many customers, in the order in which they are written."""
    for version in range(2):
        for number in range(people):
            yield from _base_records(Customer(number), version)
    for number in range(people):
        yield from _deeds(Customer(number), Customer((number + 1) % people))


def _base_records(one: Customer, version: int) -> Iterator[ShopRecord]:
    """Yield a customer's records of compacted topics."""
    who = (one.number,)
    customer = {
        "customer_id": one.customer_id,
        "name": one.name,
        "email": one.email,
        "phone": one.phone,
        "device_id": one.device,
        "address": {"street": f"Main Street {one.number}", "city": "Bern"},
        "level": "GOLD" if version else "BASIC",
        "labels": {"source": "web"},
    }
    yield ShopRecord("customers", one.customer_id.encode(), avro(CUSTOMER_ID, customer), who)
    contact = {"email": one.email} if one.number % 2 else {"phone": one.phone}
    account = {"account_id": f"A-{one.number:06d}", "customer_id": int(one.customer_id), "roles": ["buyer"], **contact}
    yield ShopRecord("accounts", account["account_id"].encode(), proto(ACCOUNT_ID, account), who)
    yield _json("newsletter", one.email, who, email=one.email, topics=["news", "sale"][: version + 1], opted_in=True)
    loyalty = {"points": one.number * 3 + version, "email": one.email, "tier": "silver"}
    yield ShopRecord("loyalty", one.customer_id.encode(), proto(LOYALTY_ID, loyalty), who)


def _deeds(one: Customer, other: Customer) -> Iterator[ShopRecord]:
    who = (one.number,)
    number = int(one.customer_id)
    for count in range(2):
        order_id = one.order_id(count)
        lines = [{"sku": _SKUS[count], "quantity": 1 + one.number % 3, "price": 19.9}]
        contact = {"email": one.email, "language": "de"}
        yield _json(
            "orders", order_id, who, order_id=order_id, customer_id=number, contact=contact, lines=lines, status="new"
        )
        shipment = {
            "order_id": order_id,
            "recipient": {"phone": one.phone, "city": "Bern"},
            "parcels": [1_200, 3_400],
            "sent_at": 1_700_000_000_000 + count,
        }
        yield ShopRecord("shipments", order_id.encode(), avro(SHIPMENT_ID, shipment), who)
        payment = {
            "payment_id": f"P-{one.number * 10 + count}",
            "customer": number,
            "payer_email": one.email,
            "amount": b"\x07\xc6",
            "currency": "EUR",
        }
        yield ShopRecord("payments", payment["payment_id"].encode(), avro(PAYMENT_ID, payment), who)
        yield _json(
            "clicks", None, who, device=one.device, user={"id": number}, page=f"/p/{count}", at=1_700_000_000 + count
        )
    ticket = {"from": one.email, "customer_number": one.customer_id, "callback": one.phone}
    yield _json("tickets", f"T-{one.number}", who, **ticket, subject="Where is it?", support="help@shop.example")
    rating = {"customer_id": number, "sku": _SKUS[one.number % 3], "stars": 1 + one.number % 5, "text": "fine"}
    yield ShopRecord("ratings", None, proto(RATING_ID, rating), who)
    both = (one.number, other.number)
    people = {
        name: {"customer_id": of.customer_id, "name": of.name} for name, of in (("sender", one), ("receiver", other))
    }
    yield _json("transfers", f"X-{one.number}", both, **people, amount=5)
    headers = (("user", one.customer_id.encode()), ("trace", b"0af7651916cd43dd"))
    yield _json("logins", None, who, device=one.device, agent="Mozilla/5.0", ok=True)._replace(headers=headers)


def _json(topic: str, key: str | None, who: tuple[int, ...], **fields: Any) -> ShopRecord:
    return ShopRecord(topic, None if key is None else key.encode(), json.dumps(fields).encode(), who)


def avro(schema_id: int, value: Any) -> bytes:
    """Return a value in Avro, in the frame of Confluent's serializers."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _AVRO[schema_id], value)
    return confluent(schema_id, out.getvalue())


def proto(schema_id: int, value: Any) -> bytes:
    """Return a message of Protobuf, in the frame of Confluent's serializers."""
    name = _OF_SCHEMA[schema_id]
    index = [*_MESSAGES].index(name)
    indexes = b"\0" if index == 0 else bytes([2, index * 2])
    message = _CLASSES[name](**value).SerializeToString()
    return confluent(schema_id, indexes + message)


def decoded(value: bytes) -> Any:
    """Decode a value by the reference libraries: the reader that shares no code with the broker."""
    if value[:1] != b"\0":
        return json.loads(value)
    schema_id, payload = int.from_bytes(value[1:5], "big"), value[5:]
    if schema_id in _AVRO:
        return fastavro.schemaless_reader(io.BytesIO(payload), _AVRO[schema_id], None)
    start = 1 if payload[:1] == b"\0" else 2
    message = _CLASSES[_OF_SCHEMA[schema_id]].FromString(payload[start:])
    return {field.name: value for field, value in message.ListFields()}


def texts_in(value: Any) -> Iterator[str]:
    """Yield all texts and numbers in a decoded value, as texts."""
    if isinstance(value, dict):
        for one in value.values():
            yield from texts_in(one)
    elif isinstance(value, list) or type(value).__name__ == "RepeatedScalarContainer":
        for one in value:
            yield from texts_in(one)
    else:
        yield str(value)


def schema_records() -> Iterator[tuple[bytes, bytes]]:
    """Yield the records of the topic `_schemas`."""
    yield registered(ADDRESS_ID, ADDRESS, "address")
    references = [{"name": "shop.Address", "subject": "address", "version": 1}]
    yield registered(CUSTOMER_ID, CUSTOMER, "customers-value", references=references)
    yield registered(SHIPMENT_ID, SHIPMENT, "shipments-value")
    yield registered(PAYMENT_ID, PAYMENT, "payments-value")
    for schema_id, topic in ((ACCOUNT_ID, "accounts"), (RATING_ID, "ratings"), (LOYALTY_ID, "loyalty")):
        yield registered(schema_id, PROTO, f"{topic}-value", schemaType="PROTOBUF")


async def create_shop(broker: Broker, **config: Any) -> None:
    """Create the topics of the shop, with `_schemas` and its schemas."""
    await broker.create_topic(SCHEMAS_TOPIC, 1, cleanup_policy="compact")
    for key, value in schema_records():
        await broker.produce(SCHEMAS_TOPIC, value, key=key)
    for topic, own in TOPICS.items():
        await broker.create_topic(topic, 2, **{**own, **config})


def write_shop(bootstrap_servers: str, people: int) -> list[ShopRecord]:
    """Write the records by real producers and return them. Payments are one transaction."""
    producers: dict[str, Producer] = {}
    failed: list[str] = []

    def producer(topic: str) -> Producer:
        codec = CODECS.get(topic, "none")
        name = TRANSACTIONAL if topic == TRANSACTIONAL else codec
        if name not in producers:
            more = {"transactional.id": "shop-payments"} if topic == TRANSACTIONAL else {}
            producers[name] = Producer(
                {
                    "bootstrap.servers": bootstrap_servers,
                    "compression.type": codec,
                    "partitioner": "murmur2_random",
                    "linger.ms": 20,
                    "queue.buffering.max.messages": 2_000_000,
                    **more,
                }
            )
            if more:
                producers[name].init_transactions()
                producers[name].begin_transaction()
        return producers[name]

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            failed.append(str(error))

    written = list(shop_records(people))
    for one in written:
        send = producer(one.topic)
        _send(send, one, delivered)
        send.poll(0)
    for name, send in producers.items():
        if name == TRANSACTIONAL:
            send.commit_transaction()
        assert send.flush(60) == 0
    assert not failed, failed[0]
    return written


def _send(producer: Producer, one: ShopRecord, delivered: Callable[[Any, Any], None]) -> None:
    producer.produce(one.topic, one.value, one.key, headers=list(one.headers), on_delivery=delivered)
