"""Places of jobs: they are removed, even after a kill, and no secret of their URI is shown."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from pyarrow.fs import LocalFileSystem

from diamant.cleaner.rules.result import OutputSegment, never_done
from diamant.cleaner.rules.throttle import Throttle
from diamant.cleaner.spark.clean import staging
from diamant.cleaner.spark.clean.in_session import session_engine
from diamant.cleaner.spark.clean.job import CleanJob
from diamant.cleaner.spark.clean.manifest import Manifest, StagedOutput
from diamant.cleaner.spark.clean.staged_outputs import StagedFileWrong, check_manifest, take_over
from diamant.cleaner.spark.clean.staging import (
    Swept,
    new_place,
    read_notes,
    remove_leftovers,
    remove_place,
    source_for,
    staging_root,
    sweep,
)
from diamant.cleaner.spark.clean.task_files import StagedFile, TaskFiles
from diamant.cleaner.spark.environment.locations import Location
from diamant.cleaner.spark.environment.spark_errors import SparkError
from diamant.cleaner.spark.runner import staging_sweep
from diamant.storage.checkpoints.meta_properties import MetaProperties, write_meta_properties
from diamant.storage.env.env import RealEnv
from diamant.storage.log.log import Log
from diamant.storage.uuid_text import random_id
from tests.cleaner.runners.rounds import leftovers, make_log, plan_of, segment_files
from tests.cleaner.spark.one_process import OneProcess


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return make_log(tmp_path / "data")


def age(place: Location) -> None:
    """Make a place look unchanged for two hours."""
    for directory, _, files in os.walk(place.path):
        for path in (directory, *(f"{directory}/{name}" for name in files)):
            two_hours_ago_ns = os.stat(path).st_mtime_ns - 2 * 3600 * 10**9
            os.utime(path, ns=(two_hours_ago_ns, two_hours_ago_ns))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "staging").mkdir()
    return tmp_path / "staging"


def test_the_next_start_removes_leftovers_of_a_killed_run(
    log: Log, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leftovers go for every partition, even deleted ones; but not the places of this run, or of another log directory."""
    data = str(Path(log.path).parent)
    write_meta_properties(log.env, data, MetaProperties("cluster", 1, random_id()))
    other = make_log(place.parent / "elsewhere")
    mine = new_place(log.env, plan_of(log), place.as_uri())
    others = new_place(log.env, plan_of(other), place.as_uri())
    stray = new_place(log.env, plan_of(log), place.as_uri(), run="00000000")
    for one in (mine, others, stray):
        one.child("segments").child("0.log").write_bytes(b"values")
        age(one)
    # On another host, after the topic was deleted.
    monkeypatch.setattr("platform.node", lambda: "another")
    Path(log.path).rename(f"{log.path}-delete")
    assert sweep(log.env, data, place.as_uri(), staging.RUN, lambda: True) == Swept()
    assert sweep(log.env, data, place.as_uri(), staging.RUN) == Swept(removed=1)
    assert sorted(path.name for path in place.iterdir()) == sorted([mine.name, others.name])
    assert sweep(log.env, data, (place / "missing").as_uri(), staging.RUN) == Swept()


def notes(log: Log) -> list[str]:
    """Names of the places with a note in the log directory."""
    return [note.name for note in read_notes(log.env, str(Path(log.path).parent))]


def test_a_place_is_noted_until_it_is_gone(log: Log, place: Path) -> None:
    """The place's job, the next round or the next start removes it. A place beside the segments needs no note."""
    plan, data = plan_of(log), str(Path(log.path).parent)
    new_place(log.env, plan, "")
    assert notes(log) == []
    mine = new_place(log.env, plan, place.as_uri())
    assert notes(log) == [mine.name]
    mine.child("0.log").write_bytes(b"values")
    remove_place(log.env, plan, mine)
    assert notes(log) == []

    def next_round() -> None:
        place_of_it = new_place(log.env, plan, place.as_uri())
        remove_leftovers(log.env, plan, place_of_it)
        assert place_of_it.name in notes(log)
        remove_place(log.env, plan, place_of_it)

    def next_start() -> None:
        sweep(log.env, data, place.as_uri(), staging.RUN)

    for tidy_up in (next_round, next_start):
        stray = new_place(log.env, plan, place.as_uri(), run="00000000")
        new_place(log.env, plan, place.as_uri(), run="00000000")  # never made
        stray.child("0.log").write_bytes(b"values")
        tidy_up()
        assert notes(log) == [stray.name]
        age(stray)
        tidy_up()
        assert notes(log) == []


