"""Values with a schema in a whole broker that is the store of a registry: search and redaction look into them."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from diamant import Admin, AdminError
from diamant.broker.broker import Broker
from diamant.broker.record_json import parse_record_line
from diamant.cleaner.values.schemas_topic import SCHEMAS_TOPIC
from diamant.protocol.batches.header import Header
from tests.broker.stored import records_of
from tests.cleaner.values.framed import CUSTOMER, avro, confluent, customer, registered

EMAIL = "ada@example.com"
WHERE = f'value.email == "{EMAIL}"'


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with the schema 7, and with customers of schemas 7 and 8."""
    properties = {"diamant.certificate.key.file": str(tmp_path / "certificate.key")}
    async with Broker(
        data_dir=tmp_path / "data", listen="127.0.0.1:0", diamant_http_listen="127.0.0.1:0", properties=properties
    ) as one:
        await one.create_topic(SCHEMAS_TOPIC, 1, cleanup_policy="compact")
        await one.create_topic("customers", 1)
        await register(one, 7)
        for number, email in enumerate([EMAIL, "bob@example.com", None]):
            await one.produce("customers", confluent(7, customer(number, email)), key=b"k")
        yield one


async def register(broker: Broker, schema_id: int) -> None:
    key, value = registered(schema_id, CUSTOMER, version=schema_id)
    await broker.produce(SCHEMAS_TOPIC, value, key=key)


async def found(broker: Broker, where: str) -> list[int]:
    admin = Admin(broker.bootstrap_servers)
    return [one["offset"] for one in await asyncio.to_thread(lambda: list(admin.find("customers", where=where)))]


async def test_a_search_and_a_redaction_look_into_avro(broker: Broker) -> None:
    """Both find the record by a field of its value. The certificate says that it is gone, and verification confirms it."""
    assert await found(broker, WHERE) == [0]
    assert await found(broker, "value.id == 1") == [1]
    redaction = await broker.redact("customers", where=WHERE, reason="asked for")
    assert (redaction.state, redaction.removed) == ("records-gone", 1)
    assert await found(broker, "value.id exists") == [2, 1]
    checked = await broker.verify(redaction.certificate, where=WHERE)
    assert checked.claims[0]["verdict"] == "holds"


async def test_the_latest_records_are_shown_decoded(broker: Broker) -> None:
    """Decoded records are shown beside their bytes; without its schema a record has only these. The lines can be written to a
    topic again.
    """
    await broker.produce("customers", confluent(7, customer(2, None)), key=confluent(7, customer(1, EMAIL)))
    await broker.produce("customers", confluent(8, customer(3, EMAIL)), key=b"k")
    records = await asyncio.to_thread(lambda: list(Admin(broker.bootstrap_servers).latest("customers")))
    one = {"id": 2, "email": None, "level": "BASIC", "tags": {}}
    assert [record.get("value_json") for record in records] == [one, None]
    assert records[0]["key_json"]["email"] == EMAIL
    assert parse_record_line(json.dumps({"topic": "copy", **records[0]})).value == confluent(7, customer(2, None))


async def test_what_a_search_finds_is_shown_decoded(broker: Broker) -> None:
    """As far as the record is whole; of a longer one the first bytes are shown."""
    await broker.produce("customers", confluent(7, customer(2, EMAIL, note="x" * 2_000)), key=b"k")
    admin = Admin(broker.bootstrap_servers)
    records = await asyncio.to_thread(lambda: list(admin.find("customers", where=WHERE)))
    one = {"id": 0, "email": EMAIL, "level": "BASIC", "tags": {}}
    assert [record.get("value_json") for record in records] == [None, one]
    assert len(records[0]["value"]["base64"]) > 1_024


async def test_a_missing_schema_is_reported_and_certifies_nothing(broker: Broker) -> None:
    """A search says that it cannot tell; a redaction removes what it can and certifies once the schema is registered."""
    await broker.produce("customers", confluent(8, customer(3, EMAIL)), key=b"k")
    with pytest.raises(AdminError, match="1 records are undecided"):
        await found(broker, WHERE)
    redaction = await broker.redact("customers", where=WHERE, reason="asked for")
    assert (redaction.state, redaction.removed) == ("not-certified", 1)
    await register(broker, 8)
    assert await found(broker, WHERE) == [3]
    again = await broker.redact("customers", where=WHERE, reason="asked for again")
    assert (again.state, again.removed) == ("records-gone", 1)


async def test_schemas_also_come_from_a_directory(tmp_path: Path) -> None:
    """A broker that stores no registry finds them there, by the topic."""
    (tmp_path / "customers-value.avsc").write_text(json.dumps(CUSTOMER))
    options = {"diamant_http_listen": "127.0.0.1:0", "diamant_schema_directory": str(tmp_path)}
    async with Broker(data_dir=tmp_path / "data", listen="127.0.0.1:0", **options) as broker:
        await broker.create_topic("customers", 1)
        await broker.produce("customers", confluent(8, customer(3, EMAIL)), key=b"k")
        assert await found(broker, WHERE) == [0]


