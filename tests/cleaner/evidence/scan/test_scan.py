"""The certifying scan: finds everything in a data directory, under any name and in any encoding of batches."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from crc32c import crc32c

from diamant.cleaner.evidence.scan.report import INCONCLUSIVE, NOT_THERE, VALUES_PRESENT
from diamant.cleaner.evidence.scan.scan import scan_directory, scan_partitions
from diamant.cleaner.evidence.search.findings import (
    MAX_LISTED,
    RAW,
    SAME_BYTES,
    SAME_KEY,
    TOMBSTONE,
    VALUE,
    Finding,
    ListCapacity,
    ListLimits,
)
from diamant.cleaner.evidence.search.offset_order import LogEnd
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.compression import GZIP, LZ4, ZSTD
from diamant.protocol.batches.header import Header
from diamant.protocol.batches.legacy import parse_entry
from diamant.storage.certificate_states import KEY_GONE, VALUES_GONE
from diamant.storage.env.env import File, RealEnv
from tests.builder import make_message, make_wrapper, with_header, with_payload
from tests.cleaner.evidence.scan.scanned_files import (
    END,
    LOG,
    PERSON,
    TOPIC,
    moved,
    put,
    record,
    scan,
    state,
    subject,
    whats,
)
from tests.protocol.batches.frames import BATCH, FRAMES, OK


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("stage", ["", ".deleted", ".swap", ".cleaned", ".aside"])
def test_a_value_is_found_in_every_codec_and_stage(tmp_path: Path, stage: str, codec: int, is_compiled: bool) -> None:
    """A value is found in segments in use, in those that wait to be deleted, and in the cleaner's own."""
    others = [record(b"customer-%d" % number, b"x" * 40, number) for number in range(20)]
    more = [one._replace(offset=one.offset + 20) for one in others]
    batch = build_batch([*more, record(b"customer-42", PERSON, 40)], codec=codec)
    put(tmp_path, LOG + stage, build_batch(others, codec=codec), batch)
    report = scan(tmp_path, is_compiled=is_compiled)
    assert whats(report) == [VALUE]
    assert report.findings[0].offset == 40
    assert state(report) == VALUES_PRESENT


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("is_size_declared", [False, True])
def test_a_value_does_not_hide_behind_the_first_frame_of_a_batch(
    tmp_path: Path, is_size_declared: bool, is_compiled: bool
) -> None:
    """All zstd frames of a batch are read; if they hold more than it declares, it is damaged and nothing is claimed."""
    shown = build_batch([record(b"other", b"x" * 40)])
    hidden = build_batch([record(b"customer-42", PERSON)])
    compressor = zstandard.ZstdCompressor(write_content_size=is_size_declared)

    def frame(data: bytes) -> bytes:
        stream = compressor.compressobj(size=len(data) if is_size_declared else -1)
        return stream.compress(data) + stream.flush()

    shown[22] |= 4
    put(tmp_path, LOG, with_payload(shown, frame(bytes(shown[61:])) + frame(bytes(hidden[61:]))))
    report = scan(tmp_path, is_compiled=is_compiled)
    assert (state(report), report.unreadable[0].position) == (INCONCLUSIVE, 0)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("codec", [GZIP, LZ4])
def test_bytes_behind_compressed_records_prevent_a_claim(tmp_path: Path, codec: int, is_compiled: bool) -> None:
    """Bytes behind the compressed records may hold anything, so nothing is claimed; the records are searched as well."""
    shown, hidden = (bytes(build_batch([record(key, PERSON)], codec=codec)) for key in (b"customer-42", b"other"))
    put(tmp_path, LOG, with_payload(shown, shown[61:] + bytes(8) + hidden[61:]))
    report = scan(tmp_path, is_compiled=is_compiled)
    assert "left after the end of the compressed data" in report.unreadable[0].reason
    assert (state(report), whats(report)[-1]) == (INCONCLUSIVE, VALUE)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("name", [name for name, frame in FRAMES.items() if frame.answer is OK])
def test_bytes_that_a_codec_skips_prevent_a_claim(tmp_path: Path, name: str, is_compiled: bool) -> None:
    """Fields of headers, frames and bytes that are no records may hold whole batches; what is read whole is clean."""
    frame = FRAMES[name]
    put(tmp_path, LOG, with_payload(BATCH, frame.data, attributes=frame.codec))
    report = scan(tmp_path, is_compiled=is_compiled)
    assert (state(report), len(report.unreadable)) == ((INCONCLUSIVE, 1) if frame.skipped else (KEY_GONE, 0))


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("count", [-1, -(2**31), 0, 1])
def test_a_batch_of_no_records_hides_none_in_what_a_codec_skips(tmp_path: Path, count: int, is_compiled: bool) -> None:
    """Whatever number of records it declares: a skipped frame with a batch in it is no clean batch."""
    hidden = bytes(build_batch([record(b"customer-42", PERSON)], codec=GZIP))
    shell = build_batch([record(b"other", b"x")])
    frame = b"\x50\x2a\x4d\x18" + len(hidden).to_bytes(4, "little") + hidden
    put(tmp_path, LOG, with_payload(shell, frame, attributes=ZSTD, record_count=count))
    assert state(scan(tmp_path, is_compiled=is_compiled)) == INCONCLUSIVE


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("magic", [0, 1])
def test_the_key_of_a_compressed_entry_lets_nothing_be_claimed(tmp_path: Path, magic: int, is_compiled: bool) -> None:
    """Readers of the old formats skip such a key, whatever it holds."""
    hidden = bytes(build_batch([record(b"customer-42", PERSON)], codec=GZIP))
    wrapper = make_wrapper(magic, GZIP, [record(b"other", b"x")])
    entry = parse_entry(wrapper)
    put(tmp_path, LOG, wrapper)
    assert state(scan(tmp_path, is_compiled=is_compiled)) == KEY_GONE
    put(tmp_path, LOG, make_message(magic, 0, hidden, entry.value, attributes=GZIP))
    assert state(scan(tmp_path, is_compiled=is_compiled)) == INCONCLUSIVE


