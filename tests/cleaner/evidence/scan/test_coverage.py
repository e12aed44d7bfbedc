"""The account of a scan: compared with a listing and a count of headers that share no code with it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diamant.cleaner.evidence.scan.coverage import MAX_ROWS, FileRow, coverage_problems
from diamant.cleaner.evidence.scan.files_to_read import FilesToRead
from diamant.cleaner.evidence.scan.report import INCONCLUSIVE, ScanReport
from diamant.cleaner.evidence.scan.scan import scan_directory
from diamant.cleaner.evidence.search import known_positives
from diamant.cleaner.evidence.search.compiled_search import CompiledSearch
from diamant.cleaner.evidence.search.file_census import FileCensus, Identity, declared, file_identity
from diamant.cleaner.evidence.search.offset_order import LogEnd
from diamant.cleaner.evidence.search.record_search import FileSearch
from diamant.cleaner.segments.payload_buffer import Unpacker
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.compression import MAX_BATCH_BYTES
from diamant.protocol.batches.header import Record
from diamant.storage.certificate_states import KEY_GONE
from diamant.storage.env.env import RealEnv
from tests.builder import make_message, make_wrapper
from tests.cleaner.evidence.scan.listed_env import ListedEnv
from tests.cleaner.evidence.scan.scanned_files import LOG, PERSON, TOPIC, moved, put, record, state, subject
from tests.mutants import Mutant, put_in, returns

ENV = RealEnv()


def batch(count: int, codec: int = 0, size: int = 40, **options: Any) -> bytes:
    """Return a batch of other keys."""
    records = [Record(offset, 1000, b"k%d" % offset, b"v" * size) for offset in range(count)]
    return bytes(build_batch(records, codec=codec, **options))


def scanned(directory: Path, env: RealEnv = ENV, **options: Any) -> ScanReport:
    options.setdefault("census", FileCensus(ENV, str(directory)))
    [report] = scan_directory(env, str(directory), [subject()], options.pop("ends", {}), **options)
    return report


def not_accounted(report: ScanReport) -> list[str]:
    """Return the unaccounted files of the directory, without the known positives, which may be missed with them."""
    return [one.file for one in report.unaccounted if not one.file.startswith(known_positives.TOPIC)]


def row_of(report: ScanReport, name: str) -> FileRow:
    (found,) = [row for row in report.rows if row.file == name]
    return found


def has_each(*_: object) -> bool:
    """Say that a log has every file with the name of one of its segments."""
    return True


def amounts_in(path: Path) -> dict[str, list[int]]:
    """Return the amounts that the headers declare."""
    file = ENV.open(str(path), read_only=True)
    try:
        return declared(file, path.stat().st_size, MAX_BATCH_BYTES)
    finally:
        file.close()


@pytest.mark.parametrize("is_compiled", [False, True])
def test_records_read_add_up_to_the_headers_in_random_segments(tmp_path: Path, is_compiled: bool) -> None:
    """For any codecs, sizes, formats and stages, batches, records and bytes agree and add up to the file."""
    rng = random.Random(4)
    for index in range(20):
        parts = []
        for offset in range(0, 500 * rng.randrange(12), 500):
            kind = rng.randrange(8)
            if kind == 0:
                parts.append(bytes(make_message(rng.randrange(2), offset, b"a", b"b" * rng.randrange(900))))
            elif kind == 1:
                inner = [Record(offset, 1, b"a", b"b")]
                parts.append(bytes(make_wrapper(rng.randrange(2), rng.randrange(1, 4), inner)))
            else:
                parts.append(moved(batch(rng.choice([1, 3, 300]), rng.randrange(5), rng.choice([0, 40, 7000])), offset))
        directory = tmp_path / str(index)
        name = LOG + rng.choice(["", ".deleted", ".swap", ".cleaned"])
        path = put(directory, name, *parts)
        put(directory, "users-0/00000000000000000000.index", rng.randbytes(rng.randrange(50)))
        report = scanned(directory, is_compiled=is_compiled)
        row = row_of(report, name)
        assert row.read == row.declared == amounts_in(path), index
        assert row.adds_up
        assert (report.unaccounted, report.files_listed, len(report.rows)) == ([], 2, 2)
        assert state(report) == KEY_GONE


def test_headers_at_the_edge_of_a_window_are_read_whole(tmp_path: Path) -> None:
    """Batches of all sizes around a window's are counted whole."""
    parts = [batch(1, size=size) for size in range(3900, 4200, 7)] + [batch(1, size=0)] * 200
    found = amounts_in(put(tmp_path, LOG, *parts))
    assert found == {"none": [len(parts), len(parts), sum(map(len, parts))]}


