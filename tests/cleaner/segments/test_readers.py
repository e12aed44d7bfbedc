"""The contract of batch readers: the batches found in damaged bytes, and the positions of reported errors.

Each reader has a purpose. That of running logs reads only headers and stops at a torn end, as in Kafka. Those of the cleaner
refuse everything that they cannot rewrite. Those of tools and of the scan report errors and continue as far as possible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.cleaner.engines.parsed_chunks import parse
from diamant.cleaner.evidence.search.record_search import BatchBytes, search_plain
from diamant.cleaner.rules.engine_limits import EngineLimits
from diamant.cleaner.segments.chunk_batch import ChunkBatch
from diamant.cleaner.segments.row_reader import BatchesInMemory, ChunkReader
from diamant.cleaner.segments.row_records import RowRecords
from diamant.cleaner.segments.small_payloads import SmallPayloads
from diamant.cleaner.segments.sound_rows import PieceReader, SoundRows
from diamant.cleaner.segments.strict_reader import parsed_chunks, read_chunks
from diamant.cleaner.segments.tolerant_reader import Problem, SegmentFile, iter_open_batches
from diamant.protocol.batches.batch import crc_is_valid, iter_headers
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import BatchHeader, Record
from diamant.protocol.errors import CorruptBatch
from diamant.storage.env.env import File
from diamant.storage.errors import CorruptLog
from diamant.storage.segments.segment import scan_headers
from tests.builder import make_batch, make_marker, make_message, make_wrapper, with_header
from tests.effort import examples
from tests.memory_env import MemoryEnv

PATH = "/00000000000000000000.log"
SMALL = 150
"""Bytes that the cleaner's and the tools' readers take at a time: two or three small batches."""

Batch = tuple[int, int, int]
"""Position, base offset, last offset."""


@dataclass
class Seen:
    """The batches and errors that a reader has found."""

    batches: list[Batch] = field(default_factory=list)
    trouble: int | None = None
    """Where it says that something is wrong first."""
    reason: str = ""

    def add(self, position: int, header: BatchHeader) -> None:
        """Note a batch."""
        self.batches.append((position, header.base_offset, header.last_offset))

    def tell(self, position: int | None, reason: str) -> None:
        """Note that something is wrong."""
        if self.trouble is None:
            self.trouble, self.reason = position, reason


def running_log(file: File, seen: Seen) -> None:
    """Headers of a running log."""
    for position, header in scan_headers(file, 0, file.size()):
        seen.add(position, header)


def chunks(file: File, seen: Seen) -> None:
    """The reader of the cleaner."""
    for chunk in read_chunks(file, 0, file.size(), SMALL):
        for batch in chunk.batches():
            seen.add(batch.position, batch.header)


def singles(file: File, seen: Seen) -> None:
    """The reader of the plain engine, for single batches."""
    one_by_one = partial(parse, payloads=SmallPayloads(), limits=EngineLimits(parsed_bytes=0))
    for chunk in parsed_chunks(file, 0, file.size(), SMALL, one_by_one):
        for entry in chunk.entries:
            assert isinstance(entry, ChunkBatch)
            seen.add(entry.position, entry.header)


def rows(file: File, seen: Seen) -> None:
    """The reader of the compiled engine and of Spark's data source."""
    env = MemoryEnv()
    copy = env.create_new(PATH)
    copy.append(file.pread(file.size(), 0))
    records = RowRecords(EngineLimits(read_bytes=SMALL))
    for chunk in records.chunks(env, PATH, 0, copy.size()):
        for row in range(chunk.count):
            batch = records.batch(chunk, row)
            seen.add(batch.position, batch.header)


def memory(file: File, seen: Seen) -> None:
    """The reader of what brokers have sent, which copies nothing."""
    data = memoryview(file.pread(file.size(), 0))
    for chunk in ChunkReader(SMALL).chunks(BatchesInMemory(PATH, data), 0, len(data)):
        assert chunk.data.obj is data.obj
        try:
            for position, header in iter_headers(chunk.data[: chunk.size]):
                seen.add(chunk.position + position, header)
        except CorruptBatch as error:
            raise CorruptLog(PATH, chunk.position + error.position, error.reason) from error


def tool(file: File, seen: Seen) -> None:
    """The reader of the tools, which reports each byte once as progress."""
    told: list[int] = []

    def report(problem: Problem) -> None:
        seen.tell(problem.position, problem.reason)

    for batch in iter_open_batches(file, SegmentFile(PATH, 0, 0), file.size(), report, told.append, SMALL):
        seen.add(batch.position, batch.header)
    assert sum(told) == file.size()


def pieces(file: File, seen: Seen) -> None:
    """The reader of the tools with kernels."""
    told: list[int] = []

    def report(problem: Problem) -> None:
        seen.tell(problem.position, problem.reason)

    reader = PieceReader(limits=EngineLimits(read_bytes=SMALL, unpack_bytes=SMALL))
    for piece in reader.pieces(file, SegmentFile(PATH, 0, 0), file.size(), report, told.append):
        if isinstance(piece, SoundRows):
            for row in range(piece.first, piece.end):
                seen.add(piece.position(row), piece.header(row))
            assert piece.last_offset == seen.batches[-1][2]
        else:
            seen.add(piece.position, piece.header)
    assert sum(told) == file.size()