@pytest.mark.parametrize("is_compiled", [False, True])
def test_the_bytes_of_a_compressed_batch_are_searched_as_they_are(tmp_path: Path, is_compiled: bool) -> None:
    """A value in a skippable zstd frame, outside the records, is found."""
    shown = bytes(build_batch([record(b"other", b"x" * 400)], codec=ZSTD))
    skippable = b"\x50\x2a\x4d\x18" + len(PERSON).to_bytes(4, "little") + PERSON
    put(tmp_path, LOG, with_payload(shown, skippable + shown[61:]))
    report = scan(tmp_path, is_compiled=is_compiled)
    assert (state(report), whats(report)) == (INCONCLUSIVE, [RAW])


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1, 2, 3])
def test_a_value_is_found_in_the_old_formats(tmp_path: Path, magic: int, codec: int) -> None:
    """Values are found in magic 0 and 1, plain and wrapped."""
    if codec:
        data = make_wrapper(magic, codec, [record(b"a", b"b", 0), record(b"customer-42", PERSON, 1)])
    else:
        data = make_message(magic, 1, b"customer-42", PERSON)
    put(tmp_path, LOG, data)
    assert state(scan(tmp_path)) == VALUES_PRESENT


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    """A tombstone of another key, or a longer key that contains the key, is not a finding."""
    batch = build_batch([record(b"customer-43", None), record(b"customer-421", b"y" * 50, 1), record(None, b"", 2)])
    put(tmp_path, LOG, batch)
    report = scan(tmp_path)
    assert (state(report), whats(report)) == (KEY_GONE, [])
    assert (report.counts.batches, report.counts.records) == (1, 3)


def test_bytes_outside_of_records_are_inconclusive(tmp_path: Path) -> None:
    """Such bytes in the partition's own files, as in an index, may be of any record; in those of other topics they are listed."""
    put(tmp_path, LOG, build_batch([record(b"a", b"b")]))
    put(tmp_path, "other-0/00000000000000000000.index", b"...." + PERSON)
    report = scan(tmp_path)
    assert (state(report), [one.what for one in report.elsewhere]) == (KEY_GONE, [RAW])
    put(tmp_path, "users-0/00000000000000000000.index", b"...." + PERSON + b"..")
    report = scan(tmp_path)
    assert (state(report), [one.topic for one in report.elsewhere]) == (INCONCLUSIVE, ["other"])


def test_a_tombstone_names_the_key_still(tmp_path: Path) -> None:
    """The finding of a tombstone has the horizon of its batch."""
    put(tmp_path, LOG, build_batch([record(b"customer-42", None, 3)], delete_horizon_ms=777))
    report = scan(tmp_path)
    assert whats(report) == [TOMBSTONE]
    assert report.tombstones(TOPIC, END)[0].horizon_ms == 777
    assert state(report) == VALUES_GONE


def test_the_same_bytes_under_another_key_are_named(tmp_path: Path) -> None:
    """The same bytes as a value, within one, or in a header are listed; the key's own values still count as gone."""
    put(
        tmp_path,
        "orders-0/00000000000000000000.log",
        build_batch(
            [
                record(b"order-1", b'{"customer": ' + PERSON + b"}"),
                record(b"order-2", b"-", 1, Header("who", PERSON)),
                record(b"customer-42", b"z", 2),
            ],
            codec=4,
        ),
    )
    put(tmp_path, LOG, build_batch([record(b"customer-7", PERSON)]))
    report = scan(tmp_path)
    assert whats(report) == sorted([SAME_BYTES] * 3 + [SAME_KEY])
    assert {one.field for one in report.findings if one.what == SAME_BYTES} == {"value", "header"}
    assert state(report) == KEY_GONE


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1],
        lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
        lambda data: data + b"\0" * 30,
        lambda data: data[:16] + b"\x07" + data[17:],
    ],
    ids=["cut", "bit", "zeros", "magic"],
)
def test_an_unreadable_batch_is_never_clean(tmp_path: Path, spoil: Any, is_compiled: bool) -> None:
    """A torn, changed or unknown batch is never clean: its contents are unknown."""
    batch = bytes(build_batch([record(b"customer-%d" % number, b"v" * 30, number) for number in range(9)], codec=1))
    put(tmp_path, LOG, spoil(batch))
    report = scan(tmp_path, is_compiled=is_compiled)
    assert state(report) == INCONCLUSIVE
    assert report.unreadable[0].file == LOG


