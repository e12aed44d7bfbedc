"""The compiled search of a chunk of batches equals the plain search."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.cleaner.evidence.search.needles import VALUE, Needles, is_telling
from diamant.cleaner.redaction.json_path import JsonPath
from diamant.kernels.constants import fields
from diamant.kernels.constants.search import CLEAN, LOOK_AGAIN, MULTIPLIER, SEARCH
from diamant.kernels.search import count_windows, has_text, rarest_span, search_rows
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import HEADER_SIZE, Record
from tests.effort import examples
from tests.kernels.samples import record

KEY = b"customer-42"
NEEDLE = bytes(range(1, 60))
NEEDLES = Needles(b"s" * 32)
NEEDLES.add(VALUE, NEEDLE)
NEEDLES.add(VALUE, b"another value that is looked for")


def step_of(batch: bytes, payload: bytes | None = None, needles: Needles = NEEDLES) -> int:
    """Return the STEP of one batch, whose decompressed records are `payload`."""
    rows = np.zeros((fields.FIELDS, 1), np.int64)
    rows[fields.SIZE] = rows[fields.PAYLOAD_END] = len(batch)
    rows[fields.PAYLOAD_START] = HEADER_SIZE
    rows[fields.RECORD_COUNT] = int.from_bytes(batch[57:61], "big")
    rows[fields.STEP] = SEARCH
    if payload is not None:
        rows[fields.IS_UNPACKED] = 1
        rows[fields.PAYLOAD_START], rows[fields.PAYLOAD_END] = 0, len(payload)
    keys = np.frombuffer(b"nobody" + KEY, np.uint8)
    amounts = np.zeros((fields.CODEC_MASK + 1, 3), np.int64)
    unpacked = b"\0" if payload is None else payload
    batches, records = search_rows(batch, unpacked, rows, 1, keys, np.array([0, 6, 17]), *needles.windows, amounts)
    step = int(rows[fields.STEP, 0])
    count = int(rows[fields.RECORD_COUNT, 0])
    assert [batches, records, *amounts.sum(axis=0)] == (
        [1, count, 1, count, len(batch)] if step == CLEAN else [0, 0, 0, 0, 0]
    )
    return step


def batch_of(records: list[Record]) -> bytes:
    """Return a batch of the records, none of which has a wanted key."""
    return bytes(build_batch([one._replace(offset=index) for index, one in enumerate(records)]))


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(record, min_size=1, max_size=6), st.binary(max_size=30), st.binary(max_size=30), st.data())
def test_a_batch_is_clean_unless_a_needle_is_in_it(
    records: list[Record], before: bytes, behind: bytes, data: st.DataObject
) -> None:
    """A needle anywhere in a value is found, in the batch or in its decompressed records."""
    assert step_of(batch_of(records)) == CLEAN
    index = data.draw(st.integers(0, len(records) - 1))
    records[index] = records[index]._replace(value=before + NEEDLE + behind)
    batch = batch_of(records)
    assert step_of(batch) == LOOK_AGAIN
    assert step_of(batch_of([Record(0, 0, b"k", b"v")] * len(records)), batch[HEADER_SIZE:]) == LOOK_AGAIN
    records[index] = records[index]._replace(value=before + NEEDLE[:-1] + b"?" + behind)
    assert step_of(batch_of(records)) == CLEAN


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(record, min_size=1, max_size=6), st.sampled_from([KEY, b"nobody"]), st.data())
def test_a_batch_with_a_key_is_looked_at_again(records: list[Record], key: bytes, data: st.DataObject) -> None:
    """A batch is examined again if any record has a wanted key; longer or other keys of equal size do not match."""
    index = data.draw(st.integers(0, len(records) - 1))
    for what, step in ((key, LOOK_AGAIN), (key + b"0", CLEAN), (key[:-1] + b"?", CLEAN), (b"", CLEAN)):
        records[index] = records[index]._replace(key=what)
        assert step_of(batch_of(records)) == step


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(record, min_size=1, max_size=3), st.data())
def test_a_damaged_batch_is_never_clean(records: list[Record], data: st.DataObject) -> None:
    """A batch with a wrong checksum, or records that do not fill its payload, is not clean."""
    batch = batch_of(records)
    place = data.draw(st.integers(17, len(batch) - 1))
    damaged = bytearray(batch)
    damaged[place] ^= data.draw(st.integers(1, 255))
    assert step_of(bytes(damaged)) == LOOK_AGAIN
    payload = batch[HEADER_SIZE:]
    cut = payload[: data.draw(st.integers(1, len(payload) - 1))]
    assert step_of(batch, payload) == CLEAN
    assert step_of(batch, cut) == LOOK_AGAIN
    assert step_of(batch, payload + b"\0") == LOOK_AGAIN


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(min_size=12, max_size=40).filter(is_telling))
def test_needles_of_all_sizes_are_found(value: bytes) -> None:
    """The kernel's hash of a whole needle equals `quick_hash`, for any length of its last word."""
    needles = Needles(b"s" * 32)
    needles.add(VALUE, value)
    assert step_of(batch_of([Record(0, 0, b"k", value)]), needles=needles) == LOOK_AGAIN


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 400), st.integers(0, 200), st.integers(1, 11), st.booleans())
def test_one_needle_is_found_anywhere(before: int, behind: int, likeness: int, is_there: bool) -> None:
    """One needle alone is found at any place, also where many others are alike: they have the first bytes of a window."""
    needle = b"customer-4200000042"
    needles = Needles(b"s" * 32)
    needles.add(VALUE, needle)
    alike = b"".join(needle[:likeness] + bytes([at % 251]) for at in range(before))[:before]
    value = alike + (needle if is_there else b"") + needle[8 : 8 + likeness] * behind
    step = LOOK_AGAIN if needle in value else CLEAN
    assert step_of(batch_of([Record(0, 0, b"k", value)]), needles=needles) == step


