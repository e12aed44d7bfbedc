"""Decoded keys and values for `diamant consume`, using schemas from the cluster's topic `_schemas` or from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator

from diamant.broker.client.consuming import ReadRecord, TopicReader
from diamant.broker.client.kafka_client import EARLIEST, LATEST, KafkaClient, KafkaRefusal
from diamant.cleaner.queries.record_fields import record_fields
from diamant.cleaner.values.schema_places import SchemaPlaces
from diamant.cleaner.values.schemas import Values, decoded_fields
from diamant.cleaner.values.schemas_topic import SCHEMAS_TOPIC, RegisteredSchemas
from diamant.protocol.errors import ErrorCode
from diamant.storage.env.env import RealEnv


def values_on(client: KafkaClient, topic: str, places: SchemaPlaces) -> Values:
    """Return the decoder of a topic's keys and values. Reads the topic `_schemas`, if there is one."""
    return Values(places.schemas(RealEnv(), RegisteredSchemas(_registered(client))), topic)


def _registered(client: KafkaClient) -> Iterator[tuple[bytes | None, bytes | None]]:
    try:
        client.topic(SCHEMAS_TOPIC)
    except KafkaRefusal as error:
        if error.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
            return
        raise
    ends = client.offsets(SCHEMAS_TOPIC, [0], LATEST, committed=True)
    reader = TopicReader(client, SCHEMAS_TOPIC, client.offsets(SCHEMAS_TOPIC, [0], EARLIEST), committed=True)
    for read in reader.records(ends):
        yield read.record.key, read.record.value


def decoded_line(topic: str, read: ReadRecord, values: Values) -> bytes:
    """Format a record as a line of JSON in the format of `diamant latest`."""
    fields = {**record_fields(read.partition, read.record), **decoded_fields(read.record, values)}
    return json.dumps({"topic": topic, **fields}).encode() + b"\n"


def with_decoded(read: ReadRecord, values: Values) -> ReadRecord:
    """Return the record with its key, its value or both replaced by their decoded form as JSON, wherever the schema is known."""
    record, found = read.record, decoded_fields(read.record, values)
    if "key_json" in found:
        record = record._replace(key=json.dumps(found["key_json"]).encode())
    if "value_json" in found:
        record = record._replace(value=json.dumps(found["value_json"]).encode())
    return read._replace(record=record)
