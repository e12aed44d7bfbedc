"""Facts about closed segments, and the rounds that start for a horizon alone."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from diamant.cleaner.engines import plain_round
from diamant.cleaner.facts import partition_facts
from diamant.cleaner.facts.facts_file import (
    facts_from,
    facts_path,
    file_facts,
    load_facts,
    prune,
    read_facts,
    text_of_output,
)
from diamant.cleaner.facts.partition_facts import PartitionFacts, horizon_round_end
from diamant.cleaner.facts.segment_facts import (
    DATA,
    MARKER,
    STAMPED_MARKER,
    FactsCollector,
    Horizon,
    SegmentFacts,
    Step,
)
from diamant.cleaner.rules.modes import PROMPT
from diamant.cleaner.rules.result import OutputSegment
from diamant.storage import names
from diamant.storage.errors import CorruptLog
from diamant.storage.log.segment_removal import delete_oldest
from diamant.storage.segments.segment import scan_headers
from tests.cleaner.cleaner_log import DAY_MS, DIRECTORY, START_MS, CleanerLog
from tests.cleaner.engines.test_round_properties import RETENTION_MS, committed_values, histories, play
from tests.effort import examples

quickly = settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Watched:
    """A log with its facts, cleaned as by the service."""

    def __init__(self, log: CleanerLog) -> None:
        self.log = log
        self.facts = PartitionFacts()
        self.horizon_rounds = 0

    def learn(self) -> None:
        """Read unknown facts."""
        log = self.log.log
        for base_offset, size in self.facts.unknown(log, self.log.first_dirty):
            assert self.facts.add(log, read_facts(self.log.env, DIRECTORY, base_offset, size))

    def clean(self) -> None:
        """Run an ordinary round over everything but the active segment."""
        self.learn()
        self.facts.note_round(self.log.log, self.log.first_dirty, self.log.now_ms)
        self.log.clean(mode=PROMPT)

    def due_ms(self) -> int | None:
        """Return the time of the next round for a horizon."""
        self.learn()
        return self.facts.next_horizon_ms(self.log.log, self.log.first_dirty)

    def clean_for_horizons(self) -> frozenset[int]:
        """Run a round for horizons; return the segments left alone."""
        log = self.log
        self.learn()
        end = horizon_round_end(log.log, log.first_dirty)
        plan = self.facts.without_untouched(log.plan(first_dirty=end, end=end, mode=PROMPT))
        self.facts.note_round(log.log, log.first_dirty, log.now_ms)
        assert plain_round.clean(log.env, plan, on_output=log.swap).end_offset == end
        self.horizon_rounds += 1
        return plan.untouched

    def clean_until_nothing_is_due(self) -> None:
        """Run rounds for horizons, moving the clock to each."""
        while (due_ms := self.due_ms()) is not None:
            assert self.horizon_rounds < 50
            self.log.now_ms = max(self.log.now_ms, due_ms)
            self.clean_for_horizons()


# -- what is read ----------------------------------------------------------------------------------------------------


def facts_of(log: CleanerLog, base_offset: int = 0) -> SegmentFacts:
    """Return the facts of a segment as filed."""
    segment = log.log.segments[log.log.floor_segment(base_offset)]
    return read_facts(log.env, DIRECTORY, base_offset, segment.size, min_filed_bytes=0)


def test_a_stamped_tombstone_is_a_horizon() -> None:
    """The facts have the earliest batch of each horizon; a horizon without a tombstone does not count."""
    log = CleanerLog("a= b | c= | roll", delete_retention_ms=100)
    assert facts_of(log).horizons == ()
    log.clean(mode=PROMPT)
    assert facts_of(log).horizons == (Horizon(START_MS + 100, 0),)
    log.now_ms += 200
    log.clean(first_dirty=3, mode=PROMPT)
    assert log.horizon(0) == START_MS + 100
    assert facts_of(log).horizons == ()


def test_transactions_are_recognized_by_their_steps() -> None:
    """Consecutive batches of a producer are one step, and markers show whether they have a horizon."""
    log = CleanerLog("t1: a | t1: b | plain | t2: c | commit 1 | abort 2 | roll")
    assert facts_of(log).steps == (Step(DATA, 1, 0), Step(DATA, 2, 3), Step(MARKER, 1, 4), Step(MARKER, 2, 5))
    log.clean(mode=PROMPT)
    log.clean(first_dirty=6, mode=PROMPT)
    assert facts_of(log).steps == (
        Step(DATA, 1, 0),
        Step(DATA, 2, 3),
        Step(MARKER, 1, 4),
        Step(MARKER, 2, 5),
    )  # the aborted batch stays as a header: it is its producer's last
    log.write("p2: a b c | roll")
    log.clean(mode=PROMPT)
    log.clean(first_dirty=9, mode=PROMPT)
    assert Step(STAMPED_MARKER, 2, 5) in (facts_of(log).steps or ())


def test_too_many_steps_are_not_kept() -> None:
    """Beyond the limit the segment's transactions are unknown; so are its horizons and empty batches."""
    log = CleanerLog()
    for _ in range(2):
        log.write("t1: a | commit 1")
    log.roll()
    segment = log.log.segments[0]
    collector = FactsCollector(max_steps=2)
    for position, header in scan_headers(segment.file, 0, segment.size):
        collector.add(header, segment.file, position)
    facts = collector.facts(0, segment.size, 0, 0)
    assert facts.steps is None
    assert facts.has_transactions
    assert partition_facts.markers_without_data([facts]) == []


