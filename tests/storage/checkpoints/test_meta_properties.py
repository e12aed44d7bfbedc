"""`meta.properties`."""

from __future__ import annotations

from uuid import UUID

import pytest

from diamant.storage.checkpoints.meta_properties import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from diamant.storage.errors import CorruptLog, StorageError
from diamant.storage.uuid_text import random_id, uuid_from_text
from tests.memory_env import MemoryEnv

# As a Kafka 4.3.1 node formatted with `kafka-storage format --standalone` has it.
KAFKAS = (
    "#\n#Sat Nov 21 05:30:51 UTC 2026\nnode.id=1\ndirectory.id=lcL2Klz_SKCToKbMs7XpKw\nversion=1\n"
    "cluster.id=vaohQqPqmE4KmmtIawBUHw\n"
)


def write(env: MemoryEnv, text: str) -> None:
    env.write_atomically("/meta.properties", text.encode("latin-1"))


def test_reads_what_kafka_wrote(memory: MemoryEnv) -> None:
    """A file of Kafka's yields cluster, node and directory."""
    assert read_meta_properties(memory, "") is None
    write(memory, KAFKAS)
    assert read_meta_properties(memory, "") == MetaProperties(
        "vaohQqPqmE4KmmtIawBUHw", 1, uuid_from_text("lcL2Klz_SKCToKbMs7XpKw")
    )


def test_round_trip_is_durable(memory: MemoryEnv) -> None:
    """Properties survive a write and a crash."""
    properties = MetaProperties("cluster", 7, random_id())
    write_meta_properties(memory, "", properties)
    memory.crash()
    assert read_meta_properties(memory, "") == properties


def test_a_missing_directory_id_is_added(memory: MemoryEnv) -> None:
    """A directory from before directory ids gets one, which then stays."""
    write(memory, "version=1\nnode.id=3\ncluster.id=abc\n")
    first = read_meta_properties(memory, "")
    assert first is not None
    assert (first.cluster_id, first.node_id) == ("abc", 3)
    assert read_meta_properties(memory, "") == first


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("broker.id=0\n", StorageError, "expected version 1"),
        ("version=0\nbroker.id=0\ncluster.id=x\n", StorageError, "expected version 1"),
        ("version=2\n", StorageError, "got 2"),
        ("version=1\nnode.id=1\n", CorruptLog, "cluster.id is missing"),
        ("version=1\ncluster.id=x\n", CorruptLog, "node.id is missing"),
        ("version=1\ncluster.id=x\nnode.id=-1\n", CorruptLog, "'-1'"),
        ("version=1\ncluster.id=x\nnode.id=1\ndirectory.id=x\n", CorruptLog, "22 characters"),
        ("version=1\ncluster.id=x\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAg\n", CorruptLog, "reserved"),
    ],
)
def test_other_versions_and_malformed_ids_are_refused(
    memory: MemoryEnv, text: str, error: type[StorageError], message: str
) -> None:
    """Other versions, missing keys, reserved and malformed ids are refused with the reason."""
    write(memory, text)
    with pytest.raises(error, match=message):
        read_meta_properties(memory, "")


def test_ids_with_a_set_top_bit_are_not_reserved(memory: MemoryEnv) -> None:
    """Only the hundred ids that count up from zero are reserved."""
    properties = MetaProperties("c", 1, UUID(int=(1 << 128) - 1))
    write_meta_properties(memory, "", properties)
    assert read_meta_properties(memory, "") == properties
