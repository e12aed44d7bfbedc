"""Known positives prove that a certifying scan sees: it finds what was planted, or nothing is certain."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diamant.cleaner.evidence.scan import file_reader, files_to_read, staging_files
from diamant.cleaner.evidence.scan.coverage import coverage_problems
from diamant.cleaner.evidence.scan.report import INCONCLUSIVE, ScanReport
from diamant.cleaner.evidence.scan.scan import scan_directory
from diamant.cleaner.evidence.scan.staging_files import StagingPlace
from diamant.cleaner.evidence.search import compiled_search, record_search
from diamant.cleaner.evidence.search.known_positives import make_known_positives
from diamant.cleaner.evidence.search.needles import Needles
from diamant.cleaner.evidence.search.record_search import FileSearch, Subject
from diamant.cleaner.redaction.claims import WHERE, Redacted, state_of
from diamant.cleaner.redaction.where import Where, parse_where
from diamant.cleaner.segments.payload_buffer import Unpacker
from diamant.cleaner.spark.clean import staging
from diamant.cleaner.spark.runner.staging_view import staging_place
from diamant.kernels.constants import search
from diamant.protocol.batches.batch_records import build_batch
from diamant.storage.certificate_states import KEY_GONE, RECORDS_GONE
from diamant.storage.env.env import File, RealEnv
from tests.cleaner.evidence.scan.scanned_files import LOG, TOPIC, put, record, subject
from tests.mutants import Mutant, put_in, returns

TEXT = 'value == "ada@example.com"'
PLANTED = 49


def redacted() -> Redacted:
    """Return the subject of a redaction of the topic."""
    found = Needles(b"s" * 32)
    found.add(WHERE, b"ada@example.com")
    return Redacted(parse_where(TEXT), frozenset(["users"]), found)


def state(report: ScanReport, looked_for: Subject) -> str:
    if isinstance(looked_for, Redacted):
        return state_of(report, TOPIC, 1 << 40)
    return report.state(TOPIC, 1 << 40, looked_for.key_digest.hex())


def put_logs(directory: Path) -> None:
    """Write a log without findings, and one of another topic."""
    put(directory, LOG, build_batch([record(b"a", b"b" * 30)], codec=2))
    put(directory, "orders-0/00000000000000000000.log", build_batch([record(b"a", b"b" * 30)], codec=2))


def scanned(directory: Path, looked_for: Subject, *, env: RealEnv | None = None, **options: Any) -> ScanReport:
    put_logs(directory)
    [report] = scan_directory(env or RealEnv(), str(directory), [looked_for], {}, **options)
    return report


def by_digest() -> Subject:
    """Return the subject of a search by the key's digest alone."""
    return Subject(None, frozenset({"users"}), Needles(b"s" * 32), b"x" * 32)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("looked_for", [subject, redacted, by_digest])