def test_the_rest_behind_the_last_whole_batch_counts_as_bytes(tmp_path: Path) -> None:
    """From the first position without a whole batch, the rest counts as bytes."""
    whole, torn = batch(2), batch(9)[:-1]
    assert amounts_in(put(tmp_path, LOG, whole, torn)) == {"none": [1, 2, len(whole)], "bytes": [0, 0, len(torn)]}
    assert amounts_in(put(tmp_path, LOG, b"\0" * 10)) == {"bytes": [0, 0, 10]}
    assert amounts_in(put(tmp_path, LOG)) == {}


def without_a_record(real: Any) -> Any:
    """Search a batch, but count one record less."""

    def look_at(self: FileSearch, one: Any) -> None:
        real(self, one)
        next(iter(self.amounts.values()))[1] -= 1

    return look_at


def nothing_of_zstd(real: Any) -> Any:
    """Skip a codec."""
    return lambda self, one: None if one.header.codec == 4 else real(self, one)


@pytest.mark.parametrize("sabotage", [without_a_record, nothing_of_zstd])
def test_a_plain_search_that_leaves_something_out_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sabotage: Callable[[Any], Any]
) -> None:
    """A plain search that skips a codec or one record is caught."""
    put(tmp_path, LOG, batch(3), moved(batch(3, codec=4), 3))
    put_in(monkeypatch, Mutant(FileSearch, "look_at", sabotage))
    report = scanned(tmp_path, is_compiled=False)
    assert not_accounted(report) == [LOG]
    assert state(report) == INCONCLUSIVE


def test_a_compiled_search_that_does_not_decompress_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If decompression gives nothing, the kernel finds fewer records than declared, and the plain search reads them."""
    put(tmp_path, LOG, batch(3, codec=3))
    put_in(monkeypatch, Mutant(Unpacker, "unpack", returns((0, 0))))
    report = scanned(tmp_path, is_compiled=True)
    assert (report.counts.compiled_batches, report.counts.records, state(report)) == (0, 3, KEY_GONE)


def test_a_compiled_search_that_ends_early_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that the search does not count are caught."""
    first = batch(3)
    put(tmp_path, LOG, first, batch(3))

    def early(real: Any) -> Any:
        return lambda self, one, file, _end, position: real(self, one, file, len(first), position)

    put_in(monkeypatch, Mutant(CompiledSearch, "search", early))
    report = scanned(tmp_path, is_compiled=True)
    assert (not_accounted(report), state(report)) == ([LOG], INCONCLUSIVE)


def test_a_file_that_is_not_listed_anywhere_else_is_caught_wherever_it_is(tmp_path: Path) -> None:
    """A file that a scan skips is caught, also in a partition of another topic."""
    put(tmp_path, LOG, batch(1))
    put(tmp_path, "other-3/00000000000000000000.timeindex", b"x" * 12)
    report = scanned(tmp_path, ListedEnv(tmp_path, is_shown=lambda name: "timeindex" not in name))
    assert [one.file for one in report.unaccounted] == ["other-3/00000000000000000000.timeindex"]
    assert state(report) == INCONCLUSIVE
    assert row_of(report, "other-3/00000000000000000000.timeindex").size == 12


def test_files_that_come_grow_and_go_meanwhile_are_accounted_for(tmp_path: Path) -> None:
    """New files are read, grown ones read again, deleted ones need no account; renamed ones are read under their new names."""
    put(tmp_path, LOG, batch(3))
    put(tmp_path, "large", b"x" * 100_000)
    put(tmp_path, "gone", b"x" * 10)
    moves: list[int] = []

    def advance(_done: int, _total: int) -> None:
        moves.append(1)
        if len(moves) == 1:
            put(tmp_path, "new", b"y" * 10)
            (tmp_path / "gone").unlink()
            (tmp_path / LOG).rename(tmp_path / (LOG + ".deleted"))
        if len(moves) == 3:
            put(tmp_path, "later", b"z")

    def grow(looks: int) -> None:
        if looks == 1 and (tmp_path / "new").exists():
            with (tmp_path / "new").open("ab") as file:
                file.write(b"y" * 500)

    report = scanned(tmp_path, census=FileCensus(ListedEnv(tmp_path, grow), str(tmp_path)), advance=advance, threads=1)
    assert report.unaccounted == []
    sizes = {row.file: row.size for row in report.rows}
    assert sizes["new"] == 510
    assert {"large", "later", LOG + ".deleted"} <= set(sizes)
    assert "gone" not in sizes