def test_holes_are_passed_over_and_what_lies_between_is_not(tmp_path: Path) -> None:
    """Holes of a terabyte are skipped, whatever the file's name; bytes and batches behind them are found."""
    put(tmp_path, LOG, build_batch([record(b"a", b"b")]))
    at = (1 << 40) + 12345
    for name in ("hole", "users-0/hole.bak", "users-0/00000000000000000009.log"):
        with put(tmp_path, name).open("r+b") as file:
            file.seek(at)
            file.write(PERSON + bytes(build_batch([record(b"customer-42", b"short")], codec=1)))
            file.truncate(2 * at)
    report = scan(tmp_path)
    found = {(one.file, one.what, one.position) for one in report.findings}
    for name, what in (("hole", SAME_KEY), ("users-0/hole.bak", VALUE)):
        assert {(name, RAW, at), (name, what, at + len(PERSON))} <= found
    assert ("users-0/00000000000000000009.log", RAW, at) in found
    assert {row.size for row in report.rows if row.size > at} == {2 * at}
    assert report.unaccounted == []


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe is not read, since that might never end; it counts as unreadable."""
    put(tmp_path, LOG, build_batch([record(b"a", b"b")]))
    os.mkfifo(tmp_path / "users-0" / "pipe")
    report = scan(tmp_path)
    assert (state(report), [one.file for one in report.unreadable]) == (INCONCLUSIVE, ["users-0/pipe"])
    assert "a pipe" in report.unreadable[0].reason


@pytest.mark.parametrize("name", ["00000000000000000009.log", "9.log", "0.log", "0000000000000000000000.log"])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_that_is_called_like_a_segment_is_read_whole(tmp_path: Path, name: str, is_link: bool) -> None:
    """A file that the log does not have is read whole: a copy of a deleted segment, or another name of the active one."""
    first = bytes(build_batch([record(b"a", b"b")]))
    log = put(tmp_path, LOG, first)
    other = put(tmp_path, f"users-0/{name}", first, build_batch([record(b"customer-42", PERSON, 1)], codec=1))
    if is_link:
        put(tmp_path, "old", other.read_bytes())
        log.unlink()
        other.unlink()
        os.link(tmp_path / "old", log)
        os.link(tmp_path / "old", other)
        (tmp_path / "old").unlink()
    report = scan(tmp_path, ends={TOPIC: LogEnd(2, 0, len(first), {0: log.stat().st_size}.get)})
    assert state(report, end=2) in (INCONCLUSIVE, VALUES_PRESENT)
    assert report.later == 0
    assert f"users-0/{name}" in [row.file for row in report.rows if row.beyond_end == 0]


@pytest.mark.parametrize("stage", ["", ".deleted"])
def test_a_file_that_gets_a_later_name_while_the_scan_runs_is_read(tmp_path: Path, stage: str) -> None:
    """A copy whose source disappears before it is read is read; so is an old file under a new name."""
    first = bytes(build_batch([record(b"a", b"b")]))
    put(tmp_path, LOG, first)
    copy = put(tmp_path, "users-0/copy", build_batch([record(b"customer-42", PERSON, 1)], codec=1))

    def renamed(*_: object) -> bool:
        if copy.exists():
            put(tmp_path, f"users-0/00000000000000000008.log{stage}", copy.read_bytes())
            copy.rename(tmp_path / f"users-0/00000000000000000009.log{stage}")
        return True

    report = scan(tmp_path, ends={TOPIC: LogEnd(2, 0, len(first))}, advance=renamed, threads=1)
    assert state(report, end=2) in (INCONCLUSIVE, VALUES_PRESENT)
    assert report.later == 0
    assert f"users-0/00000000000000000008.log{stage}" in {row.file for row in report.rows if row.beyond_end == 0}


def test_bytes_appended_by_another_program_are_read(tmp_path: Path) -> None:
    """Bytes that another program appended to the active segment are read."""
    first = bytes(build_batch([record(b"a", b"b")]))
    put(tmp_path, LOG, first, build_batch([record(b"customer-42", PERSON, 1)], codec=1))
    assert state(scan(tmp_path, ends={TOPIC: LogEnd(2, 0, len(first), {0: len(first)}.get)}), end=2) == VALUES_PRESENT


@pytest.mark.parametrize("names", [("0.log", "1.log"), ("a.index", "b.log"), ("users.log", "users.bin")])
def test_a_second_name_of_a_file_hides_nothing(tmp_path: Path, names: tuple[str, str]) -> None:
    """A file is read and listed under each name: the name decides how it is read, the directory decides its owner."""
    put(tmp_path, LOG, build_batch([record(b"a", b"b")]))
    stray = f"users-0.{'0' * 32}-stray"
    hidden = build_batch([record(b"customer-42", PERSON, 7)], codec=1)
    segment = put(tmp_path, f"{stray}/00000000000000000000.log", hidden)
    for name in names:
        os.link(segment, segment.with_name(name))
    os.link(segment, put(tmp_path, "elsewhere/0", b"").with_name("link"))
    os.link(segment, tmp_path / "users-0/00000000000000000005.log")
    report = scan(tmp_path, ends={TOPIC: LogEnd(9, 0, 1 << 20)})
    assert state(report, end=5) in (INCONCLUSIVE, VALUES_PRESENT)
    assert {one.file for one in report.findings if one.what == VALUE} >= {
        f"{stray}/00000000000000000000.log",
        "users-0/00000000000000000005.log",
    }
    assert {f"{stray}/{name}" for name in names} < {row.file for row in report.rows}
    assert report.files_listed == len(report.rows) == 7


def test_the_offsets_of_what_is_no_segment_of_the_log_mean_nothing(tmp_path: Path) -> None:
    """A copy of an earlier log in the partition's directory does not count as written since, however high its offsets."""
    put(tmp_path, LOG, build_batch([record(b"a", b"b")]))
    put(tmp_path, "users-0/backup/00000000000000000050.log", build_batch([record(b"customer-42", PERSON, 50)]))
    report = scan(tmp_path)
    assert (state(report, end=9), report.written_since(TOPIC, 9)) == (VALUES_PRESENT, [])