def test_everything_that_was_written_is_found_and_nothing_of_it_stays(
    tmp_path: Path, looked_for: Callable[[], Subject], is_compiled: bool
) -> None:
    """The scan finds all known positives; none stays on the disk or in its findings, counts and lists."""
    what = looked_for()
    before = len(what.needles), what.topics
    report = scanned(tmp_path, what, is_compiled=is_compiled)
    assert (report.planted, report.seen, report.unaccounted) == (PLANTED, PLANTED, [])
    assert state(report, what) == (RECORDS_GONE if isinstance(what, Redacted) else KEY_GONE)
    assert (report.findings, report.files_listed, len(report.rows), report.counts.files) == ([], 2, 2, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["orders-0", "users-0"]
    assert (len(what.needles), what.topics) == before
    assert report.coverage()["known_positives"] == {"planted": PLANTED, "seen": PLANTED}


@pytest.mark.parametrize("what", [b"", b"a", b"b", b"k", b"x" * 12, "value exists", "key exists", "value.id exists"])
def test_known_positives_are_never_findings(tmp_path: Path, what: bytes | str) -> None:
    """Known positives are never findings, even for a subject that matches everything."""
    looked_for = (
        subject(what)
        if isinstance(what, bytes)
        else Redacted(parse_where(what), frozenset(["users"]), Needles(b"s" * 32))
    )
    for is_compiled in (False, True):
        report = scanned(tmp_path, looked_for, is_compiled=is_compiled)
        assert (report.seen, report.unaccounted) == (PLANTED, [])


def test_compressed_bytes_do_not_show_what_was_written() -> None:
    """Compressed known positives are not found without decompression, apart from a rare coincidence of random bytes."""
    shown = 0
    for _ in range(20):
        known = make_known_positives(b"s" * 32)
        looked_for = Needles(b"s" * 32).joined(known.needles)
        for name, data in known.files.items():
            found = {hit.needle.digest.hex() for hit in looked_for.find(data)}
            there = [label for one, label in known.expected.items() if one[0] == name and one[2] in found]
            shown += sum("record" in label and "(none" not in label for label in there)
        assert sum(map(len, known.files.values())) < 20_000
    assert shown < 3


def passes_over_lz4(real: Any) -> Any:
    return lambda self, one: (
        record_search.add_to(self.amounts, "lz4", 1, one.header.record_count, one.header.size)
        if one.header.codec == 3
        else real(self, one)
    )


def rows_without_lz4(real: Any) -> Any:
    def rows(data: Any, unpacked: Any, rows: Any, count: int, *others: Any) -> tuple[int, int]:
        found: tuple[int, int] = real(data, unpacked, rows, count, *others)
        for row in range(count):
            if rows[compiled_search.fields.ATTRIBUTES, row] & 7 == 3:
                rows[compiled_search.fields.STEP, row] = search.CLEAN
        return found

    return rows


def passes_over_old_formats(real: Any) -> Any:
    def look_at(self: FileSearch, one: Any) -> None:
        header = one.header
        if header.magic == 2:
            real(self, one)
        else:
            name = record_search.codec_name(header.magic, header.codec)
            record_search.add_to(self.amounts, name, 1, 0, header.size)

    return look_at


def counts_bytes(_real: Any) -> Any:
    return lambda self, _file, position, end: record_search.add_to(self.amounts, "bytes", 0, 0, end - position)


def empties_payload(real: Any) -> Any:
    def payload(buffer: Any, at: int, header: Any, **options: Any) -> bytes:
        found: bytes = real(buffer, at, header, **options)
        return bytes(len(found)) if header.codec == 4 else found

    return payload


def empties_unpacked(real: Any) -> Any:
    def unpack(self: Unpacker, codec: int, *arguments: Any, **options: Any) -> Any:
        found = real(self, codec, *arguments, **options)
        if codec == 4:
            self.buffer[found[0] : found[1]] = bytes(found[1] - found[0])
        return found

    return unpack


def at_odd_places(real: Any) -> Any:
    return lambda *arguments: [one for one in real(*arguments) if one % 8]


def in_scope_only(real: Any) -> Any:
    return lambda self, one: real(self, one) if self.is_in_scope else None


def without_those_set_aside(real: Any) -> Any:
    return lambda *them: (one for one in real(*them) if not one.is_set_aside)


BLIND = {
    "batches of lz4 are passed over as if there were nothing in them": (
        Mutant(FileSearch, "look_at", passes_over_lz4),
        Mutant(compiled_search, "search_rows", rows_without_lz4),
    ),
    "so are batches of before 0.11": (Mutant(FileSearch, "look_at", passes_over_old_formats),),
    "no record is one of the key, or one that matches": (
        Mutant(Subject, "is_key", returns(False)),
        Mutant(Where, "judge", returns(0)),
    ),
    "what is not a batch is counted, and not searched": (Mutant(FileSearch, "search_raw", counts_bytes),),
    "no needle is anywhere": (Mutant(Needles, "find", returns([])),),
    "windows are looked at too rarely": (Mutant(Needles, "_window_places", at_odd_places),),
    "only segments are read as batches": (Mutant(file_reader, "find_batches", returns(())),),
    "what zstd yields is something else": (
        Mutant(record_search, "records_payload", empties_payload),
        Mutant(Unpacker, "unpack", empties_unpacked),
    ),
    "of other topics' segments only their sizes count": (Mutant(FileSearch, "look_at", in_scope_only),),
    "directories that were set aside are not listed, by nobody": (
        Mutant(files_to_read, "list_places", without_those_set_aside),
    ),
}


@pytest.mark.parametrize("blind", BLIND.values(), ids=BLIND)
@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("looked_for", [subject, redacted])
def test_a_blind_scan_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    looked_for: Callable[[], Subject],
    is_compiled: bool,
    blind: tuple[Mutant, ...],
) -> None:
    """The scan claims nothing about any partition, names what it missed, and leaves nothing behind."""
    what = looked_for()
    put_logs(tmp_path)
    put_in(monkeypatch, *blind)
    report = scanned(tmp_path, what, is_compiled=is_compiled)
    assert (state(report, what), report.seen < report.planted) == (INCONCLUSIVE, True)
    assert any("may be blind: " in one.reason for one in report.unaccounted)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["orders-0", "users-0"]


