"""Tombstones that wait for consumer groups (`diamant.tombstone.hold=groups`), past their delete horizon.

A tombstone is held as long as a group with a committed offset in the partition has not passed its batch. A held tombstone, whose
batch is above `above`, expires `max_ms` after its horizon; others expire as usual. Tombstones of magic 0 and 1 have no horizon
of their own and are not held. Transaction markers are not held either, because consumers do not see them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from diamant.storage.log.log import Log

GROUPS: Final = "groups"
NO_ONE: Final = "none"


class TombstoneHold(NamedTuple):
    """The hold on one log at one moment."""

    above: int
    """The slowest group has not passed the batches with a higher base offset."""
    max_ms: int
    """`diamant.tombstone.hold.max.ms`."""
    group_id: str | None
    """The slowest group; None until all groups are known."""
    committed_offset: int

    def due_ms(self, horizon_ms: int, base_offset: int) -> int:
        """Return the time at which a tombstone expires under this hold, from its batch's horizon and base offset."""
        return horizon_ms + self.max_ms if base_offset > self.above else horizon_ms


TombstoneHolds: TypeAlias = "Callable[[Log], TombstoneHold | None]"
"""Returns the current hold on a log, or None. Called on the loop thread."""


def no_hold(_log: Log) -> None:
    """Hold nothing."""