def test_a_file_that_is_replaced_between_a_listing_and_a_look_is_not_missed(tmp_path: Path) -> None:
    """A checkpoint that is replaced during each of several listings is read in the end, and nothing is missing."""
    put(tmp_path, LOG, batch(3))

    def come(look: int) -> None:
        if look == 1:
            put(tmp_path, "cleaner-offset-checkpoint", b"0\n0\n")

    def is_shown(name: str) -> bool:
        return name != "cleaner-offset-checkpoint" or census.env.listings > 3

    census = FileCensus(ListedEnv(tmp_path, come), str(tmp_path))
    report = scanned(tmp_path, ListedEnv(tmp_path, is_shown=is_shown), census=census)
    assert (report.unaccounted, state(report)) == ([], KEY_GONE)
    assert row_of(report, "cleaner-offset-checkpoint").read == {"bytes": [0, 0, 4]}
    assert census.looks > 4


def test_a_segment_after_the_recorded_end_is_listed_as_such(tmp_path: Path) -> None:
    """Such a segment is listed, claims nothing, and is not missing from the account. Records behind the end do not count."""
    first, more = batch(1), bytes(build_batch([record(b"customer-42", PERSON, 1)]))
    put(tmp_path, LOG, first, more)

    def rolled(*_: object) -> None:
        put(tmp_path, "users-0/00000000000000000002.log", moved(more, 2))

    written = {0: len(first) + len(more), 2: len(more)}
    report = scanned(tmp_path, ends={TOPIC: LogEnd(1, 0, len(first), written.get, has_each)}, advance=rolled)
    assert (report.unaccounted, state(report), report.later) == ([], KEY_GONE, 1)
    assert row_of(report, LOG).beyond_end == len(more)
    later = row_of(report, "users-0/00000000000000000002.log")
    assert (later.size, later.beyond_end) == (0, len(more))


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".log.deleted"])
def test_a_log_that_rolls_all_the_time_is_no_obstacle(tmp_path: Path, suffix: str) -> None:
    """Segments begun after the recorded end are skipped with their indexes and snapshots, also once they are deleted."""
    put(tmp_path, LOG, batch(1))
    put(tmp_path, "busy-0/00000000000000000000.log", batch(1))
    rolls: list[int] = []

    def roll(_listings: int) -> None:
        rolls.append(len(rolls) + 1)
        content = moved(batch(1), rolls[-1]) if ".log" in suffix else b"x" * 12
        put(tmp_path, f"busy-0/{rolls[-1]:020}{suffix}", content)

    def roll_after_the_first(looks: int) -> None:
        if looks:
            roll(looks)

    ends = {
        TOPIC: LogEnd(1, 0, len(batch(1))),
        ("busy", 0): LogEnd(1, 0, len(batch(1)), dict.fromkeys(range(99), 1).get, has_each),
    }
    census = FileCensus(ListedEnv(tmp_path, roll_after_the_first), str(tmp_path))
    report = scanned(tmp_path, ListedEnv(tmp_path, roll), census=census, ends=ends)
    assert (report.unaccounted, report.unreadable, state(report)) == ([], [], KEY_GONE)
    assert len(rolls) < 10
    assert {row.sort for row in report.rows if row.size == 0 and row.beyond_end} <= {"after the recorded end"}
    assert coverage_problems({"coverage": report.coverage(), "claims": []}) == []


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".log.deleted"])
@pytest.mark.parametrize("when", [1, 2])
def test_a_copy_that_comes_under_the_name_of_a_later_segment_is_read(tmp_path: Path, suffix: str, when: int) -> None:
    """The log's own file of that name is skipped; a copy under its name is read, also if it replaces that file."""
    put(tmp_path, LOG, batch(1))
    own = f"users-0/{1:020}.log"
    copy = build_batch([Record(0, 1, b"customer-42", b"Anna")], codec=1)
    files: list[Identity] = []

    def come(_listings: int) -> None:
        if not files:
            files.append(file_identity(ENV, str(put(tmp_path, own, moved(batch(1), 1))))[0])
        if len(files) == when:
            put(tmp_path, "copy", copy).replace(tmp_path / f"users-0/{1:020}{suffix}")
        files.append(files[0])

    end = LogEnd(1, 0, len(batch(1)), {1: len(batch(1))}.get, lambda base, identity: base == 1 and identity == files[0])
    assert state(scanned(tmp_path, ListedEnv(tmp_path, come), ends={TOPIC: end})) != KEY_GONE


