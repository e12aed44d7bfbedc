"""The records of one person in a running broker: topics are read one after another, as `cleaner/person/identifiers.py` says.

    following = Following(node, explaining, people, {"customer_id": ["42"]})
    async for one in following.partitions(progress):        each with the person's records, and its open files
        ...
    following.known.steps, following.known.parts(topic)     the identifiers, and the conditions that select the records

`follow` does the same for callers that want the identifiers, the conditions and the counts only.

Memory: that of `partition_search`, for one partition at a time, and 100 bytes for each record found.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from diamant.broker.errors import BadArgument, TooMany, Unconfirmed
from diamant.broker.node.node import Node
from diamant.broker.operations.records.explain_operation import ExplainOperation
from diamant.broker.operations.records.log_at_moment import LogAtMoment
from diamant.broker.operations.records.log_files import LogFiles
from diamant.cleaner.person.identifiers import (
    Doubtful,
    IdentifierStep,
    KnownIdentifiers,
    RulePart,
    TooManyIdentifiers,
    TopicSearch,
    parse_identifiers,
)
from diamant.cleaner.person.others import SharedIdentifiers, sharing_search
from diamant.cleaner.person.partition_search import (
    MAX_RECORDS,
    Matches,
    SearchedTopic,
    TooManyRecords,
    find_matches,
    find_shared,
)
from diamant.cleaner.person.people_map import MapError, PeopleMap, parse_people_map
from diamant.cleaner.redaction.hits import Hits, HitsByPartition
from diamant.cleaner.values.schemas import Values
from diamant.progress import Progress
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.log.log import Log


class SearchedPartition(NamedTuple):
    """One partition, its files as long as the caller has it, and the records that were found."""

    search: TopicSearch
    log: Log
    taken: LogAtMoment
    files: LogFiles
    matches: Matches


class Followed(NamedTuple):
    """Everything that leads to a person's records."""

    steps: tuple[IdentifierStep, ...]
    parts: Mapping[str, tuple[RulePart, ...]]
    """The conditions that select the records, of each topic where the person may have some."""
    topics: Mapping[str, SearchedTopic]
    without_topic: tuple[str, ...]
    """Entries of the map that no topic has."""
    hits: HitsByPartition
    """All records that `parts` selects, and those that are undecided."""


