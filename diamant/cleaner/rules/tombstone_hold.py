"""Tombstones that wait for consumer groups even after their delete horizon (`diamant.tombstone.hold=groups`).

A tombstone is held until all groups with a committed offset in the partition have passed its batch, but for at most `max_ms`
after its horizon. The hold applies to batches above `above`; other tombstones expire as usual. Tombstones of magic 0 and 1 have
no horizon of their own and are not held. Transaction markers are not held either, because consumers do not see them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from diamant.storage.log.log import Log

GROUPS: Final = "groups"
NO_ONE: Final = "none"


class TombstoneHold(NamedTuple):
    """A snapshot of the hold on one log."""

    above: int
    """The slowest group has not passed any batch with a higher base offset."""
    max_ms: int
    """`diamant.tombstone.hold.max.ms`."""
    group_id: str | None
    """The slowest group; None until all groups are known."""
    committed_offset: int

    def due_ms(self, horizon_ms: int, base_offset: int) -> int:
        """Return the time at which a tombstone expires under this hold, from its batch's horizon and base offset."""
        return horizon_ms + self.max_ms if base_offset > self.above else horizon_ms


TombstoneHolds: TypeAlias = "Callable[[Log], TombstoneHold | None]"
"""Returns the current hold on a log; None if there is no hold. Called on the loop thread."""


def no_hold(_log: Log) -> None:
    """Hold nothing."""