@pytest.mark.parametrize("is_of_log", [False, True])
def test_a_name_of_a_segment_does_not_make_a_file_one(tmp_path: Path, *, is_of_log: bool) -> None:
    """In the partition's directory, too, offsets count only in files that the log has."""
    put(tmp_path, LOG, build_batch([record(b"a", b"b")]))
    put(tmp_path, "users-0/00000000000000000050.log", build_batch([record(b"customer-42", PERSON, 50)]))
    end = LogEnd(60, 50, 1 << 20, has_file=lambda base_offset, _: is_of_log or base_offset == 0)
    report = scan(tmp_path, ends={TOPIC: end})
    found = (state(report, end=9), [one.offset for one in report.written_since(TOPIC, 9)])
    assert found == ((KEY_GONE, [50]) if is_of_log else (VALUES_PRESENT, []))


def test_a_write_behind_the_claim_is_named(tmp_path: Path) -> None:
    """A write above the claim's end is listed, and does not break the claim."""
    put(tmp_path, LOG, build_batch([record(b"customer-42", None, 5), record(b"customer-42", PERSON, 6)]))
    report = scan(tmp_path)
    assert state(report, end=6) == VALUES_GONE
    assert [one.offset for one in report.written_since(TOPIC, 6)] == [6]
    assert state(report, end=7) == VALUES_PRESENT


def test_a_value_in_a_header_of_the_keys_own_tombstone_is_one(tmp_path: Path) -> None:
    """A value in a header of the key's tombstone counts as present, and so may any other header of it."""
    said = [Header("reason", b"asked for"), Header("last", PERSON)]
    put(tmp_path, LOG, build_batch([record(b"customer-42", None, 0, *said)], codec=4))
    report = scan(tmp_path)
    assert state(report) == VALUES_PRESENT
    assert [(one.what, one.field) for one in report.findings] == [(TOMBSTONE, "key"), (VALUE, "header")]
    assert report.elsewhere == []
    put(tmp_path, LOG, build_batch([record(b"customer-42", None, 0, said[0])]))
    assert state(scan(tmp_path)) == VALUES_PRESENT
    put(tmp_path, LOG, build_batch([record(b"customer-42", None)]))
    assert state(scan(tmp_path)) == VALUES_GONE
    put(tmp_path, "copies/00000000000000000000.log", build_batch([record(b"customer-42", None, 0, *said)]))
    report = scan(tmp_path)
    assert (state(report), [one.what for one in report.in_the_way]) == (INCONCLUSIVE, [SAME_KEY, SAME_BYTES])


def test_other_values_of_a_record_are_reported_with_it(tmp_path: Path) -> None:
    """A value that is part of the key, or in a header beside another value, is reported with its own record."""
    looked_for = subject(b"person:Anna Schmidt, Bern", b"Anna Schmidt, Bern", PERSON)
    put(tmp_path, LOG, build_batch([record(b"person:Anna Schmidt, Bern", None)]))
    report = scan(tmp_path, looked_for)
    assert (state(report, looked_for), whats(report)) == (VALUES_GONE, [TOMBSTONE])
    put(tmp_path, LOG, build_batch([record(b"person:Anna Schmidt, Bern", b"new", 0, Header("old", PERSON))]))
    assert whats(scan(tmp_path, looked_for)) == [VALUE]


def test_a_directory_that_was_set_aside_counts_whole(tmp_path: Path) -> None:
    """For a directory that waits to be deleted, or belongs to no topic, no offset is above a claim's end."""
    for name in ("users-0.%s-stray" % ("a" * 32), "users-0.%s-delete" % ("b" * 32)):
        put(tmp_path, f"{name}/00000000000000000000.log", build_batch([record(b"customer-42", PERSON, 9)]))
        assert state(scan(tmp_path), end=0) == VALUES_PRESENT


