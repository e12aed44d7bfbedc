"""The files of one attempt of a task: segments read where they are, outputs written to a directory of its own.

It stands in for the `Env` of the local engines, which see the paths of the broker. Sources lie in the partition's directory, on a
file system that the executors share, or were copied to the staging place; outputs go to the staging place through pyarrow.fs.
Two attempts of a task never write to the same file, so that a task that Spark starts twice does no harm.

Memory: what pyarrow buffers of a file that is written to an object store, some 10 MiB.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from crc32c import crc32c

from diamant.cleaner.spark.environment.errors import SegmentChanged
from diamant.storage import names

if TYPE_CHECKING:
    from diamant.cleaner.rules.plan import CleanPlan
    from diamant.cleaner.spark.environment.locations import Location
    from diamant.storage.env.env import Buffer, Env


class StagedFile(NamedTuple):
    """A file as it was written."""

    size: int
    crc32c: int


class TaskFiles:
    """As much of `storage.env.env.Env` as an engine uses. `source` and `target` are directories."""

    def __init__(self, plan: CleanPlan, source: Location, target: Location | None = None) -> None:
        self._source = source
        self._target = target
        self._sizes = {os.path.basename(names.log_file("", one.base_offset)): one.size for one in plan.segments}
        self.written: dict[str, StagedFile] = {}
        """Files that are complete, by name."""

    @property
    def env(self) -> Env:
        """Itself, as engines know it."""
        return cast("Env", self)

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> Any:
        """Open a segment of the plan. SegmentChanged if it has another size now, FileNotFoundError if it is gone."""
        name = os.path.basename(path)
        try:
            file = self._source.child(name).open()
        except FileNotFoundError as error:
            raise FileNotFoundError(error.errno, "the segment is gone", path) from error
        expected = self._sizes.get(name)
        if expected is not None and file.size() != expected:
            got = file.size()
            file.close()
            raise SegmentChanged(
                f"{path}: the segment has changed since the plan was made: expected {expected} bytes, got {got}"
            )
        file.path = path
        return file

    def create_new(self, path: str) -> Any:
        """Begin an output file. FileNotFoundError if the job's place is gone: then the job has ended, too."""
        assert self._target is not None
        # Not the directories above: where a partition was deleted since, it would come back as a ghost.
        self._target.make_directory()
        return _Output(self, path, self._target.child(os.path.basename(path)))

    def remove(self, path: str, *, missing_ok: bool = False) -> None:
        """Remove an output file of this attempt; before it was begun there is none."""
        name = os.path.basename(path)
        if self._target is not None and name in self.written:
            del self.written[name]
            self._target.child(name).remove()

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        """Leave the time to the broker that takes the file: not every file system of a staging place keeps it."""

    def files_of(self, base_offset: int) -> dict[str, StagedFile]:
        """Return the complete files of an output, by name."""
        stem = os.path.basename(names.log_file("", base_offset)).removesuffix(names.LOG_SUFFIX)
        return {name: file for name, file in self.written.items() if name.startswith(stem)}


class _Output:
    """A file that is written from begin to end."""

    def __init__(self, files: TaskFiles, path: str, location: Location) -> None:
        self.path = path
        self._files = files
        self._name = location.name
        self._is_local = location.is_local
        self._size = 0
        self._crc = 0
        self._stream = location.open_output()

    def append(self, *buffers: Buffer) -> None:
        for buffer in buffers:
            self._stream.write(buffer)
            self._size += len(buffer)
            self._crc = crc32c(buffer, self._crc)

    def size(self) -> int:
        return self._size

    def fileno(self) -> int | None:
        descriptor: int | None = self._stream.fileno() if self._is_local else None
        return descriptor

    def close(self) -> None:
        self._stream.close()
        self._files.written[self._name] = StagedFile(self._size, self._crc)
