"""Counts of a log directory, compared with a naive count and with results by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.cleaner.offline.partition_stats import MAX_PROBLEMS, PartitionStats, TopicStats, read_stats
from diamant.cleaner.queries.key_counts import KeyCensus
from diamant.cleaner.rules.record_kinds import Kinds
from diamant.cleaner.segments.tolerant_reader import open_log_directory
from diamant.protocol.batches.compression import MAX_BATCH_BYTES
from diamant.storage.checkpoints.checkpoints import write_offset_checkpoint
from diamant.storage.env.env import Env, RealEnv
from diamant.storage.errors import StorageError
from tests.builder import make_batch, with_payload
from tests.cleaner.log_history import History, damage, histories, write_file
from tests.effort import examples
from tests.memory_env import MemoryEnv

STATUSES = ("live", "superseded", "tombstones", "aborted", "undecided", "keyless", "below_log_start")


def all_stats(env: Env, path: str, *, max_bytes: int = 1 << 20) -> list[TopicStats]:
    with open_log_directory(env, path) as directory:
        return list(read_stats(env, directory, max_bytes=max_bytes))


def partition_stats(env: Env, path: str) -> PartitionStats:
    """Return the only partition of a directory."""
    [topic] = all_stats(env, path)
    [partition] = topic.partitions
    return partition


def written(*partitions: History) -> MemoryEnv:
    env = MemoryEnv()
    for history in partitions:
        history.write(env, "/data")
    starts = {(one.topic, one.partition): one.log_start_offset for one in partitions if one.log_start_offset}
    write_offset_checkpoint(env, "/data/log-start-offset-checkpoint", starts)
    return env


@settings(max_examples=examples(150), deadline=None)
@given(st.tuples(histories(0), histories(1)))
def test_counts_are_those_of_a_naive_count(pair: tuple[History, History]) -> None:
    """Strategy: two partitions of any batches. Invariant: each status has the number of a naive count, they add up to
    the records, and keys that are live in both partitions are counted as shared.
    """
    [topic] = all_stats(written(*pair), "/data")
    live_keys = []
    for history, found in zip(pair, topic.partitions, strict=True):
        statuses = history.statuses()
        expected = Counter(statuses.values())
        counted = {name: getattr(found.kinds, name) for name in STATUSES}
        assert counted == {
            name: expected[name.replace("_", " ").replace("tombstones", "tombstone")] for name in STATUSES
        }
        assert found.kinds.records == sum(counted.values()) == len(history.records)
        assert found.kinds.markers == sum(offset >= history.log_start_offset for offset, _, _ in history.markers)
        assert found.log_end_offset == max([history.log_start_offset, *segment_ends(history)])
        assert found.problems == ()
        live_keys.append({record.key for record, _ in history.records if statuses[record.offset] == "live"})
    assert topic.shared_keys == len(live_keys[0] & live_keys[1])


@settings(max_examples=examples(200), deadline=None)
@given(st.tuples(histories(0), histories(1)), st.sampled_from([0, 3]), st.data())
def test_counts_are_the_same_without_kernels(pair: tuple[History, History], top: int, data: st.DataObject) -> None:
    """Strategy: two partitions, of which a file may be damaged. Invariant: the same numbers and problems, in the same order."""
    env = written(*pair)
    if data.draw(st.booleans()):
        directory = f"/data/t-{data.draw(st.integers(0, 1))}"
        damage(env, f"{directory}/{data.draw(st.sampled_from(env.list_dir(directory)))}", data)
    with open_log_directory(env, "/data") as opened:
        compiled, plain = (list(read_stats(env, opened, top=top, is_compiled=one)) for one in (True, False))
    assert compiled == plain


def segment_ends(history: History) -> list[int]:
    """Return the offsets after each record and marker, and the bases of the segments."""
    ends = [record.offset + 1 for record, _ in history.records] + [offset + 1 for offset, _, _ in history.markers]
    return [*ends, *history.segments]


def test_an_abort_that_no_index_knows_is_a_problem() -> None:
    """Without the index entry, a consumer of committed data would get the aborted records."""
    history = History().add("t1: k=1 | abort 1")
    history.aborted.clear()
    [problem] = partition_stats(written(history), "/data").problems
    assert "producer 1" in problem.reason
    assert "offset 1" in problem.reason


def test_the_dirty_ratio_is_the_cleaners() -> None:
    """The ratio is that of cleanable bytes above the checkpoint to these and the bytes below; the active segment does not
    count.
    """
    history = History()
    for _ in range(3):
        history.add("k=1 | roll")
    history.batch("k=1")
    env = written(history)
    assert partition_stats(env, "/data").dirty_ratio == 1.0
    write_offset_checkpoint(env, "/data/cleaner-offset-checkpoint", {("t", 0): 1})
    env.set_mtime_ms("/data/cleaner-offset-checkpoint", 12_345)
    found = partition_stats(env, "/data")
    assert found.dirty_ratio == pytest.approx(2 / 3)
    assert (found.first_dirty_offset, found.last_cleaned_ms) == (1, 12_345)


def test_a_wrong_checksum_is_a_problem_and_not_counted() -> None:
    """The batch is not counted; those before and after it are."""
    history = History()
    for number in range(3):
        history.batch(f"k{number}=1")
    data = history.segments[0]
    data[len(data) // 3 + 30] ^= 1
    found = partition_stats(written(history), "/data")
    assert (found.kinds.records, found.kinds.live) == (2, 2)
    [problem] = found.problems
    assert problem.position == len(data) // 3
    assert "checksum" in problem.reason


def test_a_batch_that_is_too_large_ends_its_segment(tmp_path: Path) -> None:
    """Such a batch is not read into memory."""
    history = History()
    history.batch("k=1")
    history.write(RealEnv(), str(tmp_path))
    [segment] = tmp_path.glob("*/*.log")
    with segment.open("r+b") as file:
        file.seek(8)
        file.write(MAX_BATCH_BYTES.to_bytes(4, "big"))
        file.truncate(2 * MAX_BATCH_BYTES)
    [problem] = partition_stats(RealEnv(), str(tmp_path)).problems
    assert f"at most {MAX_BATCH_BYTES} are read" in problem.reason


BATCH = bytes(make_batch("k=1"))


@pytest.mark.parametrize(
    ("suffix", "data", "reason"),
    [
        ("log", with_payload(BATCH, BATCH[61:-1]), "records of the batch"),
        ("log", BATCH + BATCH, "base offset is 0, expected one above 0"),
        ("index", b"\0\0\0\1\0\0\0\2\0", "multiple of 8"),
        ("index", b"\0\0\0\2\0\0\0\2\0\0\0\1\0\0\0\3", "to ascend"),
        ("index", b"\0\0\0\2\0\1\0\0", "the segment has"),
        ("timeindex", bytes(7) + b"\2\0\0\0\1" + bytes(7) + b"\1\0\0\0\1", "to ascend"),
        ("txnindex", b"x", "multiple of 34"),
        ("log.swap", b"", "interrupted cleaning"),
    ],
)
def test_a_bad_file_is_a_problem(suffix: str, data: bytes, reason: str) -> None:
    """Records that do not parse, offsets that do not ascend, faulty indexes, and files left by an interrupted cleaning."""
    history = History()
    history.batch("k=1")
    env = written(history)
    write_file(env, f"/data/t-0/{0:020d}.{suffix}", data)
    [problem] = partition_stats(env, "/data").problems
    assert reason in problem.reason
    assert problem.path.endswith(suffix)


def test_segments_of_different_moments_are_a_problem() -> None:
    """A source segment beside its cleaned output, as in a copy of a running broker, is a problem: records count twice."""
    env = MemoryEnv()
    env.make_dirs("/data/t-0")
    first, second = make_batch("a=1", "b=1"), make_batch("c=1", base_offset=2)
    write_file(env, "/data/t-0/00000000000000000000.log", first + second)
    write_file(env, "/data/t-0/00000000000000000002.log", second)
    write_file(env, "/data/t-0/00000000000000000003.log", make_batch("d=1", base_offset=3))
    found = partition_stats(env, "/data")
    assert [(one.path, one.reason) for one in found.problems if "counted twice" in one.reason] == [
        ("/data/t-0/00000000000000000002.log", found.problems[0].reason)
    ]


def test_files_that_a_start_set_aside_are_listed_and_not_counted() -> None:
    """Files that a start set aside are listed, but are no problem: the start has reported them."""
    env = MemoryEnv()
    env.make_dirs("/data/t-0")
    write_file(env, "/data/t-0/00000000000000000000.log", make_batch("a=1"))
    write_file(env, "/data/t-0/00000000000000000001.log.aside", make_batch("b=1", base_offset=1))
    with open_log_directory(env, "/data") as directory:
        assert directory.set_aside == ("/data/t-0/00000000000000000001.log.aside",)
        [topic] = read_stats(env, directory)
    assert topic.partitions[0].kinds.records == 1
    assert not any("aside" in one.path for one in topic.partitions[0].problems)


def test_problems_are_kept_up_to_a_limit() -> None:
    """Beyond the limit problems are only counted."""
    history = History()
    for _ in range(MAX_PROBLEMS + 5):
        history.batch("k=1")
    data = history.segments[0]
    for position in range(30, len(data), len(data) // (MAX_PROBLEMS + 5)):
        data[position] ^= 1
    problems = partition_stats(written(history), "/data").problems
    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1].reason == "5 more problems"


def test_a_single_partition_finds_the_checkpoints_above_it() -> None:
    """The parent of a given partition directory is used as its log directory."""
    history = History(log_start_offset=1).add("a=1 b=1 | roll")
    env = written(history)
    write_offset_checkpoint(env, "/data/cleaner-offset-checkpoint", {("t", 0): 2})
    found = partition_stats(env, "/data/t-0")
    assert (found.kinds.below_log_start, found.kinds.live, found.first_dirty_offset) == (1, 1, 2)


def test_directories_that_are_no_partitions_are_left_out() -> None:
    """Directories that wait to be deleted are listed; the metadata log is not a topic."""
    history = History()
    history.batch("k=1")
    env = written(history)
    for name in ("t-1.0123456789abcdef0123456789abcdef-delete", "__cluster_metadata-0", "lost+found"):
        env.make_dirs(f"/data/{name}")
    with open_log_directory(env, "/data") as directory:
        assert [partition.name for partition in directory.partitions] == ["t-0"]
        assert directory.set_aside == ("/data/t-1.0123456789abcdef0123456789abcdef-delete",)


@pytest.mark.parametrize("name", ["empty", "copy/of a partition"])
def test_a_directory_without_partitions_is_refused(name: str) -> None:
    """The error says what kind of directory is expected."""
    env = MemoryEnv()
    env.make_dirs(f"/data/{name}")
    if name != "empty":
        write_file(env, f"/data/{name}/{0:020d}.log", b"")
    with pytest.raises(StorageError, match="expected"):
        open_log_directory(env, f"/data/{name}")


def test_a_directory_that_a_broker_holds_is_refused() -> None:
    """A broker's directory is refused, and no broker can take a directory while it is read."""
    history = History()
    history.batch("k=1")
    env = written(history)
    lock = env.lock("/data/.lock")
    for path in ("/data", "/data/t-0"):
        with pytest.raises(StorageError, match="stop the broker"):
            open_log_directory(env, path)
    lock.release()
    write_file(env, "/data/.lock", b"")
    with open_log_directory(env, "/data"), pytest.raises(StorageError):
        env.lock("/data/.lock")
    env.lock("/data/.lock").release()


