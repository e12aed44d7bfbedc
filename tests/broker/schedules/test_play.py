"""The execution of a schedule: stored batches, records removed between fetches, and records that are never removed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant import Broker, BrokerConfig
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import build_batch, iter_records
from diamant.protocol.batches.header import BatchHeader, Record
from diamant.schedules import Compaction, History, Schedule, schedules
from diamant.storage.log.log import Log
from tests.builder import make_marker
from tests.effort import examples
from tests.memory_env import MemoryEnv

DAY_MS = 86_400_000
TABLE = (("k1", "a"), ("k2", "a"), ("k3", "a"), ("k1", "b"), ("k3", None), ("k4", "x"))
ONE_EACH = Schedule(batch_records=1, is_one_batch_per_fetch=True)


@asynccontextmanager
async def playing(schedule: Schedule, policy: str = "compact") -> AsyncIterator[tuple[Log, History]]:
    """A log of a broker that executes a schedule."""
    config = BrokerConfig(listen="127.0.0.1:0", data_dir="/data", log_cleaner_enable=False)
    async with Broker(config, env=MemoryEnv()) as broker:
        history = await broker.play(schedule)
        await broker.create_topic("t", 1, cleanup_policy=policy)
        yield broker.node.topics.log("t", 0), history


def records_of(pairs: Sequence[tuple[str, str | None]]) -> list[Record]:
    """Records in a producer's batch."""
    return [
        Record(offset, 1_000 + offset, key.encode(), None if value is None else value.encode())
        for offset, (key, value) in enumerate(pairs)
    ]


def append(log: Log, *pairs: tuple[str, str | None], **fields: int) -> None:
    """Append a batch."""
    log.append_as_leader(memoryview(build_batch(records_of(pairs), **fields)))


def fetch(log: Log, offset: int) -> tuple[list[Record], int]:
    """Return a consumer's records from an offset on, without control records, and the next offset."""
    read = log.read(offset, 1 << 20, isolation_level=0, min_one_message=True)
    data = b"".join(one.read() for one in read.slices)
    found, following = [], offset
    for position, header in iter_headers(data):
        if not header.is_control:
            found += [record for record in iter_records(data, position) if record.offset >= offset]
        following = header.next_offset
    return found, following


def read_all(log: Log, end: int) -> list[Record]:
    """Return all records up to the log's end at an earlier time."""
    found: list[Record] = []
    offset = log.log_start_offset
    while offset < end:
        some, following = fetch(log, offset)
        assert following > offset, "a consumer always gets on"
        found += some
        offset = following
    return found


def texts(records: Sequence[Record]) -> list[str]:
    """Return the offset, key and value of each record."""
    return [f"{one.offset} {(one.key or b'').decode()}={one.value.decode() if one.value else '-'}" for one in records]


def headers(log: Log) -> list[BatchHeader]:
    """Return the headers of a log's batches."""
    return [header for one in log.segments for _, header in iter_headers(one.file.pread(one.size, 0))]


async def test_nothing_happens_by_itself() -> None:
    """Without compactions and limits, a log is stored as sent, and the fetches are recorded."""
    async with playing(Schedule()) as (log, history):
        append(log, *TABLE)
        assert len(read_all(log, log.log_end_offset)) == len(TABLE)
        assert [header.record_count for header in headers(log)] == [6]
        assert (history.fetches, history.why_untried(), list(history.lines())) == (1, None, [])


async def test_batches_segments_and_fetches_are_cut_small() -> None:
    """A batch is divided and keeps its codec, segments roll after a number of offsets, a fetch returns one batch."""
    schedule = Schedule(batch_records=2, segment_records=3, is_one_batch_per_fetch=True)
    async with playing(schedule) as (log, _):
        append(log, *TABLE[:5], codec=3)
        append(log, *TABLE[5:])
        assert [(one.base_offset, one.record_count, one.codec) for one in headers(log)] == [
            (0, 2, 3), (2, 2, 3), (4, 1, 3), (5, 1, 0),
        ]  # fmt: skip
        assert [segment.base_offset for segment in log.segments] == [0, 4]
        assert texts(fetch(log, 0)[0]) == ["0 k1=a", "1 k2=a"]


