"""Searches for records, compared with a naive search and with results by hand."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.cleaner.offline.find_records import Match, Query, find_records, text_in
from diamant.cleaner.segments.tolerant_reader import Problem, open_log_directory
from diamant.protocol.batches.header import Header, Record
from diamant.storage.checkpoints.checkpoints import write_offset_checkpoint
from tests.builder import with_payload
from tests.cleaner.log_history import History, damage, histories
from tests.effort import examples
from tests.memory_env import MemoryEnv


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
    """Strategy: any partition. Invariant: the offsets with that key, each with the status that a naive search finds."""
    matches, problems = find(history, Query(key=key))
    statuses = history.statuses()
    expected = [(one.offset, one.timestamp, statuses[one.offset]) for one, _ in history.records if one.key == key]
    assert [(match.offset, match.timestamp, match.status) for match in matches] == expected
    assert {match.places for match in matches} <= {("key",)}
    assert problems == []


@settings(max_examples=examples(150), deadline=None)
@given(histories(), st.sampled_from([b"needle", b"key", b"^a$", b"", b"(?i)VALUE", b"[\\x00\\xff]"]), st.integers(1, 3))
def test_every_match_of_a_pattern_is_found(history: History, text: bytes, max_keys: int) -> None:
    """Strategy: any partition, patterns that match nothing to all, room for few keys. Invariant: the matches of a naive
    search, in order, once each, whatever the number of passes.
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


@settings(max_examples=examples(200), deadline=None)
@given(
    histories(),
    st.sampled_from([b"needle", b"key", b"a", b"\x00", b"nee[ed]le", b"key.?[12]"]),
    st.booleans(),
    st.integers(1, 3),
    st.data(),
)
def test_matches_are_the_same_without_kernels(
    history: History, text: bytes, is_key: bool, max_keys: int, data: st.DataObject
) -> None:
    """Strategy: any partition, damaged or not, keys and texts. Invariant: the same matches and problems, in the same order."""
    env = MemoryEnv()
    directory = history.write(env, "/data")
    if data.draw(st.booleans()):
        damage(env, f"{directory}/{data.draw(st.sampled_from(env.list_dir(directory)))}", data)
    query = Query(key=text) if is_key else Query(pattern=re.compile(text))
    found = []
    for is_compiled in (True, False):
        problems: list[Problem] = []
        with open_log_directory(env, "/data") as opened:
            [partition] = opened.partitions
            matches = find_records(env, partition, query, problems.append, max_keys=max_keys, is_compiled=is_compiled)
            found.append((list(matches), problems))
    assert found[0] == found[1]


def test_the_later_records_of_very_many_keys_are_watched() -> None:
    """More keys than a table begins with, and more records per batch than are picked at a time, are all watched."""
    history = History()
    for start in range(0, 12_000, 6_000):
        history.batch(*(f"k{number}=needle" for number in range(start, start + 6_000)))
    history.batch(*(f"k{number}=x" for number in range(0, 12_000, 2)))
    matches, _ = find(history, Query(pattern=re.compile(b"needle")), max_keys=20_000)
    assert [match.status for match in matches] == ["superseded", "live"] * 6_000


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (b"plain", b"plain"),
        (b"a", b"a"),
        (b"", b""),
        (b"ab.", b""),
        (rb"^user-\d+$", b"user-"),
        (rb"\.com|\.org", b""),
        (rb"(com|org)/index\.html", b"/index.html"),
        (b"abcd?", b"abc"),
        (b"abcd+efgh*", b"abcd"),
        (b"wxyz{2}abcd", b"abcd"),
        (rb"[]a\]bcd]xyz", b"xyz"),
        (rb"abc\x41bcdef", b"bcdef"),
        (rb"(.)\1234abc", b"4abc"),
        (rb"(?#[)|(ab])xyz", b""),
        (rb"a(?=bcd)efg", b"efg"),
        (rb"[^]abc]{3}\\defg", rb"\defg"),
    ],
)
def test_the_text_in_every_match_of_a_pattern(pattern: bytes, text: bytes) -> None:
    """The text is the longest one outside groups, without optional parts; none if it is short and not the pattern itself."""
    re.compile(pattern)
    assert text_in(pattern) == text


_parts = st.sampled_from(
    [b"a", b"bcd", b".", b"[ab]", b"(ab|c)", b"(?:b)", b"c*", b"bc?", b"ab+", b"d{0,2}", rb"\d", rb"\.", b"a|b"]
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(_parts, max_size=5).map(b"".join), st.data())
def test_no_match_is_without_that_text(pattern: bytes, data: st.DataObject) -> None:
    """Strategy: patterns of many parts, and texts that match them. Invariant: each match contains the text."""
    matching = data.draw(st.from_regex(re.compile(pattern, re.DOTALL), fullmatch=True))
    assert text_in(pattern) in matching


def test_headers_are_searched() -> None:
    """Names and values are searched; a place has the header's name in printable form."""
    headers = (Header("trace", b"needle"), Header("needle", None), Header("\udcff\n", b"a needle"))
    history = History()
    history.batch(Record(0, 1, b"k", b"v", headers))
    [match] = find(history, Query(pattern=re.compile(b"needle")))[0]
    assert match.places == ("header trace", "header needle", r"header '\udcff\n'")


def test_a_damaged_batch_is_reported_once_and_the_search_continues() -> None:
    """Damage is reported once, also if the search takes several passes."""
    history = History().add("k=1 | k=1 broken=1")
    good = bytes(history.segments[0])
    first_size = 70
    history.segments[0] = bytearray(good[:first_size]) + with_payload(good[first_size:], good[first_size + 61 : -1])
    history.batch("a=1", "b=1", "c=1")
    matches, problems = find(history, Query(pattern=re.compile(b".")), max_keys=1)
    assert {0, 3, 4, 5} <= {match.offset for match in matches}
    assert len(problems) == 1


def test_a_query_is_for_a_key_or_for_a_pattern() -> None:
    """A query needs exactly one of key and pattern."""
    with pytest.raises(ValueError):
        Query()
    with pytest.raises(ValueError):
        Query(b"k", re.compile(b"k"))


def test_a_partition_without_segments_holds_nothing() -> None:
    """An empty partition gives no matches and no error."""
    env = MemoryEnv()
    env.make_dirs("/data/t-0")
    env.create_new("/data/meta.properties").close()
    with open_log_directory(env, "/data") as directory:
        assert list(find_records(env, directory.partitions[0], Query(b"k"), print)) == []
