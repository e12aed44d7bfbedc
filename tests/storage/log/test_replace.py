"""Replacement of source segments by a cleaned one: files on disk, the readers' view, refusals."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diamant.storage import names
from diamant.storage.env.env import RealEnv
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log
from diamant.storage.log.segment_removal import delete_oldest
from diamant.storage.log.segment_swap import Replacement, SourcesChanged, replace_segments
from tests.memory_env import MemoryEnv
from tests.storage.cleaned import bases_of, is_even, text, write_cleaned
from tests.storage.logs import batch, make_log, read_all, reopen, values


def listing(log: Log) -> set[str]:
    return {path.name for path in Path(log.path).iterdir()}


@pytest.fixture
def log(env: RealEnv, tmp_path: Path) -> Log:
    """Forty records of one producer in several segments with index entries in each."""
    log = make_log(env, tmp_path, segment_bytes=600, index_interval_bytes=100)
    for number in range(40):
        log.append_as_leader(batch(b"%d" % number, producer_id=1, producer_epoch=0, base_sequence=number))
    assert len(log.segments) >= 4
    return log


def prepared(log: Log, count: int = 3) -> Replacement:
    """Return a replacement of the first segments, whose new one is written and waits to be swapped in."""
    bases = bases_of(log)[:count]
    write_cleaned(log, bases, is_even)
    replacement = Replacement(log, 0, bases)
    replacement.prepare()
    return replacement


@pytest.mark.parametrize(
    ("first", "end", "keep"),
    [(0, 3, is_even), (1, 2, is_even), (0, 3, lambda offset: False)],
    ids=["three", "one", "three, emptied"],
)
def test_a_group_becomes_one_segment(log: Log, first: int, end: int, keep: Callable[[int], bool]) -> None:
    """The new segment, perhaps empty, has the first source's base offset; what it holds is read, and the rest as before."""
    bases = bases_of(log)
    kept = [offset for offset in range(40) if not bases[first] <= offset < bases[end] or keep(offset)]
    before, behind = log.segments[:first], log.segments[end:]
    size = write_cleaned(log, bases[first:end], keep)
    new = replace_segments(log, bases[first], bases[first:end], size=size)
    assert new is not None
    assert log.segments == [*before, new, *behind]
    assert (new.size, new.path) == (size, names.log_file(log.path, bases[first]))
    assert {*bases[1 : first + 1], *bases[end:]} <= set(log.producers.snapshots.offsets)
    assert read_all(log) == text(kept)
    for offset in range(40):
        following = [one for one in kept if one >= offset]
        if following:
            result = log.read(offset, 1, isolation_level=0, min_one_message=True)
            assert values(result)[0] == b"%d" % following[0]
    assert read_all(reopen(log)) == text(kept)


def test_nothing_but_the_new_files_and_deleted_ones_is_left(log: Log) -> None:
    """Old files and snapshots of removed base offsets await removal as `.deleted`; other files are untouched."""
    removed: list[tuple[list[str], int]] = []
    log.on_files_removed = lambda paths, delay_ms: removed.append((paths, delay_ms))
    bases = bases_of(log)[:3]
    before = listing(log)
    write_cleaned(log, bases, is_even)
    replace_segments(log, bases[0], bases)
    after = listing(log)
    gone = {name for name in before if name[0].isdigit() and names.offset_of(name) in bases[1:]}
    assert gone
    assert {name for name in after if not name.endswith(".deleted")} == before - gone
    deleted = {name for name in after if name.endswith(".deleted")}
    assert deleted == {
        f"{base:020d}{suffix}.deleted" for base in bases for suffix in (".log", ".index", ".timeindex")
    } | {f"{base:020d}.snapshot.deleted" for base in bases[1:]}
    assert {Path(path).name for paths, _ in removed for path in paths} == deleted
    assert {delay_ms for _, delay_ms in removed} == {log.config.file_delete_delay_ms}
    assert not set(bases[1:]) & set(log.producers.snapshots.offsets)


def test_a_segment_may_be_replaced_again_before_the_old_files_are_gone(log: Log) -> None:
    """Files of two rounds get the same `.deleted` names; the later ones replace the earlier ones."""
    log.on_files_removed = lambda paths, delay_ms: None
    bases = bases_of(log)[:2]
    write_cleaned(log, bases, is_even)
    replace_segments(log, 0, bases)
    write_cleaned(log, [0], lambda offset: offset % 4 == 0)
    replace_segments(log, 0, [0])
    end = bases_of(log)[1]
    expected = text([*range(0, end, 4), *range(end, 40)])
    assert read_all(log) == expected
    assert read_all(reopen(log)) == expected


