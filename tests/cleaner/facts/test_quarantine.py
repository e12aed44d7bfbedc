"""Cleaning around corrupt segments: what is cleaned, what must not expire, and repairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from diamant.cleaner.engines import compiled, plain_round
from diamant.cleaner.facts.quarantine import MAX_SEGMENTS, Quarantine, corrupt_base, plan_around
from diamant.cleaner.rules.modes import KAFKA, PROMPT
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CleanResult
from diamant.storage import names
from diamant.storage.errors import CorruptLog
from diamant.storage.log.segment_removal import delete_oldest
from tests.cleaner.cleaner_log import DIRECTORY, CleanerLog
from tests.cleaner.engines.test_round_properties import RETENTION_MS, committed_values, histories, play
from tests.effort import examples

quickly = settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Damaged:
    """A log with an unreadable segment at `base_offset`, cleaned as by the service."""

    def __init__(self, log: CleanerLog, base_offset: int) -> None:
        self.log = log
        self.path = names.log_file(DIRECTORY, base_offset)
        self.content = log.env.read_bytes(self.path)
        self.quarantine = Quarantine()
        self.checkpoint = log.first_dirty
        self.damage()

    def damage(self) -> None:
        """Make the segment unreadable from its first byte on, with unchanged size and times."""
        self.write(b"\xff" * len(self.content))

    def repair(self) -> None:
        """Put the right bytes back, a moment later."""
        self.log.now_ms += 1
        self.write(self.content)
        self.log.env.set_mtime_ms(self.path, self.log.now_ms)

    def write(self, content: bytes) -> None:
        """Change only the content of the file."""
        mtime_ms = self.log.env.mtime_ms(self.path)
        file = self.log.env.open(self.path)
        file.pwrite(content, 0)
        file.close()
        self.log.env.set_mtime_ms(self.path, mtime_ms)

    def plan(self) -> CleanPlan:
        """Return the plan of the next round."""
        first_dirty = self.quarantine.first_dirty(self.checkpoint)
        return self.quarantine.plan_around(self.log.plan(first_dirty=first_dirty, mode=PROMPT))

    def round(self) -> CleanResult:
        """Run a round, and another one if it meets the corruption."""
        log = self.log
        self.quarantine.refresh(log.log)
        plan = self.plan()
        try:
            result = plain_round.clean(log.env, plan, on_output=log.swap)
        except CorruptLog as error:
            if self.quarantine.add(log.log, error, plan.first_dirty_offset, log.now_ms) is None:
                raise
            return self.round()
        if plan.first_dirty_offset < plan.first_uncleanable_offset:
            self.checkpoint = self.quarantine.end_round(plan, result.end_offset)
        return result

    def with_content(self) -> CleanerLog:
        """Return the log with the right bytes restored; call `damage` afterwards."""
        self.write(self.content)
        return self.log


def segments_of(*words: tuple[str, ...], **config: Any) -> CleanerLog:
    """Return a log with a closed segment for each tuple of words."""
    log = CleanerLog(**config)
    for batch in words:
        log.data(*batch)
        log.roll()
    return log


# -- what is cleaned -------------------------------------------------------------------------------------------------


def test_the_segments_before_and_after_are_cleaned() -> None:
    """The corrupt segment keeps its bytes, and nothing is merged across it."""
    log = segments_of(("a", "b"), ("b",), ("a", "c"), ("c",), ("c", "d"))
    damaged = Damaged(log, 3)
    result = damaged.round()
    assert result.end_offset == 8
    assert [output.source_base_offsets for output in result.outputs] == [(0, 2), (5, 6)]
    assert log.env.read_bytes(damaged.path) == b"\xff" * len(damaged.content)
    assert damaged.with_content().keys() == ["a", "b", "a", "c", "c", "d"]
    assert [one.base_offset for one in damaged.quarantine.segments] == [3]


def test_several_may_be_corrupt() -> None:
    """Several corrupt segments are found by consecutive rounds."""
    log = segments_of(("a",), ("b",), ("a",), ("b",), ("a", "b"))
    Damaged(log, 1)
    damaged = Damaged(log, 3)
    damaged.round()
    assert [one.base_offset for one in damaged.quarantine.segments] == [1, 3]
    assert [segment.base_offset for segment in log.log.segments] == [0, 1, 2, 3, 4, 6]


# -- what may not expire ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["commit", "abort"])
def test_no_marker_expires_above_it(kind: str) -> None:
    """The corrupt segment may hold batches of the transaction; an abort keeps its entry in the index."""
    log = CleanerLog("t1: a | roll", delete_retention_ms=100)
    marker = log.marker(1, kind)
    log.write("p1: b | roll")
    damaged = Damaged(log, 0)
    aborted = log.aborted()
    for _ in range(4):
        damaged.round()
        log.now_ms += 100
        log.write("more | roll")
    assert log.aborted() == aborted
    assert len(aborted) == (kind == "abort")
    assert marker in damaged.with_content().offsets()
    assert (b"a" in committed_values(log)) == (kind == "commit")


# -- repaired --------------------------------------------------------------------------------------------------------


def test_the_checkpoint_waits_below_it() -> None:
    """The checkpoint on disk waits; in memory rounds continue from where they ended."""
    log = segments_of(("a",), ("b",), ("c",))
    damaged = Damaged(log, 1)
    damaged.round()
    assert damaged.checkpoint == 1
    assert damaged.quarantine.first_dirty(damaged.checkpoint) == 3
    assert damaged.quarantine.first_dirty(None) == 3
    log.write("d | roll")
    assert damaged.plan().first_dirty_offset == 3
    damaged.round()
    assert damaged.checkpoint == 1
    assert damaged.quarantine.first_dirty(damaged.checkpoint) == 4
    assert Quarantine().first_dirty(7) == 7


def test_a_repaired_segment_is_cleaned_of_all_that_was_superseded_meanwhile() -> None:
    """Tombstones above it expire only delete.retention.ms after that round."""
    log = segments_of(("a", "b", "c"), ("x",), ("a=",), ("b",), delete_retention_ms=100)
    damaged = Damaged(log, 0)
    damaged.round()
    log.now_ms += 1000
    damaged.repair()
    assert damaged.quarantine.refresh(log.log)
    assert damaged.plan().first_dirty_offset == 0
    damaged.round()
    repaired_ms = log.now_ms
    assert log.keys() == ["c", "x", "a", "b"]
    assert damaged.checkpoint == 6
    assert not damaged.quarantine.is_over
    log.now_ms = repaired_ms + 99
    assert damaged.quarantine.frozen_above(log.now_ms) == 0
    log.now_ms += 1
    assert damaged.quarantine.frozen_above(log.now_ms) is None
    assert damaged.quarantine.is_over
    log.write("y | roll")
    damaged.round()
    assert log.keys() == ["c", "x", "b", "y"]


def test_a_segment_that_was_cleaned_before_needs_no_map_of_what_is_below() -> None:
    """The checkpoint waits where the segment was last cleaned, above its base."""
    log = segments_of(("a",), ("b",))
    log.clean(mode=PROMPT, segment_bytes=1)
    damaged = Damaged(log, 0)
    log.write("a | roll")
    damaged.round()
    assert damaged.checkpoint == 2
    assert damaged.quarantine.first_dirty(damaged.checkpoint) == 3
    damaged.repair()
    damaged.round()
    assert (log.keys(), damaged.checkpoint) == (["b", "a"], 3)


def test_a_segment_repaired_before_the_next_round_leaves_nothing_behind() -> None:
    """If no round has left the segment out, nothing has to wait for it."""
    log = segments_of(("a",), ("b",))
    quarantine = Quarantine()
    assert quarantine.add(log.log, CorruptLog(names.log_file(DIRECTORY, 0), 0, "broken"), 2, 5) is not None
    assert quarantine.frozen_above(5) == 0
    quarantine.release(log.log)
    assert quarantine.is_over
    assert quarantine.frozen_above(5) is None


def test_a_changed_configuration_is_a_reason_to_try_again() -> None:
    """A segment that is still corrupt is quarantined again."""
    log = segments_of(("a",), ("b",))
    damaged = Damaged(log, 0)
    damaged.round()
    damaged.quarantine.release(log.log)
    assert damaged.quarantine.segments == []
    assert damaged.quarantine.frozen_above(log.now_ms) == 0
    assert not damaged.quarantine.is_over
    damaged.round()
    assert [one.base_offset for one in damaged.quarantine.segments] == [0]
    assert damaged.checkpoint == 0


def test_readers_get_the_file_that_was_put_there_before_the_configuration_changed() -> None:
    """The replaced file is noticed although the segment is released for another reason."""
    log = segments_of(("a",), ("b",))
    damaged = Damaged(log, 0)
    damaged.round()
    segment = log.log.segments[0]
    broken = segment.file.pread(segment.size, 0)
    log.env.remove(segment.path)
    file = log.env.create_new(segment.path)
    file.append(damaged.content)
    file.close()
    log.env.set_mtime_ms(segment.path, log.now_ms + 1)
    damaged.quarantine.release(log.log)
    assert segment.file.pread(segment.size, 0) == damaged.content != broken


def test_a_segment_that_is_gone_holds_nothing_back() -> None:
    """When retention removes the segment, its quarantine ends."""
    log = segments_of(("a",), ("b",), ("c",))
    damaged = Damaged(log, 0)
    damaged.round()
    delete_oldest(log.log, 1)
    assert [one.base_offset for one in damaged.quarantine.refresh(log.log)] == [0]
    assert damaged.quarantine.is_over
    assert damaged.quarantine.frozen_above(log.now_ms) is None


# -- refusals --------------------------------------------------------------------------------------------------------


def test_only_closed_segments_can_be_put_into_quarantine() -> None:
    """Other files, the active segment and quarantined segments are refused."""
    log = segments_of(("a",), ("b",))
    quarantine = Quarantine()
    for name in ("1.index", "00000000000000000007.log", f"{2:020d}.log", f"{0:020d}.log.cleaned", "x"):
        assert quarantine.add(log.log, CorruptLog(f"{DIRECTORY}/{name}", 0, "broken"), 0, 5) is None
    error = CorruptLog(f"{DIRECTORY}/{1:020d}.log", 17, "broken")
    found = quarantine.add(log.log, error, 0, 5)
    assert found is not None
    assert (found.base_offset, found.position, found.reason, found.since_ms) == (1, 17, "broken", 5)
    assert quarantine.add(log.log, error, 0, 5) is None
    assert corrupt_base(error) == 1


def test_too_many_corrupt_segments_are_no_case_for_it() -> None:
    """With too many corrupt segments the whole partition is uncleanable."""
    log = segments_of(*[(f"k{number}",) for number in range(MAX_SEGMENTS + 1)])
    quarantine = Quarantine()
    errors = [CorruptLog(names.log_file(DIRECTORY, base), 0, "broken") for base in range(MAX_SEGMENTS + 1)]
    assert [quarantine.add(log.log, error, 0, 0) is None for error in errors] == [False] * MAX_SEGMENTS + [True]


def test_mode_kafka_knows_no_quarantine() -> None:
    """In mode kafka a corrupt segment stops the cleaning of its partition."""
    log = segments_of(("a",))
    plan = log.plan(mode=KAFKA)
    assert plan_around(plan, []) is plan
    with pytest.raises(ValueError, match="mode kafka"):
        plan_around(plan, [0])


def test_a_plan_leaves_out_only_its_own_segments() -> None:
    """A corrupt segment that is gone is not in the plan."""
    plan = plan_around(segments_of(("a",), ("b",)).plan(mode=PROMPT), [1, 99], 0)
    assert (plan.quarantined, plan.horizons_frozen_above) == ({1}, 0)


def test_a_round_without_a_dirty_range_has_no_checkpoint() -> None:
    """Such a round is refused, since it would move the checkpoint back."""
    log = segments_of(("a",))
    with pytest.raises(ValueError, match="no dirty range"):
        Quarantine().end_round(log.plan(first_dirty=1, mode=PROMPT), 1)


# -- any history -----------------------------------------------------------------------------------------------------


DELETED_ABOVE = [("data", -1, ["a"], 0), ("roll",), ("data", -1, ["a=", "b"], 0), ("roll",)]
"""The corrupt segment holds an older record of a tombstone's key: the tombstone must not expire."""
ENDED_WITHIN = [
    ("data", -1, ["a", "b"], 0), ("data", 11, ["c"], 0), ("roll",), ("marker", 11, "abort"), ("roll",),
    ("data", 11, ["b"], 0), ("marker", 11, "commit"), ("roll",),
]  # fmt: skip
"""The corrupt segment holds the end of a transaction: a later commit of its producer must not be taken for aborted."""


