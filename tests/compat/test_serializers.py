"""Values of real serializers: a person is found, shown and blanked in them, and real deserializers read all of them afterwards.

The serializers are those of confluent-kafka for Python (Avro, JSON and Protobuf, with the schema's id before the value or its
GUID in a header), and for the same formats Apicurio's (ids of 8 bytes, before the value and in headers) and AWS Glue's (plain
and compressed), both for Java. Each topic is read by its own deserializer; those of confluent-kafka also by
@confluentinc/schemaregistry for JavaScript, and by kgo with franz-go's package sr. `serializers/registries.py` answers them all.

    pytest --long tests/compat/test_serializers.py

Nothing is downloaded; what is not here is left out with a message:

* Java's want `java` and `mvn` with the libraries in its repository (`mvn dependency:build-classpath` in `serializers` puts them
  there);
* confluent-kafka's want its extras: authlib, httpx, jsonschema and others (PYTHONPATH may name them);
* JavaScript's want `node`, and NODE_PATH a directory with @confluentinc/schemaregistry and kafkajs in it;
* kgo wants `go`, and the modules of `serializers/franz_go_sr`.

Confluent's own serializers for Java are not on Maven Central, so they are not among them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from diamant import Admin
from diamant.broker.broker import BlockingBroker, Broker
from diamant.protocol.batches.header import Record
from tests.cleaner.values.changed_fields import GONE, changed, without
from tests.compat.serializers.registries import Registries
from tests.compat.test_compat import Missing, found, go
from tests.registry_server import RegistryServer, schema_registry

pytestmark = pytest.mark.long

HERE = Path(__file__).parent / "serializers"
TIMEOUT_S = 180
AWS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
BOB = {"customer_id": "2", "email": "bob@example.com"}


def java(scratch: Path) -> list[str]:
    """Return the program in Java, with the libraries of Maven's repository. Raises Missing."""
    place = scratch / "classpath"
    done = subprocess.run(
        [found("mvn"), "-q", "-o", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={place}"],
        cwd=HERE, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    if done.returncode:
        raise Missing("Maven's repository has not all libraries of serializers/pom.xml")
    classes = f"{place.read_text()}:{HERE}"
    return [found("java"), "-XX:TieredStopAtLevel=1", "-cp", classes, str(HERE / "Serializers.java")]


def python(_: Path) -> list[str]:
    """Return the program in Python. Raises Missing."""
    program = [sys.executable, str(HERE / "confluent_serializers.py")]
    imports = "import confluent_kafka.schema_registry.avro, confluent_kafka.schema_registry.json_schema"
    done = subprocess.run([sys.executable, "-c", imports], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"confluent-kafka lacks its extras: {done.stderr.splitlines()[-1]}")
    return program


def javascript(_: Path) -> list[str]:
    """Return the program in JavaScript. Raises Missing."""
    node = found("node")
    needed = "require.resolve('@confluentinc/schemaregistry'); require.resolve('kafkajs')"
    if subprocess.run([node, "-e", needed], capture_output=True, cwd=HERE, check=False).returncode:
        raise Missing("NODE_PATH names no directory with @confluentinc/schemaregistry and kafkajs")
    return [node, str(HERE / "confluent_deserializers.js")]


PROGRAMS: dict[str, Callable[[Path], list[str]]] = {
    "python": python,
    "java": java,
    "javascript": javascript,
    "go": go("franz_go_sr", HERE),
}


class Written(NamedTuple):
    """A topic with the values of one serializer."""

    program: str
    kind: str
    """What its program calls the serializer."""
    blank: dict[str, Any]
    """The fields to be blanked, and what its deserializer then reads there."""
    readers: tuple[str, ...] = ()
    """Programs that read it, besides its own."""


OF_AVRO = {
    "name": "",
    "contact": "",
    "born": "1970-01-01",
    "paid": "0.00",
    "seen": "1970-01-01 00:00:00+00:00",
    "token": str(UUID(int=0)),
    "tags.city": "",
    "address.street": "",
    "friends": [],
    "photo": "b''",
}
OF_JSON = {"name": "", "friends.name": "", "paid": 0, "born": ""}
OF_PROTOBUF: dict[str, Any] = {
    "name": "",
    "other.name": GONE,
    "amounts.EUR.note": GONE,
    "numbers": GONE,
    "levels": GONE,
    "extra.name": GONE,
    "friend": {},
    "seen": "1970-01-01T00:00:00Z",
    "nicknames": GONE,
}
OF_JAVAS_JSON = {"name": "", "friends.name": ""}
OF_JAVAS_PROTOBUF: dict[str, Any] = {"name": GONE, "basket.notes.gift": "", "phone": ""}
IN_OTHER_LANGUAGES = ("javascript", "go")
TOPICS = {
    "avro": Written("python", "avro", OF_AVRO, IN_OTHER_LANGUAGES),
    "avro-header": Written("python", "avro-header", OF_AVRO, ("javascript",)),
    "json": Written("python", "json", OF_JSON, ("javascript",)),
    "json-header": Written("python", "json-header", OF_JSON, ("javascript",)),
    "protobuf": Written("python", "protobuf", OF_PROTOBUF, IN_OTHER_LANGUAGES),
    "protobuf-header": Written("python", "protobuf-header", OF_PROTOBUF, ("javascript",)),
    "apicurio": Written("java", "apicurio", {"name": ""}),
    "apicurio-headers": Written("java", "apicurio-headers", {"name": ""}),
    "apicurio-json": Written("java", "apicurio-json", OF_JAVAS_JSON),
    "apicurio-protobuf": Written("java", "apicurio-protobuf", OF_JAVAS_PROTOBUF),
    "apicurio-protobuf-headers": Written("java", "apicurio-protobuf-headers", OF_JAVAS_PROTOBUF),
    "glue": Written("java", "glue", {"name": ""}),
    "glue-zlib": Written("java", "glue-zlib", {"name": ""}),
    "glue-json": Written("java", "glue-json", OF_JAVAS_JSON),
    "glue-protobuf-zlib": Written("java", "glue-protobuf-zlib", OF_JAVAS_PROTOBUF),
}
OF_FILES = {"AVRO": ".avsc", "PROTOBUF": ".proto"}
READERS = [(topic, reader) for topic, one in TOPICS.items() for reader in (one.program, *one.readers)]
MAP = {
    "version": 1,
    "topics": {
        "customers": {"identity": {"customer_id": "key"}, "learns": {"email": "value.email"}, "do": "remove-record"},
        **{
            topic: {
                "identity": {"email": "value.email"},
                "do": {"blank": [f"value.{path}" for path in one.blank], "with": "empty"},
            }
            for topic, one in TOPICS.items()
        },
    },
}


def _put(value: Any, _old: Any) -> Any:
    return value


def run(*command: str) -> list[Any]:
    """Run a program; return its lines of JSON."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, env=os.environ | AWS)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@dataclass
class Forgotten:
    """The values of all serializers before and after a person was forgotten."""

    missing: dict[str, str] = field(default_factory=dict)
    """Programs that cannot run, and why."""
    stored: dict[str, list[list[Record]]] = field(default_factory=dict)
    """The records of each topic: before, after."""
    read: dict[tuple[str, str], list[list[Any]]] = field(default_factory=dict)
    """What a deserializer returns of a topic: before, after."""
    found: dict[str, list[Any]] = field(default_factory=dict)
    shown: list[Any] = field(default_factory=list)
    paper: Any = None

    def check_has(self, *programs: str) -> None:
        """Skip the test if the machine lacks a program."""
        for one in programs:
            if one in self.missing:
                pytest.skip(self.missing[one])


@pytest.fixture(scope="module")
def registries() -> Iterator[RegistryServer]:
    """All three registries, without schemas at first."""
    with schema_registry({}, Registries) as server:
        yield server


@pytest.fixture(scope="module")
def broker(registries: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingBroker]:
    """A broker that asks Confluent's registry, and has the schemas of AWS Glue as files."""
    place = tmp_path_factory.mktemp("serializers")
    (place / "schemas").mkdir()
    with Broker(
        data_dir=place / "data",
        listen="127.0.0.1:0",
        diamant_http_listen="127.0.0.1:0",
        diamant_schema_directory=str(place / "schemas"),
        diamant_schema_registry_url=f"{registries.url}/apis/ccompat/v7",
        properties={"diamant.certificate.key.file": str(place / "certificate.key")},
    ) as running:
        yield running


@pytest.fixture(scope="module")
def forgotten(
    broker: BlockingBroker, registries: RegistryServer, tmp_path_factory: pytest.TempPathFactory
) -> Forgotten:
    """Write with all serializers, look for Bob, forget him, and read before and after."""
    result = Forgotten()
    admin = Admin(broker.bootstrap_servers, timeout=TIMEOUT_S)
    commands = {}
    for name, prepare in PROGRAMS.items():
        try:
            commands[name] = prepare(tmp_path_factory.mktemp(name))
        except Missing as reason:
            result.missing[name] = str(reason)
    broker.create_topic("customers", 1)
    broker.produce("customers", json.dumps({"email": BOB["email"]}).encode(), key=b"2")

    def task(program: str, verb: str, topic: str) -> list[Any]:
        return run(*commands[program], verb, TOPICS[topic].kind, broker.bootstrap_servers, registries.url, topic)

    def read_all() -> None:
        for topic, reader in READERS:
            if topic in result.found and reader in commands:
                result.read.setdefault((topic, reader), []).append(task(reader, "read", topic))
        for topic in result.found:
            result.stored.setdefault(topic, []).append([record for _, record in broker.records(topic)])

    schemas = Path(str(broker.awaited.node.config.diamant_schema_directory))
    for topic, one in TOPICS.items():
        broker.create_topic(topic, 1)
        if one.program in commands:
            task(one.program, "write", topic)
            for path, schema in registries.answers.items():
                suffix = OF_FILES.get(schema.get("schemaType", "AVRO"))
                if one.kind.startswith("glue") and suffix is not None and "references" not in schema:
                    (schemas / f"{UUID(int=int(path.rpartition('/')[2]))}{suffix}").write_text(schema["schema"])
            result.found[topic] = list(admin.find(topic, where=f'value.email == "{BOB["email"]}"'))
    read_all()
    result.shown = list(admin.person.show({"customer_id": "2"}, MAP))
    result.paper = admin.person.forget({"customer_id": "2"}, MAP, reason="GDPR Art. 17", now=True)
    read_all()
    return result


@pytest.mark.parametrize("topic", TOPICS)
def test_a_person_is_found_shown_and_blanked(topic: str, forgotten: Forgotten) -> None:
    """A search and a copy have Bob's record alone, which an identifier of another topic led to; then only his value differs."""
    forgotten.check_has(TOPICS[topic].program)
    [one] = forgotten.found[topic]
    assert one["value_json"]["email"] == BOB["email"]
    [shown] = [line for line in forgotten.shown if line["kind"] == "record" and line["topic"] == topic]
    assert (shown["offset"], shown["value_json"]["name"]) == (one["offset"], "Bob")
    [row] = [row for row in forgotten.paper["certificate"]["topics"] if row["topic"] == topic]
    assert (row["records"], row["problem"]) == (1, "")
    before, after = forgotten.stored[topic]
    assert [index for index, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]] == [1]
    assert before[1]._replace(value=None) == after[1]._replace(value=None)


@pytest.mark.parametrize(("topic", "reader"), READERS)
def test_deserializers_read_all_and_only_named_fields_differ(topic: str, reader: str, forgotten: Forgotten) -> None:
    """The topic's own one reads exactly the empty values; those of other languages the same of all other fields."""
    forgotten.check_has(TOPICS[topic].program, reader)
    before, after = forgotten.read[topic, reader]
    assert [one["name"] for one in before] == ["Ada", "Bob", "Cleo"]
    assert (after[0], after[2]) == (before[0], before[2])
    expected, left = before[1], (before[1], after[1])
    for path, value in TOPICS[topic].blank.items():
        expected = changed(expected, path.split("."), partial(_put, value))
        left = without(left[0], path.split(".")), without(left[1], path.split("."))
    assert left[0] == left[1]
    assert not {text for text in ("Bob", "nick of", "note of") if text in json.dumps(after[1])}
    if reader == TOPICS[topic].program:
        assert after[1] == expected
