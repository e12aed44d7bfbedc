"""Segments that a round leaves alone: the filter of their keys, and results equal to those of a whole round."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from diamant.cleaner.engines import compiled, plain_round
from diamant.cleaner.engines.dirty_range import map_dirty_range
from diamant.cleaner.engines.parsed_chunks import ParsedChunks
from diamant.cleaner.engines.work import RoundWork
from diamant.cleaner.facts import key_filter, segment_keys
from diamant.cleaner.facts.facts_file import facts_path, file_facts, load_facts
from diamant.cleaner.facts.key_filter import KeyFilter, hash_id, segments_to_leave_alone
from diamant.cleaner.rules.modes import KAFKA, PROMPT
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import OutputSegment
from diamant.storage.errors import CorruptLog
from tests import naive
from tests.cleaner.cleaner_log import DIRECTORY, CleanerLog
from tests.cleaner.engines.test_round_properties import histories, play
from tests.effort import examples

HASH_KEY = bytes(range(16))

words = st.lists(st.integers(0, 2**64 - 1), max_size=200)
many_keys = st.sampled_from([f"key-{number}{'=' if number % 5 == 0 else ''}" for number in range(40)])
# Rather more different keys, rolls and rounds, and fewer transactions, than in ordinary histories.
sparse_histories = st.lists(
    st.one_of(
        *[
            st.tuples(
                st.just("data"),
                st.sampled_from([-1, -1, 1]),
                st.lists(many_keys, min_size=1, max_size=3),
                st.sampled_from([0, 0, 4]),
            )
        ]
        * 6,
        st.tuples(st.just("data"), st.just(11), st.lists(many_keys, min_size=1, max_size=2), st.just(0)),
        st.tuples(st.just("marker"), st.just(11), st.sampled_from(["commit", "abort"])),
        st.just(("roll",)),
        st.just(("roll",)),
        st.just(("clean",)),
        st.just(("clean",)),
        st.tuples(st.just("wait"), st.sampled_from([1, 20, 60])),
    ),
    min_size=4,
    max_size=30,
)
quickly = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


leave_alone = partial(key_filter.leave_alone, min_log_bytes=0)
"""Small logs count as large ones unless a test says otherwise."""


def hashes(values: list[int]) -> array[int]:
    """Return an array of hashes."""
    return array("Q", values)


def hash_of(key: bytes) -> int:
    """Return the first half of a key's hash under HASH_KEY."""
    return int.from_bytes(naive.siphash128(HASH_KEY, key)[:8], "little")


def plan_of(log: CleanerLog, **fields: Any) -> CleanPlan:
    """Return the plan of a round in mode prompt."""
    return replace(log.plan(mode=PROMPT), hash_key=HASH_KEY, **fields)


def learn(log: CleanerLog) -> dict[int, Any]:
    """File facts and filters of every closed segment."""
    found = {}
    for segment in log.log.segments[:-1]:
        facts, keys = segment_keys.read_key_facts(log.env, segment.path, segment.base_offset, segment.size, HASH_KEY)
        assert keys is not None
        file_facts(log.env, DIRECTORY, facts, keys.data)
        found[segment.base_offset] = facts
    return found


def dirty_hashes(log: CleanerLog, plan: CleanPlan) -> array[int]:
    """Return the hashes of the keys in the map of a round."""
    work = RoundWork(log.env, plan)
    key_map = plain_round.PlainMap(work, ParsedChunks(work))
    map_dirty_range(work, key_map)
    return hashes([hash_of(key) for key in key_map.last_offsets])


def clean_leaving_alone(log: CleanerLog) -> frozenset[int]:
    """Run a round that leaves alone what it can; return those segments."""
    learn(log)
    plan = plan_of(log)
    plan = leave_alone(log.env, plan, lambda: dirty_hashes(log, plan))
    plain_round.clean(log.env, plan, on_output=log.swap)
    return plan.untouched


def three_segments(value_bytes: int = 60, **config: Any) -> CleanerLog:
    """Two cleaned segments of 7 records, and a dirty one; too large to be merged."""
    log = CleanerLog(segment_bytes=7 * (value_bytes + 73) + 69, **config)
    for name in "abc":
        for number in range(7):
            log.data(f"{name}{number}={'x' * value_bytes}")
        log.roll()
        if name == "b":
            log.clean(mode=PROMPT)
    return log


