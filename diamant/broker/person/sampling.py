"""The operations `person.suggest` and `person.check`, which look at samples of the topics.

A sample has the newest records of a topic, from all its partitions. They are read as in a search.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diamant.broker.operation_errors import BadArgument
from diamant.broker.operations.records.search_operation import PlacedRecord, SearchOperation
from diamant.broker.person.following import people_of, values_of
from diamant.cleaner.person.map_check import MapProblem, check_map
from diamant.cleaner.person.people_map import MapError, is_internal
from diamant.cleaner.person.sampling import MAX_VALUE_BYTES, TopicSample
from diamant.cleaner.person.suggestion import Suggestion, suggest
from diamant.cleaner.queries.matching_records import Wanted
from diamant.cleaner.values.schemas import Values

if TYPE_CHECKING:
    from diamant.broker.node.node import Node
    from diamant.broker.operations.records.explain_operation import ExplainOperation
    from diamant.broker.person.reading_requests import CheckPeopleMapRequest, SuggestPeopleMapRequest
    from diamant.progress import Progress

MAX_RECORDS = 100_000
"""The maximum number of records in all samples together."""


@dataclass(frozen=True, slots=True)
class MapCheck:
    """The result of `person.check`."""

    problems: tuple[MapProblem, ...]
    sampled: Mapping[str, int]
    """The number of records in the sample, by topic."""

    def to_fields(self) -> dict[str, object]:
        """Return the JSON object."""
        return {"problems": [one._asdict() for one in self.problems], "sampled": dict(self.sampled)}


async def suggest_map(
    node: Node,
    explaining: ExplainOperation,
    searching: SearchOperation,
    request: SuggestPeopleMapRequest,
    progress: Progress,
) -> Suggestion:
    """Return a draft of a map of people. Raises NotFound, TooMany."""
    samples = await _samples(
        explaining, searching, request.topics or _topics(node), request.records, progress, request.registry
    )
    return await asyncio.to_thread(suggest, samples)


async def check_people_map(
    node: Node,
    explaining: ExplainOperation,
    searching: SearchOperation,
    request: CheckPeopleMapRequest,
    progress: Progress,
) -> MapCheck:
    """Return the problems of a map of people. Raises BadArgument, TooMany."""
    people = people_of(request.map)
    topics = _topics(node)
    samples = await _samples(explaining, searching, topics, request.records, progress, request.registry)
    configs = {topic: explaining.logs(topic, None)[0].config for topic in topics}
    try:
        problems = await asyncio.to_thread(check_map, people, samples, configs, node.env.clock.now_ms())
    except MapError as error:
        raise BadArgument(f"map: {error}") from None
    return MapCheck(tuple(problems), {one.topic: one.records for one in samples})


def _topics(node: Node) -> list[str]:
    return [topic for topic in sorted(node.topics.by_name) if not is_internal(topic)]


async def _samples(
    explaining: ExplainOperation,
    searching: SearchOperation,
    topics: Sequence[str],
    most: int,
    progress: Progress,
    registry: str | None,
) -> list[TopicSample]:
    values = values_of(explaining, topics, registry)
    most = max(1, min(most, MAX_RECORDS // max(1, len(topics))))
    progress.begin("sampling", len(topics), "topics")
    found = []
    for topic in topics:
        found.append(await _sample(explaining, searching, topic, most, values[topic]))
        progress.advance()
    return found


async def _sample(
    explaining: ExplainOperation, searching: SearchOperation, topic: str, most: int, values: Values
) -> TopicSample:
    logs = explaining.logs(topic, None)
    sample = TopicSample(topic, bool(logs) and logs[0].config.is_compacted)
    users = Wanted(lambda _: True, lambda _: True)
    pages = searching.newest_first(topic, None, users, most=most, cut_bytes=MAX_VALUE_BYTES)

    def add(records: Sequence[PlacedRecord]) -> None:
        for one in records:
            if max(one.key_bytes, one.value_bytes) <= MAX_VALUE_BYTES:
                sample.add(one.record, values)

    async with aclosing(pages):
        async for page in pages:
            await asyncio.to_thread(add, [one for one in page.found if isinstance(one, PlacedRecord)])
    return sample
