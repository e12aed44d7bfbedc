"""The decisions on batches and records, one rule at a time."""

from __future__ import annotations

import pytest

from diamant.cleaner.rules import record_fate
from diamant.cleaner.rules.plan import ActiveProducer
from diamant.kernels.constants.fates import FATE_KEYLESS, FATE_SUPERSEDED, FATE_TOMBSTONE, FATES, KEEP
from diamant.kernels.constants.steps import COPY, DROP, HEADER_ONLY, REBUILD


def fate(offset: int = 5, **fields: bool | int) -> int:
    """Return the fate of a record with key and value whose key is not in a map that ends at 100."""
    facts = {
        "offset": offset,
        "map_end_offset": 100,
        "has_key": True,
        "mapped_offset": record_fate.NOT_MAPPED,
        "has_value": True,
        "is_expired": False,
    }
    return record_fate.record_fate(**(facts | fields))  # type: ignore[arg-type]


def test_a_superseded_record_goes() -> None:
    """Below its key's last offset it goes; at it, or without an entry in the map, it stays."""
    assert fate(5, mapped_offset=6) == FATE_SUPERSEDED
    assert fate(5, mapped_offset=5) == KEEP
    assert fate(5) == KEEP


def test_nothing_past_the_map_goes_for_its_key() -> None:
    """Past the map nothing goes for its key: neither without a key, nor superseded, nor as an expired tombstone."""
    assert fate(101, has_key=False) == KEEP
    assert fate(101, mapped_offset=200) == KEEP
    assert fate(101, has_value=False, is_expired=True) == KEEP


def test_a_record_without_a_key_goes() -> None:
    """A record without a key goes at or below the map's end."""
    assert fate(100, has_key=False) == FATE_KEYLESS


def test_an_expired_tombstone_goes() -> None:
    """Only an expired tombstone goes; superseded counts first."""
    assert fate(has_value=False, is_expired=True) == FATE_TOMBSTONE
    assert fate(has_value=False) == KEEP
    assert fate(is_expired=True) == KEEP
    assert fate(5, has_value=False, is_expired=True, mapped_offset=7) == FATE_SUPERSEDED


@pytest.mark.parametrize(("now_ms", "is_expired"), [(999, False), (1000, True)])
def test_a_horizon_is_over_when_it_is_reached(now_ms: int, is_expired: bool) -> None:
    """At the horizon, tombstones and markers may go."""
    facts = {"has_horizon": True, "horizon_ms": 1000, "now_ms": now_ms}
    assert record_fate.tombstones_expired(magic=2, modified_ms=0, legacy_horizon_ms=2**60, **facts) == is_expired
    assert record_fate.drops_all_records(may_drop=True, is_control=True, **facts) == is_expired


def test_without_a_horizon_nothing_expires() -> None:
    """A batch without a delete horizon does not expire, whatever its base timestamp."""
    facts = {"has_horizon": False, "horizon_ms": 0, "now_ms": 2**60}
    assert not record_fate.tombstones_expired(magic=2, modified_ms=0, legacy_horizon_ms=2**60, **facts)
    assert not record_fate.drops_all_records(may_drop=True, is_control=True, **facts)


def test_tombstones_of_old_formats_go_by_their_files_age() -> None:
    """A tombstone of an old format expires if its file was written at the horizon or before."""
    facts = {"has_horizon": False, "horizon_ms": 0, "now_ms": 0, "legacy_horizon_ms": 50}
    assert record_fate.tombstones_expired(magic=1, modified_ms=50, **facts)
    assert not record_fate.tombstones_expired(magic=0, modified_ms=51, **facts)


def test_data_of_an_aborted_transaction_goes_at_once() -> None:
    """No horizon protects it."""
    assert record_fate.drops_all_records(may_drop=True, is_control=False, has_horizon=False, horizon_ms=0, now_ms=0)
    assert not record_fate.drops_all_records(may_drop=False, is_control=False, has_horizon=True, horizon_ms=0, now_ms=9)


def test_a_marker_whose_data_is_there_stays() -> None:
    """A marker stays even after its horizon while its data is there."""
    assert not record_fate.drops_all_records(may_drop=False, is_control=True, has_horizon=True, horizon_ms=0, now_ms=9)


