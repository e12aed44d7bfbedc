"""Schemas from the topic `_schemas` of a data directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from diamant.cleaner.values.framing import GUID, ID
from diamant.cleaner.values.schemas import SchemaText
from diamant.cleaner.values.schemas_topic import SCHEMAS_TOPIC, SchemasTopic
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.storage.env.env import RealEnv
from tests.cleaner.values.framed import CUSTOMER, registered

A_GUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"


def written(directory: Path, *records: tuple[bytes | None, bytes | None], tail: bytes = b"") -> SchemasTopic:
    """Write the topic, a batch for each record."""
    place = directory / f"{SCHEMAS_TOPIC}-0"
    place.mkdir()
    batches = (build_batch([Record(offset, 0, *one, ())]) for offset, one in enumerate(records))
    (place / f"{0:020}.log").write_bytes(b"".join(batches) + tail)
    return SchemasTopic(RealEnv(), str(directory))


def by_id(source: SchemasTopic, schema_id: int) -> SchemaText | None:
    return source.find((ID, schema_id), "customers", "value")


def test_a_schema_is_found_by_its_id_and_its_guid(tmp_path: Path) -> None:
    """Of both names the registry writes one record; an Avro schema has no type there."""
    source = written(
        tmp_path, registered(7, CUSTOMER, guid=A_GUID), registered(8, "message A {}", "p", schemaType="PROTOBUF")
    )
    found = by_id(source, 7)
    assert found == SchemaText("AVRO", json.dumps(CUSTOMER))
    assert source.find((GUID, UUID(A_GUID)), "customers", "value") == found
    assert by_id(source, 8) == SchemaText("PROTOBUF", "message A {}")
    assert by_id(source, 9) is None


def test_the_latest_record_of_a_version_counts(tmp_path: Path) -> None:
    """A softly deleted schema is still there for readers, one with a tombstone is not."""
    soft, hard = registered(1, "int", deleted=True), registered(2, "long", version=2)
    source = written(tmp_path, registered(1, "int"), hard, soft, (hard[0], None))
    assert by_id(source, 1) == SchemaText("AVRO", "int")
    assert by_id(source, 2) is None


def test_references_come_with_a_schema(tmp_path: Path) -> None:
    """Each stands after those that it refers to; a circle and a missing one end nothing."""
    circle = [{"name": "self", "subject": "a", "version": 1}, {"name": "none", "subject": "x", "version": 1}]
    to_a = [{"name": "A", "subject": "a", "version": 1}]
    source = written(
        tmp_path,
        registered(1, "int", "a", references=circle),
        registered(2, "long", "b", references=to_a),
        registered(3, "string", "c", references=[{"name": "B", "subject": "b", "version": 1}, *to_a]),
    )
    found = by_id(source, 3)
    assert found is not None
    assert list(found.references.items()) == [("A", "int"), ("B", "long")]


def records() -> Iterator[tuple[bytes | None, bytes | None]]:
    key, value = registered(1, "int")
    yield None, b"x"
    yield b"{", value
    yield b"[" * 50_000, value
    yield json.dumps({"keytype": "SCHEMA", "subject": 1, "version": "1"}).encode(), value
    yield json.dumps({"keytype": "NOOP", "magic": 0}).encode(), None
    yield json.dumps({"keytype": "CONFIG", "subject": "a", "version": 1}).encode(), value
    for number, bad in enumerate(
        [b"", b"7", b"[]", b'{"id": 1}', b'{"schema": 1}', b'{"schema": "int", "references": [1]}']
    ):
        yield key.replace(b'"version": 1', b'"version": %d' % (number + 10)), bad
    yield registered(5, "int", guid="none")


def test_other_records_and_damage_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Keys and values of other forms, and bytes that are not a batch, leave the readable schemas."""
    source = written(tmp_path, *records(), tail=b"\1" * 100)
    assert by_id(source, 5) == SchemaText("AVRO", "int")
    assert by_id(source, 1) is None
    assert "schemas cannot be read" in caplog.text


def test_without_the_topic_there_is_no_schema(tmp_path: Path) -> None:
    """A directory that never had a registry has none, and says nothing."""
    assert by_id(SchemasTopic(RealEnv(), str(tmp_path)), 1) is None
