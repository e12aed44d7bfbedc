"""The loops that build the offset map: the hash of a key, the records' tuples, the table."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.kernels import offset_map
from diamant.kernels.batches import read_headers
from diamant.kernels.constants import fields
from diamant.kernels.constants.tuples import LAST_SEEN, MAP, STATE_FIELDS
from diamant.kernels.offset_map import move_slots, put_tuples, take_missing, take_tuples
from diamant.protocol.batches.header import Record
from tests import naive
from tests.builder import make_batch, with_payload
from tests.effort import examples
from tests.kernels.samples import damaged, payload_of, record

HASH_KEY = bytes(range(16))


def hash_of(key: bytes, hash_key: bytes = HASH_KEY) -> bytes:
    """Return the kernel's hash."""
    k0, k1 = (int.from_bytes(hash_key[start : start + 8], "little") for start in (0, 8))
    return b"".join(half.to_bytes(8, "little") for half in offset_map.siphash(k0, k1, key))


# From SipHash's reference implementation (vectors.h, 128 bits), for the key 00..0f and the message 00..n-1.
VECTORS = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    2: "8177228da4a45dc7fca38bdef60affe4",
    3: "9c70b60c5267a94e5f33b6b02985ed51",
    4: "f88164c12d9c8faf7d0f6e7c7bcd5579",
    5: "1368875980776f8854527a07690e9627",
    6: "14eeca338b208613485ea0308fd7a15e",
    7: "a1f1ebbed8dbc153c0b84aa61ff08239",
    8: "3b62a9ba6258f5610f83e264f31497b4",
    9: "264499060ad9baabc47f8b02bb6d71ed",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
    16: "6ee2a4ca67b054bbfd3315bf85230577",
}


@pytest.mark.parametrize(("size", "expected"), VECTORS.items())
def test_the_hash_is_siphash_2_4_128(size: int, expected: str) -> None:
    """The kernel and its plain twin match the published test vectors."""
    message = bytes(range(size))
    assert naive.siphash128(HASH_KEY, message).hex() == expected
    assert hash_of(message).hex() == expected


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=300), st.binary(min_size=16, max_size=16))
def test_the_hash_of_any_key_is_that_of_the_plain_twin(key: bytes, hash_key: bytes) -> None:
    """Hashes equal the plain twin's for keys of any length and any secret."""
    assert hash_of(key, hash_key) == naive.siphash128(hash_key, key)


def hashed(
    payload: bytes, count: int, room: int = 100, *, may_use_vectors: bool = True
) -> tuple[int, list[tuple[bytes, int]], int]:
    """Return the result of `hash_records` for a payload: fault, (hash, offset) of each record with a key, and the note."""
    data = with_payload(make_batch("k=v"), payload, record_count=count, last_offset_delta=2**31 - 1)
    rows = np.zeros((fields.FIELDS, 1), np.int64)
    read_headers(data, 0, len(data), rows)
    rows[fields.STEP, 0] = MAP
    state = np.zeros(STATE_FIELDS, np.int64)
    state[LAST_SEEN] = -1
    tuples = np.zeros((room, 3), np.uint64)
    found = []
    key = np.uint64(0)
    while True:
        fault, taken = offset_map.hash_records(data, data, rows, 1, state, tuples, key, key, 0, 2**62, may_use_vectors)
        found += [
            (int(first).to_bytes(8, "little") + int(second).to_bytes(8, "little"), int(offset))
            for first, second, offset in tuples[:taken].tolist()
        ]
        if fault != fields.BUFFER_FULL:
            return fault, found, int(rows[fields.NOTE, 0])


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(record, min_size=1, max_size=6), st.sampled_from([1, 2, 100]))
def test_records_are_hashed_by_their_keys(records: list[Record], room: int) -> None:
    """All records with keys are hashed, in portions of any size; the note is the size if all have key and value."""
    payload = payload_of(records)
    fault, found, note = hashed(payload, len(records), room)
    assert fault == fields.NO_FAULT
    assert found == [
        (naive.siphash128(bytes(16), item.key), index) for index, item in enumerate(records) if item.key is not None
    ]
    is_plain = all(item.key is not None and item.value is not None for item in records)
    assert note == (len(payload) + 1 if is_plain else 0)


