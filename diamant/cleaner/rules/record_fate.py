"""Decides whether to keep or remove a batch, and then each of its records.

These are pure functions from numbers to numbers, and read no bytes. `kernels/judging.py` repeats them in a compiled loop: always
change both. Tests compare them.

    batch_verdict       first                       DELETE removes the batch unread. Otherwise its records are judged; if none is
                                                    kept, RETAIN_EMPTY keeps a header and DELETE_EMPTY nothing
    tombstones_expired  for the batch               whether its tombstones may be removed
    record_fate         for each record             KEEP, or the reason for its removal
    needs_horizon       if some are kept            whether the batch gets a delete horizon
    batch_action        last                        copy unchanged, rebuild, header only, or drop

Tombstones and markers expire at an absolute time: the round that first keeps them stores a *delete horizon* in the batch, and a
round at or after the horizon may drop them (KIP-534).

Source: Kafka's Cleaner.cleanInto and MemoryRecords.filterTo.
"""

from __future__ import annotations

from typing import Final

from diamant.cleaner.rules.plan import ActiveProducer
from diamant.cleaner.rules.result import REASONS
from diamant.kernels.constants.fates import FATE_KEYLESS, FATE_SUPERSEDED, FATE_TOMBSTONE, KEEP
from diamant.kernels.constants.steps import COPY, DROP, HEADER_ONLY, REBUILD

# Verdicts on a batch.
DELETE: Final = 0
"""The batch is removed without reading its records."""
RETAIN_EMPTY: Final = 1
"""The batch's records are judged; if none is kept, a header without records remains."""
DELETE_EMPTY: Final = 2
"""The batch's records are judged; if none is kept, the batch is removed."""

FATE_REASONS = ("", *REASONS)
"""The reasons for removal, indexed by fate."""

NOT_MAPPED: Final = -1
"""The mapped offset of a key that is not in the map."""


def drops_all_records(
    *, may_drop: bool, is_control: bool, has_horizon: bool, horizon_ms: int, now_ms: int, is_frozen: bool = False
) -> bool:
    """Return whether all records of a batch are removed because it is data of an aborted transaction or an expired marker.

    `may_drop` is the transaction tracker's answer for the batch. `is_frozen`: markers do not expire at the batch's offset.
    """
    if is_control:
        return may_drop and has_horizon and horizon_ms <= now_ms and not is_frozen
    return may_drop


def is_last_of_producer(
    active: ActiveProducer | None, *, last_offset: int, producer_epoch: int, is_control: bool
) -> bool:
    """Return whether a producer's sequence (or its epoch, if the epoch has no batch) is recovered from this batch.

    `active` is the state of the batch's producer; None if it has no producer or an inactive one.
    """
    if active is None:
        return False
    if active.last_data_offset is not None:
        return last_offset == active.last_data_offset
    return is_control and producer_epoch == active.producer_epoch


def batch_verdict(*, drops_all: bool, is_last_of_producer: bool, is_kept_end: bool) -> int:
    """Return DELETE, RETAIN_EMPTY or DELETE_EMPTY.

    `is_kept_end`: the batch ends at `CleanPlan.header_end`. At least its header remains, so that the log's end can be recovered
    (KAFKA-17076, KAFKA-20452).
    """
    if is_last_of_producer or is_kept_end:
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
    """Return whether the tombstones of a batch may be removed. For magic 0 and 1 the segment's modification time decides.

    `is_frozen`: they may not be removed, because an earlier segment could not be cleaned (`quarantine`) or groups have not
    passed their offset (`tombstone_hold`).
    """
    if is_frozen:
        return False
    if magic >= 2:
        return has_horizon and now_ms >= horizon_ms
    return modified_ms <= legacy_horizon_ms


def record_fate(
    *, offset: int, map_end_offset: int, has_key: bool, mapped_offset: int, has_value: bool, is_expired: bool
) -> int:
    """Return the fate of a data record in a batch whose records are judged: KEEP, or the reason for its removal.

    `map_end_offset` is the last offset that the map covers; `mapped_offset` is the key's last offset in the map,
    or NOT_MAPPED; `is_expired` is the result of `tombstones_expired` for the batch. Records beyond the map's end are never
    superseded.
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
    """Return whether a batch with kept records gets a delete horizon.

    `last_tombstone_offset` is the greatest offset of a kept tombstone, or -1. Kafka sets a horizon even for tombstones beyond
    the end of the map, so their retention starts while older records of their keys still exist. Mode prompt waits for a later
    round.
    """
    if has_horizon:
        return False
    if is_marker_of_empty_transaction:
        return True
    return last_tombstone_offset >= 0 and (is_kafka or last_tombstone_offset <= map_end_offset)


def batch_action(*, verdict: int, kept: int, records: int, sets_horizon: bool, magic: int) -> int:
    """Return DROP, COPY, REBUILD or HEADER_ONLY for a batch that keeps `kept` of its `records` records."""
    if verdict == DELETE:
        return DROP
    if kept == 0:
        return HEADER_ONLY if verdict == RETAIN_EMPTY else DROP
    # Old formats are no longer written (KIP-724).
    return COPY if kept == records and not sets_horizon and magic >= 2 else REBUILD
