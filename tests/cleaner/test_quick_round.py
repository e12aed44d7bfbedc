"""The engine of rounds that somebody waits for against the plain one: the same files, results and figures, byte for byte."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diamant.cleaner import quick_round, rewrite, small_payload
from diamant.cleaner.modes import KAFKA, MODES, PROMPT
from diamant.cleaner.plan import CleanPlan
from diamant.cleaner.quick_round import KeptBatch, QuickChunk, QuickRound, parse
from diamant.cleaner.segment_reader import read_chunks
from diamant.cleaner.small_payload import SmallPayloads
from diamant.protocol import compression
from diamant.protocol.batch import crc_is_valid, parse_header
from diamant.protocol.records import Header, Record, build_batch, iter_records
from diamant.storage import names
from diamant.storage.errors import CorruptLog
from diamant.storage.memory_env import MemoryEnv
from tests.builder import with_payload
from tests.cleaner.segment_history import DIRECTORY, NOW_MS, SegmentHistory, odd_batch
from tests.cleaner.test_compiled_rewrite import histories, keys, outcome, play, values
from tests.effort import examples

quick = partial(rewrite.clean, round_type=QuickRound)


def check(env: MemoryEnv, plan: CleanPlan) -> dict[str, Any]:
    """Run both engines; what they answer."""
    before = env.list_dir(DIRECTORY)
    plain, plain_files = outcome(rewrite.clean, env, plan)
    found, files = outcome(quick, env, plan)
    assert found == plain
    assert files == plain_files
    assert env.list_dir(DIRECTORY) == before
    return plain


singles = st.tuples(
    st.just("batch"),
    st.lists(st.tuples(keys, values), min_size=1, max_size=1),
    st.fixed_dictionaries(
        {},
        optional={
            "producer": st.sampled_from([1, 2]),
            "gap": st.sampled_from([1, 3000]),
            "codec": st.sampled_from([0, 0, 1, 2, 3, 4]),
            "headers": st.sampled_from([(), (Header("h", b"x"),), (Header("", None), Header("h" * 70, b"y" * 130))]),
            "log_append_time_ms": st.sampled_from([NOW_MS - 1000, NOW_MS - 900, NOW_MS + 10**9, 0]),
        },
    ),
)
mixed = st.lists(st.one_of(singles, singles, singles, histories), min_size=1, max_size=30).map(
    lambda found: [step for one in found for step in (one if isinstance(one, list) else [one])]
)


@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mixed, st.sampled_from(MODES), st.data())
def test_any_round_over_any_history_gives_the_bytes_of_the_plain_engine(
    steps: list[Any], mode: str, data: st.DataObject
) -> None:
    """Strategy: many batches of one record between every kind of others, any range and limits. Invariant: all is equal."""
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quick_round, "MAX_KEPT_BYTES", data.draw(st.sampled_from([0, 300, 1 << 20]), "kept bytes"))
        patch.setattr(quick_round, "MAX_RECORD_BYTES", data.draw(st.sampled_from([0, 700, 1 << 20]), "kept records"))
        check(env, plan)


def parsed(data: bytes) -> QuickChunk:
    """What is made of the bytes of a segment."""
    file = MemoryEnv().create_new("/x.log")
    file.append(data)
    return parse(file, 0, data, SmallPayloads())


@given(
    st.binary(max_size=200),
    st.sampled_from([(), (Header("h", b"x"),), (Header("", None), Header("name", b""), Header("h" * 70, b"y"))]),
    st.integers(0, 400),
    st.binary(max_size=2),
    st.sampled_from(["no crc", *range(5)]),
)
def test_what_is_taken_for_a_plain_batch_is_one(
    value: bytes, headers: tuple[Header, ...], at: int, change: bytes, packing: Any
) -> None:
    """Strategy: a plain batch with bytes changed anywhere before it is packed. Invariant: what is read of it is what its decoder
    finds, and what it is said to take is what the plain engine counts.
    """
    batch = bytearray(build_batch([Record(5, NOW_MS, b"key", value, headers)], base_offset=5))
    payload = bytearray(batch[61:])
    at %= len(payload)
    payload[at : at + len(change)] = change[: len(payload) - at]
    if packing == "no crc":
        changed = batch[:61] + payload
    else:
        batch[22] |= packing
        changed = with_payload(batch, compression.compress(packing, bytes(payload)))
    (entry,) = parsed(bytes(changed)).entries
    if isinstance(entry, KeptBatch):
        # Nothing else is known to be special about it.
        assert change or packing == "no crc"
        return
    assert crc_is_valid(changed, 0, len(changed))
    (record,) = iter_records(changed)
    assert (record.key, record.offset) == (entry[3], entry[2])
    assert record.value is not None
    assert record.timestamp == NOW_MS
    assert entry[6] == rewrite._encoded_size(record, parse_header(changed))


def test_batches_of_one_record_are_plain() -> None:
    """Those that clients send: idempotent or not, short or long. Whatever has something special about it is not."""
    history = SegmentHistory()
    plain = [
        (b"k", b"v"),
        (b"", b""),
        (b"key" * 30, b"value" * 1000),
        (bytes(range(256)), bytes(63)),
        (b"k", bytes(64)),
    ]
    for pair in plain:
        history.batch([pair])
        history.batch([pair], producer=1, log_append_time_ms=NOW_MS)
        history.batch([pair], headers=(Header("trace", b"1"), Header("n" * 100, None)))
        for codec in range(1, 5):
            history.batch([pair], codec=codec)
    data = bytes(history.segments[0].data)
    special = SegmentHistory()
    special.batch([(b"k", None)])
    special.batch([(None, b"v")])
    special.batch([(b"k", b"v"), (b"k", b"w")])
    special.batch([(b"k", bytes(small_payload.MAX_BYTES))], codec=4)
    special.batch([(b"k", b"v")], headers=64 * (Header("h", b"x"),))
    special.batch([(b"k", b"v")], delete_horizon_ms=NOW_MS)
    special.batch([(b"k", b"v")], padding=1)
    special.batch([(b"k", b"v")], producer=1, is_transactional=True)
    special.append(odd_batch([(b"k", b"v")], special.offset))
    special.old(1, 0, [(b"k", b"v")])
    others = bytes(special.segments[0].data)
    found = parsed(data + others + data[:60])
    assert [isinstance(entry, tuple) for entry in found.entries] == [True] * 35 + [False] * 10
    assert found.size == len(data + others)


def test_nothing_is_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits is opened once, for the map; what does not, and what is clean, for the rewrite as well."""
    history = SegmentHistory()
    for segment in range(3):
        for number in range(20):
            history.batch([(b"key-%d" % (number % 7), b"%d" % segment)])
            history.batch([(b"a%d" % (number % 3), b"1"), (b"b", b"2")])
        history.roll()
    env, plan = history.stored(first_dirty_offset=history.segments[1].base_offset)
    sizes = [segment.size for segment in plan.segments]
    opened: list[str] = []
    real = env.open

    def open_(path: str, **options: Any) -> Any:
        opened.append(path.rpartition("/")[2])
        return real(path, **options)

    monkeypatch.setattr(env, "open", open_)
    logs = [names.log_file("", segment.base_offset)[1:] for segment in plan.segments]
    quick(env, plan)
    assert [opened.count(log) for log in logs] == [1, 2, 1]  # where the dirty range begins is looked up
    for name in env.list_dir(DIRECTORY):
        if "cleaned" in name:
            env.remove(f"{DIRECTORY}/{name}")
    opened.clear()
    monkeypatch.setattr(quick_round, "MAX_KEPT_BYTES", sizes[1])
    quick(env, plan)
    assert [opened.count(log) for log in logs] == [1, 2, 2]


