"""Held partitions: a timestamp in the future keeps their oldest segment until `retention.ms` after that timestamp.

As in Kafka, retention by time follows the records' timestamps. Kafka warns about such a segment at each check; here a partition
is logged when it becomes held, and all held partitions are logged once a day.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diamant.cleaner.rules.retention import future_hold_ms
from diamant.duration import time_text

if TYPE_CHECKING:
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)

REPEAT_MS = 86_400_000
MAX_NAMED = 10


@dataclass(frozen=True, slots=True)
class FutureHold:
    """A held partition. `until_ms`: the time at which retention removes its oldest segment."""

    topic: str
    partition: int
    until_ms: int


def future_holds(node: Node) -> list[FutureHold]:
    """Return the held partitions, sorted by name. Call this on the loop thread; it may look up modification times of files."""
    now_ms = node.env.clock.now_ms()
    holds = []
    for log in node.directory.logs.values():
        if not log.is_deleted and (until_ms := future_hold_ms(log, now_ms)) is not None:
            holds.append(FutureHold(log.topic, log.partition, until_ms))
    return sorted(holds, key=lambda hold: (hold.topic, hold.partition))


class FutureWarnings:
    """Warns about held partitions in the broker's log. Memory: the names of the held partitions."""

    def __init__(self) -> None:
        self._told: set[tuple[str, int]] = set()
        self._told_ms = 0

    def tell(self, held: list[FutureHold], now_ms: int) -> None:
        """Log the newly held partitions, or all held partitions if the last warning is a day old."""
        if now_ms - self._told_ms >= REPEAT_MS:
            self._told.clear()
        new = [hold for hold in held if (hold.topic, hold.partition) not in self._told]
        self._told = {(hold.topic, hold.partition) for hold in held}
        if not new:
            return
        self._told_ms = now_ms
        named = [f"{hold.topic}-{hold.partition} until {time_text(hold.until_ms)}" for hold in new[:MAX_NAMED]]
        more = f" and {len(new) - MAX_NAMED} more" if len(new) > MAX_NAMED else ""
        logger.warning("timestamps in the future keep segments longer than retention.ms: %s%s", ", ".join(named), more)
