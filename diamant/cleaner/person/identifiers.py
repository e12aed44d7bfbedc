"""The identifiers of people, followed from topic to topic until nothing new turns up.

    known = KnownIdentifiers(people.of_topics(topics), sizes, {"customer_id": ["42"]})
    while (topic := next_topic([known])) is not None:
        search = known.search(topic)
        ...                       read the topic; for each record that `search.judge` selects:
        known.learn(search.topic, partition, offset, lessons(search.rules, parts, known))
    known.parts("orders")         the conditions that select the person's records

Several people can be searched for together, each with its own `KnownIdentifiers`; a topic is then read once for all of them.

A topic is read only when no unread topic can still teach an identifier by which it is searched. So each topic is read once,
unless identifiers lead in a circle; then a topic is read again, but only for the new identifiers.

An identifier that may belong to several people is doubtful. A doubt stops the search (`Doubtful`), unless the caller has
confirmed the search; then the doubt is recorded in `KnownIdentifiers.doubts`. The following are doubtful:

    another value of an identifier that the caller gave
    several values of an identifier that is a topic's key, or that recognises people in more topics than the one that led to it
    identifiers that select a large share of a topic's records
    identifiers that belong to several people in the topic that teaches them (`others.py`)

A person may have up to `MAX_VALUES` identifiers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from diamant.cleaner.person.people_map import TopicRule
from diamant.cleaner.person.places import FieldPath, Parts, identifier_text
from diamant.cleaner.redaction.json_path import NO
from diamant.cleaner.redaction.where import MAX_BYTES, MAX_COMPARISONS, Where, any_of, parse_where
from diamant.cleaner.values.schemas import Values
from diamant.protocol.batches.header import Record

MAX_VALUES = 1_000
SHORT_CHARACTERS = 2
"""Identifiers of at most this length are doubtful as soon as they select more than `LARGE_SHARE_OF_SHORT` of a topic."""
LARGE_SHARE, LARGE_SHARE_OF_SHORT = 0.25, 0.05
"""Shares of a topic's records beyond which identifiers are doubtful."""
MAX_DOUBTS = 20
FEW_RECORDS = 20
"""Fewer matching records than this never count as a large share."""


class Doubtful(Exception):
    """The identifiers may belong to several people. The message names identifiers and topics, but no values."""


class TooManyIdentifiers(Exception):
    """There are more than `MAX_VALUES` identifiers."""


class Identifier(NamedTuple):
    """An identifier's name in the map, and its value."""

    name: str
    value: str


class IdentifierStep(NamedTuple):
    """One identifier, and how it became known."""

    identifier: Identifier
    topic: str | None = None
    """The topic that taught it; None if the caller gave it."""
    partition: int | None = None
    offset: int | None = None
    by: str | None = None
    """The name of the identifier by which the record that taught it was found."""


class Lesson(NamedTuple):
    """An identifier that a record teaches."""

    identifier: Identifier
    by: str
    is_person: bool = False
    """True if different values of this identifier probably belong to different people."""


class RulePart(NamedTuple):
    """The conditions and keys that select the person's records in one topic, in one role."""

    rule: TopicRule
    where: tuple[str, ...]
    """Conditions as for a search or a redaction; a record is the person's if it meets one of them."""
    keys: tuple[bytes, ...]
    """The person's keys; empty unless an identifier is the key."""


class TopicSearch(NamedTuple):
    """A topic to read, and the conditions to search it for."""

    topic: str
    rules: tuple[TopicRule, ...]
    wheres: tuple[Where, ...]
    names: tuple[str, ...]
    """The names of the identifiers that are searched for."""

    def decoding(self, values: Values) -> TopicSearch:
        """Return this search with a decoder of keys and values."""
        return self._replace(wheres=tuple(replace(where, values=values) for where in self.wheres))

    def judge(self, record: Record) -> int:
        """Return YES if the record is the person's, else NO or UNDECIDED."""
        return max((where.judge(record) for where in self.wheres), default=NO)

    def may_be_in(self, payload: bytes) -> bool:
        """Tell whether a batch may have a matching record. `payload`: its decompressed records."""
        return any(where.may_be_in(payload) for where in self.wheres)