@pytest.mark.parametrize("name", ["00000000000000000007.log", "00000000000000000007.log.deleted"])
def test_an_output_of_the_cleaner_is_no_later_segment(tmp_path: Path, name: str) -> None:
    """An output of a round may begin above the active segment's base and replace it; if it begins below the end, it is read."""
    active = put(tmp_path, LOG, batch(9))
    output = moved(batch(1), 7)

    def replace(_listings: int) -> None:
        if active.exists():
            active.unlink()
            put(tmp_path, f"users-0/{name}", output)
            put(tmp_path, "users-0/00000000000000000009.log", batch(1))

    end = LogEnd(9, 0, len(batch(9)), {9: len(batch(1))}.get, has_each)
    report = scanned(tmp_path, ListedEnv(tmp_path, replace), ends={TOPIC: end})
    assert (row_of(report, f"users-0/{name}").size, report.later) == (len(output), 1)


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".snapshot", ".log.deleted"])
def test_files_present_at_the_beginning_are_read_whatever_their_names(tmp_path: Path, suffix: str) -> None:
    """Files from the beginning of the scan are read even if their names are those of later segments."""
    put(tmp_path, LOG, batch(1))
    put(tmp_path, f"users-0/00000000000000000005{suffix}", b"x" * 12)
    report = scanned(tmp_path, ends={TOPIC: LogEnd(1, 0, len(batch(1)))})
    assert row_of(report, f"users-0/00000000000000000005{suffix}").read == {"bytes": [0, 0, 12]}


@pytest.mark.parametrize("stage", [".cleaned", ".swap", ".deleted"])
def test_a_half_written_file_that_is_whole_in_the_end_is_read_again(tmp_path: Path, stage: str) -> None:
    """A file that was unreadable while it was being written is read again, under any name, and the scan is conclusive."""
    whole = batch(1) + moved(batch(1), 1)
    put(tmp_path, LOG, batch(1))
    output = put(tmp_path, LOG + ".cleaned", whole[:-20])
    final = tmp_path / (LOG + stage)

    def finish(_done: int, _total: int) -> None:
        if not final.exists() or final.read_bytes() != whole:
            output.write_bytes(whole)
            output.rename(final)

    report = scanned(tmp_path, advance=finish)
    assert (report.unreadable, state(report)) == ([], KEY_GONE)
    assert row_of(report, LOG + stage).size == len(whole)


def test_a_damaged_file_that_grows_for_ever_is_read_again_a_few_times(tmp_path: Path) -> None:
    """Rereads of such a file are limited; the rest is claimed, and the scan ends."""
    put(tmp_path, LOG, batch(1))
    output = put(tmp_path, "other-0/00000000000000000000.log.cleaned", b"damage")
    reads: list[int] = []

    def grow(_done: int, _total: int) -> None:
        reads.append(1)
        with output.open("ab") as file:
            file.write(b"damage")

    report = scanned(tmp_path, advance=grow)
    assert (report.unaccounted, state(report)) == ([], KEY_GONE)
    assert {one.file for one in report.unreadable} == {"other-0/00000000000000000000.log.cleaned"}
    assert len(reads) < 10


