"""Properties of any rounds over any history of a log, tested on random ones.

Strategy: a history is a list of steps: batches of a few keys (plain, idempotent or transactional, some tombstones, any codec),
markers, rolls, time going by, rounds. Each rule below is checked on the log in which it ends, against the log before its last
round or against the model in `tests/naive_cleaner.py`.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from diamant.cleaner.rules.modes import KAFKA, KAFKA_4_3, KAFKA_VERSIONS, MODES, PROMPT
from diamant.protocol.batches.header import Record
from tests.cleaner.cleaner_log import CleanerLog
from tests.cleaner.naive_bytes import naive
from tests.effort import examples
from tests.naive_cleaner import Protected, naive_round

RETENTION_MS = 50
PLAIN, IDEMPOTENT, TRANSACTIONAL = -1, (1, 2), (11, 12)

keys = st.sampled_from(["a", "b", "c", "d", "a=", "b=", "c="])
batches = st.tuples(
    st.just("data"),
    st.sampled_from([PLAIN, PLAIN, *IDEMPOTENT, *TRANSACTIONAL]),
    st.lists(keys, min_size=1, max_size=4),
    st.sampled_from([0, 0, 0, 1, 4]),
)
plain_batches = st.tuples(
    st.just("data"), st.sampled_from([PLAIN, *IDEMPOTENT]), st.lists(keys, min_size=1, max_size=4), st.just(0)
)
markers = st.tuples(st.just("marker"), st.sampled_from(TRANSACTIONAL), st.sampled_from(["commit", "abort"]))
rolls = st.just(("roll",))
rounds = st.just(("clean",))
pauses = st.tuples(st.just("wait"), st.sampled_from([1, 20, 60]))

histories = st.lists(st.one_of(batches, batches, batches, markers, markers, rolls, rounds, pauses), max_size=25)
plain_histories = st.lists(st.one_of(plain_batches, plain_batches, rolls, rounds), max_size=20)
UNLIMITED = 1 << 30
limits = st.sampled_from([UNLIMITED, 400, 150])

quickly = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def play(
    history: list[Any], *, mode: str = KAFKA, segment_bytes: int = 1 << 30, with_rounds: bool = True
) -> CleanerLog:
    """Return the log in which a history ends; transactions that are open then are committed, and the last segment is rolled."""
    log = CleanerLog(delete_retention_ms=RETENTION_MS, index_interval_bytes=100, segment_bytes=segment_bytes)
    is_open = set()
    for name, *arguments in history:
        if name == "data":
            producer, words, codec = arguments
            is_transactional = producer in TRANSACTIONAL
            log.data(*words, producer=producer, txn=is_transactional, codec=codec)
            if is_transactional:
                is_open.add(producer)
        elif name == "marker":
            log.marker(*arguments)
            is_open.discard(arguments[0])
        elif name == "roll":
            log.roll()
        elif name == "wait":
            log.now_ms += arguments[0]
        elif with_rounds and (bound := cleanable(log)) > log.first_dirty:
            log.clean(end=bound, mode=mode)
    for producer in sorted(is_open):
        log.marker(producer, "commit")
    log.roll()
    return log


def cleanable(log: CleanerLog) -> int:
    """Where a round must end: a segment's base at or below the last stable offset."""
    stable = log.log.last_stable_offset
    return max((segment.base_offset for segment in log.log.segments if segment.base_offset <= stable), default=0)


def all_records(log: CleanerLog) -> dict[int, Record]:
    """Every record by its offset."""
    return {record.offset: record for batch in log.stored() for record in batch.records}


def committed_values(log: CleanerLog) -> dict[bytes, bytes | None]:
    """Return the last committed value of each key, as a consumer sees it, without deleted keys."""
    aborted = log.aborted()
    values: dict[bytes, bytes | None] = {}
    for batch in log.stored():
        header = batch.header
        if header.is_control or any(
            header.is_transactional and header.producer_id == producer and first <= header.base_offset <= last
            for producer, first, last in aborted
        ):
            continue
        values |= {record.key: record.value for record in batch.records if record.key is not None}
    return {key: value for key, value in values.items() if value is not None}