class KnownIdentifiers:
    """The known identifiers of one person. For one thread at a time."""

    def __init__(
        self,
        rules: Mapping[str, tuple[TopicRule, ...]],
        sizes: Mapping[str, int],
        given: Mapping[str, Sequence[str]],
        *,
        is_confirmed: bool = False,
    ) -> None:
        """`rules`, `sizes` in bytes: by topic; smaller topics are read first if possible. `given`: values by name."""
        self._rules = rules
        self._sizes = sizes
        self._given = given
        self._is_confirmed = is_confirmed
        leads = leads_of(rule for some in rules.values() for rule in some)
        self._leads_to = {topic: reached(_taught(some), leads) for topic, some in rules.items()}
        """For each topic, the names of all identifiers to which it can lead, directly or through other topics."""
        self._searched: dict[str, set[Identifier]] = {topic: set() for topic in rules}
        self._unshared: set[Identifier] = set()
        """Identifiers that `newly_searched` has returned."""
        self._spread = Counter(
            name for some in rules.values() for name in {one for rule in some for one in rule.identity}
        )
        """The number of topics in which each identifier recognises people."""
        self.doubts: list[str] = []
        """Doubts that did not stop the search, because the caller has confirmed it; sentences without values."""
        self._values: dict[str, dict[str, None]] = {}
        self.steps: list[IdentifierStep] = []
        for name, values in given.items():
            for value in values:
                self._add(IdentifierStep(Identifier(name, value)))

    @property
    def topics(self) -> Iterable[str]:
        """The topics that the map covers."""
        return self._rules

    def has(self, name: str, value: str) -> bool:
        """Tell whether an identifier is known to be the person's."""
        return value in self._values.get(name, {})

    def waiting(self) -> list[str]:
        """Return the topics that have not been searched for all known identifiers yet."""
        return [topic for topic in self._rules if self._unsearched(topic)]

    def is_early(self, topic: str, waiting: Iterable[str]) -> bool:
        """Tell whether another of the `waiting` topics may still teach an identifier by which this topic is searched."""
        own = self._leads_to[topic]
        to_come = Counter(name for one in waiting for name in self._leads_to[one])
        return any(to_come[name] > (name in own) for rule in self._rules[topic] for name in rule.identity)

    def size(self, topic: str) -> int:
        """Return the size of a topic in bytes."""
        return self._sizes.get(topic, 0)

    def search(self, topic: str, values: Values | None = None) -> TopicSearch | None:
        """Return a search for the identifiers for which the topic has not been searched yet; None if there are none."""
        new = self._unsearched(topic)
        if not new:
            return None
        self._searched[topic].update(new)
        texts = conditions([rule.identity for rule in self._rules[topic]], new)
        names = tuple(dict.fromkeys(one.name for one in new))
        return TopicSearch(topic, self._rules[topic], tuple(parse_where(text, values=values) for text in texts), names)

    def learn(self, topic: str, partition: int, offset: int, lessons: Iterable[Lesson]) -> None:
        """Add the identifiers that a record of the person teaches. Raises Doubtful, TooManyIdentifiers."""
        for identifier, by, is_person in lessons:
            name, value = identifier
            if self.has(name, value):
                continue
            place = f"a record found by {by} in {topic} (partition {partition}, offset {offset})"
            if name in self._given:
                self.doubt(f"{place} has another {name} than the given one: it may be another person's")
            elif is_person and self._values.get(name):
                self.doubt(f"{place} has another {name} than the records before: {by} may be shared by several people")
            self._add(IdentifierStep(identifier, topic, partition, offset, by))

    def check_share(self, search: TopicSearch, matched: int, total: int) -> None:
        """Call `doubt` if a search has found a large share of its topic's records."""
        is_short = any(len(value) <= SHORT_CHARACTERS for name in search.names for value in self._values.get(name, {}))
        limit = LARGE_SHARE_OF_SHORT if is_short else LARGE_SHARE
        if matched < FEW_RECORDS or matched <= limit * total:
            return
        what = "short identifiers select" if is_short else "the identifiers select"
        names = ", ".join(search.names)
        self.doubt(
            f"{what} {matched:,} of {total:,} records of {search.topic} ({names}): several people may share them"
        )

    def doubt(self, text: str) -> None:
        """Record that identifiers may belong to several people. Raises Doubtful unless the caller has confirmed the search."""
        if not self._is_confirmed:
            raise Doubtful(text)
        if text not in self.doubts and len(self.doubts) < MAX_DOUBTS:
            self.doubts.append(text)

    def newly_searched(self, search: TopicSearch) -> list[Identifier]:
        """Return the known values of a search's identifiers, except those that earlier calls have returned."""
        new = [one for name in search.names for one in self._of_name(name) if one not in self._unshared]
        self._unshared.update(new)
        return new

    def names_person(self, rule: TopicRule, name: str, by: str) -> bool:
        """Tell whether different values of `name` in records found by the identifier `by` probably belong to different people."""
        return name in rule.identity and (rule.keyed_by == name or self._spread[name] > self._spread[by])

    def _of_name(self, name: str) -> list[Identifier]:
        return [Identifier(name, value) for value in self._values.get(name, {})]

    def parts(self, topic: str) -> tuple[RulePart, ...]:
        """Return what selects the person's records in a topic: a part for each of its rules with a known identifier."""
        found = []
        for rule in self._rules.get(topic, ()):
            texts = conditions([rule.identity], self._of((rule,)))
            if texts:
                keys = self._values.get(rule.keyed_by or "", {})
                found.append(RulePart(rule, texts, tuple(value.encode() for value in keys)))
        return tuple(found)

    def not_searched(self) -> dict[str, tuple[str, ...]]:
        """Return the topics that were not searched in some role because no identifier of that role is known.

        The values are the names of these identifiers.
        """
        missing = {
            topic: [name for rule in rules if not self._of((rule,)) for name in rule.identity]
            for topic, rules in self._rules.items()
        }
        return {topic: tuple(dict.fromkeys(names)) for topic, names in missing.items() if names}

    def _add(self, step: IdentifierStep) -> None:
        if len(self.steps) >= MAX_VALUES:
            raise TooManyIdentifiers(
                f"more than {MAX_VALUES:,} identifiers were found: several people may share one of them"
            )
        name, value = step.identifier
        self._values.setdefault(name, {})[value] = None
        self.steps.append(step)

    def _of(self, rules: Iterable[TopicRule]) -> list[Identifier]:
        """Return the known identifiers by which these rules recognise the person."""
        names = dict.fromkeys(name for rule in rules for name in rule.identity)
        return [one for name in names for one in self._of_name(name)]

    def _unsearched(self, topic: str) -> list[Identifier]:
        return [one for one in self._of(self._rules[topic]) if one not in self._searched[topic]]


