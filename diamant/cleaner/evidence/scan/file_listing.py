"""Lists everything below a data directory with its kind of content. Nothing is left out because of its name.

batches     segments of topics, internal topics and the metadata log, in use or not (`.deleted`, `.swap`, `.cleaned`);
            snapshots of the metadata
bytes       everything else: indexes, producer snapshots, facts and filters, checkpoints, intents, unknown files
nothing     empty directories, whose names end with a slash, and links that are not followed

A symbolic link to a directory is followed only where the broker follows it: in place of a partition's directory. Other links to
directories lead outside, or to directories that are listed under their own names. A link to a file is read like a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.given_names import is_given_at_the_top, is_given_in_a_partition

BATCHES = "batches"
BYTES = "bytes"
NOTHING = "nothing"

OTHER = "other"
"""The `sort` of files whose names do not show their kind."""

MAX_DEPTH = 64
"""Maximum depth of nested directories; deeper ones are not read and count as unreadable."""
TOO_DEEP = "directory"
"""The `sort` of a directory that is nested too deep."""


@dataclass(frozen=True, slots=True)
class Place:
    """One file, or a name without content."""

    path: str
    name: str
    """Path relative to the listed directory."""
    content: str
    """`BATCHES`, `BYTES` or `NOTHING`."""
    sort: str
    """Kind of file in reports: `segment`, `segment.deleted`, `index`, `snapshot`, ..."""
    topic: str | None = None
    partition: int | None = None
    base_offset: int | None = None
    """Base offset of a segment in use."""
    named_offset: int | None = None
    """Offset in the name of a snapshot, or of a segment's file in any state, in the directory of a partition in use. None unless
    the offset has 20 digits, as in all names that logs create."""
    is_set_aside: bool = False
    """True if the file's directory is not in use: it is to be deleted, or belongs to no topic."""

    @property
    def is_link(self) -> bool:
        """True for a link that is not followed."""
        return self.content == NOTHING and not self.name.endswith("/")


def list_places(env: Env, directory: str) -> Iterator[Place]:
    """Yield everything below `directory`. Skips directories that disappear; raises OSError for other failures."""
    yield from _list(env, directory, "", None, 0)


def place_named(name: str) -> Place:
    """Classify a file below the data directory by its name alone; the returned place has no path."""
    top, slash, rest = name.partition("/")
    if not slash:
        return Place("", name, BYTES, _sort_of_file(name))
    return _place_in("", name, rest.rpartition("/")[2], _owner(top))


def list_below(env: Env, directory: str, owner: tuple[str, int, bool] | None) -> Iterator[Place]:
    """Yield everything below a directory outside the data directory, with absolute paths.

    `owner`: the topic, the partition, and True, because nothing there is in use; None if unknown. Raises OSError.
    """
    yield from _list(env, directory, f"{directory}/", owner, 1)


def is_of_log(file: str, topic: str, partition: int) -> bool:
    """Tell by a file's name below the data directory whether it is a segment of a log in use, or output of a cleaning round.

    Offsets in other files of the partition's directory are not offsets of its log.
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
    """Tell by a file's name below the data directory whether it is a current segment of a partition's log."""
    return is_of_log(file, topic, partition) and file.count("/") == 1 and file.endswith(names.LOG_SUFFIX)


def _list(env: Env, directory: str, prefix: str, owner: tuple[str, int, bool] | None, depth: int) -> Iterator[Place]:
    try:
        entries = env.list_dir(directory)
    except FileNotFoundError:
        return
    if prefix and not entries:
        yield _without_content(directory, prefix, owner)
    for entry in entries:
        path = f"{directory}/{entry}"
        if env.is_dir(path):
            below = _owner(entry) if not prefix else owner
            if env.is_link(path) and (prefix or below is None):
                yield _without_content(path, prefix + entry, below)
            elif depth == MAX_DEPTH:
                yield Place(path, prefix + entry, BYTES, TOO_DEEP)
            else:
                yield from _list(env, path, f"{prefix}{entry}/", below, depth + 1)
        elif env.is_link(path) and not env.exists(path):
            yield _without_content(path, prefix + entry, owner)
        elif prefix:
            yield _place_in(path, prefix + entry, entry, owner)
        elif entry == names.BOOTSTRAP_CHECKPOINT:
            # This file contains the first records of the metadata log.
            yield Place(path, entry, BYTES, _sort_of_file(entry), names.METADATA_TOPIC, 0)
        else:
            yield Place(path, entry, BYTES, _sort_of_file(entry))


def _without_content(path: str, name: str, owner: tuple[str, int, bool] | None) -> Place:
    topic, partition, is_set_aside = owner if owner is not None else (None, None, False)
    return Place(path, name, NOTHING, NOTHING, topic, partition, is_set_aside=is_set_aside)


def _owner(name: str) -> tuple[str, int, bool] | None:
    try:
        topic, partition = names.parse_partition_dir(name)
    except ValueError:
        return None
    if names.is_shortened(name):
        return None  # Several topics may have the same shortened name.
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
    if entry.startswith("diamant-") and (is_given_at_the_top(entry) or is_given_in_a_partition(entry)):
        return os.path.splitext(entry)[1].lstrip(".") or "diamant"
    return OTHER
