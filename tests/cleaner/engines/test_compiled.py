"""The compiled engine against the plain one: the same files, results and figures, byte for byte."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diamant.cleaner.engines import batch_notes, compiled, plain_round
from diamant.cleaner.engines.compiled_map import CompiledMap
from diamant.cleaner.engines.compiled_rewriter import CompiledRewriter
from diamant.cleaner.engines.dirty_range import map_dirty_range
from diamant.cleaner.engines.group_rewrite import rewrite_group
from diamant.cleaner.engines.survivors import MapSurvivors
from diamant.cleaner.engines.work import RoundWork
from diamant.cleaner.kernels import cache, warm_up
from diamant.cleaner.rules.modes import KAFKA, MODES, PROMPT
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CleaningAborted
from diamant.cleaner.rules.transaction_tracker import TransactionTracker
from diamant.cleaner.segments import key_hasher, payload_buffer, row_records
from diamant.cleaner.segments.rebuilt_batch import compress_like_kafka
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.records import build_batch
from diamant.storage import names
from diamant.storage.env.memory import MemoryEnv
from diamant.storage.errors import CorruptLog
from diamant.storage.segments.txn_index import AbortedTxn
from tests.builder import make_batch, with_header, with_payload
from tests.cleaner.engines.random_history import histories, keys, one_by_one, outcome, play, values
from tests.cleaner.prompt.segment_history import DIRECTORY, NOW_MS, SegmentHistory, odd_varint
from tests.effort import examples


def check(env: MemoryEnv, plan: CleanPlan, *, with_figures: bool = True) -> dict[str, Any]:
    """Run both engines; what they answer."""
    before = env.list_dir(DIRECTORY)
    plain, plain_files = outcome(one_by_one, env, plan)
    other, other_files = outcome(compiled.clean, env, plan)
    if not with_figures:
        for result in (plain, other):
            result.get("stats", {}).clear()
    assert other == plain
    assert other_files == plain_files
    assert env.list_dir(DIRECTORY) == before
    return plain


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories, st.sampled_from(MODES), st.data())
def test_any_round_over_any_history_gives_the_bytes_of_the_plain_engine(
    steps: list[Any], mode: str, data: st.DataObject
) -> None:
    """Strategy: every kind of batch, any range, limits from tiny to ample, chunks of a few batches. Invariant: all is equal."""
    history = play(steps)
    env, plan = history.stored(mode=mode)
    end = plan.first_uncleanable_offset
    plan = replace(
        plan,
        first_dirty_offset=data.draw(st.integers(0, end), "first dirty"),
        log_start_offset=data.draw(st.sampled_from([0, 0, 1, end // 2]), "log start"),
        segment_bytes=data.draw(st.sampled_from([1 << 30, 600, 100]), "segment bytes"),
        map_max_entries=data.draw(st.sampled_from([1, 2, 3, 1000]), "map entries"),
        map_memory_bytes=data.draw(st.sampled_from([1, 1 << 20]), "map memory"),
        io_buffer_bytes=data.draw(st.sampled_from([100, 4096]), "buffer"),
        horizons_frozen_above=data.draw(st.sampled_from([None, None, 0, end // 2]), "frozen above"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "diamant.cleaner.segments.row_reader.READ_BYTES", data.draw(st.sampled_from([150, 1000, 1 << 16]))
        )
        patch.setattr("diamant.cleaner.engines.offset_map.MIN_SLOTS", data.draw(st.sampled_from([3, 5, 64])))
        patch.setattr(row_records, "UNPACK_BYTES", data.draw(st.sampled_from([1, 1 << 16])))
        patch.setattr(key_hasher, "TUPLES", data.draw(st.sampled_from([1, 3, 1 << 10])))
        patch.setattr(batch_notes, "MAX_NOTES", data.draw(st.sampled_from([0, 3, 1 << 10])))
        has_odd = any(step[0] == "odd" for step in steps)
        check(env, plan, with_figures=not has_odd)


# -- single rules ----------------------------------------------------------------------------------------------------


def ordinary(batches: int = 40, **fields: Any) -> SegmentHistory:
    """Some segments of batches of three records with twenty keys."""
    history = SegmentHistory()
    for number in range(batches):
        keys = [b"key-%d" % (number * 7 + index * 3 & 15) for index in range(3)]
        history.batch([(key, b"value-%d" % number) for key in keys], **fields)
        if number % 10 == 9:
            history.roll()
    return history


def test_tombstones_are_frozen_batch_by_batch() -> None:
    """A limit in the middle of a segment lets the tombstones of batches up to it expire, and keeps those above."""
    history = SegmentHistory()
    for key in (b"a", b"b", b"c"):
        history.batch([(key, None)], delete_horizon_ms=1)
    history.roll()
    env, plan = history.stored(mode=PROMPT)
    removed = check(env, replace(plan, horizons_frozen_above=1))["stats"]["removed"]
    assert sum(removed.values()) == 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("codec", range(5))
def test_batches_larger_than_the_buffer_and_than_a_block(mode: str, codec: int) -> None:
    """Batches of 300 KB between small ones, whatever the codec: read whole, decompressed in more than one piece."""
    history = SegmentHistory()
    history.batch([(b"a", b"1"), (b"b", b"2")], codec=codec)
    history.batch([(b"k%d" % index, bytes([index]) * 3000) for index in range(100)], codec=codec)
    history.batch([(b"a", b"3")], codec=codec)
    history.batch([(b"k%d" % index, b"new") for index in range(0, 100, 3)], codec=codec)
    env, plan = history.stored(mode=mode)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diamant.cleaner.segments.row_reader.READ_BYTES", 1000)
        result = check(env, plan)
    assert result["stats"]["removed"] == {"superseded": 35}


def test_batches_that_stay_whole_are_not_compressed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second round over what the first has left neither compresses nor, in mode prompt, decompresses more than once."""
    history = SegmentHistory()
    for number in range(30):
        history.batch([(b"%d-%d" % (number, index), b"v" * 50) for index in range(4)], codec=4)
    env, plan = history.stored()
    calls = []
    monkeypatch.setattr(payload_buffer.Unpacker, "pack", lambda *_: calls.append("pack"))
    unpack = payload_buffer.Unpacker.unpack
    monkeypatch.setattr(payload_buffer.Unpacker, "unpack", lambda *given: (calls.append("unpack"), unpack(*given))[1])
    result = compiled.clean(env, plan)
    assert calls == ["unpack"] * 30
    assert result.stats.messages_written == 120


