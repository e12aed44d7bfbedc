"""The plain engine by the row against itself batch by batch: the same files, results and figures, byte for byte."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diamant.cleaner.engines import plain_batches, plain_round
from diamant.cleaner.engines.parsed_chunks import MAX_PARSED_BYTES, ParsedChunk, parse
from diamant.cleaner.rules.modes import KAFKA, MODES, PROMPT
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.segments.chunk_batch import ChunkBatch
from diamant.cleaner.segments.small_payloads import SmallPayloads
from diamant.cleaner.segments.strict_reader import read_chunks
from diamant.protocol.batches import compression
from diamant.protocol.batches.header import Header, Record
from diamant.protocol.batches.records import build_batch
from diamant.storage import names
from diamant.storage.env.memory import MemoryEnv
from diamant.storage.errors import CorruptLog
from tests.builder import with_payload
from tests.cleaner.engines.random_history import histories, one_by_one, outcome, play, some_keys, values
from tests.cleaner.prompt.segment_history import DIRECTORY, NOW_MS, SegmentHistory
from tests.effort import examples


def check(env: MemoryEnv, plan: CleanPlan, parsed_bytes: int = MAX_PARSED_BYTES) -> dict[str, Any]:
    """Run the engine by the row and batch by batch; what it answers."""
    before = env.list_dir(DIRECTORY)
    plain, plain_files = outcome(one_by_one, env, plan)
    found, files = outcome(partial(plain_round.clean, parsed_bytes=parsed_bytes), env, plan)
    assert found == plain
    assert files == plain_files
    assert env.list_dir(DIRECTORY) == before
    return plain


plain = st.tuples(
    st.just("batch"),
    st.lists(st.tuples(some_keys, values), min_size=1, max_size=4),
    st.fixed_dictionaries(
        {},
        optional={
            "producer": st.sampled_from([1, 2]),
            "gap": st.sampled_from([1, 3000]),
            "step": st.sampled_from([1, 5000]),
            "codec": st.sampled_from([0, 0, 1, 2, 3, 4]),
            "headers": st.sampled_from([(), (Header("h", b"x"),), (Header("", None), Header("h" * 70, b"y" * 130))]),
            "log_append_time_ms": st.sampled_from([NOW_MS - 1000, NOW_MS - 900, NOW_MS + 10**9, 0]),
        },
    ),
)
mixed = st.lists(st.one_of(plain, plain, plain, histories), min_size=1, max_size=30).map(
    lambda found: [step for one in found for step in (one if isinstance(one, list) else [one])]
)


@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mixed, st.sampled_from(MODES), st.data())
def test_any_round_over_any_history_gives_the_bytes_of_batches_one_by_one(
    steps: list[Any], mode: str, data: st.DataObject
) -> None:
    """Strategy: many plain batches between every kind of others, any range and limits. Invariant: all is equal."""
    env, plan = play(steps).stored(mode=mode)
    end = plan.first_uncleanable_offset
    plan = replace(
        plan,
        first_dirty_offset=data.draw(st.integers(0, end), "first dirty"),
        log_start_offset=data.draw(st.sampled_from([0, 0, 1, end // 2]), "log start"),
        segment_bytes=data.draw(st.sampled_from([1 << 30, 600, 100]), "segment bytes"),
        map_max_entries=data.draw(st.sampled_from([1, 2, 3, 1000]), "map entries"),
        io_buffer_bytes=data.draw(st.sampled_from([100, 4096]), "buffer"),
    )
    check(env, plan, data.draw(st.sampled_from([1500, 10_000, 1 << 20]), "parsed"))


def parsed(data: bytes, room: int = 1 << 20) -> ParsedChunk:
    """What is made of the bytes of a segment."""
    file = MemoryEnv().create_new("/x.log")
    file.append(data)
    return parse(file, 0, data, SmallPayloads(), room)


def test_nothing_is_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits is opened once, for the map; what does not, and what is clean, for the rewrite as well."""
    history = SegmentHistory()
    for segment in range(3):
        for number in range(20):
            history.batch([(b"key-%d" % (number % 7), b"%d" % segment)])
            history.batch([(b"a%d" % (number % 3), b"1"), (b"b", b"2")])
        history.roll()
    env, plan = history.stored(first_dirty_offset=history.segments[1].base_offset)
    needs = [parsed(bytes(segment.data)).memory_bytes for segment in history.segments[:3]]
    opened: list[str] = []
    real = env.open

    def open_(path: str, **options: Any) -> Any:
        opened.append(path.rpartition("/")[2])
        return real(path, **options)

    monkeypatch.setattr(env, "open", open_)
    logs = [names.log_file("", segment.base_offset)[1:] for segment in plan.segments]
    plain_round.clean(env, plan)
    assert [opened.count(log) for log in logs] == [1, 2, 1]  # where the dirty range begins is looked up
    for name in env.list_dir(DIRECTORY):
        if "cleaned" in name:
            env.remove(f"{DIRECTORY}/{name}")
    opened.clear()
    plain_round.clean(env, plan, parsed_bytes=needs[1])
    assert [opened.count(log) for log in logs] == [1, 2, 2]


