"""Tombstones that wait for consumer groups (`diamant.tombstone.hold=groups`), past their delete horizon.

A tombstone in a batch above `above` stays until `max_ms` after its horizon; one below goes as always. It is held for as long as
some group with a committed offset in the partition has not passed its batch. Tombstones of magic 0 and 1 have no horizon
of their own and are not held, markers of transactions neither: consumers do not see them.
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
    """Batches with a higher base offset have something that the slowest group has not passed."""
    max_ms: int
    """`diamant.tombstone.hold.max.ms`."""
    group_id: str | None
    """The slowest group; None while not all groups are known."""
    committed_offset: int

    def due_ms(self, horizon_ms: int, base_offset: int) -> int:
        """Return from when on a tombstone may go, as things are, given its batch's horizon and base offset."""
        return horizon_ms + self.max_ms if base_offset > self.above else horizon_ms


TombstoneHolds: TypeAlias = "Callable[[Log], TombstoneHold | None]"
"""Tells the hold on a log now; None: there is none. Called on the loop thread."""


def no_hold(_log: Log) -> None:
    """Hold nothing."""
