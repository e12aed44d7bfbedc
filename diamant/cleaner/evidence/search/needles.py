"""Needles: byte strings to search for everywhere, which are the key and the values of an erasure. The values are not kept.

Three things are kept of each needle: its size, a keyed digest (HMAC-SHA-256), and a span, which is `SPAN` consecutive bytes from
somewhere in it. A search compares the 8-byte window at every fourth position in the data. A span consists of four overlapping
windows at consecutive positions, so exactly one of them is compared wherever the needle is. If a window matches, the digest of
the whole needle is checked. So a finding is certain, except for a collision of SHA-256.

The choice of the span matters for speed. Values of a topic begin alike (`{"customer":`), and so do keys (`customer-000042`). A
window that occurs in every record slows down the search, and so does a window of zeros in preallocated files. So the span that is
rarest in a sample of the data (`Sample`) is chosen, and the compiled search compares a quick hash of the whole needle before it
reports a batch.

Bytes that are not distinctive are refused (`is_telling`): `{}` and `42` are everywhere, and zeros are in every header and
index.

Memory: about 500 bytes for each of at most `MAX_NEEDLES` needles.
"""

from __future__ import annotations

import hmac
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, pairwise, product
from typing import Any, NamedTuple, TypeAlias

from diamant.kernels import ARE_COMPILED
from diamant.kernels.constants.search import MULTIPLIER, STRIDE

Buffer: TypeAlias = bytes | bytearray | memoryview

MIN_BYTES = 12
MIN_TELLING_BYTES = 4
"""Minimum number of bytes in a needle that are neither 0x00 nor 0xFF."""
WINDOW = 8
SPAN = WINDOW + STRIDE - 1
MAX_NEEDLES = 100_000
SLICE_BYTES = 1024 * 1024
"""Number of bytes that are compared in one step if there are no kernels."""

KEY = "key"
VALUE = "value"

MIN_BITS = 16
MAX_BITS = 24

_SAMPLE_BITS = 20
_SILENT = tuple(int.from_bytes(bytes(octets), "little") for octets in product((0x00, 0xFF), repeat=WINDOW))
"""All windows that consist only of 0x00 and 0xFF."""
_EVERYWHERE = 1 << 30
"""A number larger than the frequency of any window in a sample."""
_LOOKED_AT_BYTES = 64 * 1024


def keyed_digest(secret: bytes, data: Buffer) -> bytes:
    """Return the HMAC-SHA-256 of `data`. To those without the secret, it only shows whether two inputs are equal."""
    return hmac.digest(secret, data, "sha256")


def is_telling(data: bytes) -> bool:
    """Tell whether `data` is distinctive enough to search for: long enough, and not just zeros or small 8-byte numbers.

    Batch headers, indexes and snapshots are full of zeros and small numbers, which are runs of 0x00 or 0xFF.
    """
    return len(data) >= MIN_BYTES and len(data) - data.count(0) - data.count(0xFF) >= MIN_TELLING_BYTES


def quick_hash(data: Buffer) -> int:
    """Return a 64-bit hash of little-endian 8-byte words, padded with zeros. Hardly any two inputs have the same hash."""
    value = len(data)
    for at in range(0, len(data), 8):
        value = ((value ^ int.from_bytes(data[at : at + 8], "little")) * MULTIPLIER) & 0xFFFFFFFFFFFFFFFF
        value ^= value >> 29
    return value


