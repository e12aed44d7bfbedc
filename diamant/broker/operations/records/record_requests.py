"""Requests of the operations on records, in a module that commands can import cheaply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

from diamant.argument import MAX_PARTITION, Argument, Partition, Registry, Topic, ValidateOnly


@dataclass(frozen=True, slots=True)
class RollRequest:
    """Closes active segments as `segment.ms` would; empty ones stay open. Errors: NotFound, NotPossible."""

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
            "Read every record, however long it takes; false: return bounds quickly, from headers. Default: read up to 1 GiB, "
            "for up to a second of processor time, and return bounds for the rest."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """Asks what keeps each record on disk, and when it will be removed.

    Without `key`, `offset` and `tombstones`, it explains whole partitions. Errors: NotFound, BadArgument, NotPossible, TooMany.
    """

    topic: Topic
    _: KW_ONLY
    partition: Partition = None
    key: Annotated[bytes | None, Argument("Every record of this key.", short="-k")] = None
    offset: Annotated[
        int | None,
        Argument("The record at this offset (needs a partition), and all other records of its key.", short="-o"),
    ] = None
    tombstones: Annotated[bool, Argument("Every tombstone, and the groups that have not read it.")] = False


@dataclass(frozen=True, slots=True)
class GhostsRequest:
    """Asks for deleted keys that groups may still hold. Errors: NotFound."""

    topic: Topic
    group: Annotated[str | None, Argument("One group. Default: all groups.", short="-g")] = None


@dataclass(frozen=True, slots=True)
class SegmentsRequest:
    """Counts records by kind and segment. Errors: NotFound, NotPossible."""

    topic: Topic
    partition: Partition = None
    _: KW_ONLY
    all: Annotated[bool, Argument("Count partitions beyond the first 64 MiB as well.")] = False


@dataclass(frozen=True, slots=True)
class LatestRequest:
    """Reads the latest committed record of each key. Errors: BadArgument, NotFound, TooMany, NotPossible."""

    topic: Topic
    partition: Partition = None
    _: KW_ONLY
    tombstones: Annotated[bool, Argument("Include keys whose latest record is a tombstone.")] = False
    registry: Registry = None


@dataclass(frozen=True, slots=True)
class FindRequest:
    """Searches a topic; without `key`, `text` and `where` all records match. Errors: BadArgument, NotFound, TooMany."""

    topic: Topic
    partition: Partition = None
    _: KW_ONLY
    key: Annotated[bytes | None, Argument("Records of this key.")] = None
    text: Annotated[str | None, Argument("Records with this text in the key, the value or a header.")] = None
    where: Annotated[str | None, Argument("Records that match this condition, as in a redaction.")] = None
    limit: Annotated[int, Argument("The search stops at this number of records.", least=1, most=10_000)] = 1000
    registry: Registry = None


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """Writes one record. Errors: BadArgument, NotFound, NotPossible."""

    topic: Topic
    value: Annotated[bytes | None, Argument("The value, in the same form as a key. Default: empty.")] = None
    key: Annotated[bytes | None, Argument("The key. Default: null.")] = None
    _: KW_ONLY
    tombstone: Annotated[bool, Argument("Write null as the value.")] = False
    headers: Annotated[Mapping[str, Any] | None, Argument("Values by name, each in the form of a key or null.")] = None
    partition: Annotated[
        int | None, Argument("The partition. Default: chosen by the key, as Kafka's producer does.", most=MAX_PARTITION)
    ] = None


@dataclass(frozen=True, slots=True)
class ResetOffsetsRequest:
    """Resets the offsets that a group has committed in a topic. Errors: BadArgument, NotFound, NotPossible."""

    group: Annotated[str, Argument("The group, which must have no members.")]
    topic: Topic
    to: Annotated[str, Argument("start, end, an offset, -N (before the end), +N (after the old offset) or @TIME.")]
    partition: Partition = None
    _: KW_ONLY
    validate_only: ValidateOnly = False


@dataclass(frozen=True, slots=True)
class AlterConfigsRequest:
    """Changes configurations of a topic, all or none. Errors: BadArgument, NotFound."""

    topic: Topic
    set: Annotated[Mapping[str, Any], Argument("Values by name; null restores the broker's default.")]
    _: KW_ONLY
    validate_only: ValidateOnly = False