with_and_without_kernels = pytest.mark.parametrize("is_compiled", [True, False])

# -- keys --------------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=3000), min_size=1, max_size=3),
    st.sampled_from([1, 1 << 20]),
    st.booleans(),
)
def test_a_census_counts_the_same_with_any_memory(
    sources: list[list[tuple[int, bool]]], max_bytes: int, is_compiled: bool
) -> None:
    """Strategy: records of few and of many keys from several sources. Invariant: the counts equal a dict's, in memory
    and through files, with and without kernels.
    """
    latest: dict[tuple[int, int], bool] = {}
    with KeyCensus(len(sources), max_bytes=max_bytes, is_compiled=is_compiled) as census:
        for source, records in enumerate(sources):
            for start in range(0, len(records), 700):
                part = records[start : start + 700]
                census.add(
                    source, [census.hash.of(b"%d" % key) for key, _ in part], bytearray(gone for _, gone in part)
                )
            latest.update({(source, key): gone for key, gone in records})
        counts = census.finish()
    for source, records in enumerate(sources):
        mine = [gone for (owner, _), gone in latest.items() if owner == source]
        kinds = Kinds(live=mine.count(False), tombstones=mine.count(True), superseded=len(records) - len(mine))
        assert counts.kinds[source] == kinds
    assert counts.keys == len({key for _, key in latest})
    live = Counter(key for (_, key), gone in latest.items() if not gone)
    assert counts.shared_keys == sum(number > 1 for number in live.values())


@with_and_without_kernels
def test_a_census_splits_what_does_not_fit_and_cleans_up(temporary_files: Path, is_compiled: bool) -> None:
    """With 40,000 keys and memory for 1,024, files are split again; none is left afterwards."""
    with KeyCensus(1, max_bytes=1, is_compiled=is_compiled) as census:
        for start in range(0, 40_000, 4_000):
            census.add(0, [census.hash.of(b"%d" % key) for key in range(start, start + 4_000)], bytearray(4_000))
        census.add(0, [census.hash.of(b"7")], bytearray(b"\1"))
        assert census.has_spilled
        assert census.finish() == ((Kinds(live=39_999, tombstones=1, superseded=1),), 40_000, 0)
    assert list(temporary_files.iterdir()) == []


@with_and_without_kernels
@pytest.mark.parametrize("max_bytes", [1, 1 << 22])
def test_a_census_that_restarts_knows_no_keys(temporary_files: Path, max_bytes: int, is_compiled: bool) -> None:
    """Keys and counts from before are forgotten, and files removed, whether the next count has as many keys, or few."""
    with KeyCensus(1, max_bytes=max_bytes, is_compiled=is_compiled) as census:
        for keys in (8_000, 8_000, 5, 8_000):
            census.add(0, [census.hash.of(b"%d" % key) for key in range(keys)], bytearray(keys))
            census.add(0, [census.hash.of(b"1")], bytearray(b"\1"))
            assert census.has_spilled == (max_bytes == 1 and keys == 8_000)
            assert census.finish() == ((Kinds(live=keys - 1, tombstones=1, superseded=1),), keys, 0)
            census.restart()
            assert list(temporary_files.iterdir()) == []


