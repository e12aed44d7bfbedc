"""Writes three customers with a serializer of confluent-kafka, or reads a topic from the start with its deserializer.

confluent_serializers.py write|read avro|json BOOTSTRAP REGISTRY TOPIC
"""

from __future__ import annotations

import json
import sys

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

FIELDS = [
    {"name": "id", "type": "long"},
    {"name": "email", "type": "string"},
    {"name": "name", "type": ["null", "string"], "default": None},
]
AVRO = json.dumps({"type": "record", "name": "Customer", "namespace": "shop", "fields": FIELDS})
JSON = json.dumps({"title": "Customer", "type": "object", "properties": {"id": {"type": "integer"}}})


def main(task: str, kind: str, bootstrap: str, registry: str, topic: str) -> None:
    """Do one task."""
    client = SchemaRegistryClient({"url": registry})
    context = SerializationContext(topic, MessageField.VALUE)
    if task == "write":
        serializer = AvroSerializer(client, AVRO) if kind == "avro" else JSONSerializer(JSON, client)
        producer = Producer({"bootstrap.servers": bootstrap})
        for name in ("Ada", "Bob", "Cleo"):
            value = {"id": len(name), "email": f"{name.lower()}@example.com", "name": name}
            producer.produce(topic, key=name, value=serializer(value, context))
        assert producer.flush(30) == 0
        return
    deserializer = AvroDeserializer(client) if kind == "avro" else JSONDeserializer(JSON, schema_registry_client=client)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), 30)
    for _ in range(end):
        [message] = consumer.consume(1, 30)
        print(json.dumps(deserializer(message.value(), context)))
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
