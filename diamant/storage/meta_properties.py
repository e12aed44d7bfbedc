"""`meta.properties`: whose log directory this is (Kafka's MetaProperties, PropertiesUtils).

A Java properties file: `key=value` lines in any order, `#` or `!` comments, backslash escapes.

    #
    #Sat Nov 21 05:30:51 UTC 2026
    node.id=1
    directory.id=lcL2Klz_SKCToKbMs7XpKw
    version=1
    cluster.id=vaohQqPqmE4KmmtIawBUHw

Version 1 is KRaft's. Version 0 (ZooKeeper, with `broker.id`) is read, so that it can be refused with a clear message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from uuid import UUID

from diamant.storage import names
from diamant.storage.env import Env
from diamant.storage.errors import CorruptLog, StorageError
from diamant.storage.uuid_text import random_id, uuid_from_text, uuid_to_text

KRAFT_VERSION = 1

_RESERVED_DIRECTORY_IDS = 100
"""Ids below this number mean "lost", "unassigned" and the like (Kafka's DirectoryId)."""

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_UNESCAPED_SEPARATOR = re.compile(r"((?:[^\\=:\s]|\\.)*)\s*[=:]?\s*(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The owner of a log directory."""

    cluster_id: str
    node_id: int
    directory_id: UUID
    """Unique among all log directories of the cluster."""


def new_meta_properties(node_id: int, cluster_id: str | None = None) -> MetaProperties:
    """Return properties for a fresh directory, with a new cluster id unless one is given."""
    return MetaProperties(cluster_id or uuid_to_text(random_id()), node_id, random_id())


def read_meta_properties(env: Env, directory: str) -> MetaProperties | None:
    """Return the owner of a log directory, None if it is not formatted yet.

    A missing `directory.id` (Kafka before 3.7 had none) is made up and added to the file, as in Kafka. CorruptLog if
    the file is not as it should be, StorageError if it is not KRaft's.
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
        raise CorruptLog(path, 1, f"expected node.id to be a number from 0, got {node_id!r}")
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
    """Write the owner of a log directory, atomically and durably; blocks for the disk."""
    content = format_properties(
        {
            "node.id": str(properties.node_id),
            "directory.id": uuid_to_text(properties.directory_id),
            "version": str(KRAFT_VERSION),
            "cluster.id": properties.cluster_id,
        }
    )
    env.write_atomically(f"{directory}/{names.META_PROPERTIES}", content.encode("latin-1"))


def parse_properties(text: str) -> dict[str, str]:
    """Parse a Java properties file (`java.util.Properties.load`); the last of several equal keys wins."""
    properties = {}
    for line in _logical_lines(text):
        match = _UNESCAPED_SEPARATOR.fullmatch(line)
        if match is not None:
            properties[_unescape(match[1])] = _unescape(match[2])
    return properties


def _logical_lines(text: str) -> list[str]:
    """Return the lines that are neither blank nor comments, with continued ones joined."""
    lines: list[str] = []
    is_continued = False
    for line in re.split(r"\r\n|\r|\n", text):
        line = line.lstrip(" \t\f")
        if not is_continued and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        ends_open = backslashes % 2 == 1
        content = line[:-1] if ends_open else line
        if is_continued:
            lines[-1] += content
        else:
            lines.append(content)
        is_continued = ends_open
    return lines


def _unescape(text: str) -> str:
    return _ESCAPE.sub(
        lambda match: chr(int(match[1][1:], 16)) if len(match[1]) > 1 else _CONTROL.get(match[1], match[1]), text
    )


def format_properties(properties: dict[str, str]) -> str:
    """Return a Java properties file in the given order, in ISO-8859-1 (all else is escaped)."""
    lines = [f"{_escape(key, is_key=True)}={_escape(value, is_key=False)}\n" for key, value in properties.items()]
    return "".join(lines)


def _escape(text: str, *, is_key: bool) -> str:
    special = "\\=:#! " if is_key else "\\=:#!"
    reverse = {value: key for key, value in _CONTROL.items()}
    parts = []
    for index, character in enumerate(text):
        if character in reverse:
            parts.append("\\" + reverse[character])
        elif character in special or (character == " " and not index):
            parts.append("\\" + character)
        elif " " <= character <= "~":
            parts.append(character)
        else:
            units = character.encode("utf-16-be")
            parts.extend(f"\\u{units[at : at + 2].hex().upper()}" for at in range(0, len(units), 2))
    return "".join(parts)
