"""Searches a running broker for people's records. `cleaner/person/identifiers.py` determines the order of the topics.

    following = Following(node, explaining, people, [{"customer_id": ["42"]}])
    async for one in following.partitions(progress):        a searched partition: the people's records in it, and its open files
        ...
    person = following.people[0]
    person.known.steps, person.parts            the identifiers, and the conditions that select the records

`Following.follow` is for callers that need only the identifiers, the conditions and the counts.

Memory: what `partition_search` needs for one partition at a time, and 100 bytes for each record found.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from diamant.broker.node.node import Node
from diamant.broker.operation_errors import BadArgument, TooMany, Unconfirmed
from diamant.broker.operations.records.explain_operation import ExplainOperation
from diamant.broker.operations.records.log_at_moment import LogAtMoment
from diamant.broker.operations.records.log_files import LogFiles
from diamant.cleaner.person.identifiers import (
    MAX_DOUBTS,
    Doubtful,
    Identifier,
    KnownIdentifiers,
    RulePart,
    TooManyIdentifiers,
    TopicSearch,
    next_topic,
    parse_identifiers,
)
from diamant.cleaner.person.others import SharedIdentifiers, sharing_search
from diamant.cleaner.person.partition_search import (
    MAX_RECORDS,
    Matches,
    SearchedTopic,
    Seeker,
    TooManyRecords,
    find_matches,
    find_shared,
)
from diamant.cleaner.person.people_map import MapError, PeopleMap, parse_people_map
from diamant.cleaner.redaction.hits import Hits
from diamant.cleaner.values.schemas import Values
from diamant.progress import Progress
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.log.log import Log

MAX_PEOPLE = 1_000
"""The maximum number of people in a request."""


class FollowedPerson:
    """What the search knows of one person so far: the identifiers, and the records found with them."""

    def __init__(self, known: KnownIdentifiers) -> None:
        self.known = known
        self.topics: dict[str, SearchedTopic] = {}
        self.hits: dict[TopicPartition, Hits] = {}
        """By partition: the records that `parts` selects, and those that could not be decided."""
        self.doubt = ""
        """If the search for this person has ended because identifiers may belong to several people: the reason. Else ""."""
        self._found: dict[TopicPartition, set[int]] = {}
        self._without_hits: set[TopicPartition] = set()

    @property
    def parts(self) -> Mapping[str, tuple[RulePart, ...]]:
        """The conditions that select the person's records, by topic."""
        return {topic: found for topic in self.known.topics if (found := self.known.parts(topic))}

    def seeker(self, search: TopicSearch, partition: int) -> Seeker:
        """Return what a search of a partition has to look for."""
        return Seeker(search, self.known, self._found.get((search.topic, partition), set()).__contains__)

    def add(self, topic: str, partition: int, matches: Matches) -> None:
        """Add what was found in a partition. Raises Doubtful, TooManyIdentifiers."""
        self._found.setdefault((topic, partition), set()).update(one.offset for one in matches.records)
        self._add_hits((topic, partition), matches.hits)
        counts = self.topics.setdefault(topic, SearchedTopic())
        counts.matched += len(matches.records)
        counts.problems += [one for one in matches.problems if one not in counts.problems]
        for offset, lessons in matches.taught:
            self.known.learn(topic, partition, offset, lessons)

    def _add_hits(self, partition: TopicPartition, hits: Hits | None) -> None:
        if hits is None:
            self._without_hits.add(partition)
            self.hits.pop(partition, None)
        elif partition in self.hits:
            self.hits[partition].join(hits)
        elif partition not in self._without_hits:
            self.hits[partition] = hits


@dataclass(slots=True)
class PersonTopicSearch:
    """The search of one topic for one person's records."""

    person: FollowedPerson
    search: TopicSearch
    matches: Matches = field(default_factory=Matches)
    """The matches in the most recently read partition."""
    matched: int = 0
    undecided: int = 0

    def take(self, partition: int, matches: Matches, most: int) -> None:
        """Add what was found in a partition of a topic with at most `most` records. Raises Doubtful, TooManyIdentifiers."""
        self.matches = matches
        self.matched += len(matches.records)
        self.undecided += matches.undecided
        known = self.person.known
        known.check_share(self.search, self.matched, most)
        self.person.add(self.search.topic, partition, matches)

    def end(self, total: int) -> None:
        """Record that the topic has been read. `total`: the number of its records. Raises Doubtful."""
        counts = self.person.topics.setdefault(self.search.topic, SearchedTopic())
        counts.total, counts.undecided = total, max(self.undecided, counts.undecided)
        self.person.known.check_share(self.search, self.matched, total)


