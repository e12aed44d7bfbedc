"""Drafts a map of people from samples of topics: finds the places of identifiers, with reasons, and makes entries from them.

1  A place may identify people if it has many different values and if the values look like e-mail addresses or phone numbers, or
   if the place's name or a tag of its schema says so.
2  Places that share enough values hold the same identifier. An identifier of something else than a person, such as an order
   number, is accepted if several topics have it, and if each of its values occurs with one person only.
3  In each topic, people are recognised by the identifier that occurs in most topics; the topic's other identifiers are learned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

from diamant.cleaner.person.people_map import ERASE_KEY, REMOVE_RECORD, VERSION
from diamant.cleaner.person.places import WHOLE_KEY, FieldPath
from diamant.cleaner.person.sampling import PlaceSample, TopicSample
from diamant.cleaner.person.shapes import (
    PHONE,
    Sign,
    normal_name,
    sign_of_name,
    sign_of_tags,
)

_MOST = 0.8
"""Minimum share of a place's values that must have the same shape for the shape to count."""
_LEAST_COMMON = 3
_LEAST_SHARE = 0.1
"""Two places hold the same identifier if they share this many values and this share of the values of the place with fewer."""
_MAX_PLACES_OF_VALUE = 100


class Spot(NamedTuple):
    """A place in a topic."""

    topic: str
    place: FieldPath