def test_records_are_kept_as_far_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded once up to the bound, twice beyond it; what packed ones take is told by their records."""
    history = SegmentHistory()
    for number in range(10):
        history.batch([(b"key-%d" % (number % 3), b"1"), (b"b", b"2")])
    size = len(history.segments[0].data) // 10 + 2 * quick_round.RECORD_BYTES
    for _ in range(5):
        history.batch([(b"k", bytes(5000)), (b"b", b"2")], codec=4)
    env, plan = history.stored()
    decoded: list[int] = []
    real = KeptBatch._decoded

    def records(batch: KeptBatch) -> Any:
        decoded.append(batch.header.base_offset)
        return real(batch)

    monkeypatch.setattr(KeptBatch, "_decoded", records)
    monkeypatch.setattr(quick_round, "MAX_RECORD_BYTES", 10 * size + 2 * (5000 + 2 * quick_round.RECORD_BYTES) + 100)
    quick(env, plan)
    assert [decoded.count(base) for base in range(0, 30, 2)] == [1] * 12 + [2] * 3


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
    quick(env, plan)
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
    quick(env, plan)
    path = names.log_file(DIRECTORY, 0) + names.CLEANED_SUFFIX
    file = env.open(path, read_only=True)
    (chunk,) = read_chunks(file, 0, file.size(), 1 << 20)
    assert [(header.base_offset, header.record_count) for _, header in chunk.headers] == [
        (4, 0),
        (9, 0),
        (15, 1),
        (16, 1),
    ]