class NotAll(RealEnv):
    """The operating system with a full disk: below a directory it accepts only some new files."""

    def __init__(self, directory: Path, most: int, error: OSError) -> None:
        super().__init__()
        self._below, self._most, self._error = str(directory), most, error
        self.made: list[str] = []

    def create_new(self, path: str) -> File:
        """Refuse the last one."""
        if path.startswith(self._below):
            self.made.append(path)
            if len(self.made) > self._most:
                raise OSError(self._error.errno, self._error.strerror, path)
        return super().create_new(path)


def test_nothing_is_claimed_on_a_full_disk(tmp_path: Path) -> None:
    """On a full disk nothing is claimed, and the reason says so."""
    report = scanned(tmp_path, subject(), env=NotAll(tmp_path, 0, OSError(28, "No space left on device")))
    assert (state(report, subject()), report.planted, report.seen) == (INCONCLUSIVE, 0, 0)
    assert "No space left" in report.reasons(TOPIC, 1)[0]["reason"]


def staging_at(root: Path) -> StagingPlace:
    """Return the staging location of a broker's jobs, for the log directory that contains it."""
    root.mkdir()
    return staging_place(RealEnv(), str(root.parent), str(root), [TOPIC])


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("looked_for", [subject, redacted, by_digest])
def test_the_staging_place_is_proven_to_be_seen(
    tmp_path: Path, looked_for: Callable[[], Subject], is_compiled: bool
) -> None:
    """The staging location gets as many known positives as the data directory; none of them stays, or is counted or listed."""
    what, place = looked_for(), staging_at(tmp_path / "staging")
    report = scanned(tmp_path / "data", what, is_compiled=is_compiled, staging=place)
    assert (report.planted, report.seen, report.unaccounted) == (2 * PLANTED, 2 * PLANTED, [])
    assert state(report, what) == (RECORDS_GONE if isinstance(what, Redacted) else KEY_GONE)
    assert (report.findings, report.files_listed, report.staging["places"]) == ([], 2, 0)
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_staging_place_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """A missing staging location is not created, since nothing is in it; a disk mounted there later is not covered up."""
    place = staging_at(tmp_path / "staging")
    (tmp_path / "staging").rmdir()
    report = scanned(tmp_path / "data", subject(), staging=place)
    assert (report.planted, report.seen, state(report, subject())) == (PLANTED, PLANTED, KEY_GONE)
    assert not (tmp_path / "staging").exists()


def test_a_staging_place_within_the_data_directory_is_proven_with_it(tmp_path: Path) -> None:
    """Such a place is read with the data directory, where known positives of its own would count as findings."""
    put_logs(tmp_path)
    report = scanned(tmp_path, subject(), staging=staging_at(tmp_path / "staging"))
    assert (report.planted, report.seen, state(report, subject())) == (PLANTED, PLANTED, KEY_GONE)


def looks_empty(real: Any) -> Any:
    return lambda *them: (replace(one, path=os.devnull) for one in real(*them))


BLIND_AT_STAGING = {
    "nobody lists it": Mutant(StagingPlace, "files", returns(())),
    "records there are none of the erasure's topics": Mutant(
        StagingPlace, "with_known", lambda _real: lambda self, *_: self
    ),
    "files there look empty": Mutant(staging_files, "list_below", looks_empty),
}