def test_a_segment_that_is_renamed_meanwhile_is_not_missed(tmp_path: Path) -> None:
    """The directory is listed again until it has no new files, so renamed segments are read."""
    path = put(tmp_path, LOG, build_batch([record(b"customer-42", PERSON)]))
    put(tmp_path, "aaa-0/00000000000000000000.log", build_batch([record(b"a", b"b" * 5000)]))

    def advance(_done: int, _total: int) -> None:
        # The large file comes first: when it is read the other one has been listed.
        if path.exists():
            path.rename(path.with_suffix(".log.deleted"))

    report = scan(tmp_path, advance=advance, threads=1)
    assert report.vanished == 1
    assert state(report) == VALUES_PRESENT


def test_a_key_that_is_everywhere_is_found_where_it_is_a_key(tmp_path: Path) -> None:
    """A short key such as `42` or `{}` is found as a key; in values and headers it means nothing."""
    looked_for = subject(b"42", b"{}")
    put(tmp_path, LOG, build_batch([record(b"42", b"{}"), record(b"7", b"42 {}", 1, Header("42", b"42"))]))
    assert whats(scan(tmp_path, looked_for)) == [VALUE]


def test_thousands_of_values_are_not_taken_for_none(tmp_path: Path) -> None:
    """Findings are listed up to a limit, and counted beyond it."""
    records = [record(b"customer-42", b"v", offset) for offset in range(MAX_LISTED + 10)]
    put(tmp_path, LOG, build_batch(records))
    report = scan(tmp_path)
    assert report.unlisted == {VALUE: 10}
    assert (state(report, end=1), report.elsewhere_not_listed(1000)) == (VALUES_PRESENT, 0)


def test_thousands_of_writes_behind_the_claim_are_no_obstacle(tmp_path: Path) -> None:
    """If the lowest finding is above the claim's end, so are those that are not listed."""
    count = MAX_LISTED + 10
    records = [record(b"customer-42", b"v", offset) for offset in range(50, 50 + count)]
    put(tmp_path, LOG, build_batch([record(b"customer-42", None, 49)]), build_batch(records))
    report = scan(tmp_path)
    assert (state(report, end=50), state(report, end=51)) == (VALUES_GONE, VALUES_PRESENT)
    assert len(report.written_since(TOPIC, 50)) == MAX_LISTED
    # Of those that are not listed nobody knows on which side of 51 they are.
    assert (report.unlisted_since(TOPIC, 50), report.unlisted_since(TOPIC, 51)) == (10, 0)


@pytest.mark.slow
def test_a_stray_copy_does_not_hide_behind_the_same_key_in_other_topics(tmp_path: Path) -> None:
    """A stray copy is found however many records of the key there are in other topics."""
    count = MAX_LISTED + 100
    put(tmp_path, LOG, build_batch([record(b"customer-42", None)]))
    others = [record(b"customer-42", b"v" * 30, offset) for offset in range(count)]
    put(tmp_path, "events-0/00000000000000000000.log", build_batch(others))
    put(tmp_path, "backup/00000000000000000000.log", build_batch([record(b"customer-42", b"short", 3)]))
    report = scan(tmp_path)
    assert state(report) == INCONCLUSIVE
    assert [(one.file, one.offset) for one in report.in_the_way] == [("backup/00000000000000000000.log", 3)]
    assert report.reasons(TOPIC, END)[0]["file"] == "backup/00000000000000000000.log"


def test_a_stray_value_that_equals_its_key_is_no_tombstone(tmp_path: Path) -> None:
    """A value equal to its key has the key's digest, and still counts as a value."""
    put(tmp_path, LOG, build_batch([record(b"customer-42", None)]))
    stray = put(tmp_path, "backup/00000000000000000000.log", build_batch([record(b"customer-42", b"customer-42")]))
    report = scan(tmp_path)
    assert (state(report), [one.has_value for one in report.astray]) == (INCONCLUSIVE, [True])
    stray.write_bytes(build_batch([record(b"customer-42", None)]))
    report = scan(tmp_path)
    assert (state(report), [one.has_value for one in report.astray]) == (VALUES_GONE, [False])


@pytest.mark.parametrize("limits", [ListLimits(20, 10_000), ListLimits(1000, 20)], ids=["listed", "deciding"])
def test_findings_are_bounded_and_the_rest_is_counted(tmp_path: Path, limits: ListLimits) -> None:
    """Findings are limited over all files; the lowest of each file and sort is kept, and the rest is counted."""
    for file in range(30):
        base = file * 100
        records = [record(b"customer-42", b"v" if offset % 2 else None, base + offset) for offset in range(40)]
        put(tmp_path, f"users-0/{base:020}.log", build_batch(records[20:]), build_batch(records[:20]) + b"\0" * 9)
    report = scan(tmp_path, capacities=[ListCapacity(limits)])
    assert len(report.findings) <= 2 * (20 if limits.deciding == 20 else 30 * 20) + 2 * 30
    assert len(report.findings) + report.unlisted.total() == 30 * 40
    offsets = {one.offset for one in report.findings}
    assert {file * 100 for file in range(30)} | {file * 100 + 1 for file in range(30)} <= offsets
    assert len({one.file for one in report.unreadable}) == 30
    assert all(row.problems for row in report.rows)


