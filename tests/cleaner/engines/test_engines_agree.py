"""Every engine against the reference: the same files, results and statistics, byte for byte."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diamant.cleaner.rules.engine_limits import EngineLimits
from diamant.cleaner.rules.modes import KAFKA, MODES, PROMPT
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.segments.rebuilt_batch import compress_like_kafka
from diamant.cleaner.spark.clean.staged_outputs import StagedFileWrong
from diamant.cleaner.spark.clean.task_limits import TaskLimits
from diamant.protocol.batches import compression
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import build_batch, iter_records
from diamant.protocol.batches.header import Record
from diamant.storage import names
from diamant.storage.errors import CorruptLog
from tests.builder import make_batch, with_header, with_payload
from tests.cleaner.engines.engines import ENGINES, Engine, one_by_one, outcome
from tests.cleaner.engines.random_history import histories, keys, mixed_histories, play, values
from tests.cleaner.facts.segment_history import DIRECTORY, NOW_MS, SegmentHistory, odd_varint
from tests.cleaner.spark.one_process import OneProcess
from tests.effort import examples
from tests.memory_env import MemoryEnv
from tests.protocol.batches.frames import BATCH, FRAMES, OK

OTHERS = [name for name, engine in ENGINES.items() if engine is not one_by_one]


def each(names: list[str]) -> pytest.MarkDecorator:
    """Parametrize with engines, for slow tests."""
    slow = pytest.mark.slow
    return pytest.mark.parametrize("name", [one if one == "inline" else pytest.param(one, marks=slow) for one in names])


for_others = each(OTHERS)
for_whole_rounds = each([name for name in OTHERS if name not in ("in parts", "Spark, whole")])
"""Without the compiled engine once more, in processes that take long to begin."""


@pytest.fixture(params=OTHERS)
def engine(request: pytest.FixtureRequest) -> Engine:
    """An engine other than the reference."""
    return ENGINES[request.param]


def check(engine: Engine, env: MemoryEnv, plan: CleanPlan, *, with_figures: bool = True) -> dict[str, Any]:
    """Run an engine and the reference, compare them, and return the outcome."""
    before = env.list_dir(DIRECTORY)
    (expected, expected_files), (found, files) = outcome(one_by_one, env, plan), outcome(engine, env, plan)
    if not with_figures:
        for result in (expected, found):
            result.get("stats", {}).clear()
    assert found == expected
    # Spark hands nothing over before all is done.
    assert files == expected_files or (files == {} and "error" in found and is_spark(engine))
    assert env.list_dir(DIRECTORY) == before
    return expected


def is_spark(engine: Any) -> bool:
    """True for a job on Spark, whatever its options."""
    return getattr(engine, "func", engine) in (ENGINES["Spark"], ENGINES["Spark, whole"])


# -- any round over any history ----------------------------------------------------------------------------------------

limits = st.builds(
    EngineLimits,
    parsed_bytes=st.sampled_from([1500, 10_000, 1 << 20]),
    read_bytes=st.sampled_from([150, 1000, 1 << 16]),
    unpack_bytes=st.sampled_from([1, 1 << 16]),
    tuples=st.sampled_from([1, 3, 1 << 10]),
    notes=st.sampled_from([0, 3, 1 << 10]),
    stretch_bytes=st.sampled_from([1, 1, 200, 1 << 16]),
    stretches=st.sampled_from([3, 1 << 10]),
    piece_bytes=st.sampled_from([1, 300, 1 << 20]),
    table_slots=st.sampled_from([3, 5, 64]),
)
options_on_spark = st.fixed_dictionaries(
    {
        "task_limits": st.builds(
            TaskLimits,
            engine=limits,
            table_bytes=st.sampled_from([72, 1 << 20]),
            map_bytes=st.sampled_from([72, 1 << 20]),
            spool_bytes=st.sampled_from([1, 1 << 20]),
        ),
        "part_bytes": st.sampled_from([1, 300, 1 << 20]),
        "partitions": st.sampled_from([1, 4]),
        "context": st.builds(OneProcess, st.integers(0, 9)),
    }
)

options_in_parts = st.fixed_dictionaries({"limits": limits, "processes": st.sampled_from([2, 3, 9])})
OPTIONS = {"Spark": options_on_spark, "in parts": options_in_parts}


@for_others
@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(histories, mixed_histories), st.sampled_from(MODES), st.data())
def test_any_round_over_any_history_gives_the_bytes_of_the_reference(
    name: str, steps: list[Any], mode: str, data: st.DataObject
) -> None:
    """Strategy: every kind of batch, any range, tiny to ample limits, any division into parts. Invariant: equal outcomes."""
    env, plan = play(steps).stored(mode=mode)
    plan = drawn_plan(plan, data)
    drawn = data.draw(OPTIONS.get(name, st.fixed_dictionaries({"limits": limits})), "options")
    has_odd = any(step[0] == "odd" for step in steps)
    index_every_batch(env, plan)
    check(partial(ENGINES[name], **drawn), env, plan, with_figures=name == "inline" or not has_odd)


def drawn_plan(plan: CleanPlan, data: st.DataObject) -> CleanPlan:
    """Return the plan with another range, other limits and other settings."""
    plan = ended_before(plan, data.draw(st.sampled_from([0, 0, 0, 1]), "segments above"))
    end = plan.first_uncleanable_offset
    plan = replace(
        plan,
        first_dirty_offset=data.draw(st.integers(0, end), "first dirty"),
        log_start_offset=data.draw(st.sampled_from([0, 0, 1, end // 2]), "log start"),
        segment_bytes=data.draw(st.sampled_from([1 << 30, 600, 100]), "segment bytes"),
        segment_index_bytes=data.draw(st.sampled_from([1 << 20, 1 << 20, 24]), "index bytes"),
        index_interval_bytes=data.draw(st.sampled_from([200, 1]), "index interval"),
        active_producers=data.draw(st.sampled_from([plan.active_producers, {}]), "producers"),
        map_max_entries=data.draw(st.sampled_from([1, 2, 3, 1000]), "map entries"),
        map_memory_bytes=data.draw(st.sampled_from([1, 1 << 20]), "map memory"),
        io_buffer_bytes=data.draw(st.sampled_from([4096, 100]), "buffer"),
        hash_key=data.draw(st.sampled_from([bytes(16), bytes(range(16))]), "hash key"),
        held_above=data.draw(st.sampled_from([None, None, -1, end // 2]), "held above"),
        held_since_ms=data.draw(st.sampled_from([0, plan.now_ms - 1, plan.now_ms]), "held since"),
        high_watermark=data.draw(st.sampled_from([None, end, end + 1]), "high watermark"),
    )
    if plan.is_kafka:
        return plan
    clean = [one.base_offset for one in plan.segments if one.next_base_offset <= plan.first_dirty_offset]
    return replace(
        plan,
        quarantined=data.draw(some_of([segment.base_offset for segment in plan.segments]), "quarantined"),
        untouched=data.draw(some_of(clean), "untouched"),
        apart=data.draw(some_of(clean), "apart"),
        horizons_frozen_above=data.draw(st.sampled_from([None, None, 0, end // 2]), "frozen above"),
        segments=tuple(replace(one, largest_timestamp=place) for place, one in enumerate(plan.segments)),
        expiry_slice_ms=data.draw(st.sampled_from([None, None, 0, 1]), "slice"),
    )


def ended_before(plan: CleanPlan, count: int) -> CleanPlan:
    """Return a round that ends that many segments earlier. Its plan has the transactions that abort later."""
    if not 0 < count < len(plan.segments):
        return plan
    taken, above = plan.segments[:-count], plan.segments[-count:]
    end = above[0].base_offset
    later = tuple(one for segment in above for one in segment.aborted if one.first_offset < end)
    return replace(plan, segments=taken, first_uncleanable_offset=end, later_aborted=later)


def some_of(bases: list[int]) -> st.SearchStrategy[frozenset[int]]:
    """None of them, or up to two."""
    if not bases:
        return st.just(frozenset())
    return st.one_of(st.just(frozenset()), st.frozensets(st.sampled_from(bases), max_size=2))


def test_every_field_of_a_plan_is_thought_of() -> None:
    """Every field is drawn above, or listed here with a reason. Otherwise an engine could ignore a new field unnoticed."""
    drawn = {
        *("segments", "first_dirty_offset", "first_uncleanable_offset", "log_start_offset", "mode", "segment_bytes"),
        *("segment_index_bytes", "index_interval_bytes", "active_producers", "map_max_entries", "io_buffer_bytes"),
        *("hash_key", "later_aborted", "expiry_slice_ms", "untouched", "quarantined", "horizons_frozen_above"),
        *("map_memory_bytes", "held_above", "held_since_ms", "apart", "high_watermark"),
    }
    by_histories = {"now_ms", "delete_retention_ms"}  # they have horizons before, at and after it
    names_only = {"directory", "topic", "partition"}
    of_throttles = {"io_max_bytes_per_second", "threads"}
    of_no_engine = {"max_message_bytes"}
    refused_at = {"max_record_bytes"}  # test_rounds.py
    of_reports = {"map_load_factor"}  # how full the map is, in figures and logs
    known = drawn | by_histories | names_only | of_throttles | of_no_engine | refused_at | of_reports
    assert {field.name for field in fields(CleanPlan)} == known


def index_every_batch(env: MemoryEnv, plan: CleanPlan) -> None:
    """Give each segment an index entry for each batch of the current format, so that Spark can cut it anywhere."""
    for segment in plan.segments:
        entries = [
            entry
            for position, header in iter_headers(env.read_bytes(names.log_file(DIRECTORY, segment.base_offset)))
            for entry in (header.last_offset - segment.base_offset, position)
            if header.magic == 2
        ]
        content = b"".join(entry.to_bytes(4, "big") for entry in entries)
        env.write_atomically(names.index_file(DIRECTORY, segment.base_offset), content)


# -- single rules ------------------------------------------------------------------------------------------------------


def ordinary(batches: int = 40, **fields: Any) -> SegmentHistory:
    """Some segments of batches of three records with twenty keys."""
    history = SegmentHistory()
    for number in range(batches):
        keys = [b"key-%d" % (number * 7 + index * 3 & 15) for index in range(3)]
        history.batch([(key, b"value-%d" % number) for key in keys], **fields)
        if number % 10 == 9:
            history.roll()
    return history


@pytest.mark.parametrize("map_bytes", [72, 1 << 20])
@pytest.mark.parametrize("mode", MODES)
def test_an_aborted_record_hides_no_committed_one_on_spark(mode: str, map_bytes: int) -> None:
    """The aborted records, which have greater offsets than the committed ones of their keys, are looked up in a map that has
    spilled, or has not.
    """
    history = SegmentHistory()
    for number in range(8):
        history.batch([(b"%d" % number, b"committed")])
    history.roll()
    for number in range(8):
        history.batch([(b"%d" % number, b"aborted")], producer=11, is_transactional=True)
    history.batch([(b"8", b"committed")])
    history.marker(11, "abort")
    history.roll()
    env, plan = history.stored(mode=mode)
    limits = TaskLimits(engine=EngineLimits(table_slots=3), map_bytes=map_bytes)
    found = check(partial(ENGINES["Spark"], task_limits=limits, part_bytes=300, partitions=1), env, plan)
    assert found["stats"]["messages_written"] == 10


def test_tombstones_are_frozen_batch_by_batch(engine: Engine) -> None:
    """A limit in the middle of a segment lets the tombstones of batches up to it expire, and keeps those above."""
    history = SegmentHistory()
    for key in (b"a", b"b", b"c"):
        history.batch([(key, None)], delete_horizon_ms=1)
    history.roll()
    env, plan = history.stored(mode=PROMPT)
    removed = check(engine, env, replace(plan, horizons_frozen_above=1))["stats"]["removed"]
    assert sum(removed.values()) == 2


@pytest.mark.parametrize("mode", MODES)
def test_tombstones_are_held_batch_by_batch(engine: Engine, mode: str) -> None:
    """Above the limit they stay until some time after their horizon; up to it they are removed, in both modes."""
    history = SegmentHistory()
    for key, horizon_ms in ((b"a", 9), (b"b", 5), (b"c", 6), (b"d", 6)):
        history.batch([(key, None)], delete_horizon_ms=horizon_ms)
    history.roll()
    env, plan = history.stored(mode=mode)
    removed = check(engine, env, replace(plan, held_above=0, held_since_ms=5))["stats"]["removed"]
    assert sum(removed.values()) == 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("retention_ms", [2**63 - 1, 2**63 - NOW_MS, 2**63 - 1 - NOW_MS])
def test_tombstones_of_an_endless_retention_get_no_horizon(engine: Engine, mode: str, retention_ms: int) -> None:
    """Where now and delete.retention.ms exceed 64 bits, the batch is written without one, as by Kafka's cleaner."""
    history = SegmentHistory()
    history.batch([(b"a", None), (b"b", b"1")])
    history.batch([(b"b", b"2")])
    env, plan = history.stored(mode=mode, delete_retention_ms=retention_ms)
    assert "error" not in check(engine, env, plan)
    written = outcome(engine, env, plan)[1][f"{0:020}.log.cleaned"]
    first = next(iter_headers(written))[1]
    horizon_ms = first.base_timestamp if first.has_delete_horizon else None
    assert (first.record_count, horizon_ms) == (1, None if NOW_MS + retention_ms >= 2**63 else 2**63 - 1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("codec", range(5))
def test_batches_larger_than_the_buffer_and_than_a_block(engine: Engine, mode: str, codec: int) -> None:
    """Batches of 300 KB between small ones, with any codec, are read whole and decompressed in several pieces."""
    history = SegmentHistory()
    history.batch([(b"a", b"1"), (b"b", b"2")], codec=codec)
    history.batch([(b"k%d" % index, bytes([index]) * 3000) for index in range(100)], codec=codec)
    history.batch([(b"a", b"3")], codec=codec)
    history.batch([(b"k%d" % index, b"new") for index in range(0, 100, 3)], codec=codec)
    env, plan = history.stored(mode=mode)
    result = check(partial(engine, limits=EngineLimits(read_bytes=1000)), env, plan)
    assert result["stats"]["removed"] == {"superseded": 35}


@pytest.mark.parametrize(
    "place", ["length", "timestamp", "offset", "key", "value", "null", "count", "header", "header null"]
)
def test_a_single_odd_integer_is_rewritten(engine: Engine, place: str) -> None:
    """The integer is encoded as by Kafka; copying the record's bytes would keep the odd encoding."""

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
    check(engine, *history.stored(), with_figures=False)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("map_memory_bytes", [1, 1 << 20])
@pytest.mark.parametrize("first_dirty", [0, 200])
def test_a_batch_superseded_as_a_whole_is_not_read_again(mode: str, map_memory_bytes: int, first_dirty: int) -> None:
    """Such a batch is not throttled either. The statistics are the same, even with a spilled map and other batches in between."""
    history = SegmentHistory()
    for number in range(200):
        keys = [b"key-%d" % number] if number % 9 == 0 else [b"a", b"b", b"c"]
        history.batch([(key, b"value") for key in keys], producer=number % 3 - 1, is_transactional=number % 50 == 7)
        if number % 80 == 79:
            history.roll()
    env, plan = history.stored(mode=mode, map_memory_bytes=map_memory_bytes, first_dirty_offset=first_dirty)
    charged: list[int] = []
    limits = EngineLimits(stretch_bytes=1, table_slots=3, read_bytes=1000)
    stats = check(partial(ENGINES["compiled"], limits=limits, throttle=charged.append), env, plan)["stats"]
    total = stats["map_bytes_read"] + stats["bytes_read"] + stats["bytes_written"]
    assert 0 < sum(charged) < total - 1000


@pytest.mark.parametrize("mode", MODES)
def test_an_old_abort_that_kafka_takes_for_a_new_one(engine: Engine, mode: str) -> None:
    """The first pass begins after an abort marker: mode kafka then misses the keys of the producer's next transaction."""
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
    removed = check(engine, env, plan)["stats"]["removed"]
    assert removed["superseded"] == {KAFKA: 11, PROMPT: 13}[mode]


@pytest.mark.parametrize("more", [0, 1, 61])
def test_an_index_that_points_wrongly_takes_no_record_along(engine: Engine, more: int) -> None:
    """At the start of the dirty range and at cuts of segments, the bytes equal those of a round with a valid index."""
    history = SegmentHistory()
    for number in range(40):
        history.batch([(b"key-%d" % (number % 7), bytes(20))])
    history.roll()
    env, plan = history.stored(mode=PROMPT, first_dirty_offset=15)
    expected = outcome(one_by_one, env, plan)[1]
    headers = list(iter_headers(bytes(history.segments[0].data)))
    # Each names a batch behind its own, or bytes within that.
    entries = [(headers[number][1].last_offset, headers[number + 5][0] + more) for number in range(3, 30)]
    index = b"".join(number.to_bytes(4, "big") for entry in entries for number in entry)
    env.write_atomically(names.index_file(DIRECTORY, 0), index)
    options = {"part_bytes": 500, "partitions": 2} if is_spark(engine) else {}
    assert outcome(partial(engine, **options), env, plan)[1] == expected != {}


# -- hostile bytes -----------------------------------------------------------------------------------------------------


def damaged(position: int, batch: bytes) -> tuple[MemoryEnv, CleanPlan]:
    """Return a log of three segments with `batch` at `position` of the second one."""
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


@for_whole_rounds
@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.tuples(keys, values), min_size=1, max_size=3),
    st.integers(0, 4),
    st.integers(0, 2),
    st.sampled_from(MODES),
    st.data(),
)
def test_records_that_are_damaged_under_a_right_crc_are_refused(
    name: str, pairs: list[Any], codec: int, position: int, mode: str, data: st.DataObject
) -> None:
    """Strategy: bytes of the records changed or cut, the count changed, then compressed and given a CRC.

    Invariant: CorruptLog with the file and the batch's position, or the reference's result; never a crash.
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
    refused_or_equal(name, env, plan)


@pytest.mark.parametrize("name", ["inline", pytest.param("compiled", marks=pytest.mark.slow)])
@settings(max_examples=examples(200), deadline=None)
@given(st.data(), st.integers(0, 4))
def test_a_file_that_is_damaged_anywhere_is_refused(name: str, data: st.DataObject, codec: int) -> None:
    """Strategy: any byte of any segment changed, or a file cut short. Invariant: as above.

    Spark checks more: the size of each file against the plan, and the offsets of outputs.
    """
    history = ordinary(6, codec=codec)
    history.marker(11, "commit")
    env, plan = history.stored(first_dirty_offset=data.draw(st.sampled_from([0, 7])))
    path = names.log_file(DIRECTORY, data.draw(st.sampled_from(plan.segments)).base_offset)
    content = bytearray(env.read_bytes(path))
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        del content[data.draw(st.integers(0, len(content))) :]
    env.write_atomically(path, content)
    refused_or_equal(name, env, plan)


@pytest.mark.parametrize(("codec", "place", "change"), [(0, 487, 4), (1, 595, 4), (2, 11, 255), (2, 667, 4)])
def test_a_wrong_size_leads_to_the_same_batch(codec: int, place: int, change: int) -> None:
    """Some of the bytes then look like old formats. The error names the first invalid batch, as in the reference."""
    history = ordinary(6, codec=codec)
    history.marker(11, "commit")
    env, plan = history.stored(first_dirty_offset=0)
    path = names.log_file(DIRECTORY, plan.segments[0].base_offset)
    content = bytearray(env.read_bytes(path))
    content[place] ^= change
    env.write_atomically(path, content)
    assert "error" in outcome(one_by_one, env, plan)[0]
    refused_or_equal("compiled", env, plan)


@pytest.mark.parametrize("name", ["inline", "one by one", "compiled", pytest.param("Spark", marks=pytest.mark.slow)])
def test_frames_that_kafka_refuses_fail_the_round(name: str) -> None:
    """Wrong checksums among them: written anew, such records would get right ones. The other frames are read."""
    for frame_name in FRAMES if name != "Spark" else ["lz4 block checksum", "lz4 content checksum"]:
        frame = FRAMES[frame_name]
        history = SegmentHistory()
        history.batch([(b"a", b"1")])
        history.append(with_payload(BATCH, frame.data, attributes=frame.codec, base_offset=1))
        history.batch([(b"a", b"2")])
        found = outcome(ENGINES[name], *history.stored())[0]
        position = None if frame.answer is OK else len(make_batch((b"a", b"1")))
        assert (found.get("error"), found.get("position")) == (position and CorruptLog, position), frame_name


def refused_or_equal(name: str, env: MemoryEnv, plan: CleanPlan) -> None:
    """Run an engine and the reference on possibly damaged bytes."""
    before = env.list_dir(DIRECTORY)
    (plain, plain_files), (other, other_files) = (outcome(engine, env, plan) for engine in (one_by_one, ENGINES[name]))
    assert env.list_dir(DIRECTORY) == before
    if "error" in plain:
        assert other == plain
    else:
        plain["stats"]["removed_bytes"] = other["stats"]["removed_bytes"] = None
        assert (other, other_files) == (plain, plain_files)


# -- offsets that do not ascend: a client of Kafka can write them in batches without compression ------------------------------

REFUSED = None
ORDERS: dict[str, tuple[list[tuple[int, bytes, bytes | None]], bytes, list[int] | None]] = {
    "same key": ([(1, b"a", b"1"), (0, b"a", b"0")], b"z", [1, 0]),
    "same key, superseded": ([(1, b"a", b"1"), (0, b"a", b"0")], b"a", []),
    "two keys": ([(1, b"a", b"1"), (0, b"b", b"0")], b"z", [1, 0]),
    "first superseded": ([(2, b"a", b"1"), (1, b"b", b"1"), (0, b"c", b"0")], b"a", REFUSED),
    "last superseded": ([(2, b"a", b"1"), (1, b"b", b"1"), (0, b"c", b"0")], b"c", REFUSED),
    "those that stay ascend": ([(1, b"a", b"1"), (0, b"b", b"1"), (2, b"c", b"0")], b"a", [0, 2]),
    "equal": ([(0, b"a", b"1"), (0, b"b", b"0")], b"z", [0, 0]),
    "equal, same key": ([(0, b"a", b"1"), (0, b"a", b"0")], b"z", [0, 0]),
    "equal, another superseded": ([(0, b"a", b"1"), (0, b"b", b"0"), (1, b"c", b"0")], b"c", REFUSED),
    "tombstone without a horizon": ([(1, b"a", None), (0, b"b", b"0")], b"z", REFUSED),
    "beyond the batch": ([(0, b"a", b"1"), (51, b"b", b"0")], b"z", [0, 51]),
    "beyond the batch, first superseded": ([(0, b"a", b"1"), (51, b"b", b"0")], b"a", [51]),
    "before the batch": ([(-1, b"a", b"1"), (0, b"b", b"0")], b"z", [-1, 0]),
    "before the batch, first superseded": ([(-1, b"a", b"1"), (0, b"b", b"0")], b"a", [0]),
    "before the batch, second superseded": ([(-1, b"a", b"1"), (0, b"b", b"0")], b"b", [-1]),
}
"""Deltas of offsets, keys and values; the key of a later record; the deltas that stay in Kafka's cleaner, if it does not fail."""


