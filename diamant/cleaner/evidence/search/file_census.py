"""Counts the files and the declared contents of segments for which a scan must account. Shares no code with the scan.

    FileCensus   the files, by their identity in the operating system, with their sizes; and names without content (empty
                 directories, links to directories, and dangling links). Names are not interpreted
    declared     batches, records and bytes of a segment by codec, from the headers alone, without decompressing

Can be used in any thread. Memory: some 400 bytes per file below the directory, and one window of `WINDOW_BYTES`.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, TypeAlias

from diamant.kernels import ARE_COMPILED
from diamant.storage.env.env import Env, File

WINDOW_BYTES = 4096
"""Size of one read. It covers the header of a large batch, or many small batches."""
RAW = "bytes"
"""The key in `Amounts` for bytes outside batches, which are searched as plain bytes."""
OLD = "old "
"""Prefix of the codec's name for batches with magic 0 or 1, whose headers do not declare how many records there are."""

Amounts: TypeAlias = dict[str, list[int]]
"""Numbers of batches, records and bytes on disk, by codec or `RAW`."""

Identity: TypeAlias = tuple[Any, ...]

FileKey: TypeAlias = tuple[str, Identity]
"""A name, relative to the directory, and its file's identity. The name decides how the file is read."""

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd", "codec 5", "codec 6", "codec 7")
_LENGTH_AND_MAGIC = Struct(">i4xb")
_ATTRIBUTES = Struct(">h")
_COUNT = Struct(">i")
_HEADER_BYTES = 61
_OLD_HEADER_BYTES = 26
_BEFORE_LENGTH = 12
_IS_PARTITION = re.compile(r".+-[0-9]+(?:\.\S+-(?:delete|future|stray))?")


def codec_name(magic: int, attributes: int) -> str:
    """Return the name under which `Amounts` counts batches with this magic and the codec in these attributes."""
    return ("" if magic == 2 else OLD) + _CODECS[attributes & 7]


def add_to(amounts: Amounts, name: str, batches: int, records: int, size: int) -> None:
    """Add to the counts of one codec."""
    found = amounts.setdefault(name, [0, 0, 0])
    found[0] += batches
    found[1] += records
    found[2] += size


def declared(file: File, end: int, max_batch_bytes: int) -> Amounts:
    """Return the amounts that the headers of a segment's batches declare, up to byte `end`.

    The first bytes that are not a complete batch of at most `max_batch_bytes`, and everything after them, count as `RAW`.
    Does blocking I/O; raises OSError.
    """
    fd = file.fileno()
    found, position = (
        _count_headers(file, end, max_batch_bytes)
        if fd is None or not ARE_COMPILED
        else _compiled_count(fd, end, max_batch_bytes)
    )
    if position < end:
        add_to(found, RAW, 0, 0, end - position)
    return found


def _compiled_count(fd: int, end: int, max_batch_bytes: int) -> tuple[Amounts, int]:
    """Do the same as `_count_headers`, with kernels."""
    from diamant.kernels.census import count_headers

    amounts = memoryview(bytearray(16 * 3 * 8)).cast("q", (16, 3))
    position, problem = count_headers(fd, end, max_batch_bytes, amounts)
    if problem:
        raise OSError(problem, os.strerror(problem))
    found = {
        codec_name(0 if row > 7 else 2, row): [amounts[row, index] for index in range(3)]
        for row in range(16)
        if amounts[row, 0]
    }
    return found, position


def _count_headers(file: File, end: int, max_batch_bytes: int) -> tuple[Amounts, int]:
    """Return the declared amounts, and the end of the last batch."""
    found: Amounts = {}
    window, start, position = b"", 0, 0
    while position < end:
        at = position - start
        if at + _HEADER_BYTES > len(window):
            window, start, at = file.pread(min(WINDOW_BYTES, end - position), position), position, 0
        left = min(end - position, len(window) - at)
        if left < _OLD_HEADER_BYTES:
            break
        length, magic = _LENGTH_AND_MAGIC.unpack_from(window, at + 8)
        size = length + _BEFORE_LENGTH
        least = _HEADER_BYTES if magic == 2 else _OLD_HEADER_BYTES
        if not 0 <= magic <= 2 or not least <= size <= min(end - position, max_batch_bytes):
            break
        if magic == 2:
            (attributes,) = _ATTRIBUTES.unpack_from(window, at + 21)
            (records,) = _COUNT.unpack_from(window, at + 57)
        else:
            attributes, records = window[at + 17], 0
        add_to(found, codec_name(magic, attributes), 1, records, size)
        position += size
    return found, position


