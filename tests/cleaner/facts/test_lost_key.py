"""The facts of outputs that lost one key, derived from those of their sources."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from diamant.cleaner.engines import compiled, plain_round
from diamant.cleaner.facts import key_filter, segment_keys
from diamant.cleaner.facts.facts_file import load_facts, load_filter_bytes
from diamant.cleaner.facts.key_filter import KeyFilter
from diamant.cleaner.facts.lost_key import Touched, facts_without_key, kept_apart, only_known
from diamant.cleaner.facts.segment_facts import SegmentFacts
from diamant.cleaner.rules.modes import PROMPT
from diamant.cleaner.rules.result import OutputSegment
from diamant.storage import names
from tests.cleaner.cleaner_log import DIRECTORY, CleanerLog
from tests.cleaner.engines.test_round_properties import play
from tests.cleaner.facts.test_key_filter import (
    HASH_KEY,
    dirty_hashes,
    hash_of,
    hashes,
    learn,
    leave_alone,
    plan_of,
    quickly,
    sparse_histories,
    three_segments,
    words,
)

plain_histories = st.lists(
    st.tuples(
        st.just("data"),
        st.sampled_from([-1, -1, -1, -1, 1]),
        st.lists(st.sampled_from([f"key-{number}" for number in range(12)]), min_size=1, max_size=4),
        st.sampled_from([0, 0, 4]),
    ),
    min_size=4,
    max_size=12,
)
"""Records without tombstones, markers and rolls."""


def clean(log: CleanerLog) -> dict[int, SegmentFacts | None]:
    """Run a round. For each output whose source may have lost one key alone, return the derived facts, which must equal
    those of reading the output, or None.
    """
    learn(log)
    plan = plan_of(log)
    touched: dict[int, Touched] = {}
    found: dict[int, SegmentFacts | None] = {}

    def note(facts: SegmentFacts, keys: KeyFilter, dirty: array[int]) -> None:
        if (only := only_known(keys, dirty)) is not None:
            touched[facts.base_offset] = Touched(facts, only)

    def swap(output: OutputSegment) -> None:
        base = output.base_offset
        if base in touched:
            made = facts_without_key(log.env, plan, output, touched[base])
            found[base] = None if made is None else made[0]
            if made is not None:
                path = names.log_file(DIRECTORY, base) + names.CLEANED_SUFFIX
                facts, keys = segment_keys.read_key_facts(log.env, path, base, output.size, HASH_KEY)
                assert keys is not None
                assert made[0] == facts
                assert bytes(made[1].data) == bytes(keys.data)
        log.swap(output)

    cleaned = leave_alone(log.env, plan, lambda: dirty_hashes(log, plan), on_touched=note)
    plain_round.clean(log.env, cleaned, on_output=swap)
    return found


# -- filters ---------------------------------------------------------------------------------------------------------


@given(words.filter(bool), st.data())
def test_a_filter_without_a_key_is_that_of_the_others(own: list[int], data: st.DataObject) -> None:
    """The filter without a key equals that of the other keys, byte for byte, unless these need other buckets."""
    lost = data.draw(st.sampled_from(own))
    before = KeyFilter.of(hashes(own))
    after = KeyFilter.of(hashes([one for one in own if one != lost]))
    made = before.without(lost)
    if after.bits != before.bits:
        assert made is None
        return
    assert made is not None
    assert bytes(made.data) == bytes(after.data)


def test_one_of_two_keys_that_look_the_same_stays() -> None:
    """If two keys have the same fingerprint, removing one keeps the other."""
    alike = [1 << 40, (1 << 40) + 1]
    made = KeyFilter.of(hashes(alike)).without(alike[0])
    assert made is not None
    assert made.key_count == 1
    assert made.may_have_any(hashes([alike[1]]))


def test_a_key_that_is_not_there_is_not_taken_away() -> None:
    """Removing an absent key, also from an empty filter, gives None."""
    assert KeyFilter.of(hashes([1 << 40])).without(1 << 50) is None
    assert KeyFilter.of(hashes([])).without(0) is None


@given(words, words)
def test_the_only_known_hash_is_found(own: list[int], others: list[int]) -> None:
    """The only known hash is found among any number of unknown ones; None if there are more."""
    keys = KeyFilter.of(hashes(own))
    unknown = [one for one in set(others) if not keys.may_have_any(hashes([one]))]
    for one in own[:3]:
        assert only_known(keys, hashes([*unknown[:5], one, *unknown[5:]])) == one
    if len(set(own)) > 1:
        assert only_known(keys, hashes([min(own), *unknown, max(own)])) is None


# -- facts -----------------------------------------------------------------------------------------------------------


def test_a_segment_that_loses_a_key_is_not_read_for_its_facts() -> None:
    """Its facts are derived whether the key was in the first batch or in a later one."""
    log = three_segments()
    log.write("a0=new | roll")
    (made,) = clean(log).values()
    assert made is not None
    assert made.keys is not None
    assert (made.keys.key_count, made.base_offset) == (6, 0)


def test_a_first_batch_that_is_gone_is_no_longer_the_first() -> None:
    """The facts have the offset of the first remaining batch."""
    log = CleanerLog(segment_bytes=300)
    log.data("a")
    log.data(f"b={'x' * 150}")
    log.roll()
    log.clean(mode=PROMPT)
    log.data("a", f"c={'x' * 150}")
    log.roll()
    (made,) = clean(log).values()
    assert made is not None
    assert made.first_offset == 1


@pytest.mark.parametrize("kind", ["two keys", "a horizon", "a producer", "merged"])
def test_other_segments_are_read(kind: str) -> None:
    """If several keys may be lost, or horizons, empty batches or merged neighbours change the facts, the output is read."""
    log = CleanerLog(segment_bytes=400, delete_retention_ms=10_000)
    log.data("a", producer=1) if kind == "a producer" else log.data("a")
    log.data(*(["t="] if kind == "a horizon" else ["b"]), f"fill={'x' * 150}")
    log.roll()
    if kind == "merged":
        log.data("small")
        log.roll()
    log.clean(mode=PROMPT, segment_bytes=1)
    log.clean(mode=PROMPT, segment_bytes=1)
    log.data("a", *(["fill"] if kind == "two keys" else []), f"later={'x' * 300}")
    log.roll()
    assert set(clean(log).values()) <= {None}


@quickly
@given(st.one_of(plain_histories, plain_histories, sparse_histories), st.sampled_from(["key-1", "key-2", "key-3"]))
def test_derived_facts_equal_those_of_reading(history: list[Any], key: str) -> None:
    """On any history derived facts equal those of reading."""
    log = play(history, mode=PROMPT, segment_bytes=400)
    log.roll()
    for _ in range(2):
        log.clean(mode=PROMPT)
    # Merged with nothing.
    log.data(key, f"filled={'x' * 300}")
    log.roll()
    made = [one for one in clean(log).values() if one is not None]
    event(f"{min(len(made), 2)} made")


def test_the_compiled_engine_makes_them() -> None:
    """Derived facts are in the output's file, and the next round uses them."""
    large = key_filter.MIN_LOG_BYTES // 21
    log = three_segments(large)
    compiled.clean(log.env, plan_of(log), on_output=log.swap)
    log.first_dirty = 21
    log.write("b3=new z | roll")
    compiled.clean(log.env, plan_of(log), on_output=log.swap)
    segment = next(one for one in log.log.segments if one.base_offset == 7)
    facts, keys = segment_keys.read_key_facts(log.env, segment.path, 7, segment.size, HASH_KEY)
    assert keys is not None
    assert load_facts(log.env, DIRECTORY, 7) == facts
    assert load_filter_bytes(log.env, DIRECTORY, 7) == bytes(keys.data)
    assert not keys.may_have_any(hashes([hash_of(b"b3")]))
    plan = replace(plan_of(log), first_dirty_offset=log.log.log_end_offset)
    assert leave_alone(log.env, plan, lambda: hashes([hash_of(b"b3")])).untouched >= {7}