# -- the filter ------------------------------------------------------------------------------------------------------


@given(words, words)
def test_the_filter_knows_its_keys(own: list[int], others: list[int]) -> None:
    """Each of its hashes is found, among any others, also after loading the filter from disk."""
    keys = KeyFilter.of(hashes(own + own[:3]))
    keys = KeyFilter(bytes(keys.data), keys.key_count)
    assert keys.key_count == len(set(own))
    for value in own:
        assert keys.may_have_any(hashes([*others, value]))
    for value in set(others) - set(own):
        shift = 64 - 32 - keys.bits
        assert keys.may_have_any(hashes([value])) == (value >> shift in {one >> shift for one in own})


@pytest.mark.slow
def test_the_filter_hardly_ever_knows_another_key() -> None:
    """Of a million absent keys none is found among 100,000; 4.25 to 4.5 bytes a key."""
    made = random.Random(5)
    own, others = (array("Q", made.randbytes(8 * count)) for count in (100_000, 1_000_000))
    keys = KeyFilter.of(array("Q", own))
    assert not keys.may_have_any(others)
    assert 4.2 * 100_000 <= len(keys.data) <= 4.5 * 100_000 + 8
    for value in own[:50]:
        assert keys.may_have_any(array("Q", [*others[:1000], value]))


@pytest.mark.parametrize(
    ("data", "count"), [(b"", 0), (bytes(8), 1), (bytes(16), 0), (bytes(13), 1), (b"\2\0\0\0" * 4, 1)]
)
def test_other_bytes_are_no_filter(data: bytes, count: int) -> None:
    """Inconsistent sizes are refused."""
    with pytest.raises(ValueError, match="not a filter"):
        KeyFilter(data, count)


def test_damaged_numbers_lead_nowhere() -> None:
    """A bucket with an end beyond the filter is searched only within the filter."""
    keys = KeyFilter(b"\0\0\0\0" + b"\xff" * 4 + b"\1\0\0\0" + b"\2\0\0\0", 1)
    assert keys.may_have_any(hashes([2 << 31]))
    assert not keys.may_have_any(hashes([3 << 31]))


# -- what is left alone ----------------------------------------------------------------------------------------------


def test_segments_that_no_dirty_key_touches_stay_as_they_are() -> None:
    """The round writes the segments of the dirty range only."""
    log = three_segments()
    before = log.segment_files()
    assert clean_leaving_alone(log) == {0, 7}
    assert log.segment_files() == before
    assert len(log.keys()) == 21


def test_small_segments_are_still_merged() -> None:
    """Untouched ones that are less than half of segment.bytes are written into one."""
    log = CleanerLog(segment_bytes=1000)
    for name in "abcd":
        log.data(f"{name}={'x' * 60}")
        log.roll()
        if name == "b":
            log.clean(mode=PROMPT, segment_bytes=1)
    assert [segment.base_offset for segment in log.log.segments] == [0, 1, 2, 3, 4]
    assert clean_leaving_alone(log) == set()
    assert [segment.base_offset for segment in log.log.segments] == [0, 4]


def test_a_segment_is_not_rewritten_for_little_that_would_be_merged_with_it() -> None:
    """A segment eight times as large as the rest of its group stays; small ones are merged until they are large enough."""
    log = CleanerLog(segment_bytes=4000)
    log.data(f"a={'x' * 1400}")
    log.roll()
    log.clean(mode=PROMPT)
    bases = []
    for name in "bcd":
        log.data(f"{name}=1")
        log.roll()
        log.first_dirty = log.log.segments[-2].base_offset
        assert (0 in clean_leaving_alone(log)) == (name != "d")
        bases.append([segment.base_offset for segment in log.log.segments])
    assert bases == [[0, 1, 2], [0, 1, 3], [0, 4]]
    assert log.keys() == ["a", "b", "c", "d"]


def test_a_segment_alone_is_not_rewritten_for_its_size() -> None:
    """A small segment without neighbours to merge with stays."""
    log = CleanerLog("a=1 | roll", segment_bytes=1000)
    log.clean(mode=PROMPT)
    log.data(f"b={'x' * 880}")
    log.roll()
    assert clean_leaving_alone(log) == {0}


