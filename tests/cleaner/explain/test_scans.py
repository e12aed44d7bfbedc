"""The scans of `explain`, with and without kernels, compared with a naive reader."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.cleaner.explain import scans
from diamant.cleaner.explain.scans import scan_key, scan_tombstones
from tests.cleaner.log_history import History, damage, histories
from tests.cleaner.queries.test_queries import opened, outcomes
from tests.effort import examples
from tests.memory_env import MemoryEnv


def written(history: History, data: st.DataObject) -> tuple[MemoryEnv, bool]:
    """Write a partition, damaged or not."""
    env = MemoryEnv()
    history.write(env, "/data")
    is_damaged = data.draw(st.booleans())
    if is_damaged:
        damage(env, f"/data/t-0/{data.draw(st.sampled_from(sorted(history.segments))):020d}.log", data)
    return env, is_damaged


@settings(max_examples=examples(150), deadline=None)
@given(histories(), st.sampled_from([b"", b"a", b"key-1", b"not there"]), st.data())
def test_every_record_of_a_key_is_found(history: History, key: bytes, data: st.DataObject) -> None:
    """Strategy: any partition. Invariant: the same with and without kernels; in a sound one the offsets with that key."""
    env, is_damaged = written(history, data)
    compiled, plain = (
        scan_key(opened(env, history), key, outcomes(history), history.log_start_offset, is_compiled=one)
        for one in (True, False)
    )
    assert compiled == plain
    if not is_damaged:
        assert [one.offset for one in compiled.records] == [one.offset for one, _ in history.records if one.key == key]


@settings(max_examples=examples(150), deadline=None)
@given(histories(), st.data())
def test_the_record_at_an_offset_is_found(history: History, data: st.DataObject) -> None:
    """Strategy: any partition and offset. Invariant: the same with and without kernels; in a sound one that record or marker."""
    env, is_damaged = written(history, data)
    offset = data.draw(st.integers(0, history.offset))
    compiled, plain = (
        scan_key(opened(env, history), None, outcomes(history), 0, at_offset=offset, is_compiled=one)
        for one in (True, False)
    )
    assert compiled == plain
    if not is_damaged:
        there = [one.offset for one, _ in history.records] + [one for one, _, _ in history.markers]
        assert [one.offset for one in compiled.records] == [one for one in there if one == offset]


@settings(max_examples=examples(150), deadline=None)
@given(histories(), st.integers(1, 5), st.data())
def test_the_latest_tombstones_are_found(history: History, most: int, data: st.DataObject) -> None:
    """Strategy: any partition, room for few tombstones. Invariant: the same with and without kernels; with room, in a sound
    partition, exactly those that no later committed record follows.
    """
    env, is_damaged = written(history, data)

    def found(*, is_compiled: bool) -> scans.TombstoneScan:
        return scan_tombstones(
            opened(env, history),
            outcomes(history),
            history.log_start_offset,
            keeps_key=lambda key: key == b"a",
            most=most,
            is_compiled=is_compiled,
        )

    compiled = found(is_compiled=True)
    assert compiled == found(is_compiled=False)
    if not is_damaged and not compiled.left_out:
        statuses = history.statuses()
        assert [one.offset for one in compiled.tombstones] == [
            one.offset for one, _ in history.records if statuses[one.offset] == "tombstone"
        ]
