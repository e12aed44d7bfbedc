"""Batches in files of any kind: found by their content, wherever they begin, in bounded time."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from cramjam import snappy

from diamant.cleaner.evidence.scan.report import INCONCLUSIVE, VALUES_PRESENT
from diamant.cleaner.evidence.search import batch_finder
from diamant.cleaner.evidence.search.batch_finder import find_batches
from diamant.cleaner.evidence.search.findings import RAW, SAME_KEY, VALUE
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.storage.certificate_states import KEY_GONE
from diamant.storage.env.env import RealEnv
from tests.builder import make_message, make_wrapper, with_header, with_payload
from tests.cleaner.evidence.scan.scanned_files import LOG, PERSON, put, record, scan, state, subject


def batch(codec: int = 0, key: bytes = b"customer-42", value: bytes | None = PERSON, **options: Any) -> bytes:
    """Return a batch with one record among others, so that compressed data do not show it."""
    others = [
        record(b"customer-%d" % number, PERSON.replace(b"Bern", b"Rome %d" % number), number) for number in range(9)
    ]
    return bytes(build_batch([*others, record(key, value, 9)], codec=codec, **options))


def found_in(directory: Path, *parts: bytes, **limits: int) -> tuple[list[tuple[int, int]], list[tuple[int, str]]]:
    """Return runs of batches, and problems, in a file of these parts."""
    path = put(directory, "file", *parts)
    problems: list[tuple[int, str]] = []
    file = RealEnv().open(str(path), read_only=True)
    try:
        size = path.stat().st_size
        return list(find_batches(file, size, lambda *problem: problems.append(problem), **limits)), problems
    finally:
        file.close()


def raw_snappy() -> bytes:
    """Compress as some clients do, without framing."""
    whole = batch(2)
    return bytes(with_payload(bytearray(whole), bytes(snappy.compress_raw(batch()[61:]))))


SKIPPABLE = b"\x5a\x2a\x4d\x18\4\0\0\0skip"


BATCHES = {
    **{f"magic 2 codec {codec}": batch(codec) for codec in range(5)},
    "raw snappy": raw_snappy(),
    **{
        f"codec {codec} behind a skippable frame": bytes(with_payload(batch(codec), SKIPPABLE + batch(codec)[61:]))
        for codec in (3, 4)
    },
    **{
        f"codec {codec}, {fields}": bytes(with_header(batch(codec), **fields))
        for codec in range(1, 5)
        for fields in ({"record_count": -1}, {"record_count": 0}, {"last_offset_delta": -1}, {"base_offset": -1})
    },
    "transaction": batch(4, is_transactional=True, producer_id=7, producer_epoch=1, base_sequence=3),
    "nanoseconds": bytes(build_batch([Record(0, 1_700_000_000_000_000_000, b"k", b"v")], codec=1)),
    **{
        f"magic {magic} codec {codec}": bytes(make_wrapper(magic, codec, [record(b"a", PERSON)]))
        for magic in (0, 1)
        for codec in (1, 2, 3)
    },
    **{f"magic {magic} plain": bytes(make_message(magic, 0, b"customer-42", b"short")) for magic in (0, 1)},
}


@pytest.mark.parametrize("name", BATCHES)
def test_batches_are_found_behind_other_bytes(tmp_path: Path, name: str) -> None:
    """Batches are found in every format and codec, alone or adjacent, at any position, with their exact ends."""
    data = BATCHES[name]
    rng = random.Random(name)
    for front in (b"", b"\0" * 5, rng.randbytes(1001), b"some text " * 77):
        for back in (b"", b"x" * 200, b"\0" * 99):
            start, end = len(front), len(front) + 2 * len(data)
            assert found_in(tmp_path, front, data, data, back) == ([(start, end)], [])
    apart = found_in(tmp_path, data, b"----", data)
    assert apart == ([(0, len(data)), (len(data) + 4, 2 * len(data) + 4)], [])


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize(
    "fields",
    [
        {"attributes": 0x7F80},
        {"base_timestamp": -(1 << 62)},
        {"max_timestamp": -(1 << 62)},
        {"producer_id": -(1 << 60)},
        {"producer_epoch": -20_000},
        {"base_sequence": -(1 << 30)},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_batches_are_found_whatever_their_client_has_written(
    tmp_path: Path, fields: dict[str, int], codec: int
) -> None:
    """Times before the epoch, unused producer ids and meaningless attributes are accepted, as by brokers."""
    fields = {name: value | codec if name == "attributes" else value for name, value in fields.items()}
    data = bytes(with_header(batch(codec), **fields))
    assert found_in(tmp_path, b"front", data) == ([(5, 5 + len(data))], [])


def test_batches_are_found_across_the_borders_of_windows(tmp_path: Path) -> None:
    """Batches are found wherever a window cuts them, also if they are longer than a window."""
    data = batch(1)
    long = batch(0)
    assert len(data) < 256 < len(long)
    for front in range(0, 600, 7):
        runs, problems = found_in(tmp_path, b"\x02" * front, data, long, b"\x01" * 300, data, window_bytes=256)
        middle = front + len(data) + len(long)
        assert (runs, problems) == ([(front, middle), (middle + 300, middle + 300 + len(data))], []), front


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_truncated_compressed_batch_is_a_problem(tmp_path: Path, codec: int) -> None:
    """A truncated or damaged compressed batch is a problem; the bytes of an uncompressed one are searched anyway."""
    data = batch(codec)
    for cut in (1, len(data) // 3):
        runs, ((position, reason),) = found_in(tmp_path, b"front", data[:-cut])
        assert (runs, position) == ([], 5)
        assert "ends before" in reason
    damaged = data[:-1] + bytes([data[-1] ^ 1])
    runs, ((position, reason),) = found_in(tmp_path, b"front", damaged)
    assert (runs, position) == ([], 5)
    assert "checksum" in reason
    assert found_in(tmp_path, b"front", batch(0)[:-1]) == ([], [])


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_truncated_raw_snappy_is_a_problem(tmp_path: Path, magic: int) -> None:
    """Raw snappy has no frame; it is recognised by a record at its beginning, or by the lengths of an old message."""
    inner = snappy.compress_raw(b"".join(bytes(make_message(magic, 0, b"k", PERSON)) for _ in range(3)))
    data = raw_snappy() if magic == 2 else bytes(make_message(magic, 0, None, bytes(inner), attributes=2))
    for cut in (1, len(data) // 4):
        runs, ((position, reason),) = found_in(tmp_path, b"front", data[:-cut])
        assert (runs, position) == ([], 5)
        assert "ends before" in reason
    runs, ((position, reason),) = found_in(tmp_path, b"front", data[:-1] + bytes([data[-1] ^ 1]))
    assert (runs, position) == ([], 5)
    assert "checksum" in reason


def index(entries: int) -> bytes:
    """Return bytes like those of an offset index."""
    return b"".join(struct.pack(">ii", 2 + number * 3, number * 4096) for number in range(entries))


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 300_000,
        b"\x02" * 300_000,
        b"\x01" * 300_000,
        b"\0\0\0\x01" * 80_000,
        index(60_000),
        b"".join(struct.pack(">qi", 1_700_000_000_000 + number, number) for number in range(30_000)),
        random.Random(3).randbytes(1_000_000),
        zlib.compress(random.Random(4).randbytes(300_000)),
        b"customer-42,Anna Schmidt,Bern\n" * 10_000,
    ],
    ids=["zeros", "twos", "ones", "small", "offset index", "time index", "random", "compressed", "text"],
)
def test_hardly_anything_is_summed_up_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """In files without batches, headers alone exclude nearly all positions, so few checksums are computed."""
    summed: list[int] = []
    real = batch_finder._has_checksum

    def has_checksum(file: Any, start: int, one: Any) -> bool:
        summed.append(one.size)
        return real(file, start, one)

    monkeypatch.setattr(batch_finder, "_has_checksum", has_checksum)
    assert found_in(tmp_path, data) == ([], [])
    assert sum(summed) < len(data)


def test_a_file_of_headers_that_fit_is_given_up_and_never_clean(tmp_path: Path) -> None:
    """Such a file is given up after a bounded time, and prevents a certificate."""
    trap = bytearray(batch(0)[:80])
    trap[8:12] = (160_000).to_bytes(4, "big")
    put(tmp_path, LOG, build_batch([record(b"a", b"b")]))
    put(tmp_path, "users-0/notes", bytes(trap) * 4000)
    report = scan(tmp_path)
    assert state(report) == INCONCLUSIVE
    assert "batch headers" in report.unreadable[0].reason


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "users-0/00000000000000000000.log.bak",
        "users-0/copy.log",
        "users-0/00000000000000000000.LOG",
        "users-0/00000000000000000000.log.1",
        "users-0/backup/x.tmp",
    ],
)
def test_a_value_in_a_copied_segment_is_a_value(tmp_path: Path, name: str, is_compiled: bool) -> None:
    """A value is found whatever the file's name; the ledger counts the batches in it."""
    put(tmp_path, LOG, build_batch([record(b"a", b"b")]))
    put(tmp_path, name, b"front", *(batch(codec) for codec in (1, 2, 3, 4)))
    assert PERSON not in (tmp_path / name).read_bytes()
    report = scan(tmp_path, is_compiled=is_compiled)
    assert (state(report), [one.what for one in report.findings]) == (VALUES_PRESENT, [VALUE] * 4)
    (row,) = [row for row in report.rows if row.file == name]
    assert {codec: amounts[:2] for codec, amounts in row.read.items()} == {
        "bytes": [0, 0],
        **{codec: [1, 10] for codec in ("gzip", "snappy", "lz4", "zstd")},
    }
    assert (row.read["bytes"][2], row.adds_up, report.unaccounted) == (5, True, [])