class SearchedPartition(NamedTuple):
    """A searched partition, and the records found in it. Its files stay open until the caller asks for the next partition."""

    log: Log
    taken: LogAtMoment
    files: LogFiles
    found: Sequence[PersonTopicSearch]


class Following:
    """A search for several people together, which reads a topic once for all of them. Belongs to the loop thread."""

    def __init__(
        self,
        node: Node,
        explaining: ExplainOperation,
        people: PeopleMap,
        given: Sequence[Mapping[str, Sequence[str]]],
        *,
        is_confirmed: bool = False,
        registry: str | None = None,
    ) -> None:
        """`given`: the identifiers of each person. `registry`: see `topic_values`.

        Raises BadArgument if the map `people` does not fit the topics or the identifiers.
        """
        self._explaining = explaining
        topics = sorted(node.topics.by_name)
        for number, one in enumerate(given, 1):
            try:
                people.check_given(one)
            except MapError as error:
                raise BadArgument(f"identifiers: {of_person(number, len(given))}{error}") from None
        try:
            rules = people.of_topics(topics)
        except MapError as error:
            raise BadArgument(f"map: {error}") from None
        self.rules = rules
        self.without_topic = tuple(people.without_topic(topics))
        self.logs = {topic: explaining.logs(topic, None) for topic in rules}
        self.values = values_of(explaining, rules, registry)
        sizes = {topic: sum(log.size for log in logs) for topic, logs in self.logs.items()}
        self.people = [FollowedPerson(KnownIdentifiers(rules, sizes, one, is_confirmed=is_confirmed)) for one in given]

    async def partitions(self, progress: Progress) -> AsyncGenerator[SearchedPartition, None]:
        """Search all topics; yield each searched partition. Raises TooMany, NotPossible; NotFound if a topic is deleted.

        Doubts about one person do not end the search for the others. At the end, Unconfirmed is raised with all doubts.
        """
        progress.begin("searching", sum(log.size for logs in self.logs.values() for log in logs), "bytes")
        while (topic := next_topic([one.known for one in self._sought])) is not None:
            values = self.values[topic]
            searches = [
                PersonTopicSearch(one, search) for one in self._sought if (search := one.known.search(topic, values))
            ]
            await self._check_shared(searches)
            async for one in self._searched(topic, searches, progress):
                yield one
        doubts = [of_person(at, len(self.people)) + one.doubt for at, one in enumerate(self.people, 1) if one.doubt]
        if doubts:
            raise Unconfirmed(
                f"{'; '.join(doubts[:MAX_DOUBTS])}. Check the identifiers and the map, and confirm the search if they are right"
            )

    @property
    def _sought(self) -> list[FollowedPerson]:
        return [one for one in self.people if not one.doubt]

    async def _check_shared(self, searches: Sequence[PersonTopicSearch]) -> None:
        """Check, in the topics that taught them, whether the new identifiers of these searches may also be other people's."""
        new = [(one.person, one.person.known.newly_searched(one.search)) for one in searches]
        for topic, rules in self.rules.items():
            values = self.values[topic]
            teaching = [(one, sharing_search(topic, rules, names, values)) for one, names in new]
            shared = [(one, SharedIdentifiers(one.known, search, topic)) for one, search in teaching if search]
            if not shared:
                continue
            for log in self.logs[topic]:
                _, files = await self._explaining.open(log)
                with files:
                    looks = [look for _, look in shared]
                    await self._explaining.read(
                        partial(find_shared, files, looks, values, check=self._explaining.check)
                    )
            for one, look in shared:
                for text in look.texts():
                    with _doubting(one):
                        one.known.doubt(text)

    async def _searched(
        self, topic: str, searches: Sequence[PersonTopicSearch], progress: Progress
    ) -> AsyncGenerator[SearchedPartition, None]:
        logs = self.logs[topic]
        most = sum(log.log_end_offset - log.log_start_offset for log in logs)
        total = 0
        for log in logs:
            searches = [one for one in searches if not one.person.doubt]
            if not searches:
                return
            taken, files = await self._explaining.open(log)
            with files:
                found = await self._explaining.read(self._reading(searches, log, taken, files))
                progress.advance(found[0].bytes_read)
                total += found[0].total
                for one, matches in zip(searches, found, strict=True):
                    with _doubting(one.person):
                        one.take(log.partition, matches, max(total, most))
                yield SearchedPartition(log, taken, files, [one for one in searches if not one.person.doubt])
        for one in searches:
            with _doubting(one.person):
                one.end(total)

    def _reading(
        self, sought: Sequence[PersonTopicSearch], log: Log, taken: LogAtMoment, files: LogFiles
    ) -> Callable[[], list[Matches]]:
        check, values = self._explaining.check, self.values[log.topic]
        seekers = [one.person.seeker(one.search, log.partition) for one in sought]

        def read() -> list[Matches]:
            try:
                return find_matches(files, seekers, values, taken.outcomes, taken.state.log_end_offset, check=check)
            except TooManyRecords:
                raise TooMany(
                    f"more than {MAX_RECORDS:,} records of {log.topic}-{log.partition} match: several people may share an "
                    "identifier"
                ) from None

        return read

    async def follow(self, progress: Progress) -> None:
        """Search all topics. Raises the same errors as `partitions`."""
        async for _ in self.partitions(progress):
            await asyncio.sleep(0)


