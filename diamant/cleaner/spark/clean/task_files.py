"""The files of one attempt of a task: segments are read in place, outputs are written to the attempt's own directory.

`TaskFiles` replaces the `Env` of the local engines, which use the broker's paths. Sources are in the partition's directory on a
shared file system, or copied to the job's directory. Outputs are written to the job's directory through pyarrow.fs. Two attempts
never write to the same file, so a task that Spark starts twice does no harm.

Memory: pyarrow's buffers for a file written to an object store, about 10 MiB.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from crc32c import crc32c

from diamant.cleaner.spark.environment.spark_errors import SegmentChanged
from diamant.storage import names

if TYPE_CHECKING:
    from diamant.cleaner.rules.plan import CleanPlan
    from diamant.cleaner.spark.environment.locations import Location
    from diamant.storage.env.env import Buffer, Env


class StagedFile(NamedTuple):
    """Size and checksum of a written file."""

    size: int
    crc32c: int


class TaskFiles:
    """The part of `storage.env.env.Env` that engines use. `source` and `target` are directories."""

    def __init__(self, plan: CleanPlan, source: Location, target: Location | None = None) -> None:
        self._source = source
        self._target = target
        self._sizes = {
            os.path.basename(names.log_file("", segment.base_offset)): segment.size for segment in plan.segments
        }
        self.written: dict[str, StagedFile] = {}
        """Complete files, by name."""

    @property
    def env(self) -> Env:
        """This object, typed as an `Env`."""
        return cast("Env", self)

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> Any:
        """Open a segment of the plan. Raises SegmentChanged if its size has changed, FileNotFoundError if it is gone."""
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
        """Create an output file. Raises FileNotFoundError if the job's directory is gone, because the job has ended."""
        assert self._target is not None
        # Do not create parents: that could bring back the directory of a partition that has been deleted.
        self._target.make_directory()
        return _Output(self, path, self._target.child(os.path.basename(path)))

    def remove(self, path: str, *, missing_ok: bool = False) -> None:
        """Remove a complete output file of this attempt; do nothing if there is none."""
        name = os.path.basename(path)
        if self._target is not None and name in self.written:
            del self.written[name]
            self._target.child(name).remove()

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        """Do nothing. The broker sets the time when it takes the file, because not every staging file system keeps it."""

    def files_of(self, base_offset: int) -> dict[str, StagedFile]:
        """Return the complete files of an output, by name."""
        stem = os.path.basename(names.log_file("", base_offset)).removesuffix(names.LOG_SUFFIX)
        return {name: file for name, file in self.written.items() if name.startswith(stem)}


class _Output:
    """A file that is written sequentially."""

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
