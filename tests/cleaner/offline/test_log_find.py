"""Finding records: against a naive search, and where it matters by hand."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.cleaner.offline.find import Match, Query, find_records
from diamant.cleaner.segments.tolerant_reader import Problem, open_log_directory
from diamant.protocol.batches.header import Header, Record
from diamant.storage.checkpoints.checkpoints import write_offset_checkpoint
from diamant.storage.env.memory import MemoryEnv
from tests.builder import with_payload
from tests.cleaner.log_history import History, histories
from tests.effort import examples


def find(history: History, query: Query, *, max_keys: int = 100) -> tuple[list[Match], list[Problem]]:
    env = MemoryEnv()
    history.write(env, "/data")
    start = {(history.topic, history.partition): history.log_start_offset}
    write_offset_checkpoint(env, "/data/log-start-offset-checkpoint", start)
    problems: list[Problem] = []
    with open_log_directory(env, "/data") as directory:
        [partition] = directory.partitions
        return list(find_records(env, partition, query, problems.append, max_keys=max_keys)), problems


@settings(max_examples=examples(150), deadline=None)
@given(histories(), st.sampled_from([b"", b"a", b"key-1", b"\xff\x00", b"not there"]))
def test_every_record_of_a_key_is_found(history: History, key: bytes) -> None:
    """Strategy: any partition. Invariant: the offsets with that key, each with the status that the slow way finds."""
    matches, problems = find(history, Query(key=key))
    statuses = history.statuses()
    expected = [(one.offset, one.timestamp, statuses[one.offset]) for one, _ in history.records if one.key == key]
    assert [(match.offset, match.timestamp, match.status) for match in matches] == expected
    assert {match.places for match in matches} <= {("key",)}
    assert problems == []


@settings(max_examples=examples(150), deadline=None)
@given(histories(), st.sampled_from([b"needle", b"key", b"^a$", b"", b"(?i)VALUE", b"[\\x00\\xff]"]), st.integers(1, 3))
def test_every_match_of_a_pattern_is_found(history: History, text: bytes, max_keys: int) -> None:
    """Strategy: any partition, patterns that match nothing to all, room for few keys. Invariant: as a search through all
    records, in order, once each; how many rounds it takes does not matter.
    """
    pattern = re.compile(text)
    statuses = history.statuses()
    expected = []
    for record, _ in history.records:
        places = tuple(
            name
            for name, data in (("key", record.key), ("value", record.value))
            if data is not None and pattern.search(data)
        )
        if places:
            expected.append((record.offset, record.key, places, statuses[record.offset]))
    matches, _ = find(history, Query(pattern=pattern), max_keys=max_keys)
    assert [(match.offset, match.key, match.places, match.status) for match in matches] == expected


def test_headers_are_searched() -> None:
    """Names and values; a place names the header, in a form that can be printed."""
    headers = (Header("trace", b"needle"), Header("needle", None), Header("\udcff\n", b"a needle"))
    history = History()
    history.batch(Record(0, 1, b"k", b"v", headers))
    [match] = find(history, Query(pattern=re.compile(b"needle")))[0]
    assert match.places == ("header trace", "header needle", r"header '\udcff\n'")


def test_a_match_says_where_it_is() -> None:
    """Segment file and position of the batch, to be looked at with a dump."""
    history = History()
    history.batch("a=1")
    history.roll()
    history.batch("b=1")
    size = len(history.segments[1])
    history.batch("c=1")
    [match] = find(history, Query(key=b"c"))[0]
    assert (match.segment, match.position, match.offset) == (f"/data/t-0/{1:020d}.log", size, 2)


@pytest.mark.parametrize("codec", range(5))
def test_keys_are_found_through_every_codec(codec: int) -> None:
    """Compressed batches are searched decompressed."""
    history = History()
    history.batch("other=1", "wanted=1", codec=codec)
    history.batch("other=1", codec=codec)
    assert [match.offset for match in find(history, Query(key=b"wanted"))[0]] == [1]


def test_a_damaged_batch_is_reported_once_and_the_search_goes_on() -> None:
    """Also when it takes several rounds."""
    history = History()
    history.batch("k=1")
    history.batch("k=1", "broken=1")
    good = bytes(history.segments[0])
    first_size = 70
    history.segments[0] = bytearray(good[:first_size]) + with_payload(good[first_size:], good[first_size + 61 : -1])
    history.batch("a=1", "b=1", "c=1")
    matches, problems = find(history, Query(pattern=re.compile(b".")), max_keys=1)
    assert {0, 3, 4, 5} <= {match.offset for match in matches}
    assert len(problems) == 1


def test_a_query_is_for_a_key_or_for_a_pattern() -> None:
    """Neither none nor both."""
    with pytest.raises(ValueError):
        Query()
    with pytest.raises(ValueError):
        Query(b"k", re.compile(b"k"))


def test_a_partition_without_segments_holds_nothing() -> None:
    """It is no error."""
    env = MemoryEnv()
    env.make_dirs("/data/t-0")
    with open_log_directory(env, "/data") as directory:
        assert list(find_records(env, directory.partitions[0], Query(b"k"), print)) == []
