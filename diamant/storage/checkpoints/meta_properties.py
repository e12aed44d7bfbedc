"""`meta.properties`: the owner of a log directory (Kafka's MetaProperties, PropertiesUtils).

A Java properties file (`properties`):

    #
    #Sat Nov 21 05:30:51 UTC 2026
    node.id=1
    directory.id=lcL2Klz_SKCToKbMs7XpKw
    version=1
    cluster.id=vaohQqPqmE4KmmtIawBUHw

Version 1 is KRaft's. Version 0 (ZooKeeper, with `broker.id`) is parsed only to be refused with a clear message.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog, StorageError
from diamant.storage.properties import format_properties, parse_properties
from diamant.storage.uuid_text import random_id, uuid_from_text, uuid_to_text

KRAFT_VERSION = 1

_RESERVED_DIRECTORY_IDS = 100
"""Ids below this number mean "lost", "unassigned" and the like (Kafka's DirectoryId)."""


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The owner of a log directory."""

    cluster_id: str
    node_id: int
    directory_id: UUID
    """Unique among all log directories of the cluster."""


def read_meta_properties(env: Env, directory: str) -> MetaProperties | None:
    """Return the owner of a log directory, None if it is not formatted yet.

    A missing `directory.id` (Kafka before 3.7 had none) is generated and added to the file, as in Kafka. Raises CorruptLog if
    the file is invalid, StorageError if its version is not KRaft's.
    """
    path = f"{directory}/{names.META_PROPERTIES}"
    try:
        text = env.read_bytes(path).decode("latin-1")
    except FileNotFoundError:
        return None
    properties = parse_properties(text)
    version = properties.get("version", "0")
    if version != str(KRAFT_VERSION):
        raise StorageError(f"{path}: expected version {KRAFT_VERSION} (KRaft), got {version}")
    for key in ("cluster.id", "node.id"):
        if not properties.get(key):
            raise CorruptLog(path, 1, f"{key} is missing")
    node_id = properties["node.id"]
    if not node_id.isdecimal():
        raise CorruptLog(path, 1, f"expected node.id to be a non-negative integer, got {node_id!r}")
    if "directory.id" not in properties:
        completed = MetaProperties(properties["cluster.id"], int(node_id), random_id())
        write_meta_properties(env, directory, completed)
        return completed
    try:
        directory_id = uuid_from_text(properties["directory.id"])
    except ValueError as error:
        raise CorruptLog(path, 1, f"directory.id: {error}") from None
    if directory_id.int < _RESERVED_DIRECTORY_IDS:
        raise CorruptLog(path, 1, f"directory.id {properties['directory.id']} is reserved")
    return MetaProperties(properties["cluster.id"], int(node_id), directory_id)


def write_meta_properties(env: Env, directory: str, properties: MetaProperties) -> None:
    """Write the owner of a log directory, atomically and durably; blocks on the disk."""
    content = format_properties(
        {
            "node.id": str(properties.node_id),
            "directory.id": uuid_to_text(properties.directory_id),
            "version": str(KRAFT_VERSION),
            "cluster.id": properties.cluster_id,
        }
    )
    env.write_atomically(f"{directory}/{names.META_PROPERTIES}", content.encode("latin-1"))