def disordered(deltas: list[tuple[int, bytes, bytes | None]], base: int, codec: int = 0) -> bytearray:
    """Return a batch with these deltas, its last offset as if they ascended one by one."""
    records = [Record(base + delta, NOW_MS - 1000, key, value) for delta, key, value in deltas]
    return build_batch(records, base_offset=base, last_offset_delta=len(deltas) - 1, codec=codec)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ORDERS)
def test_records_out_of_order_are_cleaned_as_by_kafka(engine: Engine, name: str, mode: str) -> None:
    """The last record read of a key is its last one, in the dirty range and below; batches written anew must ascend."""
    deltas, superseding, staying = ORDERS[name]
    for codec, first_dirty in ((0, 0), (0, 5), (4, 0)):
        history = SegmentHistory()
        history.batch([(b"y", b"1")])
        base = history.offset
        history.append(disordered(deltas, base, codec))
        history.offset = 5
        history.batch([(superseding, b"later")])
        history.roll()
        found = check(engine, *history.stored(mode=mode, first_dirty_offset=first_dirty))
        if staying is REFUSED:
            assert found["error"] is CorruptLog
            continue
        written = outcome(engine, *history.stored(mode=mode, first_dirty_offset=first_dirty))[1][f"{0:020}.log.cleaned"]
        batches = [(at, header) for at, header in iter_headers(written) if header.base_offset == base]
        assert [record.offset - base for at, _ in batches for record in iter_records(written, at)] == staying