def test_indexes_are_taken_over_and_not_built(log: Log) -> None:
    """The new segment finds offsets and times by the index files that the writer left."""
    bases = bases_of(log)[:3]
    write_cleaned(log, bases, is_even)
    index = names.index_file(log.path, 0) + ".cleaned"
    data = log.env.read_bytes(index)[:-8]  # one that is built would have all entries
    log.env.write_atomically(index, data)
    new = replace_segments(log, 0, bases)
    assert new is not None
    assert new.offset_index.file.entries == len(data) // 8 > 0
    assert log.env.read_bytes(new.offset_index.file.path) == data
    assert new.time_index.file.entries > 0
    assert new.max_timestamp == new.time_index.last_entry[0]


def test_answers_under_way_keep_their_bytes(log: Log) -> None:
    """A range returned before the swap reads the same bytes afterwards, although its file was renamed and removed."""
    bases = bases_of(log)[:3]
    slices = [
        log.read(base, 1 << 20, isolation_level=0, min_one_message=True).slices[0] for base in bases
    ]  # fmt: skip
    expected = [piece.read() for piece in slices]
    write_cleaned(log, bases, is_even)
    replace_segments(log, 0, bases)
    assert not [name for name in listing(log) if name.endswith(".deleted")]
    assert [piece.read() for piece in slices] == expected
    assert all((piece.file.fileno() or -1) >= 0 for piece in slices)


def test_a_consumer_that_continues_is_not_sent_into_the_old_file(log: Log) -> None:
    """Cached read ends in replaced segments are dropped."""
    bases = bases_of(log)[:3]
    log.read(0, 200, isolation_level=0, min_one_message=True)
    result = log.read(0, 300, isolation_level=0, min_one_message=True)
    following = int(values(result)[-1] or b"") + 1
    write_cleaned(log, bases, lambda offset: offset > 20)
    replace_segments(log, 0, bases)
    result = log.read(following, 1 << 20, isolation_level=0, min_one_message=True)
    assert values(result)[0] == b"21"


def test_sources_that_retention_removed_are_left_out(log: Log) -> None:
    """If retention removed two of three sources, the third is replaced and nothing is deleted twice."""
    log.on_files_removed = lambda paths, delay_ms: None
    bases = bases_of(log)[:3]
    end = bases_of(log)[3]
    replacement = prepared(log)
    delete_oldest(log, 2)
    assert replacement.swap() is log.segments[0]
    replacement.finish()
    assert bases_of(log)[:2] == [0, end]
    assert not [name for name in listing(log) if name.count(".deleted") > 1]
    start = log.log_start_offset
    assert start == bases[2]
    assert read_all(log, start) == text([*(offset for offset in range(start, end) if is_even(offset)), *range(end, 40)])


def test_a_segment_that_retention_deleted_does_not_come_back(log: Log) -> None:
    """If retention removed all sources, the new segment's files are removed and the log does not change."""
    replacement = prepared(log, 2)
    delete_oldest(log, 3)
    left = bases_of(log)
    assert replacement.swap() is None
    replacement.finish()
    assert bases_of(log) == left
    assert not [name for name in listing(log) if ".cleaned" in name or ".swap" in name]


def replace_second(log: Log) -> None:
    """Let another round replace one of the sources, and restore the files of this round."""
    base = bases_of(log)[1]
    write_cleaned(log, [base], is_even)
    replace_segments(log, base, [base])


def delete_partition(log: Log) -> None:
    log.is_deleted = True


def break_disk(log: Log) -> None:
    log.fail(OSError(5, "Input/output error"))


@pytest.mark.parametrize("change", [replace_second, delete_partition, break_disk])
def test_a_plan_that_does_not_hold_any_more_is_refused(log: Log, change: Callable[[Log], None]) -> None:
    """After sources were replaced, the partition deleted or the disk broken: an error, no change, no files left."""
    replacement = prepared(log)
    change(log)
    segments = list(log.segments)
    with pytest.raises(SourcesChanged):
        replacement.swap()
    assert log.segments == segments
    assert not [name for name in listing(log) if ".cleaned" in name or ".swap" in name]


def begun(log: Log) -> tuple[Replacement, Iterator[None]]:
    """Return a swap of three sources that has renamed the first one."""
    replacement = prepared(log)
    turns = replacement.swap_in_turns(sources_per_turn=1)
    next(turns)
    next(turns)
    return replacement, turns


def test_between_the_turns_of_a_swap_the_log_is_in_use(log: Log) -> None:
    """Reads find the new segment from the first turn on; appends, rolls, flushes and deletion of records go on."""
    end = bases_of(log)[3]
    old = log.read(0, 1 << 20, isolation_level=0, min_one_message=True)
    replacement, turns = begun(log)
    expected = text([*range(0, end, 2), *range(end, 40)])
    start = 0
    for _ in turns:
        assert log.is_exchanging
        assert read_all(log, start) == expected
        expected = [*expected[1:], b"%d" % log.log_end_offset]
        log.append_as_leader(batch(expected[-1] or b""))
        log.roll()
        log.flush()
        start += 2
        log.delete_records(start)
    replacement.finish()
    assert not log.is_exchanging
    assert start == 4  # the second source, then the third and the new segment, and at the end the second snapshot
    assert read_all(log, start) == expected
    assert values(old)[:2] == [b"0", b"1"]
    log = reopen(log, is_clean=False, recovery_point=log.recovery_point)
    assert read_all(log, start) == expected


