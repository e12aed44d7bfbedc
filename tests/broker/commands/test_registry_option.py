"""`--registry` of all commands that decode: the schema comes from there, else the reason is told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.cli import main
from diamant.cleaner.values.schemas_topic import SCHEMAS_TOPIC
from diamant.protocol.batches.header import Record
from diamant.storage.env.env import RealEnv
from tests.broker.commands.running import run
from tests.cleaner.log_history import History
from tests.cleaner.values.framed import CUSTOMER, confluent, customer, registered
from tests.registry_server import RegistryServer, schema_registry

EMAIL = "ada@example.com"
WHERE = f'value.email == "{EMAIL}"'
DECODED = {"id": 3, "email": EMAIL, "level": "BASIC", "tags": {}}
MAP = {"version": 1, "topics": {"customers": {"identity": {"email": "value.email"}, "do": "remove-record"}}}


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    """A registry with the schema 7."""
    with schema_registry({7: CUSTOMER}) as server:
        yield server


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BlockingBroker]:
    """A broker without schemas, with a customer in Avro whose schema is 7."""
    properties = {"diamant.certificate.key.file": str(tmp_path / "certificate.key")}
    options = {"listen": "127.0.0.1:0", "diamant_http_listen": "127.0.0.1:0", "properties": properties}
    with Broker(data_dir=tmp_path / "data", **options) as one:  # type: ignore[arg-type]
        one.create_topic("customers", 1)
        one.produce("customers", confluent(7, customer(3, EMAIL)), key="k")
        yield one


def test_a_search_and_a_redaction_ask_the_given_registry(broker: BlockingBroker, registry: RegistryServer) -> None:
    """Without it the record is undecided, and the reason is told; with it, it is found, shown and removed."""
    down = run(broker, "find", "customers", "--where", WHERE, "--registry", "http://127.0.0.1:1")
    assert "1 records are undecided" in down.output
    assert "no source has the schema with id 7: the schema registry http://127.0.0.1:1: " in down.output
    found = run(broker, "find", "customers", "--where", WHERE, "--registry", registry.url)
    assert json.loads(found.output)["value_json"] == DECODED
    latest = run(broker, "latest", "customers", "--registry", registry.url)
    assert json.loads(latest.output)["value_json"] == DECODED
    redact = ["redact", "customers", "--where", WHERE, "--reason", "asked for", "--yes-all"]
    assert run(broker, *redact, "--registry", registry.url).exit_code == 0
    assert not list(broker.records("customers"))


def test_a_person_is_shown_with_the_given_registry(
    broker: BlockingBroker, registry: RegistryServer, tmp_path: Path
) -> None:
    """The record is found by a field of its value; without the schema the topic's problem says which one is missing."""
    people = tmp_path / "people.json"
    people.write_text(json.dumps(MAP))
    show = ["person", "show", f"email={EMAIL}", "--map", str(people)]
    shown = run(broker, *show, "--registry", registry.url)
    assert [one["value_json"] for line in shown.output.splitlines() if "value_json" in (one := json.loads(line))]
    missing = run(broker, *show)
    assert missing.exit_code == 3
    assert "no source has the schema with id 7" in missing.output


def test_a_person_is_forgotten_with_the_given_registry(
    broker: BlockingBroker, registry: RegistryServer, tmp_path: Path
) -> None:
    """A draft finds the field and a check no fault, a preview counts the record, and the job removes it."""
    people = tmp_path / "people.json"
    people.write_text(json.dumps(MAP))
    broker.produce("customers", confluent(7, customer(4, "bob@example.com")), key="b")
    asking = ["--registry", registry.url]
    assert "value.email" in run(broker, "person", "suggest", *asking).output
    assert run(broker, "person", "check", "--map", str(people), *asking).exit_code == 0
    forget = ["person", "forget", f"email={EMAIL}", "--map", str(people), *asking, "--json"]
    assert json.loads(run(broker, *forget, "--dry-run").stdout)["records"] == 1
    done = run(broker, *forget, "--yes", "--reason", "asked for")
    assert done.exit_code == 0, done.output
    assert [record.key for _, record in broker.records("customers")] == [b"b"]


