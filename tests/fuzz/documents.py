"""Documents that others write: certificates, maps of people, schemas and what they decode, conditions of redactions, key files.

Each parser gets a valid document that is damaged, as bytes or as a tree, and may only raise what it declares.
"""

from __future__ import annotations

import copy
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diamant.cleaner.evidence.certificates.certificate import CertificateError, WrongKind, parse_certificate
from diamant.cleaner.papers.paper_verification import verify_certificate
from diamant.cleaner.person.people_map import MapError, parse_people_map
from diamant.cleaner.redaction.where import WhereError, parse_where
from diamant.cleaner.values.avro import AvroReader
from diamant.cleaner.values.nodes import Undecodable
from diamant.cleaner.values.protobuf import ProtobufReader
from tests.broker.erasure.brokers import broker_at
from tests.broker.erasure.erasing import erase
from tests.broker.erasure.issued import certificates_of
from tests.broker.erasure.records import create_with_key
from tests.cleaner.person.test_people_map import shop
from tests.cleaner.values.test_protobuf import COMMON, CUSTOMER
from tests.cleaner.values.test_protobuf import SHOP as PROTO
from tests.fuzz.watching import watched
from tests.protocol.wire.test_fuzz_requests import damage

AVRO = {
    "type": "record",
    "name": "Customer",
    "fields": [
        {"name": "name", "type": ["null", "string"]},
        {"name": "when", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": {"type": "enum", "name": "Tag", "symbols": ["A", "B"]}}},
        {"name": "more", "type": {"type": "map", "values": {"type": "fixed", "name": "Two", "size": 2}}},
        {"name": "next", "type": ["null", "Customer"]},
    ],
}
AVRO_VALUE = b"\x02\x08Anna\x80\x80\x80\x80\x20\x04\x01\x02\x04\x00\x02\x00\x02\x02a\x00\x00\x00\x00"
PROTO_VALUE = b"\x0a\x04Anna\x12\x06\x0a\x04Bern\x18\x05"
WHERE = (
    'key == "customer-42" and (value.address[0]["e mail"] == hex:"00ff" or not header.kind == base64:"AP8=")'
    " or value.n == -1.5e3"
)
ODD: tuple[Any, ...] = (None, True, -1, 0, 2**70, 1.5, "", "x" * 5000, "\ud800", [], {}, [[]], {"": None}, "key", "/(/")


def spoiled(rng: random.Random, tree: Any) -> Any:
    """Return a tree one to three of whose nodes are replaced, removed or doubled."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.randint(1, 3)):
        node = tree
        while True:
            places: list[Any] = [*node] if isinstance(node, dict) else [*range(len(node))]
            if not places:
                break
            place = rng.choice(places)
            if isinstance(node[place], dict | list) and rng.random() < 0.7:
                node = node[place]
                continue
            kind = rng.random()
            if kind < 0.7:
                node[place] = copy.deepcopy(rng.choice(ODD))
            elif kind < 0.85:
                del node[place]
            elif isinstance(node, dict):
                node[f"{place}-"] = node[place]
            else:
                node.append(node[place])
            break
    return tree


def as_json(rng: random.Random, tree: Any) -> bytes:
    """Return a damaged document of JSON."""
    if rng.random() < 0.6:
        return json.dumps(spoiled(rng, tree)).encode()
    return damage(rng, json.dumps(tree).encode())


async def certificates() -> list[dict[str, Any]]:
    """Some of a broker's."""
    with tempfile.TemporaryDirectory(prefix="diamant-fuzz-") as directory:
        async with broker_at(Path(directory)) as broker:
            await create_with_key(broker)
            await erase(broker, now=True)
            return [parse_certificate(path.read_bytes()) for path in certificates_of(broker, "key-gone")]


async def fuzz(seed: int, count: int) -> int:
    """Give that many documents to each parser; raises Finding."""
    rng = random.Random(seed)
    issued = await certificates()
    people = json.loads(json.dumps(shop().to_fields()))

    def certificate() -> None:
        verify_certificate(parse_certificate(as_json(rng, rng.choice(issued))), None)

    def people_map() -> None:
        try:
            found = json.loads(as_json(rng, people))
        except ValueError:
            return
        parse_people_map(found)

    def avro() -> None:
        schema = as_json(rng, AVRO) if rng.random() < 0.5 else json.dumps(AVRO).encode()
        AvroReader(schema.decode(errors="replace")).read(damage(rng, AVRO_VALUE))

    def protobuf() -> None:
        schema = damage(rng, PROTO.encode()) if rng.random() < 0.5 else PROTO.encode()
        ProtobufReader(schema.decode(errors="replace"), {"common.proto": COMMON}).read(
            CUSTOMER + damage(rng, PROTO_VALUE)
        )

    def where() -> None:
        parse_where(damage(rng, WHERE.encode()).decode(errors="surrogateescape"))

    parsers: list[tuple[Callable[[], None], tuple[type[Exception], ...]]] = [
        (certificate, (CertificateError, WrongKind)),
        (people_map, (MapError,)),
        (avro, (Undecodable,)),
        (protobuf, (Undecodable,)),
        (where, (WhereError,)),
    ]
    for parse, declared in parsers:
        with watched(f"seed {seed}, {parse.__name__}"):
            for _ in range(count):
                try:
                    parse()
                except declared:
                    pass
    return count * len(parsers)