def test_between_the_turns_of_a_swap_no_segment_is_removed(log: Log) -> None:
    """Retention does nothing until the swap is over, and a second one is refused."""
    replacement, turns = begun(log)
    bases = bases_of(log)
    assert delete_oldest(log, 2) == 0
    with pytest.raises(SourcesChanged, match="being exchanged"):
        Replacement(log, bases[1], bases[1:2])
    assert bases_of(log) == bases
    for _ in turns:
        pass
    replacement.finish()
    assert delete_oldest(log, 2) > 0
    assert bases_of(log) == bases[2:]


def test_a_partition_deleted_between_the_turns_of_a_swap(log: Log) -> None:
    """The rest of the swap is skipped without an error: nothing is renamed in a directory to be removed."""
    replacement, turns = begun(log)
    Path(log.path).rename(log.path + "-gone")
    log.is_deleted = True
    assert list(turns) == []
    replacement.finish()
    assert not log.is_exchanging
    assert log.write_failure is None


def test_a_swap_that_cannot_be_taken_back_ends(memory: MemoryEnv) -> None:
    """On a file system that has become read-only the log refuses writes, but forks and explanations do not wait for the swap."""
    log = make_log(memory, Path("/data"), segment_bytes=600)
    for number in range(40):
        log.append_as_leader(batch(b"%d" % number))
    bases = bases_of(log)[:2]
    write_cleaned(log, bases, is_even)
    memory.fail("rename", "*.cleaned", OSError(errno.EROFS, "read-only"))
    memory.fail("remove", "*", OSError(errno.EROFS, "read-only"))
    with pytest.raises(OSError, match="read-only"):
        replace_segments(log, 0, bases)
    assert log.write_failure is not None
    assert not log.is_exchanging


@pytest.mark.parametrize(("planned", "error"), [("source", SourcesChanged), ("output", StorageError)])
def test_a_size_that_was_not_planned_is_refused(log: Log, planned: str, error: type[Exception]) -> None:
    """A source or `.cleaned` file of another size was replaced since: the `.cleaned` file is removed, the log stays."""
    bases = bases_of(log)[:2]
    first, second = (segment.size for segment in log.segments[:2])
    size = write_cleaned(log, bases, is_even)
    found, plan = (second, {"source_sizes": [first, second + 1]}) if planned == "source" else (size, {"size": size + 1})
    with pytest.raises(error, match=f"expected {found + 1} bytes, got {found}"):
        replace_segments(log, 0, bases, **plan)  # type: ignore[arg-type]
    assert not [name for name in listing(log) if ".cleaned" in name]
    assert read_all(log) == text(range(40))


def test_the_active_segment_and_gaps_are_refused(log: Log) -> None:
    """A group must not skip a segment or contain the active one."""
    bases = bases_of(log)
    with pytest.raises(SourcesChanged, match="active"):
        Replacement(log, bases[-2], bases[-2:])
    with pytest.raises(SourcesChanged, match="expected segments"):
        Replacement(log, bases[0], [bases[0], bases[2]])
    with pytest.raises(ValueError, match="do not make a segment"):
        Replacement(log, 7, bases[:2])


def test_appends_flushes_and_rolls_continue_between_the_steps(log: Log) -> None:
    """A flush planned before the swap may run after it, and the log always accepts appends."""
    bases = bases_of(log)[:3]
    end = bases_of(log)[3]
    write_cleaned(log, bases, is_even)
    flush = log.begin_flush()
    assert flush is not None
    replacement = Replacement(log, 0, bases)
    log.append_as_leader(batch(b"40", producer_id=1, producer_epoch=0, base_sequence=40))
    replacement.prepare()
    log.roll()
    replacement.swap()
    flush.run()
    log.complete_flush(flush)
    log.append_as_leader(batch(b"41", producer_id=1, producer_epoch=0, base_sequence=41))
    replacement.finish()
    expected = text([*range(0, end, 2), *range(end, 42)])
    assert read_all(log) == expected
    assert not log.append_as_leader(batch(b"42", producer_id=1, producer_epoch=0, base_sequence=42)).is_duplicate
    log = reopen(log, is_clean=False, recovery_point=30)
    assert read_all(log) == [*expected, b"42"]
    assert log.append_as_leader(batch(b"42", producer_id=1, producer_epoch=0, base_sequence=42)).is_duplicate
