"""The transactions that hold back a partition's last stable offset.

Source: ProducerStateManager (ongoingTxns, unreplicatedTxns).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple


class CompletedTxn(NamedTuple):
    """A transaction whose marker is in the log."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Offset of the marker."""
    is_aborted: bool


class OpenTransactions:
    """Transactions that are open, or whose markers are above the high watermark."""

    __slots__ = ("_name", "_ongoing", "_unreplicated")

    def __init__(self, name: str) -> None:
        """`name`: the partition's name, for messages."""
        self._name = name
        self._ongoing: OrderedDict[int, int] = OrderedDict()
        """The producer id of each open transaction, by first offset; ascending, since transactions begin in log order."""
        self._unreplicated: OrderedDict[int, int] = OrderedDict()
        """For each transaction whose marker is not below the high watermark, the offset of the marker, by first offset."""

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the earliest transaction; None if there is none."""
        if self._unreplicated:
            # These are ordered by marker, not by first offset; there is seldom more than one.
            unreplicated = min(self._unreplicated)
            return min(unreplicated, next(iter(self._ongoing), unreplicated))
        return next(iter(self._ongoing), None)

    def begin(self, first_offset: int, producer_id: int) -> None:
        """Add a transaction that begins at `first_offset`; all others must have begun at lower offsets."""
        self._ongoing[first_offset] = producer_id

    def last_stable_offset_after(self, completed: CompletedTxn) -> int:
        """Return the last stable offset after the end of `completed`, for the index of aborted transactions."""
        for first_offset in self._ongoing:
            if first_offset != completed.first_offset:
                return first_offset
        return completed.last_offset + 1

    def complete(self, completed: CompletedTxn) -> None:
        """Mark a transaction as completed. It holds back the last stable offset until `on_high_watermark` releases it."""
        if self._ongoing.pop(completed.first_offset, None) is None:
            raise AssertionError(f"{self._name}: no open transaction begins at {completed.first_offset}: {completed}")
        self._unreplicated[completed.first_offset] = completed.last_offset

    def on_high_watermark(self, high_watermark: int) -> None:
        """Release completed transactions whose markers are below `high_watermark`."""
        unreplicated = self._unreplicated
        if unreplicated:
            for first_offset in [first for first, last in unreplicated.items() if last < high_watermark]:
                del unreplicated[first_offset]

    def clear(self) -> None:
        """Forget all transactions."""
        self._ongoing.clear()
        self._unreplicated.clear()
