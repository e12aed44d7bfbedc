"""Locations that tasks read and write: local paths, and `file:` or `s3:` URIs.

URIs are opened with pyarrow's file systems, because Spark's Python workers have no access to Hadoop file systems.

    Location.parse("/var/lib/kafka")                                  a path of the local machine
    Location.parse("file:///mnt/shared/logs")                         the same, as a URI
    Location.parse("s3://bucket/logs?region=eu-central-1")            options and credentials of pyarrow.fs.S3FileSystem; by
                                                                      default those of the environment
    Location.parse("s3://bucket/logs?scheme=http&endpoint_override=host:port")

A location can be pickled. As a string it omits user, password and options, which may be secret. `expand` resolves globs with `*`,
`?` and `[...]`, which match within a name.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from diamant.cleaner.spark.environment.spark_errors import SparkError, SparkMisuse, SparkUnavailable
from diamant.storage.env.env import RealFile
from diamant.storage.input_file import open_regular

if TYPE_CHECKING:
    from diamant.storage.env.env import Buffer, ReadableFile

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:")
_MAGIC = re.compile(r"[*?\[]")
LOCAL = ""
READ_AHEAD_BYTES = 8 * 1024 * 1024
"""Read-ahead for remote files that are read sequentially; one buffer of this size per open file."""


class Entry(NamedTuple):
    """A file or a directory in a directory."""

    name: str
    is_dir: bool
    size: int
    """Size in bytes; 0 for a directory."""
    mtime_ms: int | None
    """Time of the last modification; None if the file system does not record it."""


@dataclass(frozen=True, slots=True)
class Location:
    """A file or a directory. Failed access raises OSError (FileNotFoundError, PermissionError and so on)."""

    path: str
    """Path within the file system, with slashes: absolute for the local one, starting with the bucket for s3."""
    filesystem: str = LOCAL
    """The URI of the file system without the path; empty for the local one."""

    @classmethod
    def parse(cls, text: str) -> Location:
        """Parse a path or URI from a user. Raises SparkMisuse for an unsupported scheme or an invalid URI."""
        if not _SCHEME.match(text):
            return cls(os.path.abspath(text))
        try:
            parts = urlsplit(text)
        except ValueError:
            # The error of urlsplit quotes the URI, which may contain secrets.
            raise SparkMisuse(f"cannot parse the URI that begins with {text.partition(':')[0]}:") from None
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost"):
                raise SparkMisuse("cannot use the URI that begins with file:, expected file:///path, without a host")
            # Do not use parts.path, which ends at a question mark or hash: file names may contain these.
            _, _, rest = text.partition(":")
            return cls(os.path.abspath("/" + rest.removeprefix("//localhost").lstrip("/")))
        if parts.scheme in ("s3", "s3a"):
            _, _, bucket = parts.netloc.rpartition("@")
            if not bucket:
                raise SparkMisuse(
                    f"cannot use the URI that begins with {parts.scheme}:, expected {parts.scheme}://bucket/prefix"
                )
            # An unescaped slash would end the secret, and the part before the slash would be shown everywhere as the bucket.
            if ":" in bucket or "@" in parts.path + parts.query + parts.fragment:
                raise SparkMisuse(
                    f"cannot use the URI that begins with {parts.scheme}:, expected {parts.scheme}://KEY:SECRET@bucket/prefix; "
                    "slash, question mark, hash and at sign in a key or secret are written %2F, %3F, %23 and %40"
                )
            filesystem = urlunsplit(("s3", parts.netloc, "", parts.query, ""))
            return cls(posixpath.join(bucket, parts.path.strip("/")).rstrip("/"), filesystem)
        raise SparkMisuse(f"expected a path, file: or s3:, got the scheme {parts.scheme}:")

    @staticmethod
    def _redacted(text: str) -> str:
        parts = urlsplit(text)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    def __str__(self) -> str:
        return self.path if self.is_local else f"{urlsplit(self.filesystem).scheme}://{self.path}"

    def __repr__(self) -> str:
        return f"Location({str(self)!r})"  # omits the credentials that the fields may hold

    @property
    def is_local(self) -> bool:
        """True if the location is on the file system of the current machine."""
        return self.filesystem == LOCAL

    @property
    def name(self) -> str:
        """The last part of the path."""
        return posixpath.basename(self.path)

    @property
    def parent(self) -> Location:
        """The directory that contains it."""
        return replace(self, path=posixpath.dirname(self.path))

    def child(self, name: str) -> Location:
        """Return the location called `name` in this directory."""
        return replace(self, path=posixpath.join(self.path, name))

    def entries(self) -> list[Entry]:
        """Return the entries of this directory, sorted by name. Raises FileNotFoundError if it does not exist."""
        if self.is_local:
            with os.scandir(self.path) as entries:
                return sorted(filter(None, map(_local_entry, entries)))
        from pyarrow import fs

        found = self._fs().get_file_info(fs.FileSelector(self.path))
        return sorted(_entry(info) for info in found)

    def find(self) -> Entry | None:
        """Return the entry at this location; None if there is none."""
        if self.is_local:
            try:
                stat = os.stat(self.path)
            except (FileNotFoundError, NotADirectoryError):
                return None
            is_dir = os.path.isdir(self.path)
            return Entry(self.name, is_dir, 0 if is_dir else stat.st_size, stat.st_mtime_ns // 1_000_000)
        from pyarrow import fs

        info = self._fs().get_file_info(self.path)
        return None if info.type == fs.FileType.NotFound else _entry(info)

    def expand(self) -> list[Location]:
        """Return the locations that match this glob, sorted by name; the location itself if it has no `*`, `?` or `[...]`."""
        if not _MAGIC.search(self.path):
            return [self]
        parts = self.path.split("/")
        first = next(index for index, part in enumerate(parts) if _MAGIC.search(part))
        start = replace(self, path="/".join(parts[:first]) or "/")
        return list(start._matching(parts[first:]))

    def _matching(self, parts: list[str]) -> Iterator[Location]:
        if not parts:
            if self.find() is not None:
                yield self
            return
        if not _MAGIC.search(parts[0]):
            yield from self.child(parts[0])._matching(parts[1:])
            return
        try:
            entries = self.entries()
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            # As in a shell, a star does not match hidden files.
            if fnmatch.fnmatchcase(entry.name, parts[0]) and entry.name.startswith(".") <= parts[0].startswith("."):
                if len(parts) == 1:
                    yield self.child(entry.name)
                elif entry.is_dir:
                    yield from self.child(entry.name)._matching(parts[1:])

    def open(self, *, read_ahead_bytes: int = READ_AHEAD_BYTES) -> ReadableFile:
        """Open a file for random reads; the caller closes it. Raises FileNotFoundError if it does not exist.

        `read_ahead_bytes`: minimum size of a request for a remote file.
        """
        if self.is_local:
            return RealFile(self.path, open_regular(self.path)[0])
        return LocationFile(self, read_ahead_bytes)

    def read_bytes(self) -> bytes:
        """Return the content of a file, which must fit into memory."""
        with closing(self.open()) as file:
            return file.pread(file.size(), 0)

    def write_bytes(self, data: Buffer) -> None:
        """Write a file, replacing an existing one. Creates missing parent directories."""
        if self.is_local:
            os.makedirs(posixpath.dirname(self.path), exist_ok=True)
        with self.open_output() as stream:
            stream.write(data)

    def make_directory(self) -> None:
        """Create this directory, if missing. Raises FileNotFoundError if its parent is missing. Does nothing in s3."""
        if self.is_local:
            with suppress(FileExistsError):
                os.mkdir(self.path)

    def has_changed_since(self, time_ms: int) -> bool:
        """Return whether this directory, or anything in it, was created or written after `time_ms`. False if it does not exist.

        In s3 the whole directory is listed, which takes about 500 bytes of memory per file.
        """
        if not self.is_local:
            from pyarrow import fs

            selector = fs.FileSelector(self.path, allow_not_found=True, recursive=True)
            return any((_entry(info).mtime_ms or 0) > time_ms for info in self._fs().get_file_info(selector))
        for directory, _, files in os.walk(self.path):
            for path in (directory, *(f"{directory}/{name}" for name in files)):
                with suppress(FileNotFoundError):
                    if os.lstat(path).st_mtime_ns // 1_000_000 > time_ms:
                        return True
        return False

    def open_output(self) -> Any:
        """Open a file for sequential writing (`write` and `close`), in an existing directory."""
        return open(self.path, "wb") if self.is_local else self._fs().open_output_stream(self.path)

    def remove(self) -> None:
        """Remove a file, or a directory with its content, if it exists."""
        if self.is_local:
            if os.path.isdir(self.path) and not os.path.islink(self.path):
                shutil.rmtree(self.path)
            else:
                with suppress(FileNotFoundError):
                    os.unlink(self.path)
            return
        entry = self.find()
        if entry is None:
            return
        if entry.is_dir:
            self._fs().delete_dir(self.path)
        else:
            self._fs().delete_file(self.path)

    def _fs(self) -> Any:
        return _open_filesystem(self.filesystem)


class LocationFile:
    """A file in an object store."""

    def __init__(self, location: Location, read_ahead_bytes: int = READ_AHEAD_BYTES) -> None:
        self.path = str(location)
        self._stream = location._fs().open_input_file(location.path)
        self._size: int = self._stream.size()
        self._read_ahead_bytes = read_ahead_bytes
        self._ahead = b""
        self._ahead_from = 0

    def pread(self, count: int, position: int) -> bytes:
        """Return `count` bytes at `position`, or fewer at the end of the file."""
        count = max(0, min(count, self._size - position))
        start = position - self._ahead_from
        if not 0 <= start <= start + count <= len(self._ahead):
            # Read ahead, because a request takes as long as transferring a few MB, and files are mostly read sequentially.
            self._ahead = self._stream.read_at(min(max(count, self._read_ahead_bytes), self._size - position), position)
            self._ahead_from, start = position, 0
        return self._ahead[start : start + count]

    def size(self) -> int:
        """Return the size at the time of opening, in bytes."""
        return self._size

    def fileno(self) -> int | None:
        """Return None, because there is no descriptor."""
        return None

    def close(self) -> None:
        """Release the file."""
        self._stream.close()


@lru_cache(maxsize=64)
def _open_filesystem(uri: str) -> Any:
    try:
        from pyarrow import fs
    except ImportError:
        raise SparkUnavailable("pyarrow is not installed: in a clone of Diamant, pip install '.[spark]'") from None
    if uri == LOCAL:
        return fs.LocalFileSystem()
    try:
        return fs.FileSystem.from_uri(uri)[0]
    except (ValueError, NotImplementedError) as error:
        raise SparkError(f"{Location._redacted(uri)} cannot be opened: {_without_secrets(str(error), uri)}") from None


def _without_secrets(text: str, uri: str) -> str:
    """Hide the URI's user, password and options in an error message."""
    text = text.replace(uri, Location._redacted(uri))
    parts = urlsplit(uri)
    user_info = parts.netloc.rpartition("@")[0]
    user, _, password = user_info.partition(":")
    for secret in (user_info, parts.query, password, unquote(password), user, unquote(user)):
        if secret:
            text = text.replace(secret, "[hidden]")
    return text


def _local_entry(entry: os.DirEntry[str]) -> Entry | None:
    try:
        is_dir = entry.is_dir()
        stat = entry.stat()
    except FileNotFoundError:
        return None  # The file was removed since the directory was listed.
    return Entry(entry.name, is_dir, 0 if is_dir else stat.st_size, stat.st_mtime_ns // 1_000_000)


def _entry(info: Any) -> Entry:
    from pyarrow import fs

    is_dir = info.type == fs.FileType.Directory
    mtime_ms = None if info.mtime_ns is None else info.mtime_ns // 1_000_000
    return Entry(info.base_name, is_dir, 0 if is_dir else info.size, mtime_ms)