def test_locating_keeps_no_findings(tmp_path: Path) -> None:
    """Locating reports each record to its caller and keeps no list; files without records are not read."""
    put(tmp_path, LOG, build_batch([record(b"customer-42", b"v", offset) for offset in range(50)]))
    put(tmp_path, "users-0/diamant-00000000000000000000.facts", b"customer-42")
    seen: list[int] = []
    report = scan_partitions(
        RealEnv(),
        str(tmp_path),
        subject(),
        {},
        [TOPIC],
        on_record=lambda _search, one, _header: seen.append(one.offset),
    )
    assert (seen, report.findings, report.counts.files) == (list(range(50)), [], 1)
    assert len(scan_partitions(RealEnv(), str(tmp_path), subject(), {}, [TOPIC]).findings) == 50


def test_a_report_of_many_partitions_is_asked_quickly(tmp_path: Path) -> None:
    """A question about one partition does not iterate over the findings of the others."""

    class Counted(list[Finding]):
        """Counts the iterations over it."""

        passes = 0

        def __iter__(self) -> Iterator[Finding]:
            Counted.passes += 1
            return super().__iter__()

    for partition in range(20):
        batch = build_batch([record(b"customer-42", None), record(b"customer-42", b"v", 1)])
        put(tmp_path, f"users-{partition}/00000000000000000000.log", batch)
    report = scan(tmp_path)
    report.findings = Counted(report.findings)
    for partition in range(20):
        one = ("users", partition)
        assert report.state(one, 1, subject().key_digest.hex()) == VALUES_GONE
        assert (len(report.of(one)), len(report.written_since(one, 1)), len(report.tombstones(one, 1))) == (2, 1, 1)
    assert Counted.passes == 0


def test_only_the_digest_of_the_key_is_enough(tmp_path: Path) -> None:
    """A search with the secret and the key's digest works without the key: each record's key is compared by its digest."""
    known = subject()
    unknown = Subject(None, known.topics, known.needles, known.key_digest)
    put(tmp_path, LOG, build_batch([record(b"customer-42", PERSON)], codec=3))
    report = scan(tmp_path, unknown, is_compiled=True)
    assert state(report) == VALUES_PRESENT


def test_both_engines_find_the_same_in_random_logs(tmp_path: Path) -> None:
    """Plain and compiled search agree for any sizes, codecs, headers and needles. The report names which has read; the compiled
    search hands batches with findings to the plain one.
    """
    rng = random.Random(20)
    for index in range(30):
        directory = tmp_path / str(index)
        batches, offset = [], 0
        for _ in range(rng.randrange(1, 8)):
            records = []
            for _ in range(rng.randrange(1, 20)):
                value = rng.choice([None, b"", PERSON, b"." * rng.randrange(30) + PERSON, rng.randbytes(20)])
                headers = (Header("h", rng.choice([None, PERSON, b"z"])),) * rng.randrange(3)
                records.append(record(rng.choice([None, b"", b"customer-42", b"k"]), value, offset, *headers))
                offset += 1
            batches.append(build_batch(records, codec=rng.randrange(5), is_transactional=rng.random() < 0.2))
        put(directory, rng.choice([LOG, "orders-1/00000000000000000000.log"]), *batches)
        plain, compiled = scan(directory, is_compiled=False), scan(directory, is_compiled=True)
        assert sorted(plain.findings, key=repr) == sorted(compiled.findings, key=repr), index
        assert plain.counts.records == compiled.counts.records
        assert (plain.engine, plain.counts.compiled_batches, compiled.engine) == ("plain", 0, "compiled")
        assert compiled.counts.compiled_batches == len(batches) - len({one.position for one in compiled.findings})
        assert plain.counts.decompressed_bytes <= compiled.counts.decompressed_bytes


# -- nothing hides behind anything ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize(
    ("which", "offset"),
    [(0, -5), (0, 3), (0, 1 << 40), (1, 0), (1, 1 << 20), (2, 0), (2, 2), (2, 90), (2, 1 << 40), (1, 2**63 - 1)],
)
def test_a_changed_base_offset_is_damage(tmp_path: Path, which: int, offset: int, is_compiled: bool) -> None:
    """A record moved out of a claim's range is noticed by its neighbours, and by the end of the log."""
    batches = [bytes(build_batch([record(b"customer-42", PERSON, 2 * one)])) for one in range(3)]
    batches[which] = moved(batches[which], offset)
    log = put(tmp_path, "users-0/00000000000000000000.log", *batches)
    follows = put(tmp_path, "users-0/00000000000000000006.log", build_batch([record(b"a", b"b", 6)]))
    ends = {TOPIC: LogEnd(7, 6, follows.stat().st_size)}
    assert state(scan(tmp_path, ends=ends, is_compiled=is_compiled), end=7) == INCONCLUSIVE
    # Of a log that nobody has in use the last segment's end is not known, but of all others.
    assert state(scan(tmp_path, is_compiled=is_compiled), end=7) == INCONCLUSIVE
    follows.unlink()
    ends = {TOPIC: LogEnd(6, 0, log.stat().st_size)}
    assert state(scan(tmp_path, ends=ends, is_compiled=is_compiled), end=6) == INCONCLUSIVE