async def test_schemas_also_come_from_a_registry(tmp_path: Path) -> None:
    """Without one that answers, the record is undecided; a URL of another kind stops the start."""
    options = {"diamant_http_listen": "127.0.0.1:0", "diamant_schema_registry_url": "http://127.0.0.1:1"}
    async with Broker(data_dir=tmp_path / "data", listen="127.0.0.1:0", **options) as broker:
        await broker.create_topic("customers", 1)
        await broker.produce("customers", confluent(8, customer(3, EMAIL)), key=b"k")
        with pytest.raises(AdminError, match="1 records are undecided"):
            await found(broker, WHERE)
    with pytest.raises(ValueError, match="expected a URL"):
        Broker(data_dir=tmp_path / "other", diamant_schema_registry_url="ftp://a")


NAMED = {**CUSTOMER, "fields": [*CUSTOMER["fields"], {"name": "name", "type": ["null", "string"], "default": None}]}
ADA = {"id": 3, "email": EMAIL, "level": "GOLD", "tags": {"note": "of Ada Lovelace"}, "name": "Ada Lovelace"}
BLANKED = {**ADA, "name": None}
PROTO = 'syntax = "proto3"; message Other {} message Person { string email = 1; string name = 2; int64 id = 3; }'
PERSON = b"\x0a\x0fada@example.com\x12\x0cAda Lovelace\x18\3"
GLUE = b"\3\5" + bytes(16)
ID_HEADER = Header("__value_schema_id", b"\0\0\0\0\x09")


@pytest.mark.parametrize(
    ("schema", "frame", "headers"),
    [
        (NAMED, b"\0\0\0\0\x09", ()),
        (NAMED, b"\0\0\0\0\0\0\0\0\x09", ()),
        (NAMED, b"", (ID_HEADER,)),
        (NAMED, GLUE, ()),
        (PROTO, b"\0\0\0\0\x09\2\2", ()),
        (PROTO, b"", (Header("__value_schema_id", b"\0\0\0\0\x09\2\2"),)),
        ("JSON", b"\0\0\0\0\x09", ()),
    ],
    ids=["avro", "avro, apicurio", "avro, header", "avro, glue", "protobuf", "protobuf, header", "json"],
)
async def test_fields_in_frames_are_blanked(
    tmp_path: Path, schema: Any, frame: bytes, headers: tuple[Header, ...]
) -> None:
    """The frame and its schema stay, as do compression within it and message indexes; other fields keep their bytes."""
    name = f"{UUID(int=0)}" if frame == GLUE else "9"
    text = json.dumps(schema) if schema is NAMED else schema
    if schema != "JSON":
        (tmp_path / f"{name}.{'avsc' if schema is NAMED else 'proto'}").write_text(text)
    old, new = {
        NAMED["name"]: (avro(NAMED, ADA), avro(NAMED, BLANKED)),
        PROTO: (PERSON, PERSON.replace(b"\x12\x0cAda Lovelace", b"")),
        "JSON": (json.dumps(ADA).encode(), json.dumps(BLANKED).encode()),
    }[NAMED["name"] if schema is NAMED else schema]
    around = zlib.compress if frame == GLUE else bytes
    options = {"diamant_schema_directory": str(tmp_path), "diamant_certificate_key_file": str(tmp_path / "key")}
    async with Broker(data_dir=tmp_path / "data", listen="127.0.0.1:0", **options) as broker:
        await broker.create_topic("customers", 1)
        await broker.produce("customers", b"{}")
        await broker.produce("customers", frame + around(old), key=b"k", headers=headers)
        asked: dict[str, Any] = {"where": WHERE, "reason": "asked for", "blank": ["value.name"]}
        redaction = await broker.redact("customers", **asked)
        assert (redaction.state, redaction.removed, redaction.fields_not_seen) == ("fields-blanked", 1, [])
        (_, record) = records_of(broker.node.topics.log("customers", 0))
        assert record.value is not None
        assert record.headers == headers
        payload = record.value.removeprefix(frame)
        assert (zlib.decompress(payload) if frame == GLUE else payload) == new
        again = await broker.redact("customers", **asked)
        assert (again.state, again.removed, again.fields_not_seen) == ("fields-blanked", 0, [])
        checked = await broker.verify(redaction.certificate, where=WHERE)
        assert checked.claims[0]["verdict"] == "holds"
        if schema is NAMED and not frame:
            # The old name is in another field, which was not named.
            assert [one["offset"] for one in redaction.certificate["elsewhere"]] == [1]


async def test_what_the_schema_forbids_is_undecided(broker: Broker) -> None:
    """A required field has no null; an empty one passes. A missing schema is undecided, too, and the record stays as it is."""
    before = records_of(broker.node.topics.log("customers", 0))
    redaction = await broker.redact("customers", where=WHERE, reason="asked for", blank=["value.tags"])
    assert redaction.certificate["ended"]["what"] == "undecided-records"
    assert records_of(broker.node.topics.log("customers", 0)) == before
    await broker.produce("customers", confluent(8, customer(3, EMAIL)), key=b"k")
    redaction = await broker.redact(
        "customers", where=WHERE, reason="asked for", blank=["value.tags", "value.level"], blank_with="empty"
    )
    assert redaction.certificate["found"][0]["undecided_offsets"] == [0, 3]
    redaction = await broker.redact(
        "customers", where=WHERE, reason="r", undecided="keep", set=['value.tags={"a": "b"}', 'value.level="GOLD"']
    )
    assert (redaction.state, redaction.removed) == ("fields-blanked", 1)
    assert records_of(broker.node.topics.log("customers", 0))[0].value == confluent(
        7, customer(0, EMAIL, "GOLD", a="b")
    )