class Search(NamedTuple):
    """The part of a `FileSearch` that receives batches."""

    seen: Seen
    check: Callable[[], object] = bool

    def follow(self, position: int, header: BatchHeader) -> None:
        """Note a batch."""
        self.seen.add(position, header)

    def look_at(self, batch: BatchBytes) -> None:
        """Note a wrong checksum."""
        if not crc_is_valid(batch.buffer, batch.at, batch.header.size):
            self.fail(batch.position, "checksum")

    def fail(self, position: int, reason: str) -> None:
        """Note what is wrong."""
        self.seen.tell(position, reason)

    def search_raw(self, _file: File, position: int, end: int) -> None:
        """What is not a batch is searched byte by byte."""
        assert self.seen.trouble is not None
        assert self.seen.trouble <= position < end


def search(file: File, seen: Seen) -> None:
    """The reader of the certifying scan."""
    search_plain(Search(seen), file, file.size())  # type: ignore[arg-type]


READERS: dict[str, Callable[[File, Seen], None]] = {
    reader.__name__: reader for reader in (running_log, chunks, singles, rows, memory, tool, pieces, search)
}
STOP_AT_A_TORN_END = {"running_log"}
TOOLS = {"tool", "pieces"}
LOOK_AT_CHECKSUMS = {"tool", "pieces", "search"}
COME_IN_CHUNKS = {"chunks", "singles", "rows", "memory"}
"""What is sound before the damage they yield as far as its chunk was over."""


def seen_by(name: str, data: bytes | bytearray) -> Seen:
    """Return the batches and errors that a reader finds in a file."""
    file = MemoryEnv().create_new(PATH)
    file.append(bytes(data))
    seen = Seen()
    try:
        READERS[name](file, seen)
    except CorruptLog as error:
        seen.tell(error.position if error.path == PATH else None, error.reason)
    return seen


def packed(base: int, codec: int = 0, **fields: Any) -> bytes:
    """Return a batch of two records."""
    return bytes(make_batch("k=1", "l=", base_offset=base, codec=codec, **fields))


MARKER = bytes(make_marker(7, is_commit=True, base_offset=2, timestamp=1))
EMPTIED = bytes(build_batch((), base_offset=2, last_offset_delta=2, max_timestamp=5))
LARGE = bytes(build_batch([Record(2, 5, b"k", bytes(5 * SMALL))], base_offset=2))
OLD_SET = bytes(make_wrapper(1, 1, [Record(2, 5, b"k", b"1"), Record(4, 5, b"l", b"2")]))
SOUND: dict[str, list[tuple[bytes, int, int]]] = {
    "empty": [],
    "codecs": [(packed(2 * codec, codec), 2 * codec, 2 * codec + 1) for codec in range(5)],
    "control": [(packed(0, producer_id=7, is_transactional=True), 0, 1), (MARKER, 2, 2), (packed(3), 3, 4)],
    "emptied": [(packed(0), 0, 1), (EMPTIED, 2, 4), (packed(5), 5, 6)],
    "gaps": [(packed(9), 9, 10), (packed(2**40), 2**40, 2**40 + 1)],
    "magic 0": [(bytes(make_message(0, 1, b"k", b"1")), 1, 1), (bytes(make_message(0, 5, None, b"2")), 5, 5)],
    "magic 1": [(bytes(make_message(1, 1, b"k", None)), 1, 1), (OLD_SET, 2, 4), (packed(5), 5, 6)],
    "large": [(packed(0), 0, 1), (LARGE, 2, 2), (packed(3), 3, 4), (packed(5), 5, 6)],
}
"""Batches, each with its base and last offsets."""

ENDS = {
    "short prefix": (bytes(5), "not a whole batch"),
    "torn header": (packed(100)[:40], "only 40 are left"),
    "torn records": (packed(100)[:-1], "are left in the file"),
}
"""Ends that a crash leaves, and what the tools call them."""

AFTER = packed(200)
DAMAGES = {
    "zeros": (bytes(5000), "are zero"),
    "zeros between": (bytes(100) + AFTER, "batch length is 0"),
    "length": (bytes(8) + b"\0\0\0\x05" + bytes(20) + AFTER, "batch length is 5"),
    "negative": (bytes(8) + b"\xff" * 4 + bytes(4) + b"\2" + bytes(60) + AFTER, "batch length is -1"),
    "short of magic 2": (bytes(8) + b"\0\0\0\x30" + bytes(4) + b"\2" + bytes(60) + AFTER, "batch length is 48"),
    "magic": (bytes(with_header(packed(100), magic=9)) + AFTER, "magic is 9"),
}
"""Bytes that no broker writes, and what the tools call them."""


def joined(name: str) -> tuple[bytes, list[Batch]]:
    """Return the bytes of a case, and its batches."""
    data, batches = b"", []
    for batch, first, last in SOUND[name]:
        batches.append((len(data), first, last))
        data += batch
    return data, batches