@quickly
@given(histories, st.integers(0, 5), st.sampled_from([150, 400]), st.booleans())
@example(DELETED_ABOVE, 0, 400, True)
@example(ENDED_WITHIN, 1, 400, True)
def test_nothing_comes_back_from_a_corrupt_segment(
    history: list[Any], index: int, segment_bytes: int, with_traffic: bool
) -> None:
    """A reader finds the last value of each key, during the quarantine and after the repair."""
    log = play(history, mode=PROMPT, segment_bytes=segment_bytes)
    closed = [segment for segment in log.log.segments[:-1] if segment.size]
    if not closed:
        return
    expected = committed_values(log)
    damaged = Damaged(log, closed[index % len(closed)].base_offset)
    for number in range(4):
        damaged.round()
        assert committed_values(damaged.with_content()) == expected
        damaged.damage()
        log.now_ms += RETENTION_MS
        if with_traffic:
            log.data(f"traffic-{number}=1")
            expected[f"traffic-{number}".encode()] = b"1"
            log.roll()
    damaged.repair()
    for _ in range(4):
        damaged.quarantine.refresh(log.log)
        plain_round.clean(log.env, plan := damaged.plan(), on_output=log.swap)
        if plan.first_dirty_offset < plan.first_uncleanable_offset:
            damaged.checkpoint = damaged.quarantine.end_round(plan, plan.first_uncleanable_offset)
        assert committed_values(log) == expected
        log.now_ms += RETENTION_MS
    assert damaged.quarantine.frozen_above(log.now_ms) is None


@quickly
@given(histories, st.integers(0, 5), st.integers(0, 5))
def test_both_engines_clean_around_it_alike(history: list[Any], corrupt: int, untouched: int) -> None:
    """Equal plans give equal files, with one segment in quarantine and another left alone."""
    log = play(history, mode=PROMPT, segment_bytes=200)
    log.now_ms += RETENTION_MS
    closed = [segment.base_offset for segment in log.log.segments[:-1]]
    if not closed:
        return
    damaged = Damaged(log, closed[corrupt % len(closed)])
    plan = plan_around(log.plan(mode=PROMPT), [closed[corrupt % len(closed)]])
    clean = [base for base in closed if base < log.first_dirty]
    if clean:
        plan = replace(plan, untouched=frozenset({clean[untouched % len(clean)]}))
    found = []
    for engine in (plain_round.clean, compiled.clean):
        result = engine(log.env, plan)
        files = {name: content for name, content in log.files().items() if name.endswith(".cleaned")}
        for name in files:
            log.env.remove(f"{DIRECTORY}/{name}")
        found.append((result.end_offset, result.outputs, files))
    assert found[0] == found[1]
    assert log.env.read_bytes(damaged.path) == b"\xff" * len(damaged.content)
