"""A person's records in log directories, without a broker: the search, and the lines of `person show`.

    run = partial(search_one_by_one, RealEnv(), values, scratch)
    for line in directory_lines(tasks, people, {"customer_id": ["42"]}, run): ...

`run` searches the partitions of one topic; `search_one_by_one` does so in this thread, other functions on Spark. Records are
explained as if a broker started on the files now. Memory: as in `partition_search`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from diamant.cleaner.explain.opened_partition import opened_partition
from diamant.cleaner.person.identifiers import Doubtful, KnownIdentifiers, TooManyIdentifiers, TopicSearch, next_topic
from diamant.cleaner.person.partition_search import (
    PartitionPlace,
    RecordLessons,
    SearchedTopic,
    Seeker,
    end_line,
    find_matches,
    record_lines,
    step_line,
    topic_line,
)
from diamant.cleaner.person.people_map import PeopleMap
from diamant.cleaner.person.sampling import MAX_VALUE_BYTES
from diamant.cleaner.segments.tolerant_reader import PartitionFiles, Problem, Report, iter_batches
from diamant.cleaner.service.partition_view import CleanerView
from diamant.cleaner.values.schemas import Schemas, Values
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import CorruptBatch
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError
from diamant.storage.segments.log_config import LogConfig

PRODUCER_EXPIRATION_MS = 86_400_000
"""Kafka's default of `producer.id.expiration.ms`."""


class PartitionTask(NamedTuple):
    """One partition to search. Can be pickled."""

    partition: PartitionFiles
    config: LogConfig
    view: CleanerView
    """The cleaner's view of the partition."""
    now_ms: int
    skip: frozenset[int] = frozenset()
    """Offsets of records that an earlier search has already found."""


class PartitionFound(NamedTuple):
    """The result of searching a partition; it precedes the lines of the records that were found. Can be pickled."""

    partition: int
    offsets: tuple[int, ...]
    total: int = 0
    undecided: int = 0
    taught: Sequence[RecordLessons] = ()
    problems: Sequence[str] = ()
    schema_problems: Sequence[str] = ()


Line: TypeAlias = Mapping[str, Any]
Run: TypeAlias = Callable[[TopicSearch, KnownIdentifiers, Sequence[PartitionTask]], Iterable[PartitionFound | Line]]


def directory_lines(
    tasks: Mapping[str, Sequence[PartitionTask]],
    people: PeopleMap,
    given: Mapping[str, Sequence[str]],
    run: Run,
    *,
    is_confirmed: bool = False,
) -> Iterator[Line]:
    """Yield the lines of `person show`. `tasks`: the partitions of all topics, by topic.

    Raises MapError, Doubtful, TooManyIdentifiers, TooManyRecords.
    """
    people.check_given(given)
    rules = people.of_topics(tasks)
    sizes = {topic: sum(one.partition.size for one in of_topic) for topic, of_topic in tasks.items()}
    known = KnownIdentifiers(rules, sizes, given, is_confirmed=is_confirmed)
    topics: dict[str, SearchedTopic] = {}
    before: dict[tuple[str, int], frozenset[int]] = {}
    shown = count = 0
    while (topic := next_topic([known])) is not None and (search := known.search(topic)) is not None:
        counts = topics.setdefault(topic, SearchedTopic())
        new, total, undecided = 0, 0, 0
        schema_problems: dict[str, None] = {}
        chosen = [one._replace(skip=before.get((topic, one.partition.partition), frozenset())) for one in tasks[topic]]
        for one in run(search, known, chosen):
            if not isinstance(one, PartitionFound):
                count += 1
                yield one
                continue
            place = topic, one.partition
            before[place] = before.get(place, frozenset()).union(one.offsets)
            new, total, undecided = new + len(one.offsets), total + one.total, undecided + one.undecided
            counts.problems += [text for text in one.problems if text not in counts.problems]
            schema_problems |= dict.fromkeys(one.schema_problems)
            for offset, lessons in one.taught:
                known.learn(topic, one.partition, offset, lessons)
            yield from map(step_line, known.steps[shown:])
            shown = len(known.steps)
        known.check_share(search, new, total)
        counts.matched += new
        counts.total, counts.undecided = total, max(undecided, counts.undecided)
        yield topic_line(topic, counts, schema_problems)
    yield end_line(known, topics.values(), people.without_topic(tasks), count)


def search_one_by_one(
    env: Env,
    schemas: Schemas,
    scratch: str,
    advance: Callable[[int], object],
    search: TopicSearch,
    known: KnownIdentifiers,
    tasks: Sequence[PartitionTask],
) -> Iterator[PartitionFound | Line]:
    """Search partitions in this thread. `scratch`: a directory for temporary files."""
    for task in tasks:
        yield from search_partition(env, task, search, known, schemas, scratch)
        advance(task.partition.size)


def search_partition(
    env: Env, task: PartitionTask, search: TopicSearch, known: KnownIdentifiers, schemas: Schemas, scratch: str
) -> Iterator[PartitionFound | Line]:
    """Yield a partition's result, then the lines of its records; add their identifiers to `known`. Raises TooManyRecords."""
    partition = task.partition
    values = Values(schemas, partition.topic)
    search = search.decoding(values)
    place = f"{scratch}/{partition.name}-{len(os.listdir(scratch))}"
    os.mkdir(place)
    try:
        with opened_partition(
            env, partition, task.config, task.now_ms, place, producer_expiration_ms=PRODUCER_EXPIRATION_MS
        ) as opened:
            seeker = Seeker(search, known, task.skip.__contains__)
            [found] = find_matches(opened, [seeker], values, opened.outcomes, opened.log.log_end_offset)
            for offset, lessons in found.taught:
                try:
                    known.learn(partition.topic, partition.partition, offset, lessons)
                except (Doubtful, TooManyIdentifiers):
                    break  # the caller learns the same identifiers, and raises this error
            yield PartitionFound(
                partition.partition,
                tuple(one.offset for one in found.records),
                found.total,
                found.undecided,
                found.taught,
                found.problems,
                schemas.problems,
            )
            state, explainer = opened.state(task.view), opened.explainer(task.view)
            lines = record_lines(
                PartitionPlace(opened, state, opened.outcomes, explainer), found.records, search.rules, known, values
            )
            yield from (line for line, _ in lines)
    except StorageError as error:
        yield PartitionFound(partition.partition, (), problems=[str(error)])


def newest_records(env: Env, partition: PartitionFiles, most: int, report: Report) -> Iterator[Record]:
    """Yield the `most` newest records of a partition for a sample, except those with a large key or value."""
    left = most
    for segment in reversed(partition.segments):
        newest: deque[Record] = deque(maxlen=left)
        for batch in iter_batches(env, segment, report):
            if batch.crc_is_valid and not batch.header.is_control and batch.header.record_count:
                try:
                    newest += batch.records()
                except CorruptBatch as error:
                    report(Problem(segment.path, batch.position, error.reason))
        left -= len(newest)
        yield from (one for one in newest if max(len(one.key or b""), len(one.value or b"")) <= MAX_VALUE_BYTES)
        if left <= 0:
            return