@dataclass(frozen=True, slots=True)
class Needle:
    """What is kept of one byte string."""

    kind: str
    """`KEY` or `VALUE`."""
    size: int
    anchor: int
    """Position of the span in the needle."""
    span: bytes
    digest: bytes
    quick_hash: int
    """`quick_hash` of the whole needle, for the compiled search."""

    def to_fields(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "size": self.size,
            "anchor": self.anchor,
            "span": self.span.hex(),
            "digest": self.digest.hex(),
            "quick_hash": self.quick_hash,
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Needle:
        """Parse the output of `to_fields`. Raises KeyError, ValueError or TypeError for any other input."""
        return cls(
            str(fields["kind"]),
            int(fields["size"]),
            int(fields["anchor"]),
            bytes.fromhex(fields["span"]),
            bytes.fromhex(fields["digest"]),
            int(fields["quick_hash"]),
        )


def make_needle(kind: str, data: bytes, digest: bytes, sample: Sample | None = None) -> Needle:
    """Return the needle for `data`, which must be distinctive; `digest`: its keyed digest."""
    anchor = (sample or Sample()).rarest(data)
    return Needle(kind, len(data), anchor, bytes(data[anchor : anchor + SPAN]), digest, quick_hash(data))


class Hit(NamedTuple):
    """A needle, and the position of its first byte in the searched data."""

    needle: Needle
    start: int


class Windows(NamedTuple):
    """The windows that a search, plain or compiled, compares with the data."""

    filter: bytearray
    """Table of 2**bits bytes: 1 at the hash of each window, and otherwise 0."""
    shift: int
    """A window's hash is (window * MULTIPLIER) >> shift."""
    words: array[int]
    """The windows as little-endian numbers, ascending, once for each needle. The arrays below are parallel to this one."""
    offsets: array[int]
    """Position of the window in its needle."""
    sizes: array[int]
    hashes: array[int]
    """`quick_hash` of the needle."""


class Sample:
    """How often windows occur in a sample of the data; those of only 0x00 and 0xFF count as the most frequent. Memory: 4 MiB."""

    def __init__(self) -> None:
        self._counts = array("I", bytes(4 << _SAMPLE_BITS))
        for window in _SILENT:
            self._counts[_hash(window, 64 - _SAMPLE_BITS)] = _EVERYWHERE
        self.size = 0
        """Number of bytes added."""

    def add(self, data: Buffer) -> None:
        """Count all windows in `data`. Without kernels, nothing is counted, because the counts only affect speed."""
        self.size += len(data)
        if ARE_COMPILED:
            from diamant.kernels.search import count_windows

            count_windows(data, self._counts, 64 - _SAMPLE_BITS)

    def rarest(self, data: Buffer) -> int:
        """Return the position of the rarest span in the first `_LOOKED_AT_BYTES` of `data`."""
        octets = bytes(data[:_LOOKED_AT_BYTES])
        if ARE_COMPILED:
            from diamant.kernels.search import rarest_span

            return rarest_span(octets, self._counts, 64 - _SAMPLE_BITS)
        counts = [self._counts[_hash(_word(octets, at), 64 - _SAMPLE_BITS)] for at in range(len(octets) - WINDOW + 1)]
        spans = [sum(counts[at : at + STRIDE]) for at in range(len(counts) - STRIDE + 1)]
        return spans.index(min(spans))


def _hash(window: int, shift: int) -> int:
    """Return the position of a window in a table of 2**(64 - shift) entries."""
    return (window * MULTIPLIER & 0xFFFFFFFFFFFFFFFF) >> shift


def _word(data: Buffer, at: int) -> int:
    return int.from_bytes(data[at : at + WINDOW], "little")


class Needles:
    """The needles of a search. They must not change during a search, which may use several threads."""

    def __init__(self, secret: bytes, needles: Iterable[Needle] = ()) -> None:
        """`needles`: the needles of an earlier search."""
        self.secret = secret
        self.left_out = 0
        """Number of needles that were refused because of `MAX_NEEDLES`."""
        self.longest = 0
        """Size of the longest needle in bytes."""
        self._by_digest: dict[bytes, Needle] = {}
        self._by_window: dict[int, list[tuple[Needle, int]]] = {}
        self._windows: Windows | None = None
        for needle in needles:
            self.add_needle(needle)

    def __len__(self) -> int:
        return len(self._by_digest)

    def __iter__(self) -> Iterator[Needle]:
        return iter(self._by_digest.values())

    def get(self, digest: bytes) -> Needle | None:
        """Return the needle with this digest; None if there is none."""
        return self._by_digest.get(digest)

    def kind_of(self, digest: bytes) -> str | None:
        """Return the kind of the needle with this digest; None if there is none."""
        found = self._by_digest.get(digest)
        return None if found is None else found.kind

    def add(self, kind: str, data: bytes, sample: Sample | None = None) -> bytes:
        """Add `data` as a needle if it is distinctive; return its digest.

        If the bytes are both a value and a string in `where`, they are searched for as a value, because no copy of it may remain.
        """
        digest = keyed_digest(self.secret, data)
        known = self._by_digest.get(digest)
        if known is not None:
            if kind == VALUE and known.kind != KEY:
                self._by_digest[digest] = replace(known, kind=VALUE)
        elif is_telling(data):
            self.add_needle(make_needle(kind, data, digest, sample))
        return digest

    def add_needle(self, needle: Needle) -> None:
        """Add a needle, such as one of an earlier search. If there are `MAX_NEEDLES` already, only count it as left out."""
        if needle.digest in self._by_digest:
            return
        if len(self._by_digest) >= MAX_NEEDLES:
            self.left_out += 1
            return
        self._put(needle)

    def joined(self, needles: Iterable[Needle]) -> Needles:
        """Return a copy that has `needles` as well, regardless of the limit."""
        found = Needles(self.secret)
        found.left_out = self.left_out
        for needle in chain(self, needles):
            found._put(needle)
        return found

    def _put(self, needle: Needle) -> None:
        self._by_digest[needle.digest] = needle
        self.longest = max(self.longest, needle.size)
        for step in range(STRIDE):
            self._by_window.setdefault(_word(needle.span, step), []).append((needle, needle.anchor + step))
        self._windows = None

    @property
    def windows(self) -> Windows:
        """The windows of all needles."""
        if self._windows is None:
            rows = [
                (word, at, needle.size, needle.quick_hash)
                for word in sorted(self._by_window)
                for needle, at in self._by_window[word]
            ]
            words, offsets, sizes, hashes = zip(*rows, strict=True) if rows else ((), (), (), ())
            bits = min(MAX_BITS, max(MIN_BITS, (len(words) * 64).bit_length()))
            table = bytearray(1 << bits)
            for word in words:
                table[_hash(word, 64 - bits)] = 1
            self._windows = Windows(
                table, 64 - bits, array("Q", words), array("q", offsets), array("q", sizes), array("Q", hashes)
            )
        return self._windows

    def find(self, data: Buffer, *, slice_bytes: int = SLICE_BYTES) -> list[Hit]:
        """Return the needles in `data` with their positions, ascending."""
        if not self._by_window or len(data) < MIN_BYTES:
            return []
        found = set()
        for place in self._window_places(data) if ARE_COMPILED else self._plain_window_places(data, slice_bytes):
            for needle, at in self._by_window[_word(data, place)]:
                begin = place - at
                if begin >= 0 and self._is_at(needle, data, begin):
                    found.add((begin, needle.digest))
        return [Hit(self._by_digest[digest], begin) for begin, digest in sorted(found)]

    def _window_places(self, data: Buffer) -> Iterator[int]:
        from diamant.kernels.search import next_window

        windows = self.windows
        place = 0
        while (place := next_window(data, place, len(data), windows.filter, windows.shift, windows.words)) >= 0:
            yield place
            place += STRIDE

    def _plain_window_places(self, data: Buffer, slice_bytes: int) -> Iterator[int]:
        pairs = {(word & 0xFFFFFFFF, word >> 32) for word in self._by_window}
        for start in range(0, len(data), slice_bytes):
            end = min(len(data), start + slice_bytes + WINDOW - STRIDE)
            halves = memoryview(data)[start : end - (end - start) % STRIDE].cast("I")
            for place, pair in enumerate(pairwise(halves)):
                if pair in pairs:
                    yield start + STRIDE * place

    def _is_at(self, needle: Needle, data: Buffer, begin: int) -> bool:
        if begin + needle.size > len(data):
            return False  # This check avoids copying: if a long needle repeats one byte, every window matches.
        found = data[begin : begin + needle.size]
        return hmac.compare_digest(keyed_digest(self.secret, found), needle.digest)