@pytest.mark.parametrize("codec", [compression.NONE, compression.ZSTD])
@pytest.mark.parametrize(("count", "key_bytes"), [(1, 0), (3, 0), (700, 0), (1, 8000), (3, 8000)])
def test_a_chunk_takes_no_more_than_it_says(codec: int, count: int, key_bytes: int) -> None:
    """Also if records are as small as they can be, or come out of next to nothing; and no more than there is room for."""
    history = SegmentHistory()
    while history.offset < 700:
        history.batch([(b"%d" % number + bytes(key_bytes), b"") for number in range(count)], codec=codec)
    data = bytes(history.segments[0].data)
    parsed(data)  # imports
    for room in (1 << 26, 50_000):
        tracemalloc.start()
        try:
            chunk = parsed(data, room)
            found = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        # The file is counted, too.
        assert found - len(data) < chunk.memory_bytes + 20_000
        others = [entry for entry in chunk.entries if isinstance(entry, ChunkBatch)]
        plain_bytes = chunk.memory_bytes - len(data) - plain_batches.BATCH_BYTES * len(others)
        assert plain_bytes <= room
        assert bool(others) == (room == 50_000)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fields", [{}, {"producer": 1}, {"producer": 1, "is_transactional": True}, {"codec": 4}])
def test_of_plain_batches_no_record_is_decoded(
    monkeypatch: pytest.MonkeyPatch, mode: str, fields: dict[str, Any]
) -> None:
    """Whether all of a batch stays, some or nothing. A marker is decoded twice: for its type, and as it stays."""
    history = SegmentHistory()
    markers = []
    for first in range(50):
        history.batch([(b"k%d" % (number % 20), b"v") for number in range(first, first + 5)], **fields)
        if "is_transactional" in fields and first % 10 == 9:
            markers.append(history.offset)
            history.marker(1, "commit")
    env, plan = history.stored(mode=mode)
    expected = outcome(one_by_one, env, plan)
    decoded: list[int] = []
    real = ChunkBatch.records

    def records(batch: ChunkBatch) -> Any:
        decoded.append(batch.header.base_offset)
        return real(batch)

    monkeypatch.setattr(ChunkBatch, "records", records)
    assert outcome(plain_round.clean, env, plan) == expected
    assert sorted(decoded) == sorted(2 * markers)


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_packed_batch_is_decompressed_once_for_its_key(monkeypatch: pytest.MonkeyPatch, codec: int) -> None:
    """However many passes there are; what stays is copied as it is, and nothing is compressed."""
    history = SegmentHistory()
    for number in range(20):
        history.batch([(b"key-%d" % (number % 7), b"value")], codec=codec)
    history.batch([(b"a", b"1"), (b"b", b"2")], codec=codec)
    env, plan = history.stored()
    unpacked: list[int] = []
    real = SmallPayloads.unpack

    def unpack(payloads: SmallPayloads, codec: int, data: bytes) -> bytes | None:
        unpacked.append(codec)
        return real(payloads, codec, data)

    def fail(*arguments: Any, **options: Any) -> bytes:
        raise AssertionError("nothing has to be packed, and nothing needs the way for any frame")

    monkeypatch.setattr(SmallPayloads, "unpack", unpack)
    monkeypatch.setattr(compression, "decompress", fail)
    monkeypatch.setattr(compression, "compress", fail)
    plain_round.clean(env, plan)
    assert unpacked == 21 * [codec]


@pytest.mark.parametrize("codec", range(1, 5))
@pytest.mark.parametrize("count", [1, 2])
def test_packed_records_that_are_none(codec: int, count: int) -> None:
    """A frame that cannot be read, or has no records, under a CRC that is right: the plain engine's error."""
    for payload in (b"", b"no frame", compression.compress(codec, b""), compression.compress(codec, b"no records")):
        history = SegmentHistory()
        history.batch([(b"k", b"v")])
        history.batch([(b"k", b"v") for _ in range(count)], codec=codec)
        at = len(history.segments[0].data)
        batch = with_payload(bytes(build_batch(count * [Record(9, NOW_MS, b"k", b"v")], codec=codec)), payload)
        history.append(batch)
        env, plan = history.stored()
        found = check(env, plan)
        assert (found["error"], found["position"]) == (CorruptLog, at)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["crc", "size", "magic", "cut"])
def test_a_damaged_batch_among_plain_ones(mode: str, where: str) -> None:
    """The error names the file and the position as the plain engine's does, and no output is left."""
    history = SegmentHistory()
    for number in range(20):
        history.batch([(b"key-%d" % (number % 7), b"value")])
    env, plan = history.stored(mode=mode)
    path = names.log_file(DIRECTORY, 0)
    content = bytearray(env.read_bytes(path))
    size = len(content) // 20
    at = 13 * size
    if where == "crc":
        content[at + 70] ^= 1
    elif where == "size":
        content[at + 8 : at + 12] = (5).to_bytes(4, "big")
    elif where == "magic":
        content[at + 16] = 9
    else:
        content[19 * size + 8 : 19 * size + 12] = (size * 2).to_bytes(4, "big")
    env.remove(path)
    file = env.create_new(path)
    file.append(bytes(content))
    found = check(env, plan)
    assert found["error"] is CorruptLog
    assert found["position"] == (19 * size if where == "cut" else at)


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
def test_the_last_batches_of_producers_and_of_the_round_stay(mode: str) -> None:
    """Superseded and all: their headers do, as the plain engine leaves them."""
    history = SegmentHistory()
    for producer in (1, 2, -1):
        for _ in range(5):
            history.batch([(b"k", b"v")], producer=producer)
    history.batch([(b"other", b"v")])
    history.batch([(b"k", b"last")])
    env, plan = history.stored(mode=mode)
    result = check(env, plan)
    assert result["stats"]["removed"] == {"superseded": 15}
    plain_round.clean(env, plan)
    path = names.log_file(DIRECTORY, 0) + names.CLEANED_SUFFIX
    file = env.open(path, read_only=True)
    (chunk,) = read_chunks(file, 0, file.size(), 1 << 20)
    assert [(header.base_offset, header.record_count) for _, header in chunk.headers] == [
        (4, 0),
        (9, 0),
        (15, 1),
        (16, 1),
    ]