@pytest.mark.parametrize(
    "place", ["length", "timestamp", "offset", "key", "value", "null", "count", "header", "header null"]
)
def test_a_single_odd_integer_is_written_anew(place: str) -> None:
    """As Kafka writes it; the copied bytes of the record would keep it as it is."""

    def integer(name: str, value: int) -> bytes:
        return odd_varint(value, 2 + (name == place)) if value > 40 else odd_varint(value, 1 + (name == place))

    body = b"\0" + integer("timestamp", 5) + integer("offset", 0) + integer("key", 3) + b"key"
    if place == "null":
        body += odd_varint(-2, 1)
    else:
        body += integer("value", 2) + b"vv"
    body += integer("count", 1) + integer("header", 1) + b"h" + odd_varint(-1 - (place == "header null"), 1)
    plain = b"\0" + b"".join(odd_varint(value, 1) for value in (0, 1, 1)) + b"k" + odd_varint(1, 1) + b"v\0"
    payload = integer("length", len(body)) + body + odd_varint(len(plain), 1) + plain
    batch = with_payload(make_batch((b"key", b"v"), (b"k", b"v")), payload)
    history = SegmentHistory()
    history.append(batch)
    history.batch([(b"k", b"2")])
    env, plan = history.stored()
    check(env, plan, with_figures=False)


def test_nothing_dirty_is_a_round_too() -> None:
    """Horizons are looked after, keys are not: there is no map."""
    history = ordinary(delete_horizon_ms=NOW_MS)
    env, plan = history.stored()
    result = check(env, replace(plan, first_dirty_offset=plan.first_uncleanable_offset))
    assert result["stats"]["map_messages_read"] == 0


@pytest.mark.parametrize("first_dirty", [0, 31, 60])
def test_a_map_without_memory_gives_the_same_output(first_dirty: int) -> None:
    """Mode prompt spills and reads the clean section as well; the next round goes on from the end, not from a full map."""
    env, plan = ordinary().stored(map_memory_bytes=1, map_max_entries=1, first_dirty_offset=first_dirty)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diamant.cleaner.engines.offset_map.MIN_SLOTS", 3)
        result = check(env, plan)
    assert result["end_offset"] == plan.first_uncleanable_offset


def test_a_wrong_index_of_aborted_transactions_loses_nothing() -> None:
    """If the two passes do not agree on what has aborted, records stay whose keys the map was not given."""
    history = SegmentHistory()
    history.batch([(b"a", b"1"), (b"b", b"2")], producer=11, is_transactional=True)
    history.marker(11, "abort")
    history.roll()
    history.batch([(b"c", b"3")], producer=11, is_transactional=True)
    history.marker(11, "commit")
    env, plan = history.stored()
    work, records = RoundWork(env, plan), row_records.RowRecords()
    key_map = CompiledMap(work, records)
    map_dirty_range(work, key_map)
    rewriter = CompiledRewriter(work, records, MapSurvivors(plan, key_map), Forgetful())
    outputs = [output for segment in plan.segments for output in rewrite_group(work, rewriter, [segment])]
    kept = [header.record_count for output in outputs for _, header in iter_headers(log_of(env, output.base_offset))]
    assert kept == [2, 1, 1, 1]