@pytest.mark.parametrize("name", ["copy.log", "backup/copy.bin"])
def test_a_copy_that_is_nobodys_may_be_anybodys(tmp_path: Path, name: str) -> None:
    """A copy outside all partitions counts for any, also for values too short to be searched as bytes."""
    put(tmp_path, LOG, build_batch([record(b"a", b"b")]))
    put(tmp_path, name, b"some text", batch(0, value=b"short"))
    report = scan(tmp_path)
    assert (state(report), [one.what for one in report.in_the_way]) == (INCONCLUSIVE, [SAME_KEY])


def test_a_needle_across_batches_is_found(tmp_path: Path) -> None:
    """The bytes of a file are also searched across batches."""
    put(tmp_path, LOG, build_batch([record(b"a", b"b")]))
    one, two = batch(1, key=b"x"), batch(2, key=b"y")
    looked_for = subject(b"customer-42", (one + two)[len(one) - 20 : len(one) + 20])
    put(tmp_path, "users-0/other", one, two)
    report = scan(tmp_path, looked_for)
    assert [found.what for found in report.findings] == [RAW]
    assert state(report, looked_for) == INCONCLUSIVE


def test_a_batch_that_cannot_be_decompressed_lets_nothing_be_claimed(tmp_path: Path) -> None:
    """The batch's checksum is right, so it counts as a batch."""
    put(tmp_path, LOG, build_batch([record(b"a", b"b")]))
    assert state(scan(tmp_path)) == KEY_GONE
    whole = bytearray(batch(1))
    put(tmp_path, "users-0/other", with_payload(whole, whole[61:90]))
    report = scan(tmp_path)
    assert state(report) == INCONCLUSIVE
    assert "cannot be read" in report.unreadable[0].reason


def test_the_first_records_of_the_metadata_are_those_of_their_log(tmp_path: Path) -> None:
    """The metadata log's first records lie beside the partitions' directories, and count as its own."""
    put(tmp_path, LOG, build_batch([record(b"a", b"b")]))
    put(tmp_path, "bootstrap.checkpoint", build_batch([record(b"customer-42", b"short")]))
    report = scan(tmp_path)
    assert [(one.what, one.topic) for one in report.elsewhere] == [(SAME_KEY, "__cluster_metadata")]
    assert (report.astray, state(report)) == ([], KEY_GONE)
