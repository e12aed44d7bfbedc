"""Requests of the operations on records. Their modules import much, so commands read the requests here."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from diamant.argument import Argument, Partition, Topic


@dataclass(frozen=True, slots=True)
class RollRequest:
    """Closes active segments, as `segment.ms` would; an empty one stays open. Errors: NotFound, NotPossible."""

    topic: Topic
    partition: Partition = None


@dataclass(frozen=True, slots=True)
class CountRequest:
    """Counts records by kind. Errors: NotFound, TooMany, NotPossible."""

    topic: Topic
    partition: Partition = None
    _: KW_ONLY
    exact: Annotated[
        bool | None,
        Argument(
            "Read every record, however long it takes; false: bounds at once, from headers. Default: read up to 1 GiB, for up to "
            "a second of processor time; the rest gets bounds."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """Asks what keeps each record on disk, and when it will be removed.

    Without `key`, `offset` and `tombstones` it concerns whole partitions. Errors: NotFound, BadArgument, NotPossible, TooMany.
    """

    topic: Topic
    _: KW_ONLY
    partition: Partition = None
    key: Annotated[bytes | None, Argument("Every record of this key.", short="-k")] = None
    offset: Annotated[
        int | None,
        Argument("The record at this offset (needs a partition), and all others with its key.", short="-o"),
    ] = None
    tombstones: Annotated[bool, Argument("Every tombstone, and the groups that have not read it.")] = False


@dataclass(frozen=True, slots=True)
class GhostsRequest:
    """Asks for deleted keys that groups may still hold. Errors: NotFound."""

    topic: Topic
    group: Annotated[str | None, Argument("One group. Default: all.", short="-g")] = None
