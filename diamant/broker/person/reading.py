"""The operation `person.show`, which reads the records of a person.

`show` yields lines as it finds them, each with a `kind`:

    identifier   one identifier: `name`, `value`, and where it comes from: `topic`, `partition`, `offset`, `by`
    record       one record, as `latest` shows it, with `status`, `why` and `until_ms` as in `explain`, the `fields` that the
                 map names, and `others`, the places where the record has data of other people
    progress     `read_bytes` and `total_bytes`
    topic        at the end of a topic: its counts, and what could not be read
    end          at the end: counts, map entries without a topic, and topics that were `not_searched` since none of their
                 `identifiers` is known for this person
    error        instead of `end`, if the search ends early: `error`, `code`
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

from diamant.broker.node.node import Node
from diamant.broker.operation_errors import OperationError
from diamant.broker.operations.records.explain_operation import ExplainOperation
from diamant.broker.operations.records.search_operation import SearchOperation
from diamant.broker.person.following import (
    FollowedPerson,
    Following,
    PersonTopicSearch,
    SearchedPartition,
    given_identifiers,
    people_of,
)
from diamant.broker.person.reading_requests import ShowPersonRequest
from diamant.cleaner.person.partition_search import PartitionPlace, end_line, record_lines, step_line, topic_line
from diamant.cleaner.values.schemas import Values
from diamant.progress import Progress

PAGE_BYTES = 1024 * 1024
"""The maximum number of bytes of keys and values in one page of lines, unless a single record has more."""

Lines = list[Mapping[str, Any]]


async def show(
    node: Node, explaining: ExplainOperation, searching: SearchOperation, request: ShowPersonRequest, _: Progress
) -> AsyncGenerator[Lines, None]:
    """Yield pages of lines. Raises BadArgument, TooMany, Unconfirmed, but after the first page, the error is the last line."""
    following = Following(
        node,
        explaining,
        people_of(request.map),
        [given_identifiers(request.identifiers)],
        is_confirmed=request.confirm,
        registry=request.registry,
    )
    is_begun = False
    try:
        with searching.place():
            async with aclosing(_lines(following, explaining)) as lines:
                async for some in lines:
                    is_begun = True
                    yield some
    except OperationError as error:
        if not is_begun:
            raise
        yield [{"kind": "error", "error": str(error), "code": error.code}]


async def _lines(following: Following, explaining: ExplainOperation) -> AsyncGenerator[Lines, None]:
    [person] = following.people
    progress = Progress()
    shown_steps = 0
    count = 0
    topic: str | None = None
    async with aclosing(following.partitions(progress)) as partitions:
        async for one in partitions:
            if topic is not None and topic != one.log.topic:
                yield [_topic_line(following, person, topic)]
            topic = one.log.topic
            steps = person.known.steps[shown_steps:]
            shown_steps += len(steps)
            yield [*map(step_line, steps), _progress_line(progress)]
            for found in one.found:
                pages = _pages(one, found, following.values[topic], explaining)
                # Read and decode in a thread, since a record may have any size.
                while (page := await explaining.read(partial(next, pages, None))) is not None:
                    count += len(page)
                    yield page
    end = [] if topic is None else [_topic_line(following, person, topic)]
    steps = person.known.steps[shown_steps:]
    last = end_line(person.known, person.topics.values(), following.without_topic, count)
    yield [*map(step_line, steps), *end, last]


def _progress_line(progress: Progress) -> Mapping[str, Any]:
    return {"kind": "progress", "read_bytes": progress.done, "total_bytes": max(progress.done, progress.total or 0)}


def _topic_line(following: Following, person: FollowedPerson, topic: str) -> Mapping[str, Any]:
    return topic_line(topic, person.topics[topic], following.values[topic].schemas.problems)


def _pages(
    one: SearchedPartition, found: PersonTopicSearch, values: Values, explaining: ExplainOperation
) -> Iterator[Lines]:
    """Yield pages of lines about the records of a partition. Blocking."""
    taken = one.taken
    place = PartitionPlace(one.files, taken.state, taken.outcomes, taken.explainer())
    page: Lines = []
    size = 0
    lines = record_lines(place, found.matches.records, found.search.rules, found.person.known, values, explaining.check)
    for line, line_bytes in lines:
        page.append(line)
        size += line_bytes
        if size >= PAGE_BYTES:
            yield page
            page, size = [], 0
    if page:
        yield page