@pytest.mark.parametrize(("first", "delta"), [(3, 0), (5, 0), (2, 3), (6, -1)])
def test_batches_out_of_order_are_refused(engine: Engine, first: int, delta: int) -> None:
    """No checksum covers a base offset: which record of a key is the last one cannot be known then."""
    for first_dirty in (0, 7):
        history = SegmentHistory()
        history.batch([(b"a", b"1")] * 6)
        at = len(history.segments[0].data)
        history.append(with_header(make_batch((b"a", b"2")), base_offset=first, last_offset_delta=delta))
        history.offset = 7
        history.batch([(b"a", b"3")])
        found = check(engine, *history.stored(first_dirty_offset=first_dirty))
        assert (found["error"], found["position"]) == (CorruptLog, at)


@pytest.mark.parametrize(("first", "next_offset"), [(3, 4), (2, 6)], ids=["beyond", "before"])
def test_a_batch_outside_of_its_segment(engine: Engine, first: int, next_offset: int) -> None:
    """Kafka cleans such a batch. Spark puts parts together by the offsets of their segments, so a job of several refuses it."""
    history = SegmentHistory()
    history.batch([(b"a", b"1")])
    history.offset = 3
    history.roll()
    history.append(with_header(make_batch((b"a", b"2"), (b"b", b"2")), base_offset=first))
    history.offset = next_offset
    history.roll()
    if engine is ENGINES["Spark"]:
        assert outcome(engine, *history.stored())[0]["error"] is CorruptLog
    elif engine is ENGINES["Spark, whole"] and first + 1 >= next_offset:
        with pytest.raises(StagedFileWrong, match="expected offsets above"):
            outcome(engine, *history.stored())
    else:
        assert check(engine, *history.stored())["stats"]["messages_written"] == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_inside_the_range_of_an_earlier_one(engine: Engine, mode: str) -> None:
    """Kafka looks each record up by its key. The last offset of the later batch must not count as one of the earlier batch."""
    history = SegmentHistory()
    history.append(with_header(make_batch((b"a", b"1")), last_offset_delta=9))
    history.roll()
    history.append(with_header(make_batch((b"a", b"2")), base_offset=9))
    if engine is ENGINES["Spark"]:
        assert outcome(engine, *history.stored(mode=mode))[0]["error"] is CorruptLog
    else:
        assert check(engine, *history.stored(mode=mode))["stats"]["removed"] == {"superseded": 1}