def test_a_note_stays_as_long_as_the_disk_is_not_mounted(
    log: Log, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the disk the place's absence proves nothing. A damaged note stays for the operator."""
    plan, data = plan_of(log), str(Path(log.path).parent)
    mine = new_place(log.env, plan, place.as_uri(), run="00000000")
    mine.child("0.log").write_bytes(b"values")
    place.rename(f"{place}-unmounted")
    for _ in ("no directory", "another directory"):
        remove_place(log.env, plan, mine)
        sweep(log.env, data, place.as_uri(), staging.RUN, young_s=-1)
        assert notes(log) == [mine.name]
        place.mkdir(exist_ok=True)
    place.rmdir()
    Path(f"{place}-unmounted").rename(place)
    assert sweep(log.env, data, place.as_uri(), staging.RUN, young_s=-1) == Swept(removed=1)
    assert notes(log) == []
    damaged = Path(data, f"{mine.name}.note")
    damaged.write_text("[]")
    sweep(log.env, data, place.as_uri(), staging.RUN, young_s=-1)
    assert [(note.name, note.root) for note in read_notes(log.env, data)] == [(mine.name, "")]
    assert not caplog.messages


def test_a_place_written_within_the_hour_stays(log: Log, place: Path) -> None:
    """A copy of a log directory has the same owner, so neither a start nor a round removes places written within the hour."""
    theirs = new_place(log.env, plan_of(log), place.as_uri(), run="00000000")
    theirs.child("00000000-1").child("0.log.cleaned").write_bytes(b"values")
    age(theirs)
    os.utime(theirs.child("00000000-1").child("0.log.cleaned").path)
    data = str(Path(log.path).parent)
    mine = new_place(log.env, plan_of(log), place.as_uri())
    remove_leftovers(log.env, plan_of(log), mine)
    assert sweep(log.env, data, place.as_uri(), staging.RUN) == Swept(young=1)
    assert Path(theirs.path).exists()
    assert staging_sweep.StagingSweep(log.env, data, place.as_uri()).run()
    age(theirs)
    assert not staging_sweep.StagingSweep(log.env, data, place.as_uri()).run()
    assert not Path(theirs.path).exists()


@pytest.mark.slow
def test_a_place_that_cannot_be_removed_stops_no_round(
    log: Log, place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other places are removed, the round continues, and there is one warning."""
    strays = [new_place(log.env, plan_of(log), place.as_uri()) for _ in range(3)]
    for stray in strays:
        stray.child("0.log").write_bytes(b"values")
    remove = Location.remove

    def refuse(self: Location) -> None:
        if self in strays[:2]:
            raise PermissionError(13, "Permission denied", self.path)
        remove(self)

    monkeypatch.setattr(Location, "remove", refuse)
    remove_leftovers(log.env, plan_of(log), new_place(log.env, plan_of(log), place.as_uri()))
    assert sorted(path.name for path in place.iterdir()) == sorted(stray.name for stray in strays[:2])
    [warning] = caplog.messages
    assert warning.startswith("2 directories of earlier jobs")
    assert "Permission denied" in warning
    swept = sweep(log.env, str(Path(log.path).parent), place.as_uri(), "00000000")
    assert (swept.removed, swept.young) == (0, 2)


class Elsewhere(Location):
    """A local place that pretends to be in an object store."""

    def _fs(self) -> Any:
        return LocalFileSystem()


def test_only_what_is_read_is_copied_to_an_object_store(log: Log, place: Path) -> None:
    """Neither untouched nor quarantined segments are copied."""
    plan = plan_of(log)
    first, second, *others = [segment.base_offset for segment in plan.segments]
    plan = replace(plan, untouched=frozenset({first}), quarantined=frozenset({second}))
    (place / "segments").mkdir()
    source = source_for(log.env, plan, Elsewhere(str(place), "s3://somewhere"), never_done, Throttle())
    assert {path.name for path in Path(source.path).iterdir()} == {f"{base:020d}.log" for base in others}


@pytest.mark.slow
def test_a_place_elsewhere_is_swept_by_a_child(log: Log, place: Path) -> None:
    """The child reports the number removed, or the error, in one line. Places of its own broker stay."""
    data = str(Path(log.path).parent)
    mine = new_place(log.env, plan_of(log), place.as_uri())
    stray = new_place(log.env, plan_of(log), place.as_uri(), run="00000000")
    for one in (mine, stray):
        one.child("0.log").write_bytes(b"values")
        age(one)
    assert staging_sweep.StagingSweep(log.env, data, place.as_uri())._sweep_elsewhere() == Swept(removed=1)
    assert [path.name for path in place.iterdir()] == [mine.name]
    with pytest.raises(Exception, match=r"the staging location cannot be used: .*got the scheme ftp:") as raised:
        staging_sweep.StagingSweep(log.env, data, "ftp://user:secret@host/x")._sweep_elsewhere()
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://user:s3cr3t@bucket/x?nonsense=s3cr3t",
        "s3://user:s3cr3t@",
        "s3://[s3cr3t@bucket",
        "file://user:s3cr3t@host/x",
        "ftp://user:s3cr3t@host/x",
        "s3://user:ab/cds3cr3t@bucket/prefix",
        "s3://user:s3cr3t/cd@bucket/prefix",
        "s3://user:s3cr3t#cd@bucket/prefix",
        "s3://user:s3cr3t?cd@bucket/prefix",
        "s3://s3cr3t/cd@bucket/prefix",
        "s3://user:s3cr3t/cd",
        "gs://user:ab/cs3cr3t@bucket",
        "file://user:s3cr3t/x@host/x",
        "s3://user:[s3cr3t/x@bucket",
    ],
)
def test_no_error_shows_a_secret(uri: str) -> None:
    """Errors about a URI omit user, password and options."""
    with pytest.raises(SparkError) as raised:
        staging_root(uri).entries()
    assert "s3cr3t" not in str(raised.value)


def test_outputs_make_no_directory_but_their_own(log: Log, place: Path) -> None:
    """A removed place is not created again, because its parent may have been deleted."""
    plan = plan_of(log)
    files = TaskFiles(plan, Location(log.path), Location(str(place)).child("0-1"))
    output = files.create_new(f"{log.path}/00000000000000000000.log.cleaned")
    output.append(b"abc")
    output.close()
    assert (place / "0-1" / "00000000000000000000.log.cleaned").read_bytes() == b"abc"
    files = TaskFiles(plan, Location(log.path), Location(str(place)).child("gone").child("0-1"))
    with pytest.raises(FileNotFoundError):
        files.create_new(f"{log.path}/00000000000000000000.log.cleaned")
    assert not (place / "gone").exists()


def test_the_report_of_a_job_must_fit_the_plan(log: Log, place: Path) -> None:
    """Every segment to rewrite is in one output, in order, with the reported number of records, up to the plan's end."""
    plan = plan_of(log)
    manifest = CleanJob(OneProcess(), plan, source=Location(log.path), target=Location(f"{place}/job")).run()
    check_manifest(plan, manifest)
    check_manifest(plan, Manifest.from_fields(json.loads(json.dumps(manifest.to_fields()))))
    first, second, *rest = manifest.outputs
    assert len(second.output.source_base_offsets) > 1

    def told(one: StagedOutput, **fields: Any) -> StagedOutput:
        return replace(one, output=replace(one.output, **fields))

    sources = second.output.source_base_offsets
    stolen = told(first, source_base_offsets=(*first.output.source_base_offsets, *sources[:1]))
    for message, wrong in {
        "has outputs for": replace(manifest, outputs=manifest.outputs[:-1]),
        "first difference": replace(manifest, outputs=(second, first, *rest)),
        "got 0, expected None": replace(manifest, outputs=(*manifest.outputs, first)),
        "segments from different groups": replace(
            manifest, outputs=(stolen, told(second, source_base_offsets=sources[1:]), *rest)
        ),
        "expected the directory of an attempt": replace(
            manifest, outputs=(replace(first, directory="../elsewhere"), second, *rest)
        ),
        "the wrong name or time": replace(manifest, outputs=(told(first, modified_ms=1), second, *rest)),
        f"for the output of {list(sources)}, named 7": replace(
            manifest, outputs=(first, told(second, base_offset=7), *rest)
        ),
        "reports end offset": replace(manifest, end_offset=manifest.end_offset - 1),
        "records in its outputs": replace(manifest, outputs=(replace(first, records=first.records + 1), second, *rest)),
    }.items():
        with pytest.raises(StagedFileWrong) as raised:
            check_manifest(plan, wrong)
        assert message in str(raised.value), (message, str(raised.value))


def changed(staged: StagedOutput, place: Location, change: Callable[[bytearray], object]) -> StagedOutput:
    """Return the output of a task that writes other bytes, and reports their size and CRC."""
    [name] = [name for name in staged.files if name.endswith(".log.cleaned")]
    path = Path(place.child(staged.directory).child(name).path)
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)
    file = StagedFile(len(content), crc32c(bytes(content)))
    output = replace(staged.output, size=file.size, crc32c=file.crc32c)
    return replace(staged, output=output, files={**staged.files, name: file})


def last_batch_above(content: bytearray) -> None:
    start = end = 0
    while end < len(content):
        start, end = end, end + 12 + int.from_bytes(content[end + 8 : end + 12], "big")
    content[start : start + 8] = (1 << 40).to_bytes(8, "big")


def first_batch_again(content: bytearray) -> None:
    content[:0] = content[: 12 + int.from_bytes(content[8:12], "big")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: None, None),
        (lambda content: content.__delitem__(slice(-1, None)), "bytes of batches with"),
        (lambda content: content.__setitem__(16, 7), "there is no batch"),
        (lambda content: content.__setitem__(60, content[60] + 1), "records"),
        (lambda content: content.__setitem__(60, content[60] - 1), "records"),
        (
            lambda content: content.__setitem__(slice(0, 8), (1 << 40).to_bytes(8, "big")),
            "has offsets 1099511627776 to",
        ),
        (last_batch_above, "has offsets 1099511627776 to"),
        (first_batch_again, "has offsets"),
    ],
    ids=["whole", "torn", "magic", "more records", "fewer records", "above", "last above", "twice"],
)
def test_batches_of_an_output_are_checked(
    log: Log, place: Path, change: Callable[[bytearray], None], message: str | None
) -> None:
    """Size and CRC are not enough: the check wants whole batches, in the order of offsets, within the sources, and their
    records.
    """
    plan, target = plan_of(log), Location(f"{place}/job")
    [first, *_] = CleanJob(OneProcess(), plan, source=Location(log.path), target=target).run().outputs
    staged = changed(first, target, change)
    if message is None:
        assert take_over(log.env, plan, staged, target, never_done) == staged.output
    else:
        with pytest.raises(StagedFileWrong, match=message):
            take_over(log.env, plan, staged, target, never_done)


@pytest.mark.slow
@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_directory_s_round_that_fails_leaves_nothing(log: Log, place: Path, is_elsewhere: bool) -> None:
    """A failed round leaves nothing at the staging location, and no `.cleaned` files beside the segments."""
    before = segment_files(log)

    def refuse(_: OutputSegment) -> None:
        raise OSError(5, "Input/output error", "disk")

    engine = session_engine(OneProcess(), place.as_uri() if is_elsewhere else "")
    with pytest.raises(OSError, match="Input/output error"):
        engine(RealEnv(), plan_of(log), refuse)
    assert segment_files(log) == before
    assert notes(log) == []
    assert not leftovers(log)
    assert [*place.iterdir(), *(path for path in Path(log.path).iterdir() if path.is_dir())] == []
