"""A call of every kernel that rounds use, which compiles it or loads it from the cache."""

from __future__ import annotations

import numpy as np

from diamant.cleaner.kernels import fields, offset_map, records, rewrite


def call_every_kernel() -> None:
    """Compile or load every kernel, with the argument types of a round."""
    data = np.zeros(1, np.uint8)
    rows = np.zeros((fields.FIELDS, 1), np.int64)
    table = tuples = np.zeros((64, 3), np.uint64)
    numbers = np.zeros(64, np.int64)
    kept = np.zeros(1, np.int32)
    key = np.uint64(0)
    records.read_headers(data, 0, 0, rows)
    records.find_bad_crc(data, rows, 0, 0, 0)
    offset_map.hash_records(data, data, rows, 0, numbers, tuples, key, key, 0, 0)
    offset_map.put_tuples(table, 0, 0, tuples, 0, 0)
    offset_map.find_key(table, key, key, data)
    offset_map.move_slots(table, 0, 0, table)
    offset_map.take_tuples(table, 0, tuples)
    offset_map.take_offsets(table, numbers)
    offset_map.scatter(tuples, 0, 0, 0, np.zeros((1, 1, 3), np.uint64), numbers)
    offset_map.take_missing(table, tuples, 0, numbers)
    rewrite.decide(rows, 0, 0, numbers, rows, numbers, 0, numbers)
    rewrite.judge(data, data, rows, 0, 0, numbers, table, key, key, numbers, kept, numbers)
    rewrite.encode_records(data, rows, 0, 0, kept, data)
    rewrite.room_for_output(rows, 0, 0)
    rewrite.assemble(data, rows, 0, 0, kept, data, data, rows)
    rewrite.index_batches(rows, 0, numbers, data, data)