class Following:
    """The search for one person. Belongs to the loop thread."""

    def __init__(
        self,
        node: Node,
        explaining: ExplainOperation,
        people: PeopleMap,
        given: Mapping[str, Sequence[str]],
        *,
        is_confirmed: bool = False,
        registry: str | None = None,
    ) -> None:
        """BadArgument if the map does not fit the topics or the identifiers. `registry`: see `topic_values`."""
        self._explaining = explaining
        topics = sorted(node.topics.by_name)
        try:
            people.check_given(given)
        except MapError as error:
            raise BadArgument(f"identifiers: {error}") from None
        try:
            rules = people.of_topics(topics)
        except MapError as error:
            raise BadArgument(f"map: {error}") from None
        self.rules = rules
        self.without_topic = tuple(people.without_topic(topics))
        self.logs = {topic: explaining.logs(topic, None) for topic in rules}
        self.values = values_of(explaining, rules, registry)
        sizes = {topic: sum(log.size for log in logs) for topic, logs in self.logs.items()}
        self.known = KnownIdentifiers(rules, sizes, given, is_confirmed=is_confirmed)
        self.topics: dict[str, SearchedTopic] = {}
        self._found: dict[TopicPartition, set[int]] = {}
        self.hits: dict[TopicPartition, Hits] = {}
        self._without_hits: set[TopicPartition] = set()

    async def partitions(self, progress: Progress) -> AsyncGenerator[SearchedPartition, None]:
        """Yield each searched partition. TooMany, Unconfirmed, NotPossible; NotFound if a topic is deleted."""
        progress.begin("searching", sum(log.size for logs in self.logs.values() for log in logs), "bytes")
        try:
            while (search := self.known.next_search(self.values)) is not None:
                await self._check_shared(search)
                async for one in self._searched(search, progress):
                    yield one
        except Doubtful as error:
            raise Unconfirmed(
                f"{error}. Check the identifiers and the map, and confirm the search if it is right"
            ) from None
        except TooManyIdentifiers as error:
            raise TooMany(str(error)) from None

    async def _check_shared(self, search: TopicSearch) -> None:
        """Look for the new identifiers of a search in the topics that teach them: other people may have them, too."""
        new = self.known.newly_searched(search)
        for topic, rules in self.rules.items():
            teaching = sharing_search(topic, rules, new, self.values)
            if teaching is None:
                continue
            shared = SharedIdentifiers(self.known, teaching, topic)
            for log in self.logs[topic]:
                _, files = await self._explaining.open(log)
                with files:
                    read = partial(
                        find_shared, files, teaching, shared, self.values[topic], check=self._explaining.check
                    )
                    await self._explaining.read(read)
            for text in shared.texts():
                self.known.doubt(text)

    async def _searched(self, search: TopicSearch, progress: Progress) -> AsyncGenerator[SearchedPartition, None]:
        topic = search.topic
        logs = self.logs[topic]
        counts = self.topics.setdefault(topic, SearchedTopic())
        most = sum(log.log_end_offset - log.log_start_offset for log in logs)
        matched = total = undecided = 0
        for log in logs:
            taken, files = await self._explaining.open(log)
            with files:
                matches = await self._explaining.read(self._reading(search, log, taken, files))
                progress.advance(matches.bytes_read)
                self._found.setdefault((topic, log.partition), set()).update(one.offset for one in matches.records)
                self._add_hits((topic, log.partition), matches.hits)
                matched, total = matched + len(matches.records), total + matches.total
                undecided += matches.undecided
                counts.matched += len(matches.records)
                counts.problems += [one for one in matches.problems if one not in counts.problems]
                self.known.check_share(search, matched, max(total, most))
                for offset, lessons in matches.taught:
                    self.known.learn(topic, log.partition, offset, lessons)
                yield SearchedPartition(search, log, taken, files, matches)
        counts.total, counts.undecided = total, max(undecided, counts.undecided)
        self.known.check_share(search, matched, total)

    def _add_hits(self, partition: TopicPartition, hits: Hits | None) -> None:
        if hits is None:
            self._without_hits.add(partition)
            self.hits.pop(partition, None)
        elif partition in self.hits:
            self.hits[partition].join(hits)
        elif partition not in self._without_hits:
            self.hits[partition] = hits

    def _reading(self, search: TopicSearch, log: Log, taken: LogAtMoment, files: LogFiles) -> Callable[[], Matches]:
        known, check = self.known, self._explaining.check
        values = self.values[search.topic]
        before = self._found.get((search.topic, log.partition), set())

        def read() -> Matches:
            try:
                end = taken.state.log_end_offset
                return find_matches(
                    files, search, known, values, taken.outcomes, end, skip=before.__contains__, check=check
                )
            except TooManyRecords:
                raise TooMany(
                    f"more than {MAX_RECORDS:,} records of {log.topic}-{log.partition} match: several people may share an "
                    "identifier"
                ) from None

        return read


async def follow(following: Following, progress: Progress) -> Followed:
    """Read all topics, and return what leads to the person's records. As `Following.partitions`."""
    async for _ in following.partitions(progress):
        await asyncio.sleep(0)
    return followed(following)


def followed(following: Following) -> Followed:
    """Return the result of a search that is done."""
    known = following.known
    parts = {topic: found for topic in following.logs if (found := known.parts(topic))}
    return Followed(tuple(known.steps), parts, following.topics, following.without_topic, following.hits)


def people_of(fields: Mapping[str, Any]) -> PeopleMap:
    """Return the map in a request. BadArgument."""
    try:
        return parse_people_map(fields)
    except MapError as error:
        raise BadArgument(f"map: {error}") from None


def given_identifiers(fields: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the identifiers in a request, by name. BadArgument, whose text has no values."""
    try:
        return parse_identifiers(fields)
    except ValueError as error:
        raise BadArgument(f"identifiers: {error}") from None


def values_of(explaining: ExplainOperation, topics: Iterable[str], registry: str | None = None) -> dict[str, Values]:
    """Return the decoders of topics, which share the schemas that they have read. BadArgument."""
    names = list(topics)
    schemas = explaining.values(names[0], registry).schemas if names else None
    return {} if schemas is None else {topic: Values(schemas, topic) for topic in names}
