"""The latest records and the exact counts of any partition, compared with a naive reader."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.cleaner.explain.scans import OpenSegment
from diamant.cleaner.queries.latest_records import latest_records
from diamant.cleaner.queries.partition_count import count_by_keys
from diamant.cleaner.rules.record_kinds import Kinds
from diamant.cleaner.segments.tolerant_reader import Problem
from diamant.cleaner.segments.transaction_outcomes import TransactionOutcomes
from diamant.protocol.batches.header import Record
from tests.cleaner.log_history import History, damage, histories
from tests.effort import examples
from tests.memory_env import MemoryEnv

COUNTED = ("live", "superseded", "tombstone")
"""The statuses of committed records with keys."""


def opened(env: MemoryEnv, history: History) -> list[OpenSegment]:
    """Open the segments that are not empty, as a broker does."""
    paths = {base: f"/data/t-0/{base:020d}.log" for base in history.segments}
    return [OpenSegment.of(env, path, base, size) for base, path in paths.items() if (size := env.file_size(path))]


def outcomes(history: History) -> TransactionOutcomes:
    """Return the outcomes from the indexes and the producers' state."""
    statuses = replace(history, log_start_offset=0).statuses()
    open_since: dict[int, int] = {}
    for record, producer_id in history.records:
        if producer_id is not None and statuses[record.offset] == "undecided":
            open_since.setdefault(producer_id, record.offset)
    return TransactionOutcomes([one for found in history.aborted.values() for one in found], open_since)


@settings(max_examples=examples(150), deadline=None)
@given(histories(), st.booleans())
def test_the_latest_records_are_those_of_a_naive_reader(history: History, tombstones: bool) -> None:
    """Strategy: any partition. Invariant: below the last stable offset the last committed record of each key, in order."""
    env = MemoryEnv()
    history.log_start_offset = 0
    history.write(env, "/data")
    statuses = history.statuses()
    stable = min((offset for offset, status in statuses.items() if status == "undecided"), default=1 << 60)
    expected: dict[bytes | None, Record] = {}
    for record, _ in history.records:
        if record.offset < stable and statuses[record.offset] in COUNTED:
            expected[record.key] = record
    found = latest_records(lambda: opened(env, history), outcomes(history), 0, stable, tombstones=tombstones)
    assert [(one.offset, one.key, one.value) for one in found] == sorted(
        (one.offset, one.key, one.value) for one in expected.values() if tombstones or one.value is not None
    )


@settings(max_examples=examples(150), deadline=None)
@given(histories(), st.data())
def test_counts_are_exact_and_the_same_without_kernels(history: History, data: st.DataObject) -> None:
    """Strategy: any partition, damaged or not. Invariant: equal with and without kernels; the naive counts in a sound one."""
    env = MemoryEnv()
    history.write(env, "/data")
    statuses = history.statuses()
    is_damaged = data.draw(st.booleans())
    if is_damaged:
        damage(env, f"/data/t-0/{data.draw(st.sampled_from(sorted(history.segments))):020d}.log", data)

    def counted(*, is_compiled: bool) -> tuple[Kinds, tuple[Problem, ...]]:
        return count_by_keys(
            opened(env, history),
            outcomes(history),
            history.log_start_offset,
            is_compiled=is_compiled,
        )

    found = counted(is_compiled=True)
    assert found == counted(is_compiled=False)
    if not is_damaged:
        numbers = Counter(statuses.values())
        assert found[0] == Kinds(
            len(statuses) - numbers["below log start"],
            numbers["live"],
            numbers["superseded"],
            numbers["tombstone"],
            numbers["aborted"],
            numbers["undecided"],
            numbers["keyless"],
            markers=sum(offset >= history.log_start_offset for offset, _, _ in history.markers),
        )
