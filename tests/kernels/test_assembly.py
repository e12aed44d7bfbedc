"""Batches judged and assembled by kernels equal those of the plain builder."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.kernels.assembly import assemble, room_for_output
from diamant.kernels.batches import read_headers
from diamant.kernels.constants import fates, fields, rules, steps
from diamant.kernels.judging import judge
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from tests import naive
from tests.effort import examples
from tests.kernels.samples import record


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(record, min_size=1, max_size=6),
    st.data(),
    st.none() | st.sampled_from([0, 2**41]),
    st.none() | st.sampled_from([-1, 77]),
)
def test_kept_records_are_written_as_by_the_plain_builder(
    records: list[Record], data: st.DataObject, horizon_ms: int | None, log_append_time_ms: int | None
) -> None:
    """The output equals the plain builder's for any subset of records, delete horizon and timestamp type."""
    numbered = [item._replace(offset=100 + index) for index, item in enumerate(records)]
    kept = data.draw(st.lists(st.sampled_from(numbered), min_size=1, unique_by=lambda item: item.offset))
    kept.sort(key=lambda item: item.offset)
    original = build_batch(
        numbered, base_offset=100, delete_horizon_ms=horizon_ms, log_append_time_ms=log_append_time_ms, producer_id=4
    )
    source = np.frombuffer(original, np.uint8)
    rows = np.zeros((fields.FIELDS, 1), np.int64)
    read_headers(source, 0, len(source), rows)
    rows[fields.STEP, 0] = steps.JUDGE
    given_rules = np.zeros(rules.RULES, np.int64)
    given_rules[rules.MAP_END_OFFSET] = 1000
    given_rules[rules.NOW_MS] = -(2**63)
    table = np.zeros((64, 3), np.uint64)
    latest = np.array([item.offset for item in kept], np.int64)
    keyed = [item for item in kept if item.key is not None]
    places = np.empty(10, np.int32)
    counts = np.zeros(fates.COUNTS, np.int64)
    key = np.uint64(0)
    assert judge(source, source, rows, 0, 1, given_rules, table, key, key, latest, places, counts) == (0, 1)
    assert counts[fates.MESSAGES_WRITTEN] == len(keyed)
    assert counts[: fates.FATES].sum() == len(numbered) - len(keyed)
    out = np.empty(room_for_output(rows, 0, 1), np.uint8)
    columns = np.empty((3, 1), np.int64)
    size, batches = assemble(source, rows, 0, 1, places, source, out, columns)
    if not keyed:
        assert (rows[fields.STEP, 0], size, batches) == (steps.DROP, 0, 0)
        return
    new_horizon_ms = horizon_ms
    if horizon_ms is None and any(item.value is None for item in keyed):
        new_horizon_ms = 0
    if log_append_time_ms is not None:
        keyed = [item._replace(timestamp=log_append_time_ms) for item in keyed]
    expected = build_batch(
        keyed,
        base_offset=100,
        delete_horizon_ms=new_horizon_ms,
        log_append_time_ms=log_append_time_ms,
        producer_id=4,
        last_offset_delta=len(numbered) - 1,
    )
    if len(keyed) == len(numbered) and new_horizon_ms == horizon_ms:
        expected = original
    assert out[:size].tobytes() == bytes(expected)
    assert columns[:, 0].tolist() == [size, 99 + len(numbered), naive_max_timestamp(bytes(expected))]


def naive_max_timestamp(batch: bytes) -> int:
    """Return the max timestamp field of a batch's header."""
    return naive.parse_batch(batch).max_timestamp