@pytest.mark.parametrize("may_use_vectors", [True, False])
def test_keys_are_hashed_alike_one_by_one_and_eight_at_a_time(may_use_vectors: bool) -> None:
    """Strategy: ten keys of each size, shuffled, so that full and partial groups occur in any order."""
    seed = 7
    generator = random.Random(seed)
    keys = [generator.randbytes(size) for size in [*range(41), 55, 63, 64, 71, 72, 200] for _ in range(10)]
    generator.shuffle(keys)
    payload = payload_of([Record(0, 0, key, b"") for key in keys])
    _, found, _ = hashed(payload, len(keys), room=300, may_use_vectors=may_use_vectors)
    assert found == [(naive.siphash128(bytes(16), key), index) for index, key in enumerate(keys)], f"seed {seed}"


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(record, min_size=1, max_size=3), st.data())
def test_damaged_records_are_refused_where_the_plain_reader_refuses(records: list[Record], data: st.DataObject) -> None:
    """Strategy: overwrite or cut bytes. Invariant: read or refused as by the plain twin; never read beyond the end."""
    payload = damaged(data, payload_of(records))
    cut = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    count = data.draw(st.sampled_from([len(records), len(records) + 1, -1, 2**31 - 1]))
    fault, found, _ = hashed(cut, count)
    try:
        expected = naive.parse_records(cut, count)
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
    """Integers with extra bytes, nulls other than -1 and bits beyond the 32nd are read like the plain reader, but noted."""
    is_null = plain == b"\x01"
    body = b"\x00\x00\x00" + plain + (b"" if is_null else b"abcdef") + b"\x02v\x00"
    odd_body = b"\x00\x00\x00" + odd + (b"" if is_null else b"abcdef") + b"\x02v\x00"
    for content, is_noted in ((body, not is_null), (odd_body, False)):
        payload = bytes([len(content) * 2]) + content
        assert naive.parse_records(payload, 1)[0].key == (None if is_null else b"abcdef")
        fault, found, note = hashed(payload, 1)
        assert (fault, len(found), note > 0) == (fields.NO_FAULT, not is_null, is_noted)


def test_keys_with_equal_slots_are_distinguished() -> None:
    """Strategy: hashes with the same upper bits fall into one run of slots, which wraps around the table's end."""
    seed = 11
    generator = random.Random(seed)
    table = np.zeros((64, 3), np.uint64)
    words = np.zeros((40, 3), np.uint64)
    for index in range(40):
        words[index] = 0xFFFFFFFF_00000000 | generator.getrandbits(32), generator.getrandbits(64), index
    assert put_tuples(table, 0, 54, words, 0, 40) == (40, 40), f"seed {seed}"
    offsets = np.zeros(40, np.int64)
    # A key's last record is not superseded; earlier ones are.
    assert take_missing(table, words, 40, offsets) == 40
    earlier = words.copy()
    earlier[:, 2] = 0
    assert take_missing(table, earlier, 40, offsets) == 1
    other = words.copy()
    other[:, 1] ^= np.uint64(1)
    assert take_missing(table, other, 40, offsets) == 40
    larger = np.zeros((128, 3), np.uint64)
    move_slots(table, 0, 64, larger)
    assert take_missing(larger, earlier, 40, offsets) == 1
    taken = np.zeros((64, 3), np.uint64)
    assert take_tuples(larger, 0, taken) == (128, 40)
    assert sorted(taken[:40, 2].tolist()) == list(range(40))
    assert put_tuples(larger, 40, 100, words, 0, 40) == (40, 40)


def test_the_greatest_offset_is_found() -> None:
    """An entry of the table is the offset + 1: one bit more than a signed number has."""
    table = np.zeros((4, 3), np.uint64)
    tuples = np.array([[*offset_map.siphash(1, 2, b"k"), 2**63 - 1]], np.uint64)
    assert put_tuples(table, 0, 3, tuples, 0, 1) == (1, 1)
    assert offset_map.find_key(table, 1, 2, b"k") == 2**63 - 1