def test_a_large_segment_is_not_merged_with_the_tombstone() -> None:
    """The large segment only loses the key, also from its filter. The tombstone goes to its small neighbour, which then grows."""
    log = CleanerLog()
    for number in range(10):
        log.data(f"a{number}={'x' * (key_filter.MIN_LOG_BYTES // 8)}")
    log.roll()
    for line in ("small", "a3=", "a5="):
        compiled.clean(log.env, plan_of(log), on_output=log.swap)
        log.first_dirty = log.log.log_end_offset
        log.write(f"{line} | roll")
    compiled.clean(log.env, plan_of(log), on_output=log.swap)
    assert [one.segment for one in log.stored()] == [0] * 8 + [10] * 3
    known = load_facts(log.env, DIRECTORY, 0)
    assert known is not None
    keys = key_filter.load_filter(log.env, DIRECTORY, known, HASH_KEY)
    assert keys is not None
    assert (keys.key_count, keys.may_have_any(hashes([hash_of(b"a3"), hash_of(b"a5")]))) == (8, False)


def test_a_segment_that_is_not_large_is_merged() -> None:
    """A touched segment stays apart if it is many times as large as the rest of its group."""
    log = CleanerLog("a b | roll | c | roll | d | roll")
    plan = plan_of(log)
    sizes = [one.size for one in plan.segments]
    for first, apart in ((8 * sum(sizes[1:]), {0}), (8 * sum(sizes[1:]) - 1, set())):
        segments = (replace(plan.segments[0], size=first), *plan.segments[1:])
        assert kept_apart(replace(plan, segments=segments), {0}).apart == apart
    assert not kept_apart(replace(plan, segments=segments), set()).apart
