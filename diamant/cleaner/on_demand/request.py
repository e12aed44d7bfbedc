"""A request to compact a topic now."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from diamant.argument import Argument, Engine, Force, Partition, Timeout
from diamant.cleaner.on_demand.report import CLEAN, UNTIL


@dataclass(frozen=True, slots=True)
class CompactRequest:
    """A request that covers all records appended before it: active segments are closed, and rounds follow until every superseded
    record that may be removed is gone. Dirty ratios are ignored. Open transactions and `min.compaction.lag.ms` are respected, and
    the report says what they hold back.

    Errors: NotFound, BadArgument, NotPossible (not a compacted topic), TimedOut, TooMany, CompactionFailed, BrokerStopping.
    """

    topic: Annotated[str, Argument("The topic; its cleanup.policy must include compact.")]
    partition: Partition = None
    _: KW_ONLY
    until: Annotated[str, Argument("The goal: tombstones-gone also waits for the delete horizons.", UNTIL)] = CLEAN
    force: Force = False
    wait: Annotated[
        bool,
        Argument("With tombstones-gone: wait for the horizons, or answer at once with the last one (horizon_ms)."),
    ] = True
    engine: Engine = None
    timeout: Timeout = None
