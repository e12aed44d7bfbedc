"""`diamant spark person`: the lines and the draft are those of `diamant log person`, from the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from diamant.broker.cli import main
from diamant.cleaner.values.schemas_topic import SCHEMAS_TOPIC
from diamant.protocol.batches.header import Record
from diamant.storage.env.env import RealEnv
from tests.cleaner.log_history import History
from tests.cleaner.spark.object_store import ObjectStore
from tests.cleaner.values.framed import CUSTOMER, confluent, customer, registered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 3
MAP = {
    "version": 1,
    "topics": {
        "customers": {
            "identity": {"customer_id": "value.id"},
            "learns": {"email": "value.email"},
            "do": "remove-record",
        },
        "mails": {"identity": {"email": "value.to"}, "do": "remove-record"},
    },
}


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Customers in Avro and their mails in JSON, over three partitions, the schema in `_schemas`; and the map."""
    schemas = History(topic=SCHEMAS_TOPIC)
    schemas.batch(Record(0, 0, *registered(7, CUSTOMER)))
    schemas.write(RealEnv(), str(tmp_path / "logs"))
    for partition in range(PARTITIONS):
        customers, mails = (History(topic, partition) for topic in ("customers", "mails"))
        for index in range(4):
            number = index * PARTITIONS + partition
            customers.batch(Record(index, 0, b"%d" % number, confluent(7, customer(number, f"c{number}@example.com"))))
            # Into another partition than the customer's.
            to = f"c{(number + 1) % 12}@example.com"
            mails.batch(Record(index, 0, None, json.dumps({"to": to, "text": "hello"}).encode()))
        customers.write(RealEnv(), str(tmp_path / "logs"))
        mails.write(RealEnv(), str(tmp_path / "logs"))
    (tmp_path / "people.json").write_text(json.dumps(MAP))
    return str(tmp_path / "logs"), str(tmp_path / "people.json")


def run(*words: str) -> list[Any]:
    """Return the lines of a command."""
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.slow
def test_a_person_is_shown_from_many_partitions(spark: SparkSession, files: tuple[str, str]) -> None:
    """An identifier that one task finds leads to records of others; values are decoded in the executors."""
    logs, people = files
    words = ["person", "show", logs, "customer_id=4", "--map", people]
    found = run("spark", *words, "--master", "local[2]")
    records = [one for one in found if one["kind"] == "record"]
    assert [(one["topic"], one["by"]) for one in records] == [("customers", ["customer_id"]), ("mails", ["email"])]
    assert records[0]["value_json"]["email"] == "c4@example.com"
    for line in (alone := run("log", *words)):
        for gate in line.get("why", ()):
            gate.pop("until_ms")
    for line in found:
        for gate in line.get("why", ()):
            gate.pop("until_ms")
    assert found == alone


@pytest.mark.slow
def test_a_map_is_suggested_from_many_partitions(spark: SparkSession, files: tuple[str, str]) -> None:
    """The draft is the same, too."""
    logs, _ = files
    words = ["person", "suggest", logs, "--json"]
    [draft] = run("spark", *words, "--master", "local[2]")
    assert {("customers", "value.email"), ("mails", "value.to")} <= {
        (one["topic"], one["place"]) for one in draft["places"]
    }
    assert [draft] == run("log", *words)


@pytest.mark.slow
def test_a_person_is_found_in_an_object_store(spark: SparkSession, files: tuple[str, str], tmp_path: Path) -> None:
    """Lines and draft are those of the same files on a disk; schemas lie in the store, too."""
    logs, people = files
    with ObjectStore(tmp_path / "server.log") as store:
        store.make_bucket("bucket")
        store.copy_in(Path(logs), "bucket/logs")
        place, master = store.uri("bucket/logs"), ["--master", "local[2]"]
        words = ["customer_id=4", "--map", people]
        shown = [run("spark", "person", "show", one, *words, *master) for one in (place, logs)]
        drafts = [run("spark", "person", "suggest", one, "--json", *master) for one in (place, logs)]
    for line in (line for lines in shown for line in lines):
        for gate in line.get("why", ()):
            gate.pop("until_ms")
    assert shown[0] == shown[1]
    assert drafts[0] == drafts[1]