@pytest.mark.parametrize("delta", [0, 1, 5, 2**31 - 1, -1, -(2**31)])
@pytest.mark.parametrize("offset", [2**63 - 1, 2**63 - 2, 2**63 - 2**31, 2**62, -1, -2, -(2**63), -(2**63) + 1])
def test_offsets_that_do_not_fit_64_bits_are_damage(tmp_path: Path, offset: int, delta: int) -> None:
    """A batch in the middle cannot wrap out of a claim's range: both searches name the same places."""
    batches = [bytes(build_batch([record(b"customer-42", PERSON, one)])) for one in range(3)]
    batches[1] = bytes(with_header(batches[1], base_offset=offset, last_offset_delta=delta))
    put(tmp_path, LOG, *batches)
    reports = [scan(tmp_path, is_compiled=is_compiled) for is_compiled in (False, True)]
    assert [state(report, end=3) for report in reports] == 2 * [INCONCLUSIVE]
    assert sorted(reports[0].unreadable) == sorted(reports[1].unreadable)
    assert reports[0].unreadable[0].position == len(batches[0])


def test_offsets_that_do_not_fit_64_bits_are_remembered_from_chunk_to_chunk(tmp_path: Path) -> None:
    """What follows in the next chunk is out of order, too; it ends neither search."""
    records = [record(b"customer-42", PERSON, 2**63 - 1), record(b"a", bytes(5_000_000)), record(b"a", b"", 2)]
    put(tmp_path, LOG, *(build_batch([one]) for one in records))
    reports = [scan(tmp_path, is_compiled=is_compiled) for is_compiled in (False, True)]
    assert reports[0].unreadable == reports[1].unreadable
    assert [len(report.unreadable) for report in reports] == [3, 3]


@pytest.mark.parametrize("base", [2**63 - 1, 2**63, 10**20 - 1])
def test_a_segment_named_for_an_offset_that_no_batch_can_have_is_read(tmp_path: Path, base: int) -> None:
    """The name does not end the scan, and what the file holds is found by both searches."""
    batches = [bytes(build_batch([record(b"customer-42", PERSON, one)])) for one in (2**63 - 1, 0)]
    put(tmp_path, f"users-0/{base:020}.log", *batches)
    reports = [scan(tmp_path, is_compiled=is_compiled) for is_compiled in (False, True)]
    assert reports[0].findings == reports[1].findings
    assert {one.offset for one in reports[0].findings if one.what != RAW} == {2**63 - 1, 0}
    assert reports[0].unreadable == reports[1].unreadable


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("offset", [-7, 5, 5000])
def test_a_record_beyond_its_batch_is_damage(tmp_path: Path, offset: int, codec: int, is_compiled: bool) -> None:
    """If a record's offset is outside its batch, it is unknown whether a claim covers it."""
    batch = build_batch([record(b"customer-42", PERSON, offset)], base_offset=0, last_offset_delta=4, codec=codec)
    put(tmp_path, LOG, batch)
    report = scan(tmp_path, is_compiled=is_compiled)
    assert (state(report, end=3), len(report.unreadable)) == (INCONCLUSIVE, 1)


def test_gaps_and_what_was_appended_meanwhile_are_no_damage(tmp_path: Path) -> None:
    """Gaps, as in compacted logs, and any data above the recorded end are not damage."""
    batches = [build_batch([record(b"a", b"b", offset)]) for offset in (3, 40, 41, 90)]
    old = build_batch([record(b"a", b"b", 90)])
    put(tmp_path, "users-0/00000000000000000000.log", make_message(1, 1, b"a", b"b"), *batches[:3])
    active = put(tmp_path, "users-0/00000000000000000080.log", old, build_batch([record(b"a", b"b", 91)]))
    ends = {TOPIC: LogEnd(91, 80, len(old), {80: active.stat().st_size}.get)}
    report = scan(tmp_path, ends=ends)
    assert (report.unreadable, state(report, end=91)) == ([], KEY_GONE)
    active.rename(active.with_name("00000000000000000080.log.deleted"))
    assert state(scan(tmp_path)) == KEY_GONE


def test_bytes_of_the_key_do_not_hide_those_of_a_value(tmp_path: Path) -> None:
    """A value is found however often the key occurs in the same file, of the partition or of none."""
    looked_for = subject(b"customer-number-42")
    flood = b"customer-number-42 " * (MAX_LISTED + 50)
    put(tmp_path, LOG, build_batch([record(b"a", b"b")]))
    put(tmp_path, "users-0/00000000000000000000.index", flood, PERSON)
    report = scan(tmp_path, looked_for)
    assert (state(report, looked_for), report.unlisted[RAW] > 0) == (INCONCLUSIVE, True)
    assert report.reasons(TOPIC, END)[0]["reason"].startswith("bytes to be removed lie outside")
    put(tmp_path, "users-0/00000000000000000000.index", b"")
    put(tmp_path, "a-stray-file", flood * 3)
    put(tmp_path, "users-0/00000000000000000000.timeindex", b"......", PERSON)
    put(tmp_path, "z-stray-file", flood, PERSON)
    report = scan(tmp_path, looked_for)
    assert state(report, looked_for) == INCONCLUSIVE
    digests = {(one.file, one.digest) for one in report.astray}
    assert len({one for one in digests if one[0] == "z-stray-file"}) == 2