class Forgetful(TransactionTracker):
    """Never hears of an aborted transaction."""

    def add_aborted(self, transactions: Iterable[AbortedTxn]) -> None:
        return


def log_of(env: MemoryEnv, base_offset: int) -> bytes:
    """The log file that a round has written."""
    return env.read_bytes(names.log_file(DIRECTORY, base_offset) + names.CLEANED_SUFFIX)


@pytest.mark.parametrize("mode", MODES)
def test_an_old_abort_that_kafka_takes_for_a_new_one(mode: str) -> None:
    """The map's pass begins behind an abort marker: mode kafka then misses the keys of the producer's next transaction."""
    history = SegmentHistory()
    history.batch([(b"a", b"1")], producer=11, is_transactional=True)
    history.batch([(b"x", b"1")])
    history.marker(11, "abort")
    for value in (b"2", b"3", b"4"):
        history.batch([(b"b", value), (b"c", value), (b"b", value)])
        history.batch([(b"b", value), (b"c", value)], producer=11, is_transactional=True, codec=3)
    history.marker(11, "commit")
    history.roll()
    env, plan = history.stored(mode=mode, first_dirty_offset=8)
    removed = check(env, plan)["stats"]["removed"]
    assert removed["superseded"] == {KAFKA: 11, PROMPT: 13}[mode]


def test_indexes_of_any_interval_and_size_are_those_of_the_plain_engine() -> None:
    """With no room, mode kafka fails and mode prompt leaves entries out."""
    history = ordinary(60)
    for interval in (0, 90, 1 << 20):
        for index_bytes in (1 << 20, 96, 24, 8):
            for mode in MODES:
                env, plan = history.stored(mode=mode, index_interval_bytes=interval, segment_index_bytes=index_bytes)
                check(env, plan)


def test_a_round_can_be_stopped_at_any_poll() -> None:
    """No file of the group at hand is left, nor the map's."""
    env, plan = ordinary().stored(segment_bytes=1000, map_memory_bytes=1)
    before = env.list_dir(DIRECTORY)
    for polls in range(1, 100):
        left = polls

        def check_done() -> None:
            nonlocal left
            left -= 1
            if not left:
                raise CleaningAborted("stop")

        try:
            compiled.clean(env, plan, check_done=check_done, on_output=lambda output: remove(env, output))
        except CleaningAborted:
            assert env.list_dir(DIRECTORY) == before
            continue
        break
    assert polls > 8


def remove(env: MemoryEnv, output: Any) -> None:
    """Take an output's files away, as a swap does."""
    for name in env.list_dir(DIRECTORY):
        if name.startswith(f"{output.base_offset:020d}") and name.endswith(names.CLEANED_SUFFIX):
            env.remove(f"{DIRECTORY}/{name}")


def test_the_throttle_hears_of_what_is_read_and_written() -> None:
    """In all as many bytes as with the plain engine; with a spilled map also of the clean section's second reading."""
    env, plan = ordinary().stored()
    heard: dict[str, int] = {}
    for name, engine in (("plain", plain_round.clean), ("compiled", compiled.clean)):
        counts: list[int] = []
        engine(env, plan, throttle=counts.append)
        heard[name] = sum(counts)
    assert heard["compiled"] == heard["plain"]


def kernels_called_in(module: ModuleType) -> set[tuple[str, str]]:
    """Module and name of each kernel that a module calls."""
    tree = ast.parse(inspect.getsource(module))
    imported = {
        name.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("diamant.cleaner.kernels")
        for name in node.names
    }
    called = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(name) if name in imported:
                called.add((f"{imported[name]}", name))
            case ast.Attribute(ast.Name(place), name) if imported.get(place) == "diamant.cleaner.kernels":
                called.add((f"diamant.cleaner.kernels.{place}", name))
    return {
        (place, name) for place, name in called if hasattr(getattr(importlib.import_module(place), name), "signatures")
    }


