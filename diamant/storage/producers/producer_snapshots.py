"""The producer snapshot files of a partition."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from diamant.storage import names
from diamant.storage.checkpoints.producer_snapshot import ProducerEntry, read_snapshot, write_snapshot
from diamant.storage.env.env import MAX_STATE_FILE, Env
from diamant.storage.errors import CorruptLog


class _Producer(Protocol):
    def to_entry(self) -> ProducerEntry: ...


class ProducerSnapshots:
    """The snapshot files in one partition's directory. Owned by one thread."""

    def __init__(self, env: Env, directory: str) -> None:
        self._env = env
        self._directory = directory
        self._offsets: list[int] | None = None

    @property
    def offsets(self) -> list[int]:
        """Offsets of the files, ascending. First use lists the directory; later, only changes made through this object count."""
        if self._offsets is None:
            self._offsets = sorted(
                names.offset_of(name)
                for name in self._env.list_dir(self._directory)
                if name.endswith(names.SNAPSHOT_SUFFIX) and names.is_segment_file(name)
            )
        return self._offsets

    def write(self, offset: int, producers: Iterable[_Producer]) -> str | None:
        """Write a file without syncing it; return its path. If `offset` is 0 or not above the newest, just return None."""
        offsets = self.offsets
        if offset <= (offsets[-1] if offsets else 0):
            return None
        path = names.snapshot_file(self._directory, offset)
        self._env.write_tail(path, write_snapshot(producer.to_entry() for producer in producers))
        offsets.append(offset)
        return path

    def newest(self, above: int, up_to: int) -> tuple[int, Sequence[ProducerEntry]] | None:
        """Return offset and entries of the newest valid file in `(above, up_to]`; remove corrupt files and those out of range."""
        for offset in list(self.offsets):
            if not above < offset <= up_to:
                self._remove(offset)
        for offset in reversed(list(self.offsets)):
            path = names.snapshot_file(self._directory, offset)
            try:
                return offset, read_snapshot(self._env.read_bytes(path, MAX_STATE_FILE), path)
            except (CorruptLog, FileNotFoundError):
                self._remove(offset)
        return None

    def remove_strays(self, segment_base_offsets: Iterable[int]) -> None:
        """Remove the files that belong to no segment, except the one written by a clean shutdown.

        That one is the newest of them, if it is not below the last segment's base offset (`removeStraySnapshots`).
        """
        bases = set(segment_base_offsets)
        strays = [offset for offset in self.offsets if offset not in bases]
        if strays and strays[-1] >= max(bases, default=-1):
            strays.pop()
        for offset in strays:
            self._remove(offset)

    def forget(self, offsets: Collection[int]) -> None:
        """Forget the files at `offsets`, which the caller removes. There may be thousands, and some may not exist."""
        if self._offsets is not None and offsets:
            gone = frozenset(offsets)
            self._offsets[:] = [offset for offset in self._offsets if offset not in gone]

    def _remove(self, offset: int) -> None:
        self._env.remove(names.snapshot_file(self._directory, offset), missing_ok=True)
        self.offsets.remove(offset)
