"""The operations as methods of `Broker` and `BlockingBroker`. Written by `make docs` from `dispatch/operations.py`: change that.

The request of an operation (such as `CompactRequest`) says what the arguments mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from diamant.broker.operations.calls.cross_loop import waiting
from diamant.broker.perform import AnyBroker, perform

if TYPE_CHECKING:
    from diamant.broker.ghosts.ledger import GhostReport
    from diamant.broker.operations.calls.progress import Progress
    from diamant.broker.operations.records.count import TopicRecords
    from diamant.broker.operations.records.explain import Explanation
    from diamant.cleaner.on_demand.report import CompactionReport
    from diamant.duration import Duration


class Operations:
    """The awaited operations of a broker."""

    async def compact(
        self: AnyBroker,
        topic: str,
        partition: int | None = None,
        *,
        until: Literal["clean", "tombstones-gone"] = "clean",
        force: bool = False,
        wait: bool = True,
        engine: Literal["inline", "process", "spark"] | None = None,
        timeout: Duration | None = None,
        progress: Progress | None = None,
    ) -> CompactionReport:
        """Compact a topic now and wait until it is clean. See `CompactRequest`."""
        return await perform(self, "compact", locals())

    async def roll(self: AnyBroker, topic: str, partition: int | None = None) -> Mapping[str, Any]:
        """Close the active segments of a topic. See `RollRequest`."""
        return await perform(self, "roll", locals())

    async def count(
        self: AnyBroker,
        topic: str,
        partition: int | None = None,
        *,
        exact: bool | None = None,
        progress: Progress | None = None,
    ) -> TopicRecords:
        """Count the records of a topic, by kind. See `CountRequest`."""
        return await perform(self, "count", locals())

    async def explain(
        self: AnyBroker,
        topic: str,
        *,
        partition: int | None = None,
        key: bytes | str | None = None,
        offset: int | None = None,
        tombstones: bool = False,
        progress: Progress | None = None,
    ) -> Explanation:
        """Explain why records are still stored, and until when. See `ExplainRequest`."""
        return await perform(self, "explain", locals())

    async def ghosts(self: AnyBroker, topic: str, group: str | None = None) -> GhostReport:
        """List deleted keys that consumer groups may still hold. See `GhostsRequest`."""
        return await perform(self, "ghosts", locals())


class BlockingOperations:
    """The same operations, each of which waits for its end."""

    compact = waiting(Operations.compact)
    roll = waiting(Operations.roll)
    count = waiting(Operations.count)
    explain = waiting(Operations.explain)
    ghosts = waiting(Operations.ghosts)