def test_a_damaged_batch_is_an_error() -> None:
    """A damaged batch raises CorruptLog, as in a round."""
    log = CleanerLog("a= | roll", delete_retention_ms=100)
    log.clean(mode=PROMPT)
    log.env.open(log.log.segments[0].path).pwrite(b"\xff", 65)
    with pytest.raises(CorruptLog, match="CRC"):
        facts_of(log)


# -- rounds for horizons ---------------------------------------------------------------------------------------------


def test_markers_go_without_traffic() -> None:
    """One round sets the horizon at once, and another removes the marker when it is over."""
    watched = Watched(CleanerLog("t1: a | abort 1 | t1: b | commit 1 | b | roll", delete_retention_ms=DAY_MS))
    log = watched.log
    watched.clean()
    assert watched.due_ms() == 0
    watched.clean_for_horizons()
    assert log.horizon(1) == START_MS + DAY_MS
    assert watched.due_ms() == START_MS + DAY_MS
    log.now_ms += DAY_MS
    watched.clean_for_horizons()
    assert 1 not in log.offsets()
    assert log.offsets()[-2:] == [3, 4]
    assert watched.due_ms() is None


def test_only_the_segments_in_which_something_is_due_are_written() -> None:
    """Segments with nothing due stay as they are."""
    watched = Watched(CleanerLog(delete_retention_ms=DAY_MS, segment_bytes=200))
    log = watched.log
    for word in ("a", "b=", "c"):
        log.data(word, f"{word[0]}-fill={'x' * 90}")
        log.roll()
    watched.clean()
    log.now_ms += DAY_MS
    before = log.segment_files()
    assert watched.clean_for_horizons() == {0, 4}
    assert {name for name, content in log.segment_files().items() if before[name] != content} == {f"{2:020d}.log"}
    assert log.keys() == ["a", "a-fill", "b-fill", "c", "c-fill"]


def test_a_round_for_horizons_leaves_the_dirty_range_alone() -> None:
    """The round ends with the clean section, at a segment's base."""
    watched = Watched(CleanerLog("a= b | roll", delete_retention_ms=DAY_MS))
    log = watched.log
    watched.clean()
    log.write("b= | roll")
    log.now_ms += DAY_MS
    watched.clean_for_horizons()
    assert log.keys() == ["b", "b"]
    assert log.horizon(2) is None
    assert horizon_round_end(log.log, 0) == 0
    assert horizon_round_end(log.log, 2) == 2
    assert horizon_round_end(log.log, 3) == 3
    assert horizon_round_end(log.log, 1) == 0


