"""Schemas in the files of a directory."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import UUID

import pytest

from diamant.cleaner.values.framing import FINGERPRINT, GLUE, ID, Frame
from diamant.cleaner.values.nodes import Undecodable
from diamant.cleaner.values.schema_places import SchemaDirectory
from diamant.cleaner.values.schemas import NoSchema, Schemas, SchemaText
from diamant.storage.env.env import RealEnv

A_UUID = UUID(int=5)


def test_files_are_found_by_id_and_by_topic(tmp_path: Path) -> None:
    """The id comes first; a .proto file has the others as its imports."""
    for name in ("7.avsc", f"{A_UUID}.avsc", "orders-value.proto", "common.proto", "orders-key.avsc", "other.txt"):
        (tmp_path / name).write_text(name)
    source = SchemaDirectory(RealEnv(), str(tmp_path))
    by_topic = SchemaText("PROTOBUF", "orders-value.proto", {"common.proto": "common.proto"})
    assert source.find((ID, 7), "orders", "value") == SchemaText("AVRO", "7.avsc")
    assert source.find((GLUE, A_UUID), "orders", "value") == SchemaText("AVRO", f"{A_UUID}.avsc")
    assert source.find((ID, 8), "orders", "value") == by_topic
    assert source.find((ID, 8), "orders", "key") == SchemaText("AVRO", "orders-key.avsc")
    assert source.find((FINGERPRINT, 7), "orders", "value") == by_topic
    assert source.find((ID, 8), "payments", "value") is None


@pytest.mark.parametrize("suffix", [".desc", ".pb", ".binpb"])
def test_a_descriptor_set_is_a_schema(tmp_path: Path, suffix: str) -> None:
    """A set has the schema with its imports; a broken one is named, and does not end the search."""
    shutil.copy(Path(__file__).with_name("shop.binpb"), tmp_path / f"7{suffix}")
    (tmp_path / f"orders-value{suffix}").write_bytes(b"broken")
    source = SchemaDirectory(RealEnv(), str(tmp_path))
    found = source.find((ID, 7), "orders", "value")
    assert found is not None
    assert (found.kind, [*found.references]) == ("PROTOBUF", ["google/protobuf/any.proto", "common.proto"])
    with pytest.raises(NoSchema, match=f"orders-value{suffix}: not a descriptor set"):
        source.find((ID, 8), "orders", "value")


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    """A missing directory has no schemas, and does not end the search for one; the problem names it."""
    schemas = Schemas([SchemaDirectory(RealEnv(), str(tmp_path / "none"))])
    assert schemas.find((ID, 7), "orders", "value") is None
    with pytest.raises(Undecodable, match="No such file"):
        schemas.decode(Frame((ID, 7), b"", 0), "orders", "value")
    [problem] = schemas.problems
    assert "none" in problem
