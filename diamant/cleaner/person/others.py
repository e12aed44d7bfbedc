"""Data of other people in the records of a person: a transfer has a receiver, an invoice an agent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from diamant.cleaner.person.identifiers import KnownIdentifiers
from diamant.cleaner.person.people_map import TopicRule
from diamant.cleaner.person.places import FieldPath, Parts


def others_in(
    rules: Iterable[TopicRule], roles: Sequence[TopicRule], parts: Parts, known: KnownIdentifiers
) -> list[FieldPath]:
    """Return the places of a record that have data of others: identifiers that are not the person's, and the fields of roles
    that are not the person's. `roles`: those rules of the topic by which the record is the person's.
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