@pytest.mark.parametrize("kind", ["transaction", "keyless", "below log start", "tombstone", "empty header"])
def test_segments_in_which_something_else_changes_are_rewritten(kind: str) -> None:
    """Transactions, records without keys or below the log start, tombstones to be stamped, headers that may go."""
    log = CleanerLog(segment_bytes=300)
    if kind == "transaction":
        log.write("t1: a | commit 1")
    elif kind == "keyless":
        log.data((None, b"x"))
    elif kind == "tombstone":
        log.data("a=")
    elif kind == "empty header":
        log.data("a", producer=1)
    else:
        log.data("a")
    log.data(f"fill={'x' * 150}")
    log.roll()
    if kind == "empty header":
        log.data("a", f"other={'x' * 200}")
        log.roll()
        log.clean(mode=PROMPT)
        log.data(f"later={'x' * 200}", producer=1)
    else:
        log.first_dirty = log.log.log_end_offset
        log.data(f"later={'x' * 200}")
    log.roll()
    if kind == "below log start":
        log.log.delete_records(1)
    assert 0 not in clean_leaving_alone(log)


def test_a_horizon_that_is_over_makes_a_segment_be_rewritten() -> None:
    """A segment with a stamped tombstone is left alone until the horizon is over."""
    log = CleanerLog(segment_bytes=300, delete_retention_ms=100)
    log.data("a=", f"fill={'x' * 150}")
    log.roll()
    log.clean(mode=PROMPT)
    log.data(f"later={'x' * 200}")
    log.roll()
    log.now_ms += 99
    assert clean_leaving_alone(log) == {0}
    log.now_ms += 1
    assert clean_leaving_alone(log) == set()
    assert log.keys() == ["fill", "later"]


def test_nothing_is_left_alone_in_mode_kafka() -> None:
    """In mode kafka every round writes the whole log."""
    log = three_segments()
    facts = learn(log)
    plan = replace(log.plan(mode=KAFKA), hash_key=HASH_KEY)
    assert segments_to_leave_alone(plan, facts, hashes([]), lambda _base: KeyFilter.of(hashes([]))) == set()