def test_a_paper_is_verified_with_the_given_registry(
    broker: BlockingBroker, registry: RegistryServer, tmp_path: Path
) -> None:
    """Blanked fields are judged by the schema: by the broker, and in a copy of its files. Without it the claim stays open."""
    people, paper, copy = tmp_path / "people.json", tmp_path / "paper.json", tmp_path / "copy"
    entry = {"identity": {"customer_id": "value.id"}, "do": {"blank": ["value.email"]}}
    people.write_text(json.dumps({"version": 1, "topics": {"customers": entry}}))
    broker.produce("customers", confluent(7, customer(4, "bob@example.com")), key="b")
    asking = ["--registry", registry.url]
    forget = ["person", "forget", "customer_id=3", "--map", str(people), *asking, "--certificate", str(paper)]
    assert run(broker, *forget, "--yes", "--reason", "asked for").exit_code == 0
    (tmp_path / "key.pem").write_text(json.loads(paper.read_text())["signature"]["public_key"])
    verify = ["verify", str(paper), "--public-key", str(tmp_path / "key.pem"), "--identifiers", "customer_id=3"]
    shutil.copytree(broker.config.data_dir, copy)
    of_copy = ["--data", str(copy), "--secret", str(tmp_path / "certificate.key.secret")]
    for where in ([], of_copy):
        assert run(broker, *verify, *where).exit_code == 3
        found = run(broker, *verify, *where, *asking)
        assert found.exit_code == 0, found.output
    refused = run(broker, *verify, *of_copy, "--registry", "file:///etc")
    assert (refused.exit_code, "registry: expected a URL" in refused.output) == (2, True)


def test_a_consumer_decodes_values(broker: BlockingBroker, registry: RegistryServer, tmp_path: Path) -> None:
    """Decoded values are printed as JSON in place of the bytes, or beside them with --json; the login of the registry comes
    from a file.
    """
    secret = tmp_path / "secret"
    secret.write_text("s\n")
    consume = ["consume", "customers", "-e", "--registry", registry.url]
    assert json.loads(run(broker, *consume).output) == DECODED
    assert run(broker, *consume, "-f", "%k %s").output == f"k {json.dumps(DECODED)}"
    both = json.loads(run(broker, *consume, "--json", "--registry-user", f"ada:{secret}").output)
    assert (both["value_json"], [*both["value"]]) == (DECODED, ["text"])
    assert registry.asked[-1] == ("/schemas/ids/7", "Basic YWRhOnM=")


def test_a_consumer_reads_the_schemas_of_the_cluster(broker: BlockingBroker) -> None:
    """--schema decodes values; one without a schema is printed unchanged, with the reason. Without --schema, nothing is
    decoded.
    """
    raw = run(broker, "consume", "customers", "-e")
    undecoded = run(broker, "consume", "customers", "-e", "--schema")
    assert undecoded.stdout_bytes == raw.stdout_bytes
    assert "not decoded: no source has the schema with id 7" in undecoded.stderr
    broker.create_topic(SCHEMAS_TOPIC, 1)
    key, value = registered(7, CUSTOMER)
    broker.produce(SCHEMAS_TOPIC, value, key=key)
    assert json.loads(run(broker, "consume", "customers", "-e", "--schema").output) == DECODED


def test_a_dump_decodes_values(registry: RegistryServer, tmp_path: Path) -> None:
    """By a registry, or by a directory that has the schema of all values of the topic."""
    log = History(topic="customers")
    log.batch(Record(0, 0, b"k", confluent(7, customer(3, EMAIL))))
    log.write(RealEnv(), str(tmp_path / "data"))
    dump = ["log", "dump", str(tmp_path / "data" / "customers-0"), "--records", "--json"]
    schemas = tmp_path / "schemas"
    schemas.mkdir()
    (schemas / "customers-value.avsc").write_text(json.dumps(CUSTOMER))
    for options in (["--registry", registry.url], ["--schema-directory", str(schemas)]):
        lines = CliRunner().invoke(main, [*dump, *options]).output.splitlines()
        assert [one["value_json"] for line in lines if "value_json" in (one := json.loads(line))] == [DECODED]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--registry", "ftp://a"], "expected a URL"),
        (["--registry-user", "ada:/none"], "expected --registry URL"),
        (["--registry", "http://a", "--registry-user", "ada"], "NAME:PASSWORD-FILE"),
        (["--registry", "http://a", "--registry-user", "ada:/none"], "No such file"),
    ],
)
def test_bad_options_are_named(options: list[str], expected: str, tmp_path: Path) -> None:
    """Before anything is read."""
    refused = CliRunner().invoke(main, ["log", "dump", str(tmp_path), *options])
    assert refused.exit_code != 0
    assert expected in refused.output


def test_a_request_with_a_bad_registry_is_refused(broker: BlockingBroker) -> None:
    """The error names the argument, and what was expected."""
    for words in (["find", "customers", "--where", WHERE], ["latest", "customers"]):
        refused = run(broker, *words, "--registry", "file:///etc")
        assert (refused.exit_code, "registry: expected a URL" in refused.output) == (2, True)
    refused = run(broker, "redact", "customers", "--where", WHERE, "--reason", "r", "--registry", "file:///etc")
    assert (refused.exit_code, "registry: expected a URL" in refused.output) == (2, True)