def test_calling_a_segment_later_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The account checks again whether a segment is beyond the recorded end."""
    put(tmp_path, LOG, batch(1))
    put_in(
        monkeypatch,
        Mutant(FilesToRead, "_is_of_later", returns(True)),
        Mutant(FilesToRead, "_is_passed_over", lambda _real: lambda self, place, _: self.later.add(place.name) or True),
    )
    report = scanned(tmp_path, ends={TOPIC: LogEnd(1, 0, len(batch(1)))})
    assert (not_accounted(report), state(report)) == ([LOG], INCONCLUSIVE)


def test_damage_has_its_own_reason_and_is_no_hole(tmp_path: Path) -> None:
    """A torn segment of another topic is reported as unreadable, and prevents no claim."""
    put(tmp_path, LOG, batch(1))
    put(tmp_path, "other-0/00000000000000000000.log", batch(3, codec=1)[:-1])
    report = scanned(tmp_path)
    assert (report.unaccounted, len(report.unreadable), state(report)) == ([], 1, KEY_GONE)
    assert row_of(report, "other-0/00000000000000000000.log").problems == 1


def certificate_of(report: ScanReport) -> dict[str, Any]:
    """Return the parts of a certificate that the account needs."""
    claim = {"topic": "users", "partition": 0, "below_offset": 1, "state": "key-gone"}
    return {"claims": [claim], "coverage": report.coverage(frozenset({"users"}))}


def test_many_files_of_other_topics_are_summed_up(tmp_path: Path) -> None:
    """Files of other topics have one row per directory, those of the request's topics one each; the sums agree."""
    put(tmp_path, LOG, batch(1))
    put(tmp_path, "users-0/partition.metadata", b"x")
    for index in range(6):
        put(tmp_path, f"other-1/{index:020d}.log", batch(2, codec=index % 5))
        put(tmp_path, f"other-1/{index:020d}.index", b"x" * index)
    put(tmp_path, "meta.properties", b"y")
    report = scanned(tmp_path)
    # As if there were so many more of these.
    one = row_of(report, f"other-1/{5:020d}.index")
    report.rows += [replace(one, file=f"other-1/{number:020d}.index") for number in range(6, MAX_ROWS)]
    report.files_listed = len(report.rows)
    certificate = certificate_of(report)
    rows = {one["file"]: one for one in certificate["coverage"]["ledger"]}
    assert set(rows) == {LOG, "users-0/partition.metadata", "other-1/*", "*"}
    assert rows["other-1/*"]["files"] == MAX_ROWS + 6
    assert coverage_problems(certificate) == []


@pytest.mark.parametrize("name", ["files", "bytes", "batches", "records", "codecs", "files_listed"])
def test_totals_that_do_not_add_up_are_reported(tmp_path: Path, name: str) -> None:
    """Each total that differs from the sum of its rows is reported."""
    put(tmp_path, LOG, batch(3))
    certificate = certificate_of(scanned(tmp_path))
    assert coverage_problems(certificate) == []
    certificate["coverage"][name] = {} if name == "codecs" else certificate["coverage"][name] + 1
    assert len(coverage_problems(certificate)) == 1


@pytest.mark.parametrize(
    "nonsense", [None, [], {}, {"ledger": 7}, {"ledger": [{"file": "x", "bytes": -1, "read": {}}]}]
)
def test_an_account_of_another_form_does_not_add_up(nonsense: Any) -> None:
    """An account of any other form is reported, and raises nothing."""
    assert len(coverage_problems({"claims": [], "coverage": nonsense})) == 1


@pytest.mark.parametrize("often", [1, 1000])
def test_a_file_that_is_rewritten_after_it_was_read_is_read_again(tmp_path: Path, often: int) -> None:
    """A rewrite of the same file with the same size is noticed and read; if it continues, nothing is claimed."""
    put(tmp_path, LOG, batch(2))
    path = put(tmp_path, "backup", b"n" * 60)
    looked_for = subject()
    looked_for.needles.add("value", b"Anna Schmidt of Bern")
    left = often

    def rewrite(*_: int) -> None:
        nonlocal left
        if left:
            left -= 1
            with path.open("r+b") as file:
                file.write(b"%04d Anna Schmidt of Bern" % left)

    [report] = scan_directory(ENV, str(tmp_path), [looked_for], {}, advance=rewrite, threads=1)
    assert {one.file for one in report.in_the_way} == {"backup"}
    assert not_accounted(report) == (["backup"] if often > 1 else [])


def test_a_file_that_only_grows_and_one_of_a_running_log_are_nobodys_business(tmp_path: Path) -> None:
    """Files that only grow, and those of running logs, may change during the scan."""
    put(tmp_path, LOG, batch(2))
    files = [put(tmp_path, name, bytes(60)) for name in ("server.out", "users-0/00000000000000000000.index")]
    size = (tmp_path / LOG).stat().st_size

    def change(*_: int) -> None:
        with files[0].open("ab") as file:
            file.write(b"one more line\n")
        with files[1].open("r+b") as file:
            file.write(b"\0")

    ends = {TOPIC: LogEnd(2, 0, size, lambda base: size if base == 0 else None)}
    report = scanned(tmp_path, ends=ends, advance=change, threads=1)
    assert (state(report), report.unaccounted) == (KEY_GONE, [])
