"""Redactions of random histories, compared with a naive filter: matching records are removed, and nothing else changes.

The oracle reads the files with the naive reader and codecs of other packages, decides with Python's own JSON, and knows the
committed transactions from the history.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diamant.cleaner.redaction.locate import TooManyMatches
from diamant.cleaner.redaction.rewrite import write_redacted
from diamant.protocol.batches.header import Header, Record
from diamant.protocol.errors import KafkaError
from diamant.storage.env.clocks import SettableClock
from diamant.storage.log.log import Log
from tests import naive
from tests.builder import make_batch
from tests.cleaner.cleaner_log import DIRECTORY, START_MS, CleanerLog
from tests.cleaner.evidence.scan.naive_scanner import unpack
from tests.cleaner.redaction.redacted_log import locate, plan_of, redact
from tests.effort import examples
from tests.memory_env import MemoryEnv
from tests.storage.one_log import load_one

EMAIL = "ada@example.com"
KEYS = [None, b"a", b"b", b"\x00\xff"]


class Batch(NamedTuple):
    """One batch as read by the naive reader."""

    fixed: tuple[int, ...]
    """Fields that cleaning must not change: offsets, leader epoch, producer, sequence, transactional and control flags."""
    records: tuple[tuple[int, int, bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...]], ...]
    data: bytes


def batches_in(data: bytes) -> list[Batch]:
    found = []
    for entry in naive.iter_entries(data):
        one = naive.parse_batch(entry)
        last = one.base_offset + one.last_offset_delta
        producer = (one.producer_id, one.producer_epoch, one.base_sequence)
        payload = unpack(one.attributes & 7, one.payload)
        records = tuple(
            (
                one.base_offset + record.offset_delta,
                one.base_timestamp + record.timestamp_delta,
                record.key,
                record.value,
                tuple(record.headers),
            )
            for record in (naive.parse_records(payload, one.count) if one.count else [])
        )
        found.append(Batch((one.base_offset, last, one.leader_epoch, *producer, one.attributes & 0x30), records, entry))
    return found


def batches_of(log: CleanerLog) -> dict[int, list[Batch]]:
    """Batches by base offset of their segment."""
    return {one.base_offset: batches_in(log.env.read_bytes(one.path)[: one.size]) for one in log.log.segments}


def _is_adas(value: bytes | None) -> bool:
    try:
        return value is not None and json.loads(value).get("email") == EMAIL
    except (ValueError, AttributeError):
        return False


WHERES: dict[str, Callable[[Any], bool]] = {
    'key == "a"': lambda one: one[2] == b"a",
    'key == hex:"00ff"': lambda one: one[2] == b"\x00\xff",
    f'value.email == "{EMAIL}"': lambda one: _is_adas(one[3]),
    'header.user == "42"': lambda one: (b"user", b"42") in one[4],
    f'header.user exists or value.email == "{EMAIL}"': lambda one: (
        _is_adas(one[3]) or any(name == b"user" for name, _ in one[4])
    ),
    f'key == "b" and value.email == "{EMAIL}"': lambda one: one[2] == b"b" and _is_adas(one[3]),
    'value.nothing == "nowhere"': lambda _: False,
}


@dataclass
class History:
    """A log, and the offsets of aborted and open transactions."""

    log: CleanerLog
    open: dict[int, list[int]] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)


record_words = st.tuples(
    st.sampled_from(KEYS),
    st.sampled_from(
        [
            None,
            b"",
            b"no json",
            b'{"email": "ada@example.com"}',
            b'{"email": "ada\\u0040example.com", "more": [1, 2]}',
            b'{"email": "bob@example.com"}',
            b'{"other": "ada@example.com"}',
        ]
    ),
    st.sampled_from([(), (Header("user", b"42"),), (Header("user", None), Header("x", b"1"))]),
)
steps = st.one_of(
    st.tuples(
        st.just("data"),
        st.lists(record_words, min_size=1, max_size=5),
        st.sampled_from([-1, -1, 3, 4]),
        st.sampled_from([0, 0, 1, 2, 3, 4]),
    ),
    st.tuples(
        st.just("txn"),
        st.lists(record_words, min_size=1, max_size=3),
        st.sampled_from([5, 6]),
        st.sampled_from([0, 4]),
    ),
    st.tuples(st.just("end"), st.sampled_from([5, 6]), st.sampled_from(["commit", "abort"])),
    st.tuples(st.just("roll")),
)


def make_history(history_steps: list[Any], policy: str) -> History:
    history = History(CleanerLog(cleanup_policy=frozenset({policy}), index_interval_bytes=100))
    log = history.log
    log.log.become_leader(3)
    for kind, *rest in history_steps:
        if kind == "roll":
            log.roll()
        elif kind == "end":
            producer, how = rest
            if producer in history.open:
                offsets = history.open.pop(producer)
                history.aborted |= set(offsets) if how == "abort" else set()
                log.marker(producer, how)
        else:
            words, producer, codec = rest
            start = log.log.log_end_offset
            records = [
                Record(start + index, START_MS + start + index, key, value, headers)
                for index, (key, value, headers) in enumerate(words)
            ]
            if kind == "txn":
                history.open.setdefault(producer, []).extend(range(start, start + len(words)))
            log.data(*records, producer=producer, txn=kind == "txn", codec=codec)
    return history


def expected_removed(history: History, where: str, batches: dict[int, list[Batch]]) -> set[int]:
    """Return the offsets to remove, found by a naive search."""
    below = history.log.log.last_stable_offset
    records = [
        one
        for segment in batches.values()
        for batch in segment
        if not batch.fixed[-1] & 0x20
        for one in batch.records
        if one[0] < below
    ]
    matched = {one[0] for one in records if WHERES[where](one)}
    removed = set(matched)
    if history.log.config.is_compacted:
        for offset, _, key, _, _ in records:
            if offset in matched and key is not None and offset not in history.aborted:
                removed |= {one[0] for one in records if one[2] == key and one[0] < offset and one[3] is not None}
    return removed


def state_after_a_crash(log: CleanerLog, log_start_offset: int = 0) -> tuple[Any, ...]:
    """Return the state that recovery derives from the batches alone, without snapshots."""
    env = log.env.copy(SettableClock(log.now_ms))
    for name in env.list_dir(DIRECTORY):
        if name.endswith((".snapshot", "leader-epoch-checkpoint")):
            env.remove(f"{DIRECTORY}/{name}")
    producers, *rest = state(recovered(env, log, log_start_offset))
    # When a producer was last heard of is read from the records that are left, as after compaction.
    return [one._replace(timestamp=0) for one in producers], *rest


def recovered(env: MemoryEnv, log: CleanerLog, log_start_offset: int = 0) -> Log:
    return load_one(env, log.config, path=DIRECTORY, log_start_offset=log_start_offset)


def state(log: Log) -> tuple[Any, ...]:
    """Return the state that must not change: producers, transactions, epochs, ends."""
    return (
        sorted(log.producers.active_producers),
        log.last_stable_offset,
        log.log_end_offset,
        log.log_start_offset,
        [entry for segment in log.segments for entry in segment.txn_index.all()],
        log.epoch_for_offset(0),
        log.end_offset_for_epoch(3),
    )


ADAS = (b"a", b'{"email": "ada@example.com"}', ())
OF_ADA = f'value.email == "{EMAIL}"'
ONE = ("data", [(b"a", b"", ())], -1, 0)


@example([ONE, ("data", [(b"a", None, ()), (b"a", b"", ()), ADAS], -1, 0), ONE], "compact", OF_ADA)
@example([ONE, ("txn", [ADAS], 5, 0), ("end", 5, "abort")], "compact", OF_ADA)
@example([ONE, ("txn", [ADAS], 5, 0), ONE], "delete", 'key == "a"')
@settings(max_examples=examples(100), deadline=None)
@given(
    history_steps=st.lists(steps, min_size=1, max_size=14),
    policy=st.sampled_from(["delete", "compact"]),
    where=st.sampled_from(sorted(WHERES)),
)
def test_matching_records_go_and_nothing_else_changes(history_steps: list[Any], policy: str, where: str) -> None:
    """Offsets, batches, producers, transactions and indexes stay, also after recovery; a second redaction changes nothing.

    On compacted topics older values go with a matched one, tombstones and newer ones stay; an aborted record that matches takes
    no committed value with it; nothing at or above the last stable offset goes.
    """
    history = make_history(history_steps, policy)
    log = history.log
    before, state_before, crashed_before = batches_of(log), state(log.log), state_after_a_crash(log)
    files_before = log.files()
    removed = expected_removed(history, where, before)

    located = redact(log.log, where)

    assert located.removed == len(removed)
    after = batches_of(log)
    rolled = {base: batches for base, batches in after.items() if base not in before}
    assert not any(rolled.values())
    for base, batches in before.items():
        assert [one.fixed for one in after[base]] == [one.fixed for one in batches]
        for old, new in zip(batches, after[base], strict=True):
            kept = tuple(one for one in old.records if one[0] not in removed or old.fixed[-1] & 0x20)
            assert new.records == kept
            if kept == old.records:
                assert new.data == old.data
        if not any(one[0] in removed for batch in batches for one in batch.records):
            for suffix in (".log", ".txnindex"):
                name = f"{base:020d}{suffix}"
                assert log.files().get(name) == files_before.get(name)
    assert state(log.log) == state_before
    assert state_after_a_crash(log) == crashed_before
    assert not [name for name in log.env.list_dir(DIRECTORY) if name.endswith((".cleaned", ".swap", ".deleted"))]
    lasts = [one.fixed[1] for batches in after.values() for one in batches]
    for offset in range(log.log.log_end_offset):
        result = log.log.read(offset, 1, isolation_level=0, min_one_message=True)
        found = batches_in(bytes(result.slices[0].read()))[0]
        assert found.fixed[1] == min(last for last in lasts if last >= offset)
    files = log.files()
    again = locate(log.log, where)
    if not history.log.config.is_compacted:
        assert again.removed == 0
    redact(log.log, where)
    assert log.files() == files


def test_producers_continue_after_everything_of_them_was_removed() -> None:
    """The next sequence is accepted and the previous one is a duplicate, also after a crash without snapshots."""
    log = CleanerLog("p7: a a | p8: a", cleanup_policy=frozenset({"delete"}))
    redact(log.log, 'key == "a"')
    env = log.env.copy(SettableClock(log.now_ms))
    for name in env.list_dir(DIRECTORY):
        if name.endswith(".snapshot"):
            env.remove(f"{DIRECTORY}/{name}")
    log.env, log.log = env, recovered(env, log)
    assert log.keys() == []
    for producer, sequence, expected in ((7, 2, 3), (8, 1, 4), (7, 2, 3), (8, 1, 4), (7, 3, 5)):
        batch = make_batch("b=", producer_id=producer, producer_epoch=0, base_sequence=sequence)
        assert log.log.append_as_leader(memoryview(batch)).base_offset == expected
    with pytest.raises(KafkaError, match="7"):
        log.log.append_as_leader(memoryview(make_batch("b=", producer_id=7, producer_epoch=0, base_sequence=9)))


def put(log: CleanerLog, path: str, at: int, replacement: bytes) -> bytes:
    """Replace bytes of a segment; return the new content."""
    data = bytearray(log.env.read_bytes(path))
    data[at : at + len(replacement)] = replacement
    file = log.env.open(path)
    file.truncate(0)
    file.append(bytes(data))
    file.close()
    return bytes(data)


def damage(log: CleanerLog) -> bytes:
    """Change the last byte of the first segment; return the new content."""
    segment = log.log.segments[0]
    return put(log, segment.path, segment.size - 1, bytes([log.env.read_bytes(segment.path)[segment.size - 1] ^ 1]))


def test_a_segment_that_cannot_be_read_is_left_and_reported() -> None:
    """On a delete topic the other segments are rewritten; on a compacted one nothing is touched."""
    for policy in ("delete", "compact"):
        log = CleanerLog("a=1 | roll | a=2 | roll | b=3", cleanup_policy=frozenset({policy}))
        path = log.log.segments[0].path
        data = damage(log)
        located = redact(log.log, 'key == "a"')
        assert len(located.problems) == 1
        assert located.removed == (1 if policy == "delete" else 0)
        assert log.env.read_bytes(path) == data


@pytest.mark.parametrize(
    ("which", "base_offset"),
    [(0, -1), (0, 7), (0, 1 << 33), (1, 0), (1, 5), (1, 1 << 62), (2, -1), (2, 3), (2, 6), (2, 1 << 33), (2, 1 << 62)],
)
def test_a_changed_base_offset_is_damage(which: int, base_offset: int) -> None:
    """Base offsets have no checksum; one out of order is a problem, and does not stop the search."""
    log = CleanerLog(cleanup_policy=frozenset({"delete"}))
    for start in (0, 2, 4):
        log.data(f"a={start}", f"b={start + 1}")
    log.write("roll | a=6 b=7")
    path = log.log.segments[0].path
    put(log, path, log.batch(2 * which).position, base_offset.to_bytes(8, "big", signed=True))
    located = locate(log.log, 'key == "a"')
    assert [one.path for one in located.problems] == [path]
    assert "the batch has offsets" in located.problems[0].reason
    assert located.matched == 1


@pytest.fixture
def twenty() -> CleanerLog:
    """A log of twenty records with keys of their own, that is not compacted."""
    log = CleanerLog(cleanup_policy=frozenset({"delete"}))
    log.data(*(f"key-{number}" for number in range(20)))
    return log


def test_more_than_can_be_remembered_is_refused(twenty: CleanerLog) -> None:
    """The limit covers the offsets of all segments, and the keys of compacted topics."""
    log = CleanerLog()
    log.data(*(f"key-{number}" for number in range(20)))
    with pytest.raises(TooManyMatches, match="more than 10 keys"):
        locate(log.log, "value exists", max_keys=10)
    located = locate(twenty.log, "value exists")
    with pytest.raises(TooManyMatches, match="20 records"):
        locate(twenty.log, "value exists", offset_bytes=located.nbytes - 1)
    assert locate(twenty.log, "value exists", offset_bytes=located.nbytes).matched == 20


def test_kept_records_are_counted_in_readable_segments() -> None:
    """The number of records in an unreadable segment is unknown, so they do not count."""
    for policy in ("delete", "compact"):
        log = CleanerLog(cleanup_policy=frozenset({policy}))
        for words in (("a=1", "b=2"), ("a=3",), ("c=4",)):
            log.data(*words)
            log.roll()
        assert (locate(log.log, 'key == "a"').records, locate(log.log, 'key == "a"').kept) == (4, 2)
        damage(log)
        located = locate(log.log, 'key == "a"')
        assert (located.records, located.kept, len(located.problems)) == (2, 1, 1)
        assert (locate(log.log, "value exists").records, locate(log.log, "value exists").kept) == (2, 0)


def test_the_plan_is_all_that_the_runner_needs(twenty: CleanerLog) -> None:
    """Equal plans give equal bytes, whatever is appended in between."""
    log = twenty
    log.roll()
    located = locate(log.log, 'key == "key-3"')
    plan = plan_of(log.log, located)
    outputs = []
    for _ in range(2):
        log.data("key-3")
        output = write_redacted(log.env, plan, plan.segments[0])
        assert output is not None
        outputs.append({name: data for name, data in log.files().items() if name.endswith(".cleaned")})
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 3