async def test_a_retry_of_a_divided_batch_is_recognized() -> None:
    """Sequences continue across the parts, whose number is at most that of a producer's remembered batches."""
    async with playing(ONE_EACH) as (log, _):
        batch = build_batch(records_of((*TABLE, *TABLE)), producer_id=1, producer_epoch=0, base_sequence=0)
        first = log.append_as_leader(memoryview(bytearray(batch)))
        again = log.append_as_leader(memoryview(bytearray(batch)))
        assert [(one.base_sequence, one.record_count) for one in headers(log)] == [(0, 3), (3, 3), (6, 3), (9, 3)]
        assert (first.base_offset, first.last_offset, first.is_duplicate) == (0, 11, False)
        assert (again.base_offset, again.last_offset, again.is_duplicate) == (0, 11, True)


async def test_everything_but_the_last_batch_is_compacted_before_the_first_fetch() -> None:
    """As in Kafka, the active segment is not cleaned. Nothing is appended, so the last record is at the last offset."""
    async with playing(Schedule((Compaction(),), batch_records=1)) as (log, history):
        append(log, *TABLE, ("k4", "y"), ("k4", "z"))
        assert texts(read_all(log, 8)) == ["1 k2=a", "3 k1=b", "4 k3=-", "6 k4=y", "7 k4=z"]
        assert log.log_end_offset == 8
        *lines, _ = history.lines()
        assert lines == [
            "t-0:",
            "  the cleaner runs below offset 7 and removes",
            "    the value of k1 at offset 0",
            "    the value of k3 at offset 2",
            "    the value of k4 at offset 5",
        ]


async def test_a_single_batch_is_left_alone() -> None:
    """The segment of a single batch takes appends; after another batch it does not."""
    async with playing(Schedule((Compaction(), Compaction(1)))) as (log, _):
        append(log, *TABLE)
        assert len(read_all(log, 6)) == len(TABLE)
        append(log, ("k9", "x"))
        assert texts(read_all(log, 7)) == ["1 k2=a", "3 k1=b", "4 k3=-", "5 k4=x", "6 k9=x"]


async def test_batches_share_segments_when_no_compaction_of_all_is_to_come() -> None:
    """A segment for each batch serves these compactions alone."""
    async with playing(Schedule((Compaction(),), batch_records=1)) as (log, _):
        append(log, *TABLE)
        assert len(log.segments) == 6
        read_all(log, 6)
        append(log, *TABLE)
        assert [segment.base_offset for segment in log.segments] == [0, 5]


def append_transaction(log: Log, *pairs: tuple[str, str | None]) -> None:
    """Append a batch of a transaction, and commit it."""
    producer = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    log.append_as_leader(memoryview(build_batch(records_of(pairs), is_transactional=True, **producer)))
    log.append_internal(make_marker(1, is_commit=True))


async def test_a_topic_with_transactions_is_compacted_to_its_last_record() -> None:
    """The marker of an aborted transaction ends the log, and the history says what that means to a consumer at the end."""
    async with playing(Schedule((Compaction(),), batch_records=1)) as (log, history):
        append_transaction(log, *TABLE)
        append(log, ("k4", "y"), ("k4", "z"))
        assert texts(read_all(log, 9)) == ["1 k2=a", "3 k1=b", "4 k3=-", "8 k4=z"]
        assert log.log_end_offset == 10
        fetch(log, 9)
        lines = list(history.lines())
        assert "  a transaction that is aborted at once leaves its marker at offset 9" in lines
        assert lines[-1] == (
            "t-0 ends with the transaction marker at offset 9, which no consumer receives: one that waits for a record at the "
            "last offset waits for ever."
        )


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_topic_is_transactional_in_all_partitions(is_known: bool) -> None:
    """A transaction that was there before, or in another partition, is enough."""
    config = BrokerConfig(listen="127.0.0.1:0", data_dir="/data", log_cleaner_enable=False)
    async with Broker(config, env=MemoryEnv()) as broker:
        await broker.create_topic("t", 2, cleanup_policy="compact")
        first, second = (broker.node.topics.log("t", index) for index in (0, 1))
        if is_known:
            append_transaction(second, *TABLE)
        await broker.play(Schedule((Compaction(),)))
        if not is_known:
            append_transaction(first, *TABLE)
            append(second, *TABLE)
        read_all(second, 6)
        assert second.log_end_offset == 8 - (not is_known)


