"""Compiled kernels against their plain twins."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.broker.node.validation_loader import ValidationLoader
from diamant.cleaner.kernels import fields, native, offset_map, produce_validation, rewrite
from diamant.cleaner.kernels.records import find_bad_crc, read_headers
from diamant.protocol.batches import validation
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.header import HEADER_SIZE, Header, Record
from diamant.protocol.batches.records import build_batch
from diamant.protocol.errors import CorruptBatch
from diamant.storage.env.clock import SettableClock
from diamant.storage.env.memory import MemoryEnv
from diamant.storage.log.append_checks import Validation
from tests import naive
from tests.builder import make_batch, make_message, with_payload
from tests.effort import examples

compiled_walk = partial(produce_validation.walk_records, min_records=0)

CHECKS = validation.RecordChecks(True, 0, 0, 0, False)

record = st.builds(
    Record,
    offset=st.just(0),
    timestamp=st.integers(-(2**50), 2**50),
    key=st.none() | st.binary(max_size=200),
    value=st.none() | st.binary(max_size=200),
    headers=st.lists(st.builds(Header, st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3).map(tuple),
)


def payload_of(records: list[Record]) -> bytes:
    numbered = [item._replace(offset=index) for index, item in enumerate(records)]
    return bytes(build_batch(numbered)[HEADER_SIZE:])


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(record, min_size=1, max_size=8), st.integers(0, 9))
def test_walk_of_valid_records_equals_the_plain_walk(records: list[Record], extra: int) -> None:
    """Whatever valid records are in a batch, both walks find the same; also when the count is wrong."""
    payload = payload_of(records)
    base = records[0].timestamp
    for count in (len(records), len(records) - 1, len(records) + extra):
        assert compiled_walk(payload, count, base, CHECKS) == validation.walk_records(payload, count, base, CHECKS)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(record, min_size=1, max_size=3), st.data())
def test_walk_of_damaged_records_equals_the_plain_walk(records: list[Record], data: st.DataObject) -> None:
    """Strategy: overwrite or cut bytes. Invariant: same fault or same result as the plain walk, never a read beyond the end."""
    payload = bytearray(payload_of(records))
    for _ in range(data.draw(st.integers(1, 3))):
        if payload:
            payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(
                st.sampled_from([0, 1, 2, 127, 128, 254, 255])
            )
    damaged = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    plain = validation.walk_records(damaged, len(records), 0, CHECKS)
    compiled = compiled_walk(damaged, len(records), 0, CHECKS)
    assert (compiled.fault == validation.NO_FAULT) == (plain.fault == validation.NO_FAULT)
    if plain.fault == validation.NO_FAULT:
        assert compiled == plain


def test_walk_of_a_hostile_record_count_ends_with_the_bytes() -> None:
    """A count of two billion over a few bytes ends where the bytes end."""
    assert compiled_walk(b"\x00" * 3, 2**31 - 1, 0, CHECKS).fault != validation.NO_FAULT


def test_the_compiled_walk_replaces_the_plain_one_after_enough_records() -> None:
    """The plain walk serves until the limit; then the compiled one is loaded in a thread and takes over."""
    settings_of_logs = Validation()
    compiled = ValidationLoader(settings_of_logs, load_after_records=10)
    payload = payload_of([Record(0, 5, b"k", b"v")] * 8)
    first = settings_of_logs.walk(payload, 8, 5, CHECKS)
    assert not compiled.wait_loaded(60)
    settings_of_logs.walk(payload, 8, 5, CHECKS)
    assert compiled.wait_loaded(60)
    assert settings_of_logs.walk(payload, 8, 5, CHECKS) == first


# -- batches and records of the cleaner ------------------------------------------------------------------------------


def array_of(data: bytes | bytearray) -> Any:
    """Bytes as the kernels take them."""
    return np.frombuffer(bytearray(data), np.uint8)


def rows_of(data: bytes | bytearray, end: int | None = None, capacity: int = 20) -> tuple[Any, ...]:
    """What `read_headers` tells, and the table of rows, which was full of something else."""
    rows = np.full((fields.FIELDS, capacity), 77, np.int64)
    return (*read_headers(array_of(data), 0, len(data) if end is None else end, rows), rows)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 511, 512, 1535, 1536, 1537, 3072, 5000])
def test_the_checksum_is_crc_32c(size: int) -> None:
    """For sizes around those of its three lanes, as the plain twin has it, bit by bit."""
    data = bytes(index * 7 % 251 for index in range(size))
    assert native.crc32c(array_of(data)) == naive.crc32c(data)


def test_the_checksum_by_tables_is_the_same() -> None:
    """Processors without the instruction take tables; run as plain Python here."""
    data = bytes(range(64))
    crc = np.uint64(0xFFFFFFFF)
    for start in range(0, 64, 8):
        crc = native.software_crc64.py_func(crc, np.uint64(int.from_bytes(data[start : start + 8], "little")))
    assert int(crc) ^ 0xFFFFFFFF == naive.crc32c(data)


batch_headers = st.builds(
    lambda pairs, **given: make_batch(*pairs, **given),
    st.lists(st.tuples(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9)), min_size=1, max_size=3),
    base_offset=st.sampled_from([0, 5, 2**40, 2**62]),
    timestamp=st.sampled_from([-1, 0, 2**40, -(2**40)]),
    codec=st.integers(0, 4),
    producer_id=st.sampled_from([-1, 0, 2**40]),
    is_transactional=st.booleans(),
    delete_horizon_ms=st.none() | st.sampled_from([0, 2**41]),
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(batch_headers | st.just(make_message(1, 3, b"k", b"v")), max_size=4), st.integers(0, 70))
def test_rows_are_the_headers(batches: list[bytes], cut: int) -> None:
    """Every field of every whole batch; a torn one at the end is left out."""
    data = b"".join(bytes(batch) for batch in batches)
    data = data[: max(0, len(data) - cut)]
    fault, count, end, together, rows = rows_of(data)
    headers = list(iter_headers(data))
    assert (fault, count) == (fields.NO_FAULT, len(headers))
    assert end == (headers[-1][0] + headers[-1][1].size if headers else 0)
    expected_together = 0
    for row, (position, header) in enumerate(headers):
        found = rows[:, row].tolist()
        assert found[fields.POSITION : fields.SIZE + 1] == [position, header.size]
        assert found[fields.MAGIC] == header.magic
        expected_together |= header.attributes if header.magic == 2 else fields.LEGACY
        if header.magic == 2:
            assert found[fields.BASE_OFFSET : fields.LAST_OFFSET + 1] == [header.base_offset, header.last_offset]
            assert found[fields.ATTRIBUTES] == header.attributes
            assert found[fields.BASE_TIMESTAMP] == header.base_timestamp
            assert found[fields.MAX_TIMESTAMP] == header.max_timestamp
            assert (found[fields.PRODUCER_ID], found[fields.RECORD_COUNT]) == (header.producer_id, header.record_count)
        assert not any(found[fields.STEP :])
    assert together == expected_together


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_rows_of_damaged_headers_end_where_the_plain_reader_fails(data: st.DataObject) -> None:
    """Strategy: bytes of three batches changed. Invariant: a fault at the same place, or the same batches."""
    content = bytearray(b"".join(bytes(make_batch("a=1", "b=2", base_offset=base)) for base in (0, 2, 4)))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(
            st.sampled_from([0, 1, 2, 3, 49, 127, 128, 255])
        )
    fault, count, end, _, rows = rows_of(content)
    positions, bad = [], None
    try:
        for position, header in iter_headers(content):
            if header.magic < 2:
                return
            positions.append(position)
    except CorruptBatch as error:
        bad = error.position
    if bad is not None and content[bad + 16] < 2:
        return
    assert fault == (fields.NO_FAULT if bad is None else fields.BAD_HEADER)
    assert bad is None or end == bad
    assert rows[fields.POSITION, :count].tolist() == positions


def test_rows_stop_when_there_are_no_more() -> None:
    """The rest is for the next call."""
    batch = bytes(make_batch("a=1"))
    fault, count, end, _, _ = rows_of(batch * 5, capacity=3)
    assert (fault, count, end) == (fields.NO_FAULT, 3, 3 * len(batch))


def test_a_wrong_checksum_is_found() -> None:
    """Only among the rows that are asked for."""
    batch = make_batch("a=1")
    bad = bytearray(batch)
    bad[-1] ^= 1
    data = bytes(batch + bad)
    _, count, _, _, rows = rows_of(data)
    rows[fields.STEP, :count] = 1
    assert find_bad_crc(array_of(data), rows, 0, count, 1) == 1
    assert find_bad_crc(array_of(data), rows, 0, 1, 1) == -1
    rows[fields.STEP, 1] = 2
    assert find_bad_crc(array_of(data), rows, 0, count, 1) == -1


def hashed(payload: bytes, count: int, room: int = 100) -> tuple[int, list[tuple[bytes, int]], int]:
    """What `hash_records` makes of a payload: fault, (hash, offset) of each record with a key, and the note."""
    batch = with_payload(make_batch("k=v"), payload, record_count=count, last_offset_delta=2**31 - 1)
    data = array_of(batch)
    rows = np.zeros((fields.FIELDS, 1), np.int64)
    read_headers(data, 0, len(data), rows)
    rows[fields.STEP, 0] = offset_map.MAP
    state = np.zeros(offset_map.STATE_FIELDS, np.int64)
    state[offset_map.LAST_SEEN] = -1
    tuples = np.zeros((room, 3), np.uint64)
    found = []
    key = np.uint64(0)
    while True:
        fault, taken = offset_map.hash_records(data, data, rows, 1, state, tuples, key, key, 0, 2**62)
        found += [
            (int(first).to_bytes(8, "little") + int(second).to_bytes(8, "little"), int(offset))
            for first, second, offset in tuples[:taken].tolist()
        ]
        if fault != fields.BUFFER_FULL:
            return fault, found, int(rows[fields.NOTE, 0])


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(record, min_size=1, max_size=6), st.sampled_from([1, 2, 100]))
def test_records_are_hashed_by_their_keys(records: list[Record], room: int) -> None:
    """Each record with a key, in any portions; the note tells the size if all have key and value."""
    payload = payload_of(records)
    fault, found, note = hashed(payload, len(records), room)
    assert fault == fields.NO_FAULT
    assert found == [
        (naive.siphash128(bytes(16), item.key), index) for index, item in enumerate(records) if item.key is not None
    ]
    is_plain = all(item.key is not None and item.value is not None for item in records)
    assert note == (len(payload) + 1 if is_plain else 0)


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(record, min_size=1, max_size=3), st.data())
def test_damaged_records_are_refused_where_the_plain_reader_refuses(records: list[Record], data: st.DataObject) -> None:
    """Strategy: overwrite or cut bytes. Invariant: read or refused as by the plain twin; never read beyond the end."""
    payload = bytearray(payload_of(records))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.sampled_from([0, 1, 2, 127, 128, 254, 255]))
    damaged = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    count = data.draw(st.sampled_from([len(records), len(records) + 1, -1, 2**31 - 1]))
    fault, found, _ = hashed(damaged, count)
    try:
        expected = naive.parse_records(damaged, count)
    except naive.Malformed:
        assert fault in (fields.CORRUPT, fields.OUT_OF_ORDER)
        return
    offsets = [item.offset_delta for item in expected]
    if offsets != sorted(set(offsets)) or any(offset < 0 for offset in offsets):
        assert fault == fields.OUT_OF_ORDER
        return
    assert fault == fields.NO_FAULT
    assert found == [
        (naive.siphash128(bytes(16), item.key), item.offset_delta) for item in expected if item.key is not None
    ]


@pytest.mark.parametrize(
    ("odd", "plain"),
    [
        (b"\x8c\x00", b"\x0c"),
        (b"\x03", b"\x01"),
        (b"\x8c\x80\x80\x80\x10", b"\x0c"),
    ],
)
def test_odd_integers_are_noted(odd: bytes, plain: bytes) -> None:
    """More bytes than needed, a null other than -1, bits beyond the 32nd: read as the plain reader does, but told apart."""
    is_null = plain == b"\x01"
    body = b"\x00\x00\x00" + plain + (b"" if is_null else b"abcdef") + b"\x02v\x00"
    odd_body = b"\x00\x00\x00" + odd + (b"" if is_null else b"abcdef") + b"\x02v\x00"
    for content, is_noted in ((body, not is_null), (odd_body, False)):
        payload = bytes([len(content) * 2]) + content
        assert naive.parse_records(payload, 1)[0].key == (None if is_null else b"abcdef")
        fault, found, note = hashed(payload, 1)
        assert (fault, len(found), note > 0) == (fields.NO_FAULT, not is_null, is_noted)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(record, min_size=1, max_size=6),
    st.data(),
    st.none() | st.sampled_from([0, 2**41]),
    st.none() | st.sampled_from([-1, 77]),
)
def test_what_stays_is_written_as_the_plain_builder_writes_it(
    records: list[Record], data: st.DataObject, horizon_ms: int | None, log_append_time_ms: int | None
) -> None:
    """Any subset of a batch's records, with horizon and timestamp type as they come."""
    numbered = [item._replace(offset=100 + index) for index, item in enumerate(records)]
    kept = data.draw(st.lists(st.sampled_from(numbered), min_size=1, unique_by=lambda item: item.offset))
    kept.sort(key=lambda item: item.offset)
    original = build_batch(
        numbered, base_offset=100, delete_horizon_ms=horizon_ms, log_append_time_ms=log_append_time_ms, producer_id=4
    )
    source = array_of(original)
    rows = np.zeros((fields.FIELDS, 1), np.int64)
    read_headers(source, 0, len(source), rows)
    rows[fields.STEP, 0] = rewrite.JUDGE
    rules = np.zeros(rewrite.RULES, np.int64)
    rules[rewrite.MAP_END_OFFSET] = 1000
    rules[rewrite.NOW_MS] = -(2**63)
    table = np.zeros((64, 3), np.uint64)
    latest = np.array([item.offset for item in kept], np.int64)
    keyed = [item for item in kept if item.key is not None]
    places = np.empty(10, np.int32)
    counts = np.zeros(rewrite.COUNTS, np.int64)
    key = np.uint64(0)
    assert rewrite.judge(source, source, rows, 0, 1, rules, table, key, key, latest, places, counts) == (0, 1)
    assert counts[rewrite.MESSAGES_WRITTEN] == len(keyed)
    assert counts[: rewrite.FATES].sum() == len(numbered) - len(keyed)
    out = np.empty(rewrite.room_for_output(rows, 0, 1), np.uint8)
    columns = np.empty((3, 1), np.int64)
    size, batches = rewrite.assemble(source, rows, 0, 1, places, source, out, columns)
    if not keyed:
        assert (rows[fields.STEP, 0], size, batches) == (rewrite.DROP, 0, 0)
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
    """The field of a header."""
    return naive.parse_batch(batch).max_timestamp


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.tuples(st.integers(61, 300), st.integers(1, 9), st.integers(-1, 50)), min_size=1, max_size=40),
    st.sampled_from([0, 100, 10_000]),
    st.sampled_from([8, 30, 1 << 20]),
    st.integers(1, 7),
)
def test_index_entries_are_those_of_the_plain_writer(
    batches: list[tuple[int, int, int]], interval: int, index_bytes: int, at_once: int
) -> None:
    """Any sizes, offsets and timestamps, in runs of any length; entries without room are left out."""
    from diamant.cleaner.segments.compiled_segment_writer import CompiledWriter
    from diamant.cleaner.segments.segment_writer import SegmentWriter

    offset = 10
    columns = []
    for size, step, timestamp in batches:
        offset += step
        columns.append((size, offset, timestamp))
    contents = []
    for writer_type in (SegmentWriter, CompiledWriter):
        env = MemoryEnv(SettableClock(5))
        env.make_dirs("/log")
        writer = writer_type(env, "/log", 10, index_interval_bytes=interval, segment_index_bytes=index_bytes)
        for start in range(0, len(columns), at_once):
            run = columns[start : start + at_once]
            data = bytes(sum(size for size, _, _ in run))
            if isinstance(writer, CompiledWriter):
                writer.append_columns(data, np.array(run, np.int64).T.copy(), len(run))
            else:
                for size, last_offset, timestamp in run:
                    writer.append(bytes(size), last_offset, timestamp)
        writer.finish(7, (10,))
        contents.append({name: env.read_bytes(f"/log/{name}") for name in env.list_dir("/log")})
    assert contents[0] == contents[1]