by_any_reader = pytest.mark.parametrize("reader", READERS)


@by_any_reader
@pytest.mark.parametrize("case", SOUND)
def test_sound_batches_are_found(reader: str, case: str) -> None:
    """Batches of every format, even larger than the read buffer."""
    data, batches = joined(case)
    assert seen_by(reader, data) == Seen(batches)


@by_any_reader
@pytest.mark.parametrize("case", SOUND)
@pytest.mark.parametrize("end", ENDS)
def test_a_torn_end_is_reported_by_all_but_running_logs(reader: str, case: str, end: str) -> None:
    """Every whole batch before it is found."""
    data, batches = joined(case)
    tail, reason = ENDS[end]
    seen = seen_by(reader, data + tail)
    assert seen.batches == batches
    assert seen.trouble == (None if reader in STOP_AT_A_TORN_END else len(data))
    if reader in TOOLS:
        assert reason in seen.reason


@by_any_reader
@pytest.mark.parametrize("case", SOUND)
@pytest.mark.parametrize("damage", DAMAGES)
def test_bytes_that_are_no_batch_are_reported(reader: str, case: str, damage: str) -> None:
    """The error has their position, and no bytes after them count as a batch."""
    data, batches = joined(case)
    bad, reason = DAMAGES[damage]
    seen = seen_by(reader, data + bad)
    assert seen.trouble == len(data)
    assert seen.batches == (batches[: len(seen.batches)] if reader in COME_IN_CHUNKS else batches)
    if reader in TOOLS:
        assert reason in seen.reason


@by_any_reader
@pytest.mark.parametrize(("base", "delta"), [(2**63 - 1, 1), (2**63 - 2, 2**31 - 1), (-(2**63), -1)])
def test_offsets_that_exceed_64_bits_hide_nothing(reader: str, base: int, delta: int) -> None:
    """Cleaners refuse such a batch, tools name it and go on; a sum that wraps would be below all other offsets."""
    bad = bytes(with_header(packed(0), base_offset=base, last_offset_delta=delta))
    seen = seen_by(reader, packed(0) + bad + AFTER)
    found = [(0, 0, 1), (len(AFTER), base, base + delta), (2 * len(AFTER), 200, 201)]
    assert seen.batches == (found[: len(seen.batches)] if reader in COME_IN_CHUNKS else found)
    assert seen.trouble == (len(bad) if reader in COME_IN_CHUNKS | TOOLS else None)


@by_any_reader
def test_a_wrong_checksum_hides_no_batch(reader: str) -> None:
    """Tools and the scan report it; for other readers, the code that reads the records does."""
    data, batches = joined("codecs")
    position = batches[1][0]
    changed = bytearray(data)
    changed[position + 40] ^= 1
    seen = seen_by(reader, changed)
    assert (seen.batches, seen.trouble) == (batches, position if reader in LOOK_AT_CHECKSUMS else None)


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from([name for name in SOUND if name != "empty"]), st.data())
def test_all_readers_find_the_same_in_damaged_bytes(case: str, data: st.DataObject) -> None:
    """Strategy: bytes changed and the end cut. Invariant: all find the batches of one walk over the bytes, as far as it gets."""
    content = bytearray(joined(case)[0])
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.sampled_from([0, 1, 2, 49, 127, 128, 255]))
    del content[data.draw(st.integers(0, len(content))) :]
    expected = Seen()
    try:
        for position, header in iter_headers(content):
            expected.add(position, header)
    except CorruptBatch as error:
        expected.tell(error.position, error.reason)
    for reader in READERS:
        found = seen_by(reader, content)
        both = min(len(found.batches), len(expected.batches))
        assert found.batches[:both] == expected.batches[:both], reader
        if reader not in COME_IN_CHUNKS:
            assert both == len(expected.batches), reader


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from([name for name in SOUND if name != "empty"]), st.data())
def test_tools_say_the_same_with_and_without_kernels(case: str, data: st.DataObject) -> None:
    """Strategy: bytes changed, batches repeated, the end cut. Invariant: the same problems at the same positions, the same
    batches, and only sound ones as rows.
    """
    content = bytearray(joined(case)[0]) * data.draw(st.integers(1, 2))
    for _ in range(data.draw(st.integers(0, 2))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.sampled_from([1, 2, 128, 255]))
    del content[data.draw(st.integers(len(content) // 2, len(content))) :]
    file = MemoryEnv().create_new(PATH)
    file.append(bytes(content))
    said: dict[bool, list[object]] = {}
    for is_compiled in (False, True):
        found = said[is_compiled] = []
        reader = PieceReader(is_compiled=is_compiled, limits=EngineLimits(read_bytes=SMALL, unpack_bytes=SMALL))
        for piece in reader.pieces(file, SegmentFile(PATH, 0, 0), file.size(), found.append):
            batches = (
                [piece.batch(row) for row in range(piece.first, piece.end)] if isinstance(piece, SoundRows) else [piece]
            )
            found += [(one.position, one.header, one.crc_is_valid) for one in batches]
    assert said[True] == said[False]