@quickly
@given(histories, limits, st.sampled_from(MODES), st.sampled_from(KAFKA_VERSIONS), st.booleans())
def test_a_round_leaves_what_the_model_leaves(
    history: list[Any], segment_bytes: int, mode: str, version: str, is_ended: bool
) -> None:
    """Each batch has the offsets, records and horizon of the model's. `is_ended`: there are no records behind the round."""
    log = play(history, segment_bytes=segment_bytes, mode=mode)
    if not is_ended:
        log.data("a")
    first_dirty, bound = log.first_dirty, log.log.active.base_offset
    is_old = mode == KAFKA and version == KAFKA_4_3
    protected = {
        producer: Protected(active.producer_epoch, active.last_data_offset)
        for producer, active in log.plan().active_producers.items()
    }
    expected = naive_round(
        [naive(batch) for batch in log.stored()],
        first_dirty=first_dirty,
        bound=bound,
        header_end=bound if is_old else log.log.log_end_offset,
        now_ms=log.now_ms,
        retention_ms=RETENTION_MS,
        protected=protected,
    )
    assert log.clean(mode=mode, version=version).end_offset == bound
    assert [naive(batch) for batch in log.stored() if batch.header.base_offset < bound] == expected


@quickly
@given(histories, limits)
def test_nobody_reading_committed_data_sees_another_value(history: list[Any], segment_bytes: int) -> None:
    """Each key has its last value, whatever else was removed."""
    log = play(history, segment_bytes=segment_bytes)
    before = committed_values(log)
    log.clean()
    assert committed_values(log) == before
    log.now_ms += RETENTION_MS
    log.clean(first_dirty=0)
    assert committed_values(log) == before


@quickly
@given(histories)
def test_kept_records_are_not_changed(history: list[Any]) -> None:
    """A round changes no offset, timestamp, key, value or header of a record, no order of batches, and no horizon once set."""
    log = play(history)
    records = all_records(log)
    headers = {batch.header.base_offset: batch.header for batch in log.stored()}
    log.now_ms += 1
    log.clean()
    assert all_records(log).items() <= records.items()
    assert log.bases() == sorted(set(log.bases()))
    for batch in log.stored():
        before, after = headers[batch.header.base_offset], batch.header
        assert after.last_offset == before.last_offset
        if before.has_delete_horizon and after.record_count:
            assert (after.has_delete_horizon, after.base_timestamp) == (True, before.base_timestamp)