def test_a_producers_last_batch_is_recognized_by_its_last_offset() -> None:
    """Without a batch in the current epoch it is the marker of that epoch."""
    facts = {"producer_epoch": 3, "is_control": False}
    assert record_fate.is_last_of_producer(ActiveProducer(3, 8), last_offset=8, **facts)
    assert not record_fate.is_last_of_producer(ActiveProducer(3, 8), last_offset=7, **facts)
    assert not record_fate.is_last_of_producer(None, last_offset=8, **facts)
    assert not record_fate.is_last_of_producer(ActiveProducer(3, None), last_offset=8, **facts)
    assert record_fate.is_last_of_producer(ActiveProducer(3, None), last_offset=8, producer_epoch=3, is_control=True)
    assert not record_fate.is_last_of_producer(
        ActiveProducer(4, None), last_offset=8, producer_epoch=3, is_control=True
    )


@pytest.mark.parametrize(
    ("drops_all", "last_of_producer", "kept_end", "verdict"),
    [
        (False, False, False, record_fate.DELETE_EMPTY),
        (True, False, False, record_fate.DELETE),
        (True, True, False, record_fate.RETAIN_EMPTY),
        (True, False, True, record_fate.RETAIN_EMPTY),
        (False, False, True, record_fate.RETAIN_EMPTY),
    ],
)
def test_a_batch_needed_for_recovery_leaves_a_header(
    drops_all: bool, last_of_producer: bool, kept_end: bool, verdict: int
) -> None:
    """A producer's last batch and the one at the end never go as a whole (KAFKA-17076, KAFKA-20452)."""
    assert (
        record_fate.batch_verdict(drops_all=drops_all, is_last_of_producer=last_of_producer, is_kept_end=kept_end)
        == verdict
    )


def horizon(last_tombstone: int = -1, *, has: bool = False, marker: bool = False, kafka: bool = True) -> bool:
    """Whether a batch needs a horizon under a map that ends at 100."""
    return record_fate.needs_horizon(
        has_horizon=has,
        last_tombstone_offset=last_tombstone,
        map_end_offset=100,
        is_marker_of_empty_transaction=marker,
        is_kafka=kafka,
    )


def test_tombstones_and_left_over_markers_get_a_horizon() -> None:
    """Tombstones and left-over markers get a horizon once; it is never changed."""
    assert horizon(0)
    assert horizon(marker=True)
    assert not horizon()
    assert not horizon(0, has=True)
    assert not horizon(marker=True, has=True)


def test_only_mapped_tombstones_get_a_horizon_in_mode_prompt() -> None:
    """Kafka also sets it beyond the map's end, before older values of their keys are removed."""
    assert horizon(101)
    assert not horizon(101, kafka=False)
    assert horizon(100, kafka=False)


@pytest.mark.parametrize(
    ("verdict", "kept", "sets_horizon", "magic", "action"),
    [
        (record_fate.DELETE, 0, False, 2, DROP),
        (record_fate.DELETE_EMPTY, 0, False, 2, DROP),
        (record_fate.RETAIN_EMPTY, 0, True, 2, HEADER_ONLY),
        (record_fate.DELETE_EMPTY, 3, False, 2, COPY),
        (record_fate.RETAIN_EMPTY, 3, False, 2, COPY),
        (record_fate.DELETE_EMPTY, 2, False, 2, REBUILD),
        (record_fate.DELETE_EMPTY, 3, True, 2, REBUILD),
        (record_fate.DELETE_EMPTY, 3, False, 1, REBUILD),
    ],
)
def test_a_batch_is_copied_if_nothing_changes(
    verdict: int, kept: int, sets_horizon: bool, magic: int, action: int
) -> None:
    """Of three records: all kept is a copy, unless a horizon is to be set or the format is old."""
    assert (
        record_fate.batch_action(verdict=verdict, kept=kept, records=3, sets_horizon=sets_horizon, magic=magic)
        == action
    )


def test_each_fate_has_its_reason() -> None:
    """KEEP has the empty one."""
    assert len(record_fate.FATE_REASONS) == FATES
    assert record_fate.FATE_REASONS[KEEP] == ""
