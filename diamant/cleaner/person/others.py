"""Other people's data: fields in a person's records, such as the receiver of a transfer, and identifiers that people share.

An identifier learned in one topic selects records of other topics. If other people's records in the first topic contain the same
identifier, the selected records may belong to them. So before topics are searched for an identifier, the fields from which it can
be learned are searched for it:

    shared = SharedIdentifiers(known, search, topic)
    shared.add(parts)               for each record that `search` selects
    shared.texts()                  for each identifier that belongs to several people, a sentence without values
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from diamant.cleaner.person.identifiers import Identifier, KnownIdentifiers, TopicSearch, conditions, matching
from diamant.cleaner.person.people_map import TopicRule
from diamant.cleaner.person.places import FieldPath, Parts
from diamant.cleaner.redaction.where import parse_where
from diamant.cleaner.values.schemas import Values

MAX_PEOPLE = 1_000
"""Maximum number of people counted per identifier."""


def others_in(
    rules: Iterable[TopicRule], roles: Sequence[TopicRule], parts: Parts, known: KnownIdentifiers
) -> list[FieldPath]:
    """Return the fields of a person's record that hold other people's data: others' identifiers, and the fields of other roles.

    `rules`: all rules of the topic. `roles`: the rules by which the record is the person's.
    """
    found: dict[FieldPath, None] = {}
    own = {place for rule in roles for place in rule.fields}
    for rule in rules:
        for name, place in rule.places:
            if any(not known.has(name, value) for value in parts.at(place)):
                found[place] = None
        if rule not in roles:
            found |= dict.fromkeys(place for place in rule.fields if place not in own and parts.has(place))
    return list(found)


class SharedIdentifiers:
    """Counts the people who have the identifiers of one search in one topic. For one thread at a time."""

    def __init__(self, known: KnownIdentifiers, search: TopicSearch, topic: str) -> None:
        """`search`: the search that `sharing_search` returns for this topic."""
        self.search = search
        self._known = known
        self._topic = topic
        self._people: dict[str, set[tuple[str, ...]]] = {}
        """For each identifier, the people whose records have it, as tuples of identifiers; () is the person searched for."""

    def add(self, parts: Parts) -> None:
        """Count the person to whom a record selected by the search belongs."""
        for rule in self.search.rules:
            whose = tuple(
                sorted({text for places in rule.identity.values() for one in places for text in parts.at(one)})
            )
            if not whose:
                continue  # The record does not say whose it is.
            if matching(rule, parts, self._known):
                whose = ()  # The record is the person's own.
            for name in self.search.names:
                if any(self._known.has(name, text) for place in rule.learns.get(name, ()) for text in parts.at(place)):
                    people = self._people.setdefault(name, set())
                    if len(people) < MAX_PEOPLE:
                        people.add(whose)

    def texts(self) -> list[str]:
        """Return a sentence for each identifier that belongs to several people."""
        return [
            f"{name} is an identifier of {len(people):,} different people in {self._topic}, so what it leads to may be others'"
            for name, people in self._people.items()
            if len(people) > 1
        ]


def sharing_search(
    topic: str,
    rules: Sequence[TopicRule],
    identifiers: Sequence[Identifier],
    values: Values | None,
) -> TopicSearch | None:
    """Return a search for `identifiers` in the fields from which the topic's rules learn them; None if they learn none."""
    taught = [one for one in identifiers if any(one.name in rule.learns for rule in rules)]
    if not taught:
        return None
    texts = conditions([rule.learns for rule in rules], taught)
    names = tuple(dict.fromkeys(one.name for one in taught))
    return TopicSearch(topic, tuple(rules), tuple(parse_where(text, values=values) for text in texts), names)