@pytest.mark.parametrize("name", ["inline", "compiled", "in parts"])
def test_a_dirty_record_of_a_clean_batch(name: str) -> None:
    """As with Kafka's map, the round ends after the last record added, also where its batch lies below the dirty range."""
    history = SegmentHistory()
    history.append(disordered([(0, b"a", b"1"), (10, b"b", None)], 0))
    history.offset = 10
    history.roll()
    assert check(ENGINES[name], *history.stored(mode=KAFKA, first_dirty_offset=5))["end_offset"] == 11


@pytest.mark.parametrize("name", ["inline", "compiled", pytest.param("Spark", marks=pytest.mark.slow)])
@settings(max_examples=examples(300), deadline=None)
@given(st.data(), st.sampled_from(MODES), st.sampled_from([2, 5, 100]))
def test_mutated_batches_are_cleaned_alike(name: str, data: st.DataObject, mode: str, map_max_entries: int) -> None:
    """Strategy: deltas, last offsets, base offsets and times at random, under right checksums. Invariant: all engines write the
    same bytes, or refuse the log. Spark has none outside of their segment.
    """
    history = SegmentHistory()
    for number in range(data.draw(st.integers(1, 6))):
        base = history.offset + data.draw(st.sampled_from([0, 0, 0, 1, 3, -1]))
        if name == "Spark":
            base = max(base, history.segments[-1].base_offset)
        count = data.draw(st.integers(1, 4))
        steps = data.draw(st.lists(st.sampled_from([1, 1, 1, 0, 2, -1, -2, 7]), min_size=count, max_size=count))
        deltas = [sum(steps[1 : index + 1]) for index in range(count)]
        records = [
            Record(base + delta, NOW_MS - 9 + data.draw(st.integers(-3, 3)), data.draw(keys), data.draw(values))
            for delta in deltas
        ]
        last_delta = data.draw(st.sampled_from([max(0, *deltas), count - 1, 9]))
        batch = build_batch(
            records, base_offset=base, last_offset_delta=last_delta, codec=data.draw(st.sampled_from([0, 0, 1, 3]))
        )
        history.append(batch)
        history.offset = max(base, 0) + 10
        if name == "Spark":
            history.offset = max(history.offset, base + max(last_delta, *deltas) + 1)
        if number % 3 == 2:
            history.roll()
    first_dirty = data.draw(st.sampled_from([0, 10, 25]))
    env, plan = history.stored(mode=mode, map_max_entries=map_max_entries, first_dirty_offset=first_dirty)
    expected, found = outcome(one_by_one, env, plan), outcome(ENGINES[name], env, plan)
    if name == "Spark" and "error" in found[0] and "error" not in expected[0]:
        # It also reads what lies behind the end of a round whose map is full.
        expected = outcome(one_by_one, *history.stored(mode=mode, first_dirty_offset=first_dirty))
    assert ("error" in expected[0]) == ("error" in found[0])
    if "error" not in expected[0]:
        assert found == expected


@pytest.mark.parametrize("codec", range(1, 5))
@pytest.mark.parametrize("count", [1, 2])
def test_packed_records_that_are_none(engine: Engine, codec: int, count: int) -> None:
    """An unreadable frame, or one without records, under a valid CRC gives the reference's error."""
    for payload in (b"", b"no frame", compression.compress(codec, b""), compression.compress(codec, b"no records")):
        history = SegmentHistory()
        history.batch([(b"k", b"v")])
        history.batch([(b"k", b"v") for _ in range(count)], codec=codec)
        at = len(history.segments[0].data)
        batch = with_payload(bytes(build_batch(count * [Record(9, NOW_MS, b"k", b"v")], codec=codec)), payload)
        history.append(batch)
        found = check(engine, *history.stored())
        assert (found["error"], found["position"]) == (CorruptLog, at)
