"""The decision to keep or remove: on a batch, then on each of its records.

Pure functions of numbers, with numbers for answers. `kernels/judging.py` restates them in a compiled loop: change both, the tests
compare them. They read no bytes.

    tombstones_expired  of the batch              may its tombstones go
    batch_verdict     first                       DELETE without a look inside, or keep an empty header, or nothing if empty
    record_fate       for each record inside      KEEP or the reason why not
    needs_horizon     if some are kept            must the batch be stamped with a delete horizon
    batch_action      at last                     copy as it is, rebuild, header only, or nothing

The times by which tombstones and markers go are absolute: a *delete horizon* is stored in the batch when a round first
keeps it, and a round at or after the horizon may drop them (KIP-534).

Source: Kafka's Cleaner.cleanInto and MemoryRecords.filterTo.
"""

from __future__ import annotations

from typing import Final

from diamant.cleaner.rules.plan import ActiveProducer
from diamant.cleaner.rules.result import ABORTED, BELOW_LOG_START, KEYLESS, MARKER, SUPERSEDED, TOMBSTONE
from diamant.kernels.constants.fates import FATE_KEYLESS, FATE_SUPERSEDED, FATE_TOMBSTONE, KEEP
from diamant.kernels.constants.steps import COPY, DROP, HEADER_ONLY, REBUILD

# Verdicts on a batch.
DELETE: Final = 0
"""Goes without its records being read."""
RETAIN_EMPTY: Final = 1
"""Its records are judged; if none stays, a header without records does."""
DELETE_EMPTY: Final = 2
"""Its records are judged; if none stays, the batch goes."""

FATE_REASONS = ("", SUPERSEDED, ABORTED, TOMBSTONE, MARKER, KEYLESS, BELOW_LOG_START)
"""By fate."""

NOT_MAPPED: Final = -1
"""The offset of a key that the map does not hold."""


def drops_all_records(
    *, may_drop: bool, is_control: bool, has_horizon: bool, horizon_ms: int, now_ms: int, is_frozen: bool = False
) -> bool:
    """Tell whether no record of a batch may stay: an aborted transaction's data, or a marker whose time is over.

    `may_drop` is what the transaction tracker said of the batch, `is_frozen` that markers do not expire at its offset.
    """
    if is_control:
        return may_drop and has_horizon and horizon_ms <= now_ms and not is_frozen
    return may_drop


def is_last_of_producer(
    active: ActiveProducer | None, *, last_offset: int, producer_epoch: int, is_control: bool
) -> bool:
    """Tell whether a batch is what a producer's sequence (or its epoch, if it has no batch in it) is recovered from.

    `active` is the state of the batch's producer, None if it has none or the producer is not active.
    """
    if active is None:
        return False
    if active.last_data_offset is not None:
        return last_offset == active.last_data_offset
    return is_control and producer_epoch == active.producer_epoch


def batch_verdict(*, drops_all: bool, is_last_of_producer: bool, is_last_of_round: bool) -> int:
    """Return DELETE, RETAIN_EMPTY or DELETE_EMPTY.

    The last batch of a round stays at least as a header, so that the log's end can be recovered from it (KAFKA-17076).
    """
    if is_last_of_producer or is_last_of_round:
        return RETAIN_EMPTY
    return DELETE if drops_all else DELETE_EMPTY


def tombstones_expired(
    *,
    magic: int,
    has_horizon: bool,
    horizon_ms: int,
    now_ms: int,
    modified_ms: int,
    legacy_horizon_ms: int,
    is_frozen: bool = False,
) -> bool:
    """Tell whether tombstones of a batch may go. In magic 0 and 1 the segment's modification time decides.

    `is_frozen`: none may at its offset, because of a segment below that could not be cleaned (`quarantine`), or as groups have
    not passed it (`tombstone_hold`).
    """
    if is_frozen:
        return False
    if magic >= 2:
        return has_horizon and now_ms >= horizon_ms
    return modified_ms <= legacy_horizon_ms


def record_fate(
    *, offset: int, map_end_offset: int, has_key: bool, mapped_offset: int, has_value: bool, is_expired: bool
) -> int:
    """Return KEEP or why a data record goes, given that its batch's records are judged one by one.

    `map_end_offset` is the last offset that the map covers, `mapped_offset` that of the key's last record below it
    (NOT_MAPPED if there is none), `is_expired` what `tombstones_expired` says of the batch. Nothing past the map's end is
    dropped on account of its key.
    """
    if offset > map_end_offset:
        return KEEP
    if not has_key:
        return FATE_KEYLESS
    if offset < mapped_offset:
        return FATE_SUPERSEDED
    return FATE_TOMBSTONE if is_expired and not has_value else KEEP


def needs_horizon(
    *,
    has_horizon: bool,
    last_tombstone_offset: int,
    map_end_offset: int,
    is_marker_of_empty_transaction: bool,
    is_kafka: bool,
) -> bool:
    """Tell whether a batch of which records stay is to be given a delete horizon.

    `last_tombstone_offset` is the greatest offset of a tombstone that stays, -1 if none does. Kafka also stamps tombstones past
    the end of the map: their time begins although older records of their keys are still there. Mode prompt waits for a later
    round.
    """
    if has_horizon:
        return False
    if is_marker_of_empty_transaction:
        return True
    return last_tombstone_offset >= 0 and (is_kafka or last_tombstone_offset <= map_end_offset)


def batch_action(*, verdict: int, kept: int, records: int, sets_horizon: bool, magic: int) -> int:
    """Return DROP, COPY, REBUILD or HEADER_ONLY for a batch of which `kept` of `records` stay."""
    if verdict == DELETE:
        return DROP
    if kept == 0:
        return HEADER_ONLY if verdict == RETAIN_EMPTY else DROP
    # Old formats are no longer written (KIP-724).
    return COPY if kept == records and not sets_horizon and magic >= 2 else REBUILD