def test_a_remaining_horizon_makes_no_further_round_due() -> None:
    """A horizon that remains after its round does not start round after round."""
    watched = Watched(CleanerLog("a= b | roll", delete_retention_ms=100))
    log = watched.log
    watched.clean()
    log.now_ms += 100
    assert watched.due_ms() == log.now_ms
    watched.facts.note_round(log.log, log.first_dirty, log.now_ms)
    assert watched.due_ms() is None


def test_nothing_is_due_above_a_corrupt_segment() -> None:
    """Neither tombstones nor markers expire above a corrupt segment."""
    watched = Watched(CleanerLog("a= b | roll", delete_retention_ms=100))
    log = watched.log
    watched.clean()
    watched.learn()
    assert watched.facts.next_horizon_ms(log.log, 2, frozen_above=0) == START_MS + 100
    assert watched.facts.next_horizon_ms(log.log, 2, frozen_above=-1) is None


def test_a_plan_with_a_dirty_range_is_refused() -> None:
    """With a dirty range, its keys decide which segments are left alone."""
    log = CleanerLog("a | roll")
    with pytest.raises(ValueError, match="dirty range"):
        PartitionFacts().without_untouched(log.plan(mode=PROMPT))


@pytest.mark.slow
@quickly
@given(histories)
def test_in_the_end_no_tombstone_and_no_empty_transaction_is_left(history: list[Any]) -> None:
    """On any log without appends a few rounds remove all tombstones and empty transactions, and change no value."""
    watched = Watched(play(history, mode=PROMPT))
    log = watched.log
    before = committed_values(log)
    watched.clean()
    watched.clean_until_nothing_is_due()
    assert committed_values(log) == before
    stored = log.stored()
    data = [batch for batch in stored if not batch.header.is_control]
    assert all(record.value is not None for batch in data for record in batch.records)
    with_data = set()
    for batch in stored:
        header = batch.header
        if header.is_control and header.record_count:
            assert header.producer_id in with_data
            with_data.discard(header.producer_id)
        elif header.is_transactional and not header.is_control:
            with_data.add(header.producer_id)
    assert log.now_ms <= START_MS + 26 * 60 + 4 * RETENTION_MS


# -- facts and segments ----------------------------------------------------------------------------------------------


def test_facts_are_of_one_file() -> None:
    """The facts of a replaced segment are unknown; those read of its predecessor are refused."""
    watched = Watched(CleanerLog("a= b | roll"))
    log = watched.log
    log.first_dirty = 2
    watched.learn()
    old = read_facts(log.env, DIRECTORY, 0, log.log.segments[0].size)
    log.now_ms += 1
    log.clean(first_dirty=0, mode=PROMPT)
    assert watched.facts.unknown(log.log, 2) == [(0, log.log.segments[0].size)]
    assert watched.facts.of(log.log, 2) == []
    assert not watched.facts.add(log.log, old)
    assert not watched.facts.add(log.log, replace(old, base_offset=77))


def test_only_closed_segments_of_the_clean_section_count() -> None:
    """Closed segments count exactly up to the given offset."""
    watched = Watched(CleanerLog())
    for word in ("a", "b", "c"):
        watched.log.data(word)
        watched.log.roll()
    assert [base for base, _ in watched.facts.unknown(watched.log.log, 2)] == [0, 1]
    assert [base for base, _ in watched.facts.unknown(watched.log.log, 1)] == [0]
    assert watched.facts.unknown(watched.log.log, 0) == []


def test_facts_of_segments_that_are_gone_are_forgotten() -> None:
    """Facts are dropped with their segments."""
    watched = Watched(CleanerLog())
    log = watched.log
    for word in ("a", "b", "c"):
        log.data(word)
        log.roll()
    log.first_dirty = 3
    watched.learn()
    delete_oldest(log.log, 3)
    assert watched.facts.unknown(log.log, 3) == []
    assert watched.facts._known == {}


# -- files -----------------------------------------------------------------------------------------------------------


def filed() -> CleanerLog:
    """Return a log with filed facts of all segments."""
    log = CleanerLog("a= b | t1: t | commit 1 | p1: b | roll", delete_retention_ms=100)
    log.clean(mode=PROMPT)
    log.clean(first_dirty=0, mode=PROMPT)
    return log