def test_warming_up_calls_each_kernel_with_the_arguments_of_a_round() -> None:
    """Otherwise a round would compile for seconds what `warm_up` did not think of."""
    compiled.warm_up()
    called = kernels_called_in(warm_up)
    assert called
    for name in (
        "engines.compiled_rewriter",
        "engines.offset_map",
        "segments.compiled_segment_writer",
        "segments.key_hasher",
        "segments.row_reader",
        "segments.row_records",
    ):
        module = importlib.import_module(f"diamant.cleaner.{name}")
        assert set() != kernels_called_in(module) <= called, name
    kernels = {name: getattr(importlib.import_module(place), name) for place, name in called}
    before = {name: len(kernel.signatures) for name, kernel in kernels.items()}
    for codec in range(5):
        check(*ordinary(codec=codec).stored(map_memory_bytes=1))
        check(*ordinary(codec=codec).stored(first_dirty_offset=33))
        check(*ordinary(codec=codec).stored(mode=KAFKA, map_max_entries=5))
    assert {name: len(kernel.signatures) for name, kernel in kernels.items()} == before


def test_warming_up_is_noted() -> None:
    """After a round everything is compiled, here and, if there is a cache, for the next process."""
    compiled.warm_up()
    assert compiled.is_warm()
    assert cache.is_cached() == (cache.cache_directory() is not None)


# -- hostile bytes ---------------------------------------------------------------------------------------------------


def damaged(position: int, batch: bytes) -> tuple[MemoryEnv, CleanPlan]:
    """A log of three segments, in whose second one `batch` lies at `position`, as if it belonged there."""
    history = SegmentHistory()
    history.batch([(b"a", b"1"), (b"b", b"1")])
    history.roll()
    for _ in range(position):
        history.batch([(b"c", b"1")])
    start = history.offset
    history.append(with_header(batch, base_offset=start))
    history.offset = start + 100
    history.batch([(b"a", b"2")])
    return history.stored()


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.tuples(keys, values), min_size=1, max_size=3),
    st.integers(0, 4),
    st.integers(0, 2),
    st.sampled_from(MODES),
    st.data(),
)
def test_records_that_are_damaged_under_a_right_crc_are_refused(
    pairs: list[Any], codec: int, position: int, mode: str, data: st.DataObject
) -> None:
    """Strategy: bytes of the records changed or cut, the count changed, then compressed and given a CRC.

    Invariant: CorruptLog with the file and the batch's position, or the plain engine's result; never a crash.
    """
    records = [Record(index, 5, key, value) for index, (key, value) in enumerate(pairs)]
    plain = build_batch(records)
    payload = bytearray(plain[61:])
    for _ in range(data.draw(st.integers(0, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(
            st.sampled_from([0, 1, 2, 3, 127, 128, 129, 254, 255])
        )
    payload = payload[: data.draw(st.integers(0, len(payload)))] if data.draw(st.booleans()) else payload
    count = data.draw(st.sampled_from([len(pairs), len(pairs), len(pairs) + 1, 0, -1, 2**31 - 1]))
    packed = compress_like_kafka(codec, payload) if codec else bytes(payload)
    batch = with_payload(plain, packed, record_count=count, attributes=codec, last_offset_delta=50)
    env, plan = damaged(position, batch)
    plan = replace(
        plan, mode=mode, first_dirty_offset=data.draw(st.sampled_from([0, 2, plan.first_uncleanable_offset]))
    )
    refused_or_equal(env, plan)


@settings(max_examples=examples(200), deadline=None)
@given(st.data(), st.integers(0, 4))
def test_a_file_that_is_damaged_anywhere_is_refused(data: st.DataObject, codec: int) -> None:
    """Strategy: any byte of any segment changed, or a file cut short. Invariant: as above."""
    history = ordinary(6, codec=codec)
    history.marker(11, "commit")
    env, plan = history.stored(first_dirty_offset=data.draw(st.sampled_from([0, 7])))
    path = names.log_file(DIRECTORY, data.draw(st.sampled_from(plan.segments)).base_offset)
    content = bytearray(env.read_bytes(path))
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        del content[data.draw(st.integers(0, len(content))) :]
    file = env.open(path)
    file.truncate(0)
    file.append(bytes(content))
    file.close()
    refused_or_equal(env, plan)


def refused_or_equal(env: MemoryEnv, plan: CleanPlan) -> None:
    """Run both engines on bytes that may be wrong."""
    before = env.list_dir(DIRECTORY)
    plain, plain_files = outcome(one_by_one, env, plan)
    other, other_files = outcome(compiled.clean, env, plan)
    assert env.list_dir(DIRECTORY) == before
    if "is_order" in other:
        # The plain engine takes records as they come, or fails later.
        assert (other["error"], other["path"][: len(DIRECTORY)]) == (CorruptLog, DIRECTORY)
        assert other["position"] >= 0
    elif "error" in plain:
        assert other == plain
    else:
        plain["stats"]["removed_bytes"] = other["stats"]["removed_bytes"] = None
        assert (other, other_files) == (plain, plain_files)


def test_records_out_of_order_are_refused() -> None:
    """Offsets that do not ascend, or go past the batch's last, would make the wrong record the last of its key."""
    for offsets in ((1, 0), (0, 0), (0, 51)):
        records = [Record(offset, 5, b"a", b"%d" % offset) for offset in offsets]
        batch = build_batch(records, base_offset=0, last_offset_delta=50)
        for first_dirty in (0, None):
            env, plan = damaged(1, bytes(batch))
            at = plan.first_uncleanable_offset if first_dirty is None else first_dirty
            with pytest.raises(CorruptLog, match="do not ascend") as caught:
                compiled.clean(env, replace(plan, first_dirty_offset=at))
            assert caught.value.path == names.log_file(DIRECTORY, plan.segments[1].base_offset)
            assert caught.value.position == len(make_batch((b"c", b"1")))


def test_a_decompression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound on what one batch may decompress to holds on the short ways too."""
    for codec in (1, 2, 3, 4):
        history = SegmentHistory()
        history.batch([(b"a", bytes(3_000_000))], codec=codec)
        env, plan = history.stored()
        monkeypatch.setattr(row_records, "MAX_BATCH_BYTES", 2_000_000)
        with pytest.raises(CorruptLog, match="decompress to more than 2000000"):
            compiled.clean(env, plan)


# -- the cache of compiled code --------------------------------------------------------------------------------------


def test_the_cache_lies_where_it_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NUMBA_CACHE_DIR, the package, the user's cache: the first that works; none is no error."""
    find = cache.cache_directory.__wrapped__
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "chosen"))
    assert find().parent == tmp_path / "chosen"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(blocked))
    assert find().parent.name == "__pycache__"
    monkeypatch.setattr(cache, "_places", lambda: [blocked, tmp_path / "user"])
    assert find().parent == tmp_path / "user"
    monkeypatch.setattr(cache, "_places", lambda: [blocked])
    assert find() is None