@with_and_without_kernels
def test_a_key_of_many_sources_is_shared_once(is_compiled: bool) -> None:
    """A key counts once however many sources have it, also through several levels of files and with other records between."""
    with KeyCensus(5, max_bytes=1, is_compiled=is_compiled) as census:
        for source in range(5):
            for start in range(0, 6_000, 2_000):
                hashes = [census.hash.of(b"%d" % key) for key in range(start, start + 2_000)]
                # The first hundred are deleted everywhere but in the second source.
                gone = bytearray(b"\1" * 100 + bytes(1_900)) if not start and source != 1 else bytearray(2_000)
                census.add(source, hashes, gone)
                census.add(source, hashes[:10], gone[:10])
        live = [6_000 if source == 1 else 5_900 for source in range(5)]
        kinds = tuple(Kinds(live=one, tombstones=6_000 - one, superseded=30) for one in live)
        assert census.finish() == (kinds, 6_000, 5_900)


@with_and_without_kernels
def test_keys_that_share_half_their_hash_are_distinguished(is_compiled: bool) -> None:
    """Keys that share the first half of their hash differ by the second, in any order."""
    with KeyCensus(1, is_compiled=is_compiled) as census:
        hashes = [bytes(8) + bytes([number % 3] * 8) for number in range(10)]
        census.add(0, hashes, bytearray(10))
        assert census.finish() == ((Kinds(live=3, superseded=7),), 3, 0)