@quickly
@given(histories)
def test_the_part_that_is_not_cleanable_stays(history: list[Any]) -> None:
    """No file at or after the round's end changes."""
    log = play(history)
    bases = [segment.base_offset for segment in log.log.segments]
    bound = bases[len(bases) // 2]
    before = log.segment_files()
    if bound <= log.first_dirty:
        return
    log.clean(end=bound)
    assert {name: content for name, content in before.items() if int(name[:20]) >= bound} == {
        name: content for name, content in log.segment_files().items() if int(name[:20]) >= bound
    }


@quickly
@given(histories)
def test_a_restart_finds_producers_and_the_end_as_before(history: list[Any]) -> None:
    """Without a snapshot, the batches alone give each producer's epoch and last sequence, and the log's end."""
    log = play(history)
    log.clean()

    def state() -> tuple[int, dict[int, tuple[int, int, int]]]:
        return log.log.log_end_offset, {
            entry.producer_id: (entry.producer_epoch, entry.last_sequence, entry.last_offset)
            for entry in log.log.producers.active_producers
        }

    def with_data(found: tuple[int, dict[int, tuple[int, int, int]]]) -> tuple[int, dict[int, tuple[int, int, int]]]:
        return found[0], {producer: entry for producer, entry in found[1].items() if entry[1] >= 0}

    before = state()
    log.reload()
    assert state() == before
    log.log.close()
    for name in log.files():
        if name.endswith(".snapshot"):
            log.env.remove(f"{log.log.path}/{name}")
    log.reload()
    # Of a producer without data a marker without its record may be left, which tells nothing (Kafka's ProducerAppendInfo).
    assert with_data(state()) == with_data(before)


@quickly
@given(plain_histories, limits)
def test_a_second_round_at_the_same_time_changes_nothing(history: list[Any], segment_bytes: int) -> None:
    """Without transactions, a second round changes no byte."""
    log = play(history, segment_bytes=segment_bytes)
    log.clean()
    once = [batch.data for batch in log.stored()]
    log.clean(first_dirty=0)
    assert [batch.data for batch in log.stored()] == once


@quickly
@given(histories)
def test_a_third_round_at_the_same_time_changes_nothing(history: list[Any]) -> None:
    """With transactions it takes two: a marker is stamped in the round after the one that dropped its data."""
    log = play(history)
    log.clean()
    log.clean(first_dirty=0)
    files = log.segment_files()
    log.clean(first_dirty=0)
    assert log.segment_files() == files


@quickly
@given(histories)
def test_one_round_does_the_same_as_many(history: list[Any]) -> None:
    """Until a horizon has passed, the kept records do not depend on the number of earlier rounds."""
    still = [step for step in history if step[0] != "wait"]
    logs = [play(still, with_rounds=with_rounds) for with_rounds in (True, False)]
    for log in logs:
        log.clean()
    assert logs[0].keys() == logs[1].keys()
    assert all_records(logs[0]) == all_records(logs[1])


GROWING = [
    ("data", 11, ["c", "c=", "c="], 0),
    ("marker", 11, "abort"),
    ("marker", 12, "commit"),
    ("data", 12, ["a", "d", "b="], 0),
    ("wait", 60),
    ("data", 11, ["b"], 0),
    ("marker", 11, "abort"),
    ("data", 12, ["b", "c", "d"], 0),
    ("roll",),
    ("marker", 12, "commit"),
    ("data", 11, ["c"], 0),
    ("clean",),
]
"""Horizons make a merged segment larger than its sources together, and than 400 bytes."""


@quickly
@given(histories, limits)
@example(GROWING, 400)
def test_both_modes_agree_where_nothing_is_special(history: list[Any], segment_bytes: int) -> None:
    """With whole dirty ranges and a log that begins at 0 they write the same batches, and the same files unless a merged segment
    may outgrow segment.bytes: mode prompt ends it before.
    """
    logs = [play(history, mode=mode, segment_bytes=segment_bytes) for mode in (KAFKA, PROMPT)]
    for log, mode in zip(logs, (KAFKA, PROMPT), strict=True):
        log.clean(mode=mode)
    assert [batch.data for batch in logs[0].stored()] == [batch.data for batch in logs[1].stored()]
    if segment_bytes == UNLIMITED:
        assert logs[0].segment_files() == logs[1].segment_files()


STALE_ABORT = [
    ("data", 12, ["a"], 0),
    ("marker", 12, "abort"),
    ("data", PLAIN, ["a", "b"], 0),
    ("data", 12, ["a"], 0),
]
"""The second of two small rounds begins behind the marker, in its segment, whose index still has the aborted transaction."""


@quickly
@given(histories, st.integers(1, 3))
@example(STALE_ABORT, 2)
def test_small_maps_come_to_the_same_end(history: list[Any], max_keys: int) -> None:
    """Several rounds over a few keys each leave the same records as one round, in mode prompt."""
    still = [step for step in history if step[0] not in ("wait", "clean")]
    logs = [play(still), play(still)]
    logs[0].clean(mode=PROMPT)
    bound = logs[1].log.active.base_offset
    turns = 0
    while logs[1].first_dirty < bound:
        before = logs[1].first_dirty
        assert logs[1].clean(max_keys=max_keys, end=bound, mode=PROMPT).end_offset > before
        turns += 1
        assert turns <= 100
    assert logs[0].keys() == logs[1].keys()