def test_a_partition_that_is_not_there_is_not_gone(tmp_path: Path) -> None:
    """A partition without a file is reported as missing, not as clean."""
    put(tmp_path, "others-0/00000000000000000000.log", build_batch([record(b"a", b"b")]))
    report = scan(tmp_path)
    assert state(report) == NOT_THERE
    assert report.reasons(TOPIC, END) == [{"file": "users-0", "reason": "the partition has no file"}]


def test_a_file_of_nobody_that_cannot_be_read_is_never_clean(tmp_path: Path) -> None:
    """An unreadable file of no partition may hold records of any partition."""

    class Locked(RealEnv):
        """An environment whose user may not read one file."""

        def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
            if path.endswith("backup.bin"):
                raise PermissionError(13, "Permission denied", path)
            return super().open(path, create=create, read_only=read_only)

    put(tmp_path, LOG, build_batch([record(b"a", b"b")]))
    put(tmp_path, "backup.bin", PERSON)
    [report] = scan_directory(Locked(), str(tmp_path), [subject()], {})
    assert state(report) == INCONCLUSIVE
    assert "Permission denied" in report.reasons(TOPIC, END)[0]["reason"]


def test_a_copy_within_the_partition_is_read_to_its_end(tmp_path: Path) -> None:
    """A copy is read to its end even if it has the name of the active segment."""
    first = bytes(build_batch([record(b"a", b"b")]))
    put(tmp_path, LOG, first)
    more = build_batch([record(b"customer-42", PERSON, 1)])
    put(tmp_path, "users-0/copy/00000000000000000000.log", first, more)
    report = scan(tmp_path, ends={TOPIC: LogEnd(2, 0, len(first))})
    assert state(report, end=2) == VALUES_PRESENT
    later = tmp_path / "users-0/copy/00000000000000000009.log"
    (tmp_path / "users-0/copy/00000000000000000000.log").rename(later)
    assert state(scan(tmp_path, ends={TOPIC: LogEnd(2, 0, len(first))}), end=2) == INCONCLUSIVE


def test_a_record_of_the_key_among_control_records_is_one(tmp_path: Path) -> None:
    """A record of the key in a control batch is found, though consumers skip it; a marker is not, even with the key's bytes."""
    batch = build_batch([record(b"customer-42", b"short")], is_control=True, is_transactional=True, producer_id=1)
    put(tmp_path, LOG, batch)
    assert state(scan(tmp_path)) == VALUES_PRESENT
    put(tmp_path, LOG, build_batch([record(b"\0\0\0\1", b"......")], is_control=True, producer_id=1))
    assert state(scan(tmp_path, subject(b"\0\0\0\1")), subject(b"\0\0\0\1")) == KEY_GONE


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("is_compiled", [False, True])
def test_nothing_hides_behind_the_records_of_a_batch(tmp_path: Path, codec: int, is_compiled: bool) -> None:
    """More records or compressed data than a batch declares are searched; no reader continues behind an lz4 frame."""
    shown = bytes(build_batch([record(b"a", b"b" * 30)], codec=codec))
    both = bytes(build_batch([record(b"a", b"b" * 30), record(b"customer-42", b"short", 1)], codec=codec))
    hidden = bytes(build_batch([record(b"customer-42", b"short")], codec=codec))[61:]
    for forged in (both[:57] + shown[57:61] + both[61:], *([] if codec == 3 else [shown + hidden])):
        data = bytearray(forged)
        data[8:12] = (len(data) - 12).to_bytes(4, "big")
        data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
        put(tmp_path, LOG, data)
        assert state(scan(tmp_path, is_compiled=is_compiled)) in (INCONCLUSIVE, VALUES_PRESENT)


def test_group_metadata_and_producer_snapshots_are_searched(tmp_path: Path) -> None:
    """A value in the metadata of a committed offset is listed; one in a producer snapshot of the topic prevents claims."""
    put(tmp_path, LOG, build_batch([record(b"a", b"b")]))
    commit = (
        b"\0\3" + (7).to_bytes(8, "big") + b"\xff\xff\xff\xff" + len(PERSON).to_bytes(2, "big") + PERSON + b"\0" * 8
    )
    group = build_batch([record(b"\0\1\0\5group", commit)], codec=2)
    put(tmp_path, "__consumer_offsets-3/00000000000000000000.log", group)
    report = scan(tmp_path)
    assert [(one.what, one.topic, one.field) for one in report.elsewhere] == [
        (SAME_BYTES, "__consumer_offsets", "value")
    ]
    assert state(report) == KEY_GONE
    put(tmp_path, "users-0/00000000000000000001.snapshot", b"\0" * 6 + PERSON)
    assert state(scan(tmp_path)) == INCONCLUSIVE
    put(tmp_path, "users-0/00000000000000000001.snapshot", b"")
    put(tmp_path, "others-0/00000000000000000001.snapshot", b"\0" * 6 + PERSON)
    report = scan(tmp_path)
    assert (state(report), {one.what for one in report.elsewhere}) == (KEY_GONE, {SAME_BYTES, RAW})
