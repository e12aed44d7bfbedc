"""The due jobs of all queues: those that an earlier run left unfinished, that were put off, or that wait for a horizon."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diamant.broker.erasure.pending.pending_jobs import AnyQueue


def next_due_ms(queues: Iterable[AnyQueue]) -> int | None:
    """Return the due time of the next job, on the broker's clock; None if there is none."""
    due = (queue.table.next_due() for queue in queues if not queue.is_stopping)
    return min((one[0] for one in due if one is not None), default=None)


async def resume_due(queues: Iterable[AnyQueue]) -> None:
    """Resume the next due job of each queue."""
    for queue in queues:
        await queue.resume_due()
