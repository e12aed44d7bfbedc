"""Reads index files from any location into arrays. Formats: storage/segments/offset_index.py, time_index.py, txn_index.py.

Kafka preallocates the indexes of its active segment and fills them with zeros, which are removed here. While a segment is still
written to, its index may lack the last entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diamant.storage.errors import CorruptLog

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diamant.cleaner.spark.environment.locations import Location

_OFFSET_ENTRY = np.dtype([("offset", ">u4"), ("position", ">u4")])
OFFSET_ENTRY_BYTES = _OFFSET_ENTRY.itemsize
_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">u4")])
_TXN_ENTRY = np.dtype(
    [("version", ">i2"), ("producer_id", ">i8"), ("first", ">i8"), ("last", ">i8"), ("stable", ">i8")]
)
ABORTED_FIELDS = 3
"""Fields of an aborted transaction: producer id, first offset, offset of its marker."""
WITHOUT = "; trust_indexes=false reads without it"
"""Advice that ends each error about a damaged index."""


def read_offset_index(
    location: Location, base_offset: int, log_size: int, *, is_growing: bool = False
) -> NDArray[np.int64]:
    """Return int64[2, n]: last offsets of batches, ascending, and the positions of these batches.

    `is_growing`: omit entries beyond `log_size`, which were added after the segment was listed. Raises CorruptLog if entries do
    not ascend or lie outside the segment, and FileNotFoundError if there is no index.
    """
    entries = np.frombuffer(_whole(location, _OFFSET_ENTRY.itemsize), _OFFSET_ENTRY)
    # Only the first valid entry can have relative offset 0.
    count = 1 + int(np.count_nonzero(entries["offset"][1:])) if len(entries) else 0
    found = np.empty((2, count), np.int64)
    found[0] = entries["offset"][:count]
    found[0] += base_offset
    found[1] = entries["position"][:count]
    if count == 1 and not entries["offset"][0] and not entries["position"][0]:
        return found[:, :0]
    if is_growing:
        found = found[:, found[1] < log_size]
        count = found.shape[1]
    if (np.diff(found) <= 0).any() or (count and found[1, -1] >= log_size):
        raise CorruptLog(
            str(location),
            0,
            f"offsets and positions are expected to ascend within a segment of {log_size} bytes{WITHOUT}",
        )
    return found


def read_time_index(location: Location, base_offset: int) -> NDArray[np.int64]:
    """Return int64[2, n]: timestamps in ms and offsets, both ascending. Records up to an entry's offset are not younger than it.

    Raises CorruptLog if timestamps or offsets do not ascend, and FileNotFoundError if there is no index.
    """
    entries = np.frombuffer(_whole(location, _TIME_ENTRY.itemsize), _TIME_ENTRY)
    is_set = (entries["timestamp"] != 0) | (entries["offset"] != 0)
    count = int(np.flatnonzero(is_set)[-1]) + 1 if is_set.any() else 0
    found = np.empty((2, count), np.int64)
    found[0] = entries["timestamp"][:count]
    found[1] = entries["offset"][:count]
    found[1] += base_offset
    if (np.diff(found[0]) <= 0).any() or (np.diff(found[1]) < 0).any():
        raise CorruptLog(str(location), 0, f"timestamps and offsets are expected to ascend{WITHOUT}")
    return found


def read_aborted(location: Location) -> NDArray[np.int64]:
    """Return int64[n, ABORTED_FIELDS], one row per transaction. Raises CorruptLog; FileNotFoundError if there is no index."""
    entries = np.frombuffer(_whole(location, _TXN_ENTRY.itemsize), _TXN_ENTRY)
    if (entries["version"] != 0).any() or (entries["first"] > entries["last"]).any():
        raise CorruptLog(
            str(location), 0, f"expected entries of version 0 whose first offset is not above the last{WITHOUT}"
        )
    found = np.empty((len(entries), ABORTED_FIELDS), np.int64)
    for index, name in enumerate(("producer_id", "first", "last")):
        found[:, index] = entries[name]
    return found


def _whole(location: Location, entry_size: int) -> bytes:
    data = location.read_bytes()
    return data[: len(data) - len(data) % entry_size]