def test_filed_facts_are_those_that_were_read() -> None:
    """All fields are loaded, and no segment is read."""
    log = filed()
    read = facts_of(log)
    assert read.horizons
    assert read.steps
    assert load_facts(log.env, DIRECTORY, 0) == read
    log.env.fail("open", "*.log", errno.EIO)
    assert facts_of(log) == read


def test_an_output_brings_its_own_facts() -> None:
    """A worker sends them with the output. Those filed for an earlier file, and very many, the broker reads itself."""
    env, path = CleanerLog().env, names.log_file(DIRECTORY, 0) + names.CLEANED_SUFFIX
    env.write_atomically(path, b"12")
    output = OutputSegment(0, (0,), 2, env.mtime_ms(path), False, 0)
    own = SegmentFacts(0, 2, output.modified_ms, env.birth_ms(path), 0, steps=(Step(DATA, 1, 0),))
    assert text_of_output(env, DIRECTORY, output) is None
    many = (Step(DATA, 2**60, 2**60),) * 1000
    others = replace(own, size=3), replace(own, modified_ms=1), replace(own, birth_ms=1), replace(own, steps=many)
    for facts, sent in ((own, own), *((other, None) for other in others)):
        file_facts(env, DIRECTORY, facts)
        text = text_of_output(env, DIRECTORY, output)
        assert (None if text is None else facts_from(text)) == sent


def test_facts_of_another_file_are_read_again() -> None:
    """Facts are used only if size, modification time and birth match; never without birth times."""
    log = filed()
    read = facts_of(log)
    for other in (
        replace(read, size=1),
        replace(read, modified_ms=1),
        replace(read, birth_ms=1),
        replace(read, birth_ms=None),
    ):
        file_facts(log.env, DIRECTORY, replace(other, horizons=()))
        assert facts_of(log) == read
    file_facts(log.env, DIRECTORY, replace(read, birth_ms=None, horizons=()))
    log.env._file(log.log.segments[0].path).birth_ms = None
    assert facts_of(log).horizons == read.horizons


def test_damaged_files_are_no_files() -> None:
    """A file with any changed or missing byte, or with other JSON, is ignored."""
    log = filed()
    read = facts_of(log)
    path = facts_path(DIRECTORY, 0)
    data = log.env.read_bytes(path)
    for at in range(len(data)):
        log.env.write_atomically(path, data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        assert load_facts(log.env, DIRECTORY, 0) is None
        log.env.write_atomically(path, data[:at])
        assert load_facts(log.env, DIRECTORY, 0) is None
    log.env.write_atomically(path, data)
    log.env.rename(path, facts_path(DIRECTORY, 5))
    assert load_facts(log.env, DIRECTORY, 5) is None
    assert facts_of(log) == read


def test_a_disk_that_takes_nothing_more_costs_only_the_file() -> None:
    """If the file cannot be written, the facts are still returned."""
    log = filed()
    log.env.fail("append", "*.facts*", OSError(28, "full"))
    assert facts_of(log).horizons
    assert load_facts(log.env, DIRECTORY, 0) is None


def test_facts_of_vanished_segments_are_removed() -> None:
    """Only the facts of removed segments are deleted."""
    log = filed()
    facts_of(log)
    others = [f"{DIRECTORY}/{name}" for name in ("diamant-x.facts", "diamant-1.other", "unknown")]
    for path in others:
        log.env.create_new(path)
    before = set(log.files())
    prune(log.env, DIRECTORY, {0})
    assert set(log.files()) == before
    prune(log.env, DIRECTORY, {1})
    assert set(log.files()) == before - {facts_path("", 0)[1:]}
    prune(log.env, "/nowhere", set())


def test_a_start_passes_over_facts() -> None:
    """Facts are not taken for segment files, neither here nor by Kafka, which expects a number before the first dot."""
    log = filed()
    facts_of(log)
    stored = [batch.data for batch in log.stored()]
    log.reload()
    assert [batch.data for batch in log.stored()] == stored
    name = facts_path("", 0)[1:]
    assert name in log.files()
    assert names.parse_segment_file(name) is None
    with pytest.raises(ValueError):
        names.offset_of(name)