@pytest.mark.parametrize("blind", BLIND_AT_STAGING.values(), ids=BLIND_AT_STAGING)
def test_a_scan_that_is_blind_at_the_staging_place_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blind: Mutant
) -> None:
    """A scan that is blind only at the staging location claims nothing, and leaves nothing behind."""
    place = staging_at(tmp_path / "staging")
    put_in(monkeypatch, blind)
    report = scanned(tmp_path / "data", subject(), staging=place)
    assert (state(report, subject()), report.planted) == (INCONCLUSIVE, 2 * PLANTED)
    assert PLANTED <= report.seen < 2 * PLANTED
    (reason,) = [one.reason for one in report.unaccounted]
    assert "may be blind: " in reason
    assert "at the staging location of jobs on Spark" in reason
    assert list((tmp_path / "staging").iterdir()) == []


def test_nothing_is_claimed_if_the_staging_place_cannot_be_written(tmp_path: Path) -> None:
    """The reason names it, and what was written before is removed."""
    place = staging_at(tmp_path / "staging")
    env = NotAll(tmp_path / "staging", 2, OSError(30, "Read-only file system"))
    report = scanned(tmp_path / "data", subject(), staging=place, env=env)
    assert (state(report, subject()), report.planted, report.seen) == (INCONCLUSIVE, 0, 0)
    assert f"Read-only file system: {env.made[-1]}" in report.reasons(TOPIC, 1)[0]["reason"]
    assert list((tmp_path / "staging").iterdir()) == []
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["orders-0", "users-0"]


def test_a_later_start_removes_what_a_killed_scan_left_at_the_staging_place(tmp_path: Path) -> None:
    """A later start of the broker removes them once they are an hour old; until then they do not matter."""
    root = tmp_path / "staging"
    made = make_known_positives(b"s" * 32, staging_at(root).path_for)
    made.write(RealEnv(), str(tmp_path))
    report = scanned(tmp_path / "data", subject(), staging=staging_place(RealEnv(), str(tmp_path), str(root), [TOPIC]))
    assert (report.seen, state(report, subject()), len(list(root.iterdir()))) == (2 * PLANTED, KEY_GONE, 2)
    assert staging.sweep(RealEnv(), str(tmp_path), str(root), staging.RUN) == staging.Swept()
    assert staging.sweep(RealEnv(), str(tmp_path), str(root), "another0").young == 2
    assert staging.sweep(RealEnv(), str(tmp_path), str(root), "another0", young_s=-60).removed == 2
    assert list(root.iterdir()) == []


def test_a_scan_that_is_ended_leaves_nothing(tmp_path: Path) -> None:
    """A scan that was stopped leaves no known positives behind."""

    def check() -> None:
        raise RuntimeError("nobody waits")

    place = staging_at(tmp_path / "staging")
    with pytest.raises(RuntimeError, match="nobody waits"):
        scanned(tmp_path / "data", subject(), check=check, staging=place)
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["orders-0", "users-0"]
    assert list((tmp_path / "staging").iterdir()) == []


def test_elsewhere_is_written_if_the_directory_is_not_to_be(tmp_path: Path) -> None:
    """When a copy is verified, known positives are written to another directory."""
    data, other = tmp_path / "data", tmp_path / "other"
    put_logs(data)
    other.mkdir()
    before = data.stat().st_mtime_ns, other.stat().st_mtime_ns
    [report] = scan_directory(RealEnv(), str(data), [subject()], {}, prove_in=str(other))
    assert (report.seen, report.files_listed, list(other.iterdir())) == (PLANTED, 2, [])
    assert data.stat().st_mtime_ns == before[0]
    assert other.stat().st_mtime_ns > before[1]


@pytest.mark.parametrize("known", [{"planted": 29, "seen": 28}, {"planted": 0, "seen": 0}])
def test_a_certificate_of_a_blind_scan_does_not_add_up(tmp_path: Path, known: dict[str, int]) -> None:
    """Claims need a scan that found all known positives; certificates of earlier versions have no such figures."""
    claim = {"topic": "users", "partition": 0, "below_offset": 1, "state": "key-gone"}
    fields = {"claims": [claim], "coverage": scanned(tmp_path, subject()).coverage(frozenset({"users"}))}
    assert coverage_problems(fields) == []
    fields["coverage"]["known_positives"] = known
    (problem,) = coverage_problems(fields)
    assert f"of {known['planted']} known positives" in problem
    del fields["coverage"]["known_positives"]
    assert coverage_problems(fields) == []