def file_identity(env: Env, path: str) -> tuple[Identity, int]:
    """Return the identity of a file, and its size. Renames and appends do not change the identity. Raises OSError."""
    born = env.birth_ms(path)
    try:
        found = os.stat(path)
    except OSError:
        # An in-memory file system has no such numbers.
        size = env.file_size(path)
        return (path, size, env.mtime_ms(path)), size
    return (found.st_dev, found.st_ino, found.st_mtime_ns if born is None else born), found.st_size


def name_identity(path: str) -> Identity:
    """Return the identity of an empty directory, or of a link itself rather than its target."""
    try:
        found = os.lstat(path)
    except OSError:
        return (path,)  # It is gone, or in an in-memory file system.
    return found.st_dev, found.st_ino


def changed_at(env: Env, path: str) -> int:
    """Return when a file's content or names last changed. Programs cannot set this time. Raises OSError."""
    try:
        return os.stat(path).st_ctime_ns
    except OSError:
        # An in-memory file system has no such time.
        return env.mtime_ms(path)


def _leads_nowhere(path: str) -> bool:
    try:
        os.stat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return True
        raise
    return False


@dataclass(slots=True)
class Listed:
    """A listed name of a file. A file with two hard links is listed twice."""

    size: int
    """The smallest size since the first look, because files grow while they are read."""
    latest_size: int
    """Size at the last look."""
    changed: int
    """Time of the last change, at the last look (`changed_at`)."""


@dataclass(slots=True)
class FileCensus:
    """All names below `directory`, updated by each `look`. Links to directories are followed only if named like partitions."""

    env: Env
    directory: str
    besides: tuple[str, str] | None = None
    """Another directory, and a prefix. Files below its subdirectories that have this prefix count as well, by absolute path."""
    problem: str = ""
    """The error in the last attempt to list the other directory; "" if there was none."""
    files: dict[FileKey, Listed] = field(default_factory=dict)
    """The files at the last look."""
    looks: int = 0

    def look(self) -> None:
        """List everything again. Does blocking I/O; raises OSError if a directory cannot be listed."""
        self.looks += 1
        found: dict[FileKey, Listed] = {}
        self._list(found, f"{self.directory}/", [""])
        self.problem = ""
        if self.besides is not None:
            root, front = self.besides
            try:
                below = [f"{root}/{name}/" for name in self.env.list_dir(root) if name.startswith(front)]
                self._list(found, "", below)
            except FileNotFoundError:
                pass
            except OSError as error:
                self.problem = str(error.strerror or error)
        self.files = found

    def _list(self, found: dict[FileKey, Listed], base: str, waiting: list[str]) -> None:
        while waiting:
            prefix = waiting.pop()
            try:
                entries = self.env.list_dir(f"{base}{prefix}".rstrip("/"))
            except FileNotFoundError:
                continue
            if prefix and not entries:
                found[prefix, name_identity(f"{base}{prefix}".rstrip("/"))] = Listed(0, 0, 0)
            for entry in entries:
                name = prefix + entry
                path = f"{base}{name}"
                is_dir, is_link = self.env.is_dir(path), os.path.islink(path)
                if is_dir and (not is_link or (not prefix and _IS_PARTITION.fullmatch(entry))):
                    waiting.append(f"{name}/")
                elif is_link and (is_dir or _leads_nowhere(path)):
                    found[name, name_identity(path)] = Listed(0, 0, 0)
                else:
                    self._note_file(found, name, path)

    def _note_file(self, found: dict[FileKey, Listed], name: str, path: str) -> None:
        try:
            identity, size = file_identity(self.env, path)
            changed = changed_at(self.env, path)
        except FileNotFoundError:
            return
        known = self.files.get((name, identity))
        found[name, identity] = Listed(size if known is None else min(size, known.size), size, changed)