@pytest.mark.parametrize("packages", ["site-packages", "dist-packages"])
def test_an_installed_package_leaves_nothing_behind_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packages: str
) -> None:
    """What pip has not written it does not remove: the user's cache comes first then, and a checkout's own place stays first."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    user, beside = tmp_path / "diamant", cache._HERE / "__pycache__"
    assert cache._places() == [beside, user]
    monkeypatch.setattr(cache, "_HERE", Path("/usr/lib") / packages / "diamant" / "cleaner")
    assert cache._places() == [user, cache._HERE / "__pycache__"]


def test_a_user_without_a_home_has_no_cache_of_his_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """An id without an account, as in containers: no directory called ~ is made wherever the program was started."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "~")
    assert cache._places() == [cache._HERE / "__pycache__"]


@pytest.mark.slow
def test_a_cache_that_is_full_fails_nothing(tmp_path: Path) -> None:
    """What cannot be kept is compiled all the same, and nobody is told that it is in the cache."""
    program = """
import errno, os
from numba.core import caching
def full(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
caching.IndexDataCacheFile._save_data = full
from diamant.cleaner.kernels import cache, produce_validation
produce_validation.warm_up()
cache.note_cached()
assert not cache.is_cached()
"""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_another_version_of_the_kernels_has_another_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that was compiled from other sources is never found."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    find = cache.cache_directory.__wrapped__
    before = find()
    for source in cache._HERE.glob("*.py"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(cache, "_HERE", tmp_path)
    assert find() == before
    (tmp_path / "offset_map.py").write_text("changed")
    assert find() != before


@pytest.mark.slow
def test_the_engine_works_without_a_cache(tmp_path: Path) -> None:
    """Everything is compiled in the process then, here without LLVM's optimisations, which take a third of the time."""
    program = """
from pathlib import Path
from diamant.cleaner.engines import compiled
from diamant.cleaner.kernels import cache
cache._places = lambda: [Path(__import__("sys").executable)]
assert not compiled.is_warm()
from tests.cleaner.prompt.segment_history import SegmentHistory
history = SegmentHistory()
history.batch([(b"a", b"1"), (b"a", b"2")])
assert compiled.clean(*history.stored()).stats.messages_written == 1
assert compiled.is_warm()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "NUMBA_OPT": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_importing_the_engine_loads_no_compiler() -> None:
    """Only its use does, and `is_warm` is no use of it."""
    program = """
import sys
from diamant.cleaner.engines import compiled
compiled.is_warm()
print(*[name for name in ("numba", "llvmlite") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == []
