"""The search for byte strings that are known by their digests only."""

from __future__ import annotations

import random

import pytest

from diamant.cleaner.evidence.search.needles import (
    KEY,
    MIN_BYTES,
    VALUE,
    Needle,
    Needles,
    Sample,
    is_telling,
    keyed_digest,
    quick_hash,
)

SECRET = b"s" * 32


@pytest.mark.parametrize("has_sample", [False, True])
def test_a_needle_is_found_wherever_it_begins(has_sample: bool) -> None:
    """A needle of 12 bytes or more is found at any position, also at both ends."""
    rng = random.Random(7)
    for size in [*range(MIN_BYTES, 40), 1000]:
        data = rng.randbytes(size)
        sample = None
        if has_sample:
            sample = Sample()
            sample.add(data[: size // 2] * 20)
        needles = Needles(SECRET)
        digest = needles.add(VALUE, data, sample)
        for before in range(9):
            for after in (0, 1, 5):
                hits = needles.find(b"x" * before + data + b"y" * after)
                assert [(hit.start, hit.needle.digest) for hit in hits] == [(before, digest)], (size, before, after)


def test_a_needle_across_two_slices_is_found() -> None:
    """A needle at the border of two slices of the plain search is found."""
    needles = Needles(SECRET)
    needles.add(VALUE, b"0123456789abcdef")
    for before in range(200):
        data = b"." * before + b"0123456789abcdef" + b"." * 70
        assert [hit.start for hit in needles.find(data, slice_bytes=64)] == [before]


def test_short_strings_are_not_searched_for() -> None:
    """Short strings occur everywhere, so they are not accepted as needles."""
    needles = Needles(SECRET)
    assert needles.add(VALUE, b"{}") == keyed_digest(SECRET, b"{}")
    assert len(needles) == 0
    assert needles.find(b"{}" * 100) == []


def test_bytes_that_every_log_directory_has_are_not_searched_for() -> None:
    """Zeros, -1 and small numbers of 8 bytes are refused, since headers and indexes consist of them; repeated letters are not."""
    numbers = [0, 1, 300, -1, 70_000]
    for data in [
        bytes(1000),
        b"\xff" * 16,
        *(b"".join(one.to_bytes(8, "big", signed=True) for one in (0, n)) for n in numbers),
    ]:
        needles = Needles(SECRET)
        needles.add(VALUE, data)
        assert (len(needles), needles.find(data * 3)) == (0, [])
    for data in (b"1" + b"0" * 11, bytes(20) + b"Bern", (1_700_000_000_000).to_bytes(8, "big") + bytes(8)):
        assert is_telling(data)


def test_bytes_that_only_begin_alike_are_not_found() -> None:
    """All bytes of a needle must match, not only its span."""
    needles = Needles(SECRET)
    needles.add(VALUE, b'{"customer": "Anna Schmidt"}')
    assert needles.find(b'{"customer": "Anna Schmitt"}') == []
    assert needles.find(b'{"customer": "Anna Schmidt"') == []


def test_the_fields_of_a_needle_make_it_again() -> None:
    """A search that is resumed after a restart finds the same without the original bytes."""
    needles = Needles(SECRET)
    needles.add(KEY, b"customer-0000042")
    again = Needles(SECRET)
    for needle in needles:
        assert b"customer-0000042" not in repr(needle.to_fields()).encode()
        again.add_needle(Needle.from_fields(needle.to_fields()))
    assert [hit.start for hit in again.find(b"...customer-0000042")] == [3]


def test_the_rarest_span_is_chosen() -> None:
    """Bytes that all values share would make the search slow, so they are not chosen."""
    sample = Sample()
    for number in range(200):
        sample.add(b'{"schema": "v1", "type": "customer", "number": %06d}' % number)
    needles = Needles(SECRET)
    needles.add(VALUE, b'{"schema": "v1", "type": "customer", "name": "Zoe Quist"}', sample)
    assert next(iter(needles)).span not in b'{"schema": "v1", "type": "customer", "number": 000000}'


@pytest.mark.parametrize("has_sample", [False, True])
@pytest.mark.parametrize(
    "data",
    [
        bytes(12) + b"1234",
        b"1234" + bytes(12),
        bytes(300) + b"Bern",
        b"\xff" * 20 + b"Bern" + bytes(20),
        b"\0\0\0z" * 4,
    ],
)
def test_zeros_are_passed_over_quickly(data: bytes, has_sample: bool) -> None:
    """Zeros are skipped even if a needle is mostly zeros: Kafka's indexes have megabytes of them, and digests are expensive."""
    sample = None
    if has_sample:
        sample = Sample()
        sample.add(b"of other values " * 100)
    needles = Needles(SECRET)
    digest = needles.add(VALUE, data, sample)
    zeros = bytes(100_000)
    assert [hit.needle.digest for hit in needles.find(zeros + data + zeros)] == [digest]

    # Whoever makes a digest from here on fails.
    del needles.secret
    assert needles.find(zeros) == needles.find(b"\xff" * 100_000) == []


def test_the_quick_hash_tells_the_zeros_that_fill_up_a_word() -> None:
    """Trailing zeros change the hash: sizes count."""
    assert len({quick_hash(b"abc" + b"\0" * count) for count in range(20)}) == 20