def next_topic(people: Sequence[KnownIdentifiers]) -> str | None:
    """Return the topic to read next for people who are searched for together; None if no topic has to be read."""
    waiting = {topic for one in people for topic in one.waiting()}

    def order(topic: str) -> tuple[bool, int, str]:
        return people[0].is_early(topic, waiting), people[0].size(topic), topic

    return min(waiting, key=order, default=None)


def joined(searches: Sequence[TopicSearch]) -> TopicSearch:
    """Combine searches of one topic into one that selects what any of them selects, and costs hardly more than one of them."""
    if len(searches) == 1:
        return searches[0]
    names = tuple(dict.fromkeys(name for one in searches for name in one.names))
    return searches[0]._replace(wheres=(any_of([where for one in searches for where in one.wheres]),), names=names)


def parse_identifiers(fields: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Parse a request's identifiers: for each name a value or a list. Raises ValueError, whose message has no values."""
    found = {}
    for name, values in fields.items():
        texts = [identifier_text(one) for one in (values if isinstance(values, list | tuple) else [values])]
        if not texts or None in texts:
            raise ValueError(f"{name}: expected a string or whole number of 1 to 1,024 bytes")
        found[name] = tuple(dict.fromkeys(text for text in texts if text is not None))
    return found


def lessons(rules: Iterable[TopicRule], parts: Parts, known: KnownIdentifiers) -> list[Lesson]:
    """Return the identifiers that a record teaches and that are not known yet."""
    found = []
    for rule in rules:
        by = matching(rule, parts, known)
        if not by:
            continue
        for name, place in rule.places:
            if name not in by:
                is_person = known.names_person(rule, name, by[0])
                new = [one for one in parts.at(place) if not known.has(name, one)]
                found += [Lesson(Identifier(name, one), by[0], is_person) for one in new]
    return found


def matching(rule: TopicRule, parts: Parts, known: KnownIdentifiers) -> list[str]:
    """Return the names of the identifiers by which a rule recognises a record as the person's."""
    return [
        name
        for name, places in rule.identity.items()
        if any(known.has(name, value) for place in places for value in parts.at(place))
    ]


def leads_of(rules: Iterable[TopicRule]) -> dict[str, set[str]]:
    """Return, for each identifier, the names of the identifiers that records found by it can teach."""
    found: dict[str, set[str]] = {}
    for rule in rules:
        taught = _taught((rule,))
        for name in rule.identity:
            found.setdefault(name, set()).update(taught - {name})
    return found


def reached(names: Iterable[str], leads: Mapping[str, set[str]]) -> set[str]:
    """Return these identifiers and all to which they lead, directly or indirectly."""
    found = set(names)
    left = [*found]
    while left:
        new = leads.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


def _taught(rules: Iterable[TopicRule]) -> set[str]:
    """Return the names of the identifiers that a person's records can teach under these rules."""
    return {name for rule in rules for name, _ in rule.places if name in rule.learns or len(rule.identity) > 1}


def conditions(
    identities: Sequence[Mapping[str, Sequence[FieldPath]]], identifiers: Iterable[Identifier]
) -> tuple[str, ...]:
    """Return conditions for records with these identifiers in the fields of `identities`; each fits into a `where`."""
    comparisons: dict[str, None] = {}
    for name, value in identifiers:
        for identity in identities:
            for place in identity.get(name, ()):
                comparisons |= dict.fromkeys(place.comparisons(value))
    texts: list[str] = []
    some: list[str] = []
    size = 0
    for one in comparisons:
        length = len(one.encode(errors="replace")) + len(" or ")
        if some and (len(some) == MAX_COMPARISONS or size + length > MAX_BYTES):
            texts.append(" or ".join(some))
            some, size = [], 0
        some.append(one)
        size += length
    return (*texts, " or ".join(some)) if some else ()