@given(st.binary(max_size=200), st.sampled_from([1, 4, 10]))
def test_windows_are_counted_where_their_hashes_lead(data: bytes, bits: int) -> None:
    """Every eight consecutive bytes count once; fewer than eight have no window."""
    counts = np.zeros(1 << bits, np.uint32)
    count_windows(data, counts, 64 - bits)
    windows = [int.from_bytes(data[at : at + 8], "little") for at in range(len(data) - 7)]
    expected = Counter(((window * MULTIPLIER) & (2**64 - 1)) >> (64 - bits) for window in windows)
    assert {place: count for place, count in enumerate(counts.tolist()) if count} == expected


@settings(max_examples=examples(150), deadline=None)
@given(st.binary(max_size=40), st.booleans(), st.binary(max_size=40), st.integers(0, 3))
def test_windows_are_found_where_they_lie(before: bytes, is_there: bool, behind: bytes, shift: int) -> None:
    """Windows are found as by the plain twin."""
    data = before + (NEEDLE[shift:] if is_there else b"") + behind
    assert [*NEEDLES._window_places(data)] == [*NEEDLES._plain_window_places(data, 1 << 20)]


@settings(max_examples=examples(150), deadline=None)
@given(st.binary(min_size=11, max_size=300), st.lists(st.integers(0, 9), min_size=16, max_size=16))
def test_the_rarest_span_is_that_of_the_plain_twin(data: bytes, counts: list[int]) -> None:
    """The rarest span is the first one with the lowest total of its four windows."""
    windows = [int.from_bytes(data[at : at + 8], "little") * MULTIPLIER % 2**64 >> 60 for at in range(len(data) - 7)]
    spans = [sum(counts[window] for window in windows[at : at + 4]) for at in range(len(windows) - 3)]
    assert rarest_span(data, np.array(counts, np.uint32), 60) == spans.index(min(spans))


@settings(max_examples=examples(300), deadline=None)
@given(
    st.text("abc\\\0", max_size=150).map(str.encode),
    st.lists(st.text("abc\\", max_size=5).map(str.encode), max_size=3).map(tuple),
    st.sampled_from([0, 1, 60, 64, 130]),
)
def test_a_text_is_found_wherever_it_stands(data: bytes, texts: tuple[bytes, ...], before: int) -> None:
    """A text is found across the blocks that are looked at together, up to the last byte."""
    data = b"x" * before + data
    assert has_text(data, texts, bytes(256)) == any(text in data for text in texts)


@settings(max_examples=examples(300), deadline=None)
@given(st.text("a0789u\\\0", max_size=40).map(str.encode), st.sampled_from(["a", "7", "ua", "\\", "ü", "\n"]))
def test_an_escape_is_found_as_by_its_expression(data: bytes, text: str) -> None:
    """By its number, as itself or as a pair of backslashes, also in UTF-16; of other characters, any backslash."""
    path = JsonPath((text,), text)
    assert has_text(data, (), path._flags) == (path._escape.search(data) is not None)