@contextmanager
def _doubting(person: FollowedPerson) -> Iterator[None]:
    """If the block raises Doubtful, record this doubt about the person. Raises TooMany if there are too many identifiers."""
    try:
        yield
    except Doubtful as error:
        person.doubt = str(error)
    except TooManyIdentifiers as error:
        raise TooMany(str(error)) from None


def of_person(number: int, count: int) -> str:
    """Return the beginning of a message about one of several people; "" if there is only one person."""
    return f"person {number} of {count}: " if count > 1 else ""


def people_of(fields: Mapping[str, Any]) -> PeopleMap:
    """Parse the map in a request. Raises BadArgument."""
    try:
        return parse_people_map(fields)
    except MapError as error:
        raise BadArgument(f"map: {error}") from None


def given_identifiers(fields: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Parse the identifiers in a request. Raises BadArgument, whose message contains no values."""
    try:
        return parse_identifiers(fields)
    except ValueError as error:
        raise BadArgument(f"identifiers: {error}") from None


def given_people(subjects: Sequence[Mapping[str, Any]]) -> list[dict[str, tuple[str, ...]]]:
    """Parse the identifiers of each person in a request. Raises BadArgument, whose message contains no values."""
    if not 0 < len(subjects) <= MAX_PEOPLE:
        raise BadArgument(f"subjects: expected 1 to {MAX_PEOPLE:,} people, got {len(subjects):,}")
    found: list[dict[str, tuple[str, ...]]] = []
    first: dict[Identifier, int] = {}
    for number, one in enumerate(subjects, 1):
        person = of_person(number, len(subjects))
        if not one:
            raise BadArgument(f"subjects: {person}expected at least one identifier, as name: value")
        try:
            found.append(given_identifiers(one))
        except BadArgument as error:
            raise BadArgument(f"{person}{error}") from None
        for name, values in found[-1].items():
            for value in values:
                if (same := first.setdefault(Identifier(name, value), number)) != number:
                    raise BadArgument(
                        f"subjects: person {same} and person {number} have the same {name}: list each person only once"
                    )
    return found


def values_of(explaining: ExplainOperation, topics: Iterable[str], registry: str | None = None) -> dict[str, Values]:
    """Return a decoder for each topic. The decoders share their schemas. Raises BadArgument."""
    names = list(topics)
    schemas = explaining.values(names[0], registry).schemas if names else None
    return {} if schemas is None else {topic: Values(schemas, topic) for topic in names}
