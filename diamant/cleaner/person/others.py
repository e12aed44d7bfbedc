"""Data of other people: fields in the records of a person, such as a transfer's receiver, and identifiers that people share.

An identifier that a topic teaches leads on to other topics, where it alone selects records. If records of other people in the
first topic have the identifier, too, the selected records may be theirs. So before a search by an identifier, the places that
teach it are searched for it:

    shared = SharedIdentifiers(known, search, topic)
    shared.add(parts)               each record that `search` selects
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
"""Limit of the different people that are counted for an identifier."""


def others_in(
    rules: Iterable[TopicRule], roles: Sequence[TopicRule], parts: Parts, known: KnownIdentifiers
) -> list[FieldPath]:
    """Return the places of a record that have data of others: identifiers of others, and the fields of roles that are not the
    person's. `roles`: the rules of the topic by which the record is the person's.
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
    """The people to whom the identifiers of one search belong, in one topic. One thread at a time."""

    def __init__(self, known: KnownIdentifiers, search: TopicSearch, topic: str) -> None:
        """`search`: for the identifiers at the places of this topic that teach them (`sharing_search`)."""
        self.search = search
        self._known = known
        self._topic = topic
        self._people: dict[str, set[tuple[str, ...]]] = {}
        """By the name of an identifier, the people of the records that have it, by their identifiers; () is the person."""

    def add(self, parts: Parts) -> None:
        """Add a record that the search selects."""
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
    """Return the search for identifiers at the places of a topic that teach them; None if it teaches none of them."""
    taught = [one for one in identifiers if any(one.name in rule.learns for rule in rules)]
    if not taught:
        return None
    texts = conditions([rule.learns for rule in rules], taught)
    names = tuple(dict.fromkeys(one.name for one in taught))
    return TopicSearch(topic, tuple(rules), tuple(parse_where(text, values=values) for text in texts), names)