@dataclass(slots=True)
class FoundPlace:
    """A place that identifies people."""

    topic: str
    place: str
    identifier: str
    category: str
    reasons: list[str]
    records: int
    """Number of sampled records with a value at the place."""
    distinct: int
    """Number of different values."""

    def to_fields(self) -> dict[str, object]:
        """Return its JSON object."""
        return {
            "topic": self.topic,
            "place": self.place,
            "identifier": self.identifier,
            "reasons": self.reasons,
            "records": self.records,
            "distinct": self.distinct,
        }


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A draft of a map."""

    places: tuple[FoundPlace, ...]
    topics: Mapping[str, object]
    """The entries of the map."""
    sampled: Mapping[str, int]
    """Number of sampled records, by topic."""
    undecodable: Mapping[str, int]
    """Number of sampled records whose value could not be decoded, by topic."""

    def to_fields(self) -> dict[str, object]:
        """Return its JSON object."""
        return {
            "map": {"version": VERSION, "topics": dict(self.topics)},
            "places": [one.to_fields() for one in self.places],
            "sampled": dict(self.sampled),
            "undecodable": dict(self.undecodable),
        }


@dataclass(slots=True)
class _Candidate:
    spot: Spot
    sample: PlaceSample
    sign: Sign | None
    reasons: list[str] = field(default_factory=list)

    @property
    def is_person(self) -> bool:
        return self.sign is not None and bool(self.sign.identifier)


def suggest(samples: Sequence[TopicSample]) -> Suggestion:
    """Draft a map for these topics."""
    candidates = {one.spot: one for sample in samples for one in _candidates(sample)}
    groups = _groups(candidates)
    accepted = [group for group in groups if any(candidates[spot].is_person for spot in group)]
    people = {spot for group in accepted for spot in group}
    accepted += [group for group in groups if group not in accepted and _leads_on(group, people, candidates, samples)]
    named: dict[Spot, str] = {}
    for group in accepted:
        name = _name([candidates[spot] for spot in group])
        named |= dict.fromkeys(group, name)
    _add_keys(samples, named, candidates)
    found = []
    for spot, name in sorted(named.items()):
        one = candidates[spot]
        partners = sorted(
            f"{other.topic} {other.place.text}"
            for other in named
            if other != spot and _are_alike(one.sample, candidates[other].sample)
        )
        reasons = [*one.reasons, *([f"has values in common with {', '.join(partners[:3])}"] if partners else [])]
        category = one.sign.category if one.sign is not None else "user.unique_id"
        found.append(
            FoundPlace(spot.topic, spot.place.text, name, category, reasons, one.sample.records, len(one.sample.values))
        )
    entries = _entries(samples, named, candidates)
    return Suggestion(
        tuple(found),
        entries,
        {one.topic: one.records for one in samples},
        {one.topic: one.undecodable for one in samples if one.undecodable},
    )


# -- places ------------------------------------------------------------------------------------------------------------


def _candidates(sample: TopicSample) -> Iterator[_Candidate]:
    for place, values in sample.places.items():
        if values.is_varied:
            yield _Candidate(Spot(sample.topic, place), values, *_sign(place, values, sample))


def _sign(place: FieldPath, values: PlaceSample, sample: TopicSample) -> tuple[Sign | None, list[str]]:
    """Return the kind of data at a place, and the reasons."""
    total = values.values.total()
    found: list[tuple[Sign, str]] = []
    for sign, count in values.signs.most_common(1):
        if count >= _MOST * total:
            found.append((sign, f"{count:,} of {total:,} values look like {sign.identifier}"))
    tags = sample.tags.get(place.path[-1], ()) if place.path else ()
    tagged = sign_of_tags(tags)
    if tagged is not None:
        found.append((tagged, f"its schema has the tags {', '.join(tags)}"))
    named = sign_of_name(place.path)
    if named is not None and (named != PHONE or values.local_phones >= _MOST * total or found):
        found.append((named, f"its name is {place.path[-1]}"))
    signs = sorted((one for one, _ in found), key=lambda one: not one.identifier)
    return signs[0] if signs else None, [reason for _, reason in found]


# -- identifiers -------------------------------------------------------------------------------------------------------


def _groups(candidates: Mapping[Spot, _Candidate]) -> list[set[Spot]]:
    """Group places that hold the same identifier: they share values, or their identifiers of people are of the same kind."""
    places: dict[int, list[Spot]] = {}
    for spot, one in candidates.items():
        if _is_field(one):
            continue
        for hashed in one.sample.telling:
            places.setdefault(hashed, []).append(spot)
    common: Counter[tuple[Spot, Spot]] = Counter()
    for spots in places.values():
        if 1 < len(spots) <= _MAX_PLACES_OF_VALUE:
            common.update(combinations(sorted(spots), 2))
    of_spot = {spot: {spot} for spot in candidates}
    for (left, right), count in common.items():
        if count >= _needed(candidates[left].sample, candidates[right].sample):
            _join(of_spot, left, right)
    first: dict[str, Spot] = {}
    for spot, candidate in candidates.items():
        if candidate.sign is not None and candidate.sign.identifier:
            _join(of_spot, first.setdefault(_own_name(candidate), spot), spot)
    return list({id(group): group for group in of_spot.values()}.values())


def _is_field(one: _Candidate) -> bool:
    """Tell whether a place has personal data that identifies no one, such as names and streets."""
    return one.sign is not None and not one.sign.identifier


def _own_name(one: _Candidate) -> str:
    assert one.sign is not None
    return one.sign.identifier


def _join(of_spot: dict[Spot, set[Spot]], one: Spot, other: Spot) -> None:
    group, others = of_spot[one], of_spot[other]
    if group is not others:
        group |= others
        for spot in others:
            of_spot[spot] = group


def _needed(one: PlaceSample, other: PlaceSample) -> float:
    return max(_LEAST_COMMON, _LEAST_SHARE * min(len(one.telling), len(other.telling)))


def _are_alike(one: PlaceSample, other: PlaceSample) -> bool:
    return len(one.telling & other.telling) >= _needed(one, other)


def _leads_on(
    group: set[Spot], people: set[Spot], candidates: Mapping[Spot, _Candidate], samples: Iterable[TopicSample]
) -> bool:
    """Tell whether several topics have an identifier, and each of its values occurs with one person only."""
    if len({spot.topic for spot in group}) < 2 or any(_is_field(candidates[spot]) for spot in group):
        return False
    is_seen = False
    for sample in samples:
        own = [spot.place for spot in group if spot.topic == sample.topic]
        persons = [spot.place for spot in people if spot.topic == sample.topic]
        for person in persons:
            for place in own:
                owner: dict[int, tuple[int, ...]] = {}
                for row in sample.rows:
                    if place in row and person in row:
                        for value in row[place]:
                            if owner.setdefault(value, row[person]) != row[person]:
                                return False
                            is_seen = True
    return is_seen


def _name(group: Sequence[_Candidate]) -> str:
    """Return a name for an identifier: the usual name of its kind, or else the most frequent name of its fields."""
    signs = Counter(_own_name(one) for one in group if one.is_person)
    if signs:
        return signs.most_common(1)[0][0]
    names = Counter(normal_name(one.spot.place.path[-1]) for one in group if one.spot.place.path)
    return names.most_common(1)[0][0] if names else f"{normal_name(group[0].spot.topic)}_key"


def _add_keys(samples: Iterable[TopicSample], named: dict[Spot, str], candidates: Mapping[Spot, _Candidate]) -> None:
    """Name each key that always equals an identifier in its record, because short numbers are not compared between places."""
    for sample in samples:
        key = Spot(sample.topic, WHOLE_KEY)
        for spot, name in sorted(named.items()):
            if spot.topic != sample.topic or key in named or key not in candidates:
                continue
            rows = [row for row in sample.rows if spot.place in row]
            if len(rows) >= _LEAST_COMMON and all(row.get(WHOLE_KEY) == row[spot.place] for row in rows):
                named[key] = name
                candidates[key].reasons.append(f"it always equals {spot.place.text}")


# -- entries -----------------------------------------------------------------------------------------------------------


def _entries(
    samples: Iterable[TopicSample], named: Mapping[Spot, str], candidates: Mapping[Spot, _Candidate]
) -> dict[str, object]:
    spread = Counter(name for _, name in {(spot.topic, name) for spot, name in named.items()})
    keys = Counter(name for spot, name in named.items() if spot.place == WHOLE_KEY)
    usual = max(spread, key=lambda name: (spread[name], keys[name], name), default="")
    entries: dict[str, object] = {}
    for sample in samples:
        own: dict[str, list[FieldPath]] = {}
        for spot, name in named.items():
            if spot.topic == sample.topic:
                own.setdefault(name, []).append(spot.place)
        if own:
            main = max(own, key=lambda name: (name == usual, WHOLE_KEY in own[name], spread[name], name))
            roles = _roles(sample, own.pop(main))
            entries[sample.topic] = _entry(sample, main, roles, own, candidates)
    return entries


def _roles(sample: TopicSample, places: list[FieldPath]) -> list[list[FieldPath]]:
    """Group the places of one identifier by role: places that share a value in every record name the same person."""
    roles: list[list[FieldPath]] = []
    for place in sorted(places, key=lambda one: (one != WHOLE_KEY, one.text)):
        for role in roles:
            both = [row for row in sample.rows if place in row and role[0] in row]
            if both and all(set(row[place]) & set(row[role[0]]) for row in both):
                role.append(place)
                break
        else:
            roles.append([place])
    return roles


def _entry(
    sample: TopicSample,
    main: str,
    roles: Sequence[Sequence[FieldPath]],
    learned: Mapping[str, Sequence[FieldPath]],
    candidates: Mapping[Spot, _Candidate],
) -> object:
    fields = {
        place.text: one.sign.category
        for place in sample.places
        if (one := candidates.get(Spot(sample.topic, place))) is not None and one.sign is not None
    }
    found = []
    for role in roles:
        place = role[0]
        entry: dict[str, object] = {"identity": {main: place.text}}
        around = "" if len(roles) == 1 else FieldPath(place.field, place.path[:-1]).text
        learns = {
            name: texts if len(texts) > 1 else texts[0]
            for name, places in learned.items()
            if (texts := [one.text for one in places if one.text.startswith(around)])
        }
        if learns:
            entry["learns"] = learns
        own = {text: category for text, category in fields.items() if text.startswith(around)}
        if own:
            entry["fields"] = own
        entry["do"] = ERASE_KEY if place == WHOLE_KEY and sample.is_compacted else REMOVE_RECORD
        found.append(entry)
    return found if len(found) > 1 else found[0]
