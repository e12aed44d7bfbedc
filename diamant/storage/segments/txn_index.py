"""Index of the aborted transactions of a segment (Kafka's TransactionIndex, AbortedTxn).

    entry, 34 bytes, big-endian, last offsets strictly ascending:
       0  2  version, 0
       2  8  producer id
      10  8  first offset: of the transaction's data in this partition
      18  8  last offset: of the ABORT marker; the entry is in the index of the segment that holds the marker
      26  8  last stable offset after the marker was written

Only aborted transactions with data are recorded. The first entry creates the file, so most segments have none. A partial
entry at the end is ignored. Entries are written through to the file. Memory: 34 bytes per entry if the index was appended to
since it was opened, otherwise none.
"""

from __future__ import annotations

from bisect import bisect_left
from struct import Struct
from typing import NamedTuple

from diamant.storage.env.env import Env
from diamant.storage.env.view import content_of
from diamant.storage.errors import CorruptLog

ENTRY_SIZE = 34

_ENTRY = Struct(">hqqqq")
_LAST_OFFSET = Struct(">18xq")


class AbortedTxn(NamedTuple):
    """One aborted transaction."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def to_bytes(self) -> bytes:
        """Return the 34 bytes of the entry."""
        return _ENTRY.pack(0, *self)

    @classmethod
    def from_bytes(cls, data: bytearray | bytes, position: int = 0) -> AbortedTxn:
        """Parse the entry at `position`; like Kafka, ignores the version."""
        return cls(*_ENTRY.unpack_from(data, position)[1:])


class TransactionIndex:
    """The aborted transactions whose markers are in the segment at `base_offset`.

    Construction does no I/O. Owned by one thread; only `sync` may run in another.
    """

    __slots__ = ("_env", "_has_file", "_heap", "_is_unsynced", "base_offset", "path")

    def __init__(self, env: Env, path: str, base_offset: int) -> None:
        self._env = env
        self.path = path
        self.base_offset = base_offset
        self._has_file: bool | None = None
        """True if the file exists; None until this is checked at first use."""
        self._heap: bytearray | None = None
        """All whole entries, after the first write."""
        self._is_unsynced = False

    @property
    def may_have_file(self) -> bool:
        """False if the file is known not to exist."""
        return self._has_file is not False

    def take_outline(self, *, has_file: bool) -> None:
        """Accept what another process found, instead of checking for the file."""
        self._has_file = has_file

    @property
    def entries(self) -> int:
        """Number of entries."""
        return len(self._content()) // ENTRY_SIZE

    @property
    def last_offset(self) -> int | None:
        """Last offset of the last entry; None if there is none."""
        content = self._content()
        count = len(content) // ENTRY_SIZE
        return _last_offset(content, count - 1) if count else None

    def all(self) -> list[AbortedTxn]:
        """Return every entry in order."""
        content = bytes(self._content())
        whole = len(content) - len(content) % ENTRY_SIZE
        return [AbortedTxn(*fields[1:]) for fields in _ENTRY.iter_unpack(content[:whole])]

    def append(self, aborted: AbortedTxn) -> None:
        """Add an entry and write it to the file. Raises ValueError if its last offset is not above that of the last entry."""
        heap = self._load()
        if heap and aborted.last_offset <= (last := _last_offset(heap, len(heap) // ENTRY_SIZE - 1)):
            raise ValueError(f"{self.path}: expected a last offset above {last}, got {aborted}")
        data = aborted.to_bytes()
        if not heap or self._file_has(len(heap)):
            self._write(data, len(heap))
        else:
            # Another program has cut off entries; write all, since zeros in their place would look like transactions of id 0.
            self._write(heap + data, 0)
        heap += data

    def collect(self, fetch_offset: int, upper_bound: int) -> tuple[list[AbortedTxn], bool]:
        """Return the aborted transactions with data in `[fetch_offset, upper_bound)`, and whether the list is complete.

        If it is not, later segments may hold the markers of others (`TransactionIndex.collectAbortedTxns`).
        """
        content = self._content()
        txns: list[AbortedTxn] = []
        count = len(content) // ENTRY_SIZE
        # Last offsets ascend: skip all transactions that ended before the fetch offset.
        start = bisect_left(range(count), fetch_offset, key=lambda index: _last_offset(content, index))
        for index in range(start, count):
            aborted = AbortedTxn.from_bytes(content, index * ENTRY_SIZE)
            if aborted.first_offset < upper_bound:
                txns.append(aborted)
            if aborted.last_stable_offset >= upper_bound:
                return txns, True
        return txns, False

    def truncate_to(self, offset: int) -> None:
        """Cut at the first entry whose last offset is at or above `offset`."""
        content = self._content()
        count = len(content) // ENTRY_SIZE
        keep = bisect_left(range(count), offset, key=lambda index: _last_offset(content, index))
        if keep < count:
            heap = self._load()
            self._write(b"", keep * ENTRY_SIZE)
            del heap[keep * ENTRY_SIZE :]

    def reset(self) -> None:
        """Drop every entry."""
        if self._exists():
            self._write(b"", 0)
        self._heap = None

    def sanity_check(self) -> None:
        """Raise CorruptLog if an entry's last offset lies below the base offset."""
        for index, aborted in enumerate(self.all()):
            if aborted.last_offset < self.base_offset:
                raise CorruptLog(
                    self.path, index * ENTRY_SIZE, f"expected last offsets from {self.base_offset}, got {aborted}"
                )

    def flush(self) -> None:
        """Do nothing: `append` writes entries immediately, and an empty index has no file."""

    def sync(self) -> None:
        """Sync the file if it was written to; blocks on the disk."""
        if not self._is_unsynced:
            return
        self._is_unsynced = False
        try:
            self._env.sync_file(self.path)
        except FileNotFoundError:
            return
        except OSError:
            self._is_unsynced = True
            raise

    def trim_to_valid_size(self) -> None:
        """Free the memory, since no appends are expected."""
        self._heap = None

    def rename(self, path: str) -> None:
        """Rename the file; if it does not exist yet, it will be created under the new name."""
        if self._exists():
            self._env.rename(self.path, path)
        self.path = path

    def _file_has(self, size: int) -> bool:
        try:
            return self._env.file_size(self.path) >= size
        except FileNotFoundError:
            return False

    def _exists(self) -> bool:
        if self._has_file is None:
            self._has_file = self._env.exists(self.path)
        return self._has_file

    def _content(self) -> bytearray | bytes:
        if self._heap is not None:
            return self._heap
        return content_of(self._env.view_file(self.path)) if self._exists() else b""

    def _load(self) -> bytearray:
        if self._heap is None:
            content = bytes(self._content())
            self._heap = bytearray(content[: len(content) - len(content) % ENTRY_SIZE])
        return self._heap

    def _write(self, data: bytes | bytearray, position: int) -> None:
        self._env.write_tail(self.path, data, position)
        self._has_file = self._is_unsynced = True


def _last_offset(content: bytearray | bytes, index: int) -> int:
    offset: int = _LAST_OFFSET.unpack_from(content, index * ENTRY_SIZE)[0]
    return offset
