"""Every file that a data directory holds, and what it is: nothing is left out because of its name.

batches     segments, in use or not (`.deleted`, `.swap`, `.cleaned`), of topics, of internal topics, of the metadata
            log; the metadata's snapshots
bytes       everything else: indexes, producer snapshots, facts and filters, checkpoints, intents, unknown files

A symbolic link to a directory is followed where the broker follows it, as a partition's directory in the log directory. Others
lead to what has a name of its own below the directory, or is outside of it: they are told of (`OnLink`) and not followed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from diamant.storage import names
from diamant.storage.env.env import Env

BATCHES = "batches"
BYTES = "bytes"

OTHER = "other"
"""The sort of files of which their names say nothing."""

MAX_DEPTH = 64
"""Directories in directories; one that is deeper is a place that cannot be read."""
TOO_DEEP = "directory"
"""The `sort` of such a one."""

OnLink: TypeAlias = Callable[[str], object]
"""Gets the name of each link that is not followed."""


@dataclass(frozen=True, slots=True)
class Place:
    """One file."""

    path: str
    name: str
    """Relative to the directory that was listed."""
    content: str
    """`BATCHES` or `BYTES`."""
    sort: str
    """For the report: `segment`, `segment.deleted`, `index`, `snapshot`, ..."""
    topic: str | None = None
    partition: int | None = None
    base_offset: int | None = None
    """Of a segment in use."""
    named_offset: int | None = None
    """In the name of a segment's file or a snapshot, whatever state it is in, in a partition's directory in use. Only of names as
    logs give them, with 20 digits."""
    is_set_aside: bool = False
    """True if it is in a directory that waits to be deleted, or that no topic claims."""


def list_places(env: Env, directory: str, on_link: OnLink = lambda name: None) -> Iterator[Place]:
    """Yield all files below `directory`. A directory that disappears is passed over; OSError for other failures."""
    yield from _list(env, directory, "", None, 0, on_link)


def place_named(name: str) -> Place:
    """Return what a file below the data directory is by its name alone, and without a path."""
    top, slash, rest = name.partition("/")
    if not slash:
        return Place("", name, BYTES, _sort_of_file(name))
    return _place_in("", name, rest.rpartition("/")[2], _owner(top))


def list_below(
    env: Env, directory: str, owner: tuple[str, int, bool] | None, on_link: OnLink = lambda name: None
) -> Iterator[Place]:
    """Yield all files below a directory that is not in the data directory, by whole paths.

    `owner`: the topic, the partition, and that nothing there is in use; None: the owner is unknown. OSError.
    """
    yield from _list(env, directory, f"{directory}/", owner, 1, on_link)


def is_of_log(file: str, topic: str, partition: int) -> bool:
    """Tell by its name below the data directory whether a file is a segment of a log in use, or a part of a round's output.

    Offsets of any other file in the partition's directory are not those of its log.
    """
    directory, _, rest = file.partition("/")
    staged, _, entry = rest.rpartition("/")
    parsed = names.parse_segment_file(entry)
    if parsed is None or parsed.suffix != names.LOG_SUFFIX or parsed.stage == names.ASIDE_SUFFIX:
        return False
    is_staged = staged.startswith(names.STAGING_PREFIX) and "/" not in staged
    is_own = entry.startswith(f"{parsed.offset:020d}.")
    return directory == names.partition_dir_name(topic, partition) and is_own and (is_staged or not staged)


def is_in_use(file: str, topic: str, partition: int) -> bool:
    """Tell by its name below the data directory whether a file is a segment that a partition's log has now."""
    return is_of_log(file, topic, partition) and file.count("/") == 1 and file.endswith(names.LOG_SUFFIX)


def _list(
    env: Env, directory: str, prefix: str, owner: tuple[str, int, bool] | None, depth: int, on_link: OnLink
) -> Iterator[Place]:
    try:
        entries = env.list_dir(directory)
    except FileNotFoundError:
        return
    for entry in entries:
        path = f"{directory}/{entry}"
        if env.is_dir(path):
            below = _owner(entry) if not prefix else owner
            if env.is_link(path) and (prefix or below is None):
                on_link(prefix + entry)
            elif depth == MAX_DEPTH:
                yield Place(path, prefix + entry, BYTES, TOO_DEEP)
            else:
                yield from _list(env, path, f"{prefix}{entry}/", below, depth + 1, on_link)
        elif prefix:
            yield _place_in(path, prefix + entry, entry, owner)
        elif entry == names.BOOTSTRAP_CHECKPOINT:
            # The first records of the metadata log.
            yield Place(path, entry, BYTES, _sort_of_file(entry), names.METADATA_TOPIC, 0)
        else:
            yield Place(path, entry, BYTES, _sort_of_file(entry))


def _owner(name: str) -> tuple[str, int, bool] | None:
    try:
        topic, partition = names.parse_partition_dir(name)
    except ValueError:
        return None
    if names.is_shortened(name):
        return None  # Of which topic with this beginning it is the name does not tell.
    return topic, partition, bool(names.set_aside_suffix(name))


def _place_in(path: str, name: str, entry: str, owner: tuple[str, int, bool] | None) -> Place:
    topic, partition, is_set_aside = owner if owner is not None else (None, None, False)
    parsed = names.parse_segment_file(entry)
    if parsed is not None:
        is_segment = parsed.suffix == names.LOG_SUFFIX
        sort = ("segment" if is_segment else parsed.suffix[1:]) + parsed.stage
        is_own = topic is not None and partition is not None and name == f"{topic}-{partition}/{entry}"
        is_own = is_own and entry.startswith(f"{parsed.offset:020d}.")
        named_offset = parsed.offset if is_own else None
        base_offset = named_offset if is_segment and not parsed.stage else None
        content = BATCHES if is_segment else BYTES
        return Place(path, name, content, sort, topic, partition, base_offset, named_offset, is_set_aside)
    if topic == names.METADATA_TOPIC and names.parse_metadata_snapshot(entry) is not None:
        return Place(path, name, BATCHES, "metadata snapshot", topic, partition)
    return Place(path, name, BYTES, _sort_of_file(entry), topic, partition, is_set_aside=is_set_aside)


def _sort_of_file(entry: str) -> str:
    if entry.startswith("diamant-"):
        return os.path.splitext(entry)[1].lstrip(".") or "diamant"
    return OTHER
