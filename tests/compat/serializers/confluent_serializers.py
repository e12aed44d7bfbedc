"""Writes three customers with a serializer of confluent-kafka, or reads a topic from the start with its deserializer.

confluent_serializers.py write|read avro|json|protobuf[-header] BOOTSTRAP REGISTRY TOPIC
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
    prefix_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, json_format, message_factory, text_format
from google.protobuf.unknown_fields import UnknownFieldSet

NAMES = ("Ada", "Bob", "Cleo")

ADDRESS = {
    "type": "record",
    "name": "Address",
    "namespace": "shop",
    "fields": [{"name": "street", "type": "string"}, {"name": "city", "type": "string"}],
}
PHONE = {"type": "record", "name": "Phone", "fields": [{"name": "number", "type": "string"}]}
AVRO = {
    "type": "record",
    "name": "Customer",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "email", "type": "string"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "contact", "type": ["null", "long", PHONE, "string"]},
        {"name": "born", "type": {"type": "int", "logicalType": "date"}},
        {"name": "paid", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "seen", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "token", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "level", "type": {"type": "enum", "name": "Level", "symbols": ["BASIC", "GOLD"]}},
        {"name": "tags", "type": {"type": "map", "values": ["string", "long"]}},
        {"name": "address", "type": "shop.Address"},
        {"name": "friends", "type": {"type": "array", "items": "Customer"}},
        {"name": "photo", "type": "bytes"},
    ],
}
JSON = {"title": "Customer", "type": "object", "properties": {"id": {"type": "integer"}, "born": {"format": "date"}}}

_FILES = """
name: "shop/money.proto" package: "shop.common" syntax: "proto3"
message_type { name: "Money"
  field { name: "units" number: 1 type: TYPE_SINT64 label: LABEL_OPTIONAL }
  field { name: "note" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL } }
---
name: "shop/customer.proto" package: "shop.v1" syntax: "proto3"
dependency: "shop/money.proto" dependency: "google/protobuf/any.proto" dependency: "google/protobuf/timestamp.proto"
enum_type { name: "Level" value { name: "BASIC" number: 0 } value { name: "GOLD" number: 1 } }
message_type { name: "Other"
  field { name: "name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "city" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL } }
message_type { name: "Shop"
  nested_type { name: "Customer"
    field { name: "id" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
    field { name: "email" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "name" number: 3 type: TYPE_STRING label: LABEL_OPTIONAL oneof_index: 1 proto3_optional: true }
    field { name: "phone" number: 4 type: TYPE_STRING label: LABEL_OPTIONAL oneof_index: 0 }
    field { name: "other" number: 5 type: TYPE_MESSAGE type_name: ".shop.v1.Other" label: LABEL_OPTIONAL oneof_index: 0 }
    field { name: "amounts" number: 6 type: TYPE_MESSAGE type_name: ".shop.v1.Shop.Customer.AmountsEntry" label: LABEL_REPEATED }
    field { name: "numbers" number: 7 type: TYPE_INT32 label: LABEL_REPEATED }
    field { name: "levels" number: 8 type: TYPE_ENUM type_name: ".shop.v1.Level" label: LABEL_REPEATED }
    field { name: "extra" number: 9 type: TYPE_MESSAGE type_name: ".google.protobuf.Any" label: LABEL_OPTIONAL }
    field { name: "friend" number: 10 type: TYPE_MESSAGE type_name: ".shop.v1.Shop.Customer" label: LABEL_OPTIONAL }
    field { name: "seen" number: 11 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
    field { name: "nicknames" number: 12 type: TYPE_STRING label: LABEL_REPEATED }
    oneof_decl { name: "contact" } oneof_decl { name: "_name" }
    nested_type { name: "AmountsEntry" options { map_entry: true }
      field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
      field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".shop.common.Money" label: LABEL_OPTIONAL } } } }
"""
_UNKNOWN = b"\xfa\x01\x05later"
"""A field 31, as a newer program writes it."""


def classes() -> tuple[Any, Any]:
    """Return the classes of `Customer` and `Other`, as protoc would make them."""
    pool = descriptor_pool.Default()
    for text in _FILES.split("---"):
        pool.Add(text_format.Parse(text, descriptor_pb2.FileDescriptorProto()))
    customer, other = map(pool.FindMessageTypeByName, ("shop.v1.Shop.Customer", "shop.v1.Other"))
    return message_factory.GetMessageClass(customer), message_factory.GetMessageClass(other)


def number(name: str) -> int:
    """Return the number of a customer."""
    return NAMES.index(name) + 1


def email(name: str) -> str:
    """Return the address of a customer, by which it is found."""
    return f"{name.lower()}@example.com"


def avro_customer(name: str, depth: int = 0) -> dict[str, Any]:
    """Return a customer with one of the branches of `contact`, and two friends with the others."""
    said = f"{name}{'s friend' * depth}"
    friends = [avro_customer(name, depth + 1) for _ in range(2 * (depth == 0))]
    contact = {"number": f"phone of {said}"} if depth else f"contact of {said}"
    return {
        "id": number(name), "email": email(name), "name": said, "contact": contact, "born": date(1815, 12, number(name)),
        "paid": Decimal(number(name)) / 4, "seen": datetime(2024, 1, number(name), tzinfo=UTC), "token": UUID(int=number(name)),
        "level": "GOLD", "tags": {"city": f"city of {said}", "size": 42}, "friends": friends,
        "address": {"street": f"street of {said}", "city": "Bern"}, "photo": f"photo of {said}".encode(),
    }  # fmt: skip


def json_customer(name: str) -> dict[str, Any]:
    """Return a customer with objects in lists."""
    friends = [{"name": f"{name}'s friend {number}", "since": number} for number in range(2)]
    return {
        "id": number(name),
        "email": email(name),
        "name": name,
        "born": "1815-12-10",
        "friends": friends,
        "paid": 1.50,
    }


def protobuf_customer(name: str, customer: Any, other: Any) -> Any:
    """Return a customer with fields of all kinds, one of them unknown to its schema."""
    extra = any_pb2.Any()
    extra.Pack(other(name=f"extra of {name}", city="Bern"))
    contact = (
        {"other": {"name": f"contact of {name}", "city": "Bern"}} if name == "Bob" else {"phone": f"phone of {name}"}
    )
    found = customer(
        id=number(name), email=email(name), name=name, numbers=[number(name), -1, 300], levels=[1, 0, 1], extra=extra,
        amounts={"EUR": {"units": -number(name), "note": f"note of {name}"}, "CHF": {"note": "as agreed"}},
        friend={"name": f"{name}'s friend", "phone": f"friend's phone of {name}"}, nicknames=[f"nick of {name}"] * 2,
        seen={"seconds": 1_700_000_000 + number(name)}, **contact,
    )  # fmt: skip
    found.MergeFromString(_UNKNOWN)
    return found


def shown(value: Any) -> Any:
    """Return what the deserializer returns as JSON."""
    if not hasattr(value, "DESCRIPTOR"):
        return value
    unknown = {f"?{one.field_number}": str(one.data) for one in UnknownFieldSet(value)}
    return {**json_format.MessageToDict(value, preserving_proto_field_name=True), **unknown}


def serializer_of(kind: str, client: SchemaRegistryClient, conf: dict[str, Any]) -> tuple[Any, Callable[[str], Any]]:
    """Return the serializer of a format, and what makes a customer."""
    if kind == "avro":
        version = client.register_schema_full_response("shop.Address", Schema(json.dumps(ADDRESS), "AVRO")).version
        schema = Schema(json.dumps(AVRO), "AVRO", [SchemaReference("shop.Address", "shop.Address", version)])
        return AvroSerializer(client, schema, conf=conf), avro_customer
    if kind == "json":
        return JSONSerializer(json.dumps(JSON), client, conf=conf), json_customer
    customer, other = classes()
    return ProtobufSerializer(customer, client, conf=conf), lambda name: protobuf_customer(name, customer, other)


def deserializer_of(kind: str, client: SchemaRegistryClient) -> Any:
    """Return the deserializer of a format."""
    if kind == "avro":
        return AvroDeserializer(client)
    if kind == "json":
        return JSONDeserializer(json.dumps(JSON), schema_registry_client=client)
    return ProtobufDeserializer(classes()[0], schema_registry_client=client)


def main(task: str, named: str, bootstrap: str, registry: str, topic: str) -> None:
    """Do one task."""
    kind, _, has_header = named.partition("-")
    client = SchemaRegistryClient({"url": registry})
    if task == "write":
        frame = header_schema_id_serializer if has_header else prefix_schema_id_serializer
        serializer, made = serializer_of(kind, client, {"schema.id.serializer": frame})
        producer = Producer({"bootstrap.servers": bootstrap})
        for name in NAMES:
            headers: list[tuple[str, str | bytes | None]] = []
            value = serializer(made(name), SerializationContext(topic, MessageField.VALUE, headers))
            producer.produce(topic, key=name, value=value, headers=headers)
        assert producer.flush(30) == 0
        return
    deserializer = deserializer_of(kind, client)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), 30)
    for _ in range(end):
        [message] = consumer.consume(1, 30)
        context = SerializationContext(topic, MessageField.VALUE, message.headers())
        print(json.dumps(shown(deserializer(message.value(), context)), default=str))
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
