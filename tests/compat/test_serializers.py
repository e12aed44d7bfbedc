"""Values of real serializers: Diamant decodes and blanks them, and the real deserializers read all of them afterwards.

The serializers are Apicurio's (ids of 8 bytes, before the value and in headers), AWS Glue's (plain and compressed), and those of
confluent-kafka for Python (Avro and JSON); kgo with franz-go's package sr reads Confluent's frames, too. Their registries are
`serializers/registries.py`. Nothing is downloaded; what is not here is left out with a message:

* Java's want `java` and `mvn` with the libraries in its repository (`mvn dependency:build-classpath` in `serializers` puts them
  there);
* confluent-kafka's want its extras: authlib, httpx, jsonschema and others (PYTHONPATH may name them);
* kgo wants `go`, and the modules of `serializers/franz_go_sr`.

Confluent's own serializers for Java are not on Maven Central, so they are not among them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from diamant import Admin
from diamant.broker.broker import BlockingBroker, Broker
from tests.compat.serializers.registries import Registries
from tests.compat.test_compat import Missing, found, go
from tests.registry_server import RegistryServer, schema_registry

HERE = Path(__file__).parent / "serializers"
TIMEOUT_S = 180
ADA, BOB, CLEO = (
    {"id": len(name), "email": f"{name.lower()}@example.com", "name": name} for name in ("Ada", "Bob", "Cleo")
)
WHERE = 'value.email == "bob@example.com"'
AWS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


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


def java(scratch: Path) -> list[str]:
    """Return the program in Java, with the libraries of Maven's repository. Raises Missing."""
    place = scratch / "classpath"
    done = subprocess.run(
        [found("mvn"), "-q", "-o", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={place}"],
        cwd=HERE, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    if done.returncode:
        raise Missing("Maven's repository has not all libraries of serializers/pom.xml")
    return [found("java"), "-XX:TieredStopAtLevel=1", "-cp", place.read_text(), str(HERE / "Serializers.java")]


def python(_: Path) -> list[str]:
    """Return the program in Python. Raises Missing."""
    program = [sys.executable, str(HERE / "confluent_serializers.py")]
    imports = "import confluent_kafka.schema_registry.avro, confluent_kafka.schema_registry.json_schema"
    done = subprocess.run([sys.executable, "-c", imports], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"confluent-kafka lacks its extras: {done.stderr.splitlines()[-1]}")
    return program


SERIALIZERS: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "apicurio": (java, "apicurio"),
    "apicurio-headers": (java, "apicurio-headers"),
    "glue": (java, "glue"),
    "glue-zlib": (java, "glue-zlib"),
    "confluent-avro": (python, "avro"),
    "confluent-json": (python, "json"),
}


def run(*command: str) -> list[Any]:
    """Run a program; return its lines of JSON."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, env=os.environ | AWS)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long
@pytest.mark.parametrize("name", SERIALIZERS)
def test_values_of_a_serializer_are_decoded_and_blanked(
    name: str, broker: BlockingBroker, registries: RegistryServer, tmp_path: Path
) -> None:
    """A search finds one by a field; after its name is blanked, the deserializer reads all, and only that name differs."""
    prepare, kind = SERIALIZERS[name]
    try:
        program = prepare(tmp_path)
    except Missing as reason:
        pytest.skip(str(reason))
    broker.create_topic(name, 1)
    with_topic = [kind, broker.bootstrap_servers, registries.url, name]
    run(*program, "write", *with_topic)
    schemas = Path(str(broker.awaited.node.config.diamant_schema_directory))
    for path, schema in registries.answers.items():
        (schemas / f"{UUID(int=int(path.rpartition('/')[2]))}.avsc").write_text(schema["schema"])
    before = [record.value for _, record in broker.records(name)]
    admin = Admin(broker.bootstrap_servers)
    assert [one["value_json"] for one in admin.latest(name)] == [ADA, BOB, CLEO]
    assert [one["value_json"] for one in admin.find(name, where=WHERE)] == [BOB]
    blanked = broker.redact(name, where=WHERE, blank=["value.name"], reason="asked for")
    assert (blanked.state, blanked.removed) == ("fields-blanked", 1)
    after = [record.value for _, record in broker.records(name)]
    assert [one == two for one, two in zip(before, after, strict=True)] == [True, False, True]
    expected = [ADA, {**BOB, "name": None}, CLEO]
    assert run(*program, "read", *with_topic) == expected
    if name == "confluent-avro":
        try:
            reader = go("franz_go_sr", HERE)(tmp_path)
        except Missing as reason:
            pytest.skip(f"all but kgo: {reason}")
        assert run(*reader, *with_topic[1:]) == expected