async def test_a_tombstone_goes_between_two_fetches() -> None:
    """The tombstone is removed after its value was fetched: the consumer never sees it, and the history says so."""
    async with playing(Schedule((Compaction(3, is_late=True),), 1, is_one_batch_per_fetch=True)) as (log, history):
        append(log, *TABLE)
        assert texts(read_all(log, 6)) == ["0 k1=a", "1 k2=a", "2 k3=a", "3 k1=b", "5 k4=x"]
        *_, last = history.lines()
        assert last == (
            "The tombstone of k3 at offset 4 was removed between the consumer's fetches from offsets 2 and 3 of t-0."
        )
        assert texts(read_all(log, 6)) == ["1 k2=a", "3 k1=b", "5 k4=x"]


async def test_a_part_of_the_segments_is_compacted() -> None:
    """The part is a share of the segments' number, rounded up; later segments are unchanged."""
    async with playing(Schedule((Compaction(share=50),), batch_records=1, segment_records=1)) as (log, _):
        append(log, ("a", "1"), ("a", "2"), ("a", "3"), ("a", "4"), ("a", "5"), ("a", "6"))
        assert texts(read_all(log, 6)) == ["2 a=3", "3 a=4", "4 a=5", "5 a=6"]


async def test_an_open_transaction_is_not_touched() -> None:
    """Records from its first one on are kept, as always."""
    async with playing(Schedule((Compaction(is_late=True),), batch_records=1, segment_records=1)) as (log, _):
        append(log, ("a", "1"), ("a", "2"))
        producer = {"producer_id": 1, "producer_epoch": 0}
        batch = build_batch(records_of([("a", "3"), ("a", "4")]), base_sequence=0, is_transactional=True, **producer)
        log.append_as_leader(memoryview(batch))
        assert texts(read_all(log, 4)) == ["1 a=2", "2 a=3", "3 a=4"]
        log.append_internal(make_marker(1, is_commit=True))
        assert log.last_stable_offset == log.log_end_offset


async def test_topics_that_are_not_compacted_are_left_alone() -> None:
    """The history lists the topics in use, for the message to a test that reads no compacted one."""
    async with playing(Schedule((Compaction(is_late=True),), 1, 1), policy="delete") as (log, history):
        append(log, *TABLE)
        assert len(read_all(log, 6)) == len(TABLE) == len(headers(log)) + 5
        assert history.why_untried() == (
            "no client has fetched from a compacted topic, so nothing was tried. Topics in use, with their cleanup.policy: "
            "t (delete). Expected a client that reads a topic with cleanup.policy=compact"
        )


@given(
    schedule=schedules(),
    batches=st.lists(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.sampled_from(["1", "2", None])), min_size=1, max_size=6
        ),
        min_size=1,
        max_size=5,
    ),
)  # fmt: skip
@settings(max_examples=examples(60), deadline=None)
async def test_two_readings_give_the_table_whatever_is_removed(
    schedule: Schedule, batches: list[list[tuple[str, str | None]]]
) -> None:
    """Each reading is of ascending offsets, comes to the end and has the latest value of each key. The one after the last
    compaction has no deleted value, and all tombstones unless a compaction was late.
    """
    pairs = [pair for batch in batches for pair in batch]
    table = {key: value for key, value in pairs if dict(pairs)[key] is not None and value is not None}
    async with playing(schedule) as (log, _):
        for batch in batches:
            append(log, *batch)
        end = log.log_end_offset
        while True:
            first = read_all(log, end)
            offsets = [record.offset for record in first]
            assert offsets == sorted(set(offsets))
            assert {f"{k}={v}" for k, v in table.items()} <= {text.partition(" ")[2] for text in texts(first)}
            second = read_all(log, end)
            if first == second:
                break
        found = {(record.key or b"").decode(): record.value for record in second}
        assert {key: value.decode() for key, value in found.items() if value is not None} == table
        if not any(one.is_late for one in schedule.compactions):
            assert {key for key, value in found.items() if value is None} == {
                k for k, v in dict(pairs).items() if v is None
            }
