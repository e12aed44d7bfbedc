"""The columns `key_json` and `value_json`: keys and values decoded by schemas that the driver sends to the tasks."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from diamant.cleaner.spark.environment.spark_errors import SparkMisuse
from diamant.cleaner.spark.source.data_source import KafkaLogReader
from diamant.cleaner.spark.source.options import SourceOptions
from diamant.cleaner.spark.source.source_columns import default_columns
from diamant.cleaner.values.schemas_topic import SCHEMAS_TOPIC
from diamant.protocol.batches.header import Header, Record
from diamant.storage.env.env import RealEnv
from tests.cleaner.log_history import History
from tests.cleaner.spark.source.reading import read
from tests.cleaner.values.framed import CUSTOMER, confluent, customer, registered
from tests.registry_server import schema_registry

DECODED = {"id": 3, "email": "ada@example.com", "level": "BASIC", "tags": {}}
AVRO = customer(3, "ada@example.com")


def directory(path: Path, *, with_schemas: bool) -> Path:
    """Return a log directory with values in frames of schema 7, by prefix and by header, in JSON, and others."""
    log = History(topic="customers")
    in_header = Header("__value_schema_id", b"\0" + (7).to_bytes(4, "big"))
    log.batch(
        Record(0, 0, b'{"no": 1}', confluent(7, AVRO)),
        Record(1, 0, confluent(7, AVRO), AVRO, (in_header,)),
        Record(2, 0, None, b'{"plain": "json"}'),
        Record(3, 0, b"k", None),
        Record(4, 0, b"k", confluent(8, AVRO)),
        Record(5, 0, b"k", confluent(7, AVRO[:4])),
        Record(6, 0, b"k", confluent(9, b'{"by": "schema"}')),
    )
    log.write(RealEnv(), str(path))
    if with_schemas:
        schemas = History(topic=SCHEMAS_TOPIC)
        schemas.batch(Record(0, 0, *registered(7, CUSTOMER)))
        schemas.write(RealEnv(), str(path))
    return path


def found(path: Path, **options: Any) -> list[tuple[Any, Any]]:
    rows = read(path, columns="key_json,value_json,offset", topics="customers", **options).rows

    def parsed(row: Mapping[str, Any], name: str) -> Any:
        return None if row[name] is None else json.loads(row[name])

    return [(parsed(row, "key_json"), parsed(row, "value_json")) for row in rows]


EXPECTED = [
    ({"no": 1}, DECODED),
    (DECODED, DECODED),
    (None, {"plain": "json"}),
    (None, None),
    (None, None),
    (None, None),
    (None, {"by": "schema"}),
]


def test_values_are_decoded_by_the_schemas_of_the_directory(tmp_path: Path) -> None:
    """Frames before the value and in a header are decoded; JSON is unchanged; a value that cannot be decoded is NULL."""
    assert found(directory(tmp_path, with_schemas=True)) == EXPECTED


def test_a_registry_is_asked_once_for_each_schema(tmp_path: Path) -> None:
    """The process of an executor asks once, for all records; files of a directory come before it."""
    log = directory(tmp_path / "logs", with_schemas=False)
    with schema_registry({7: CUSTOMER}) as registry:
        assert found(log, registry=registry.url) == EXPECTED
        # Twice for 7, which is of keys and of values.
        assert sorted(path for path, _ in registry.asked) == [f"/schemas/ids/{number}" for number in (7, 7, 8, 9)]
    (tmp_path / "7.avsc").write_text(json.dumps(CUSTOMER))
    assert found(log, schema_directory=tmp_path) == EXPECTED


def test_a_reader_is_sent_with_its_schemas(tmp_path: Path) -> None:
    """It can be pickled, and reads no topic of schemas in an executor. Without a decoded column it reads none at all."""
    log = directory(tmp_path, with_schemas=True)
    options = SourceOptions.parse({"path": str(log), "columns": "value_json"})
    copy = pickle.loads(pickle.dumps(KafkaLogReader(options, options.columns)))
    assert copy.options.schemas.of_directories.keys() == {str(log)}
    plain = SourceOptions.parse({"path": str(log)})
    assert not {"key_json", "value_json"}.intersection(default_columns(is_permissive=False))
    assert KafkaLogReader(plain, plain.columns).options.schemas is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"registry": "ftp://a"}, "expected a URL"), ({"registry_user": "a:b"}, "expected a URL, because")],
)
def test_bad_options_are_named(options: Mapping[str, str], expected: str) -> None:
    """Before anything is read."""
    with pytest.raises(SparkMisuse, match=expected):
        SourceOptions.parse({"path": "/logs", **options})