def test_a_filter_of_another_file_or_key_counts_for_nothing() -> None:
    """A filter is ignored without birth times, under another hash key, with damaged bytes, or for a rewritten file."""
    log = three_segments()
    learn(log)
    plan = plan_of(log)
    dirty = dirty_hashes(log, plan)
    assert leave_alone(log.env, plan, lambda: dirty).untouched == {0, 7}
    assert leave_alone(log.env, replace(plan, hash_key=bytes(16)), lambda: dirty).untouched == set()
    path = facts_path(DIRECTORY, 0)
    data = log.env.read_bytes(path)
    for at in (0, 5, 20, len(data) - 1):
        log.env.write_atomically(path, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert leave_alone(log.env, plan, lambda: dirty).untouched == {7}
    log.env.write_atomically(path, data)
    log.env.set_mtime_ms(log.log.segments[1].path, 5)
    assert leave_alone(log.env, plan, lambda: dirty).untouched == {0}


def test_filters_are_worth_it_in_large_logs() -> None:
    """The first round that writes a segment makes its filter, however much is dirty. Never in mode kafka."""
    log = three_segments()
    plan = plan_of(log)
    assert not key_filter.is_worth_filters(plan)
    assert key_filter.leave_alone(log.env, plan, lambda: hashes([])) is plan
    large = replace(plan, segments=tuple(replace(one, size=8 << 20) for one in plan.segments))
    assert key_filter.is_worth_filters(large)
    assert not key_filter.is_worth_filters(replace(large, mode=KAFKA))
    assert key_filter.is_worth_filters(replace(large, first_dirty_offset=0))


@quickly
@given(sparse_histories, st.sampled_from([200, 250, 400]))
def test_leaving_alone_comes_to_the_same_as_a_whole_round(history: list[Any], segment_bytes: int) -> None:
    """On any history every batch is equal, byte for byte, and the files left alone are unchanged."""
    whole, partly = (play(history, mode=PROMPT, segment_bytes=segment_bytes) for _ in range(2))
    for log in (whole, partly):
        log.roll()
        log.clean(mode=PROMPT)
        log.data("new", "key-7", f"filled={'x' * 40}")
        log.roll()
    whole.clean(mode=PROMPT)
    files = partly.segment_files()
    untouched = clean_leaving_alone(partly)
    event(f"{min(len(untouched), 2)} left alone")
    assert [batch.data for batch in partly.stored()] == [batch.data for batch in whole.stored()]
    assert partly.aborted() == whole.aborted()
    after = partly.segment_files()
    for name, content in files.items():
        if int(name[:20]) in untouched:
            assert after[name] == content


# -- what is read of a segment ---------------------------------------------------------------------------------------


@quickly
@given(histories)
def test_the_compiled_reading_finds_what_the_plain_one_does(history: list[Any]) -> None:
    """Horizons, transactions and emptied batches are equal, and the filter has all keys."""
    log = play(history, mode=PROMPT)
    log.clean(mode=PROMPT)
    for segment in log.log.segments[:-1]:
        plain = segment_facts_of(log, segment.base_offset, segment.size)
        found, keys = segment_keys.read_key_facts(log.env, segment.path, segment.base_offset, segment.size, HASH_KEY)
        assert keys is not None
        assert found.keys is not None
        assert replace(found, keys=None) == plain
        batches = [batch for batch in log.stored() if batch.segment == segment.base_offset]
        records = [record for batch in batches if not batch.header.is_control for record in batch.records]
        assert found.keys.hash_id == hash_id(HASH_KEY)
        assert found.keys.has_keyless == any(record.key is None for record in records)
        for record in records:
            assert record.key is None or keys.may_have_any(hashes([hash_of(record.key)]))


def segment_facts_of(log: CleanerLog, base_offset: int, size: int) -> Any:
    """Return the facts that the plain reading finds."""
    from diamant.cleaner.facts.facts_file import read_facts

    return read_facts(log.env, DIRECTORY, base_offset, size)


def test_an_outputs_facts_are_filed_before_it_is_swapped_in() -> None:
    """The facts belong to the new file; a swap changes neither its birth nor its modification time."""
    log = three_segments()
    plan = plan_of(log)

    def swap(output: OutputSegment) -> None:
        segment_keys.file_key_facts(log.env, plan, output)
        log.swap(output)

    plain_round.clean(log.env, plan, on_output=swap)
    log.first_dirty = 21
    log.write("z | roll")
    plan = plan_of(log)
    assert leave_alone(log.env, plan, lambda: hashes([hash_of(b"z")])).untouched == {0, 7, 14}
    facts = load_facts(log.env, DIRECTORY, 7)
    assert facts is not None
    assert facts.keys is not None
    assert facts.keys.key_count == 7


def test_the_compiled_engine_leaves_segments_alone_by_itself() -> None:
    """A round files the keys of its outputs; the next one rewrites only what it must, with the result of a whole round."""
    large = key_filter.MIN_LOG_BYTES // 21
    logs = [three_segments(large), three_segments(large)]
    for log in logs:
        plan = plan_of(log)
        compiled.clean(log.env, plan, on_output=log.swap)
        log.first_dirty = 21
        log.write("b3=new z | roll")
    for base_offset in (0, 7, 14):
        logs[1].env.remove(facts_path(DIRECTORY, base_offset))
    found = [compiled.clean(log.env, plan_of(log), on_output=log.swap) for log in logs]
    assert [output.base_offset for output in found[0].outputs] == [7, 21]
    assert [output.base_offset for output in found[1].outputs] == [0, 7, 14, 21]
    assert [batch.data for batch in logs[0].stored()] == [batch.data for batch in logs[1].stored()]
    assert found[0].stats.bytes_read < found[1].stats.bytes_read


def test_a_corrupt_segment_has_no_facts() -> None:
    """Reading fails at the place where a round would."""
    log = three_segments()
    segment = log.log.segments[0]
    file = log.env.open(segment.path)
    file.pwrite(b"\xff", 100)
    with pytest.raises(CorruptLog, match="CRC"):
        segment_keys.read_key_facts(log.env, segment.path, 0, segment.size, HASH_KEY)
