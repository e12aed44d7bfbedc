"""Checks a map of people against samples of the topics: for omissions, entries without data, and contradictions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from diamant.cleaner.person.identifiers import leads_of, reached
from diamant.cleaner.person.people_map import ERASE_KEY, PeopleMap, TopicRule
from diamant.cleaner.person.places import FieldPath
from diamant.cleaner.person.sampling import TopicSample
from diamant.cleaner.person.suggestion import suggest
from diamant.duration import duration_text
from diamant.storage.segments.log_config import LogConfig
from diamant.words import counted

NOT_MENTIONED = "not-mentioned"
NO_TOPIC = "no-topic"
NO_RECORD = "no-record"
UNRESOLVED = "unresolved"
CIRCLE = "circle"
SEVERAL_PEOPLE = "several-people"
DIFFERENT_CLAIMS = "different-claims"
OUTLIVES_KEEP = "outlives-keep"
ENDS_BEFORE_KEEP = "ends-before-keep"
UNDECODABLE = "undecodable"
NOT_COMPACTED = "not-compacted"
WITHOUT_IDENTITY = "without-identity"

_ENOUGH = 10
"""Minimum number of different values in a sample for a comparison to be meaningful."""
_SAME_PERIOD = 1.01
"""Tolerated ratio of a topic's retention to the period of `keep`, whose years and months vary in length."""


class MapProblem(NamedTuple):
    """One finding."""

    kind: str
    topic: str
    """The topic, or the entry of the map; empty for the whole map."""
    place: str
    text: str


def check_map(
    people: PeopleMap, samples: Sequence[TopicSample], configs: Mapping[str, LogConfig], now_ms: int
) -> list[MapProblem]:
    """Return the problems of a map. `samples`, `configs`: for all topics except internal ones."""
    by_topic = {one.topic: one for one in samples}
    rules = people.of_topics(by_topic)
    found = [
        MapProblem(
            NO_TOPIC, entry, "", "no topic has this name" if not entry.startswith("/") else "it matches no topic"
        )
        for entry in people.without_topic(by_topic)
    ]
    found += _not_mentioned(samples, rules)
    for topic, of_topic in rules.items():
        sample = by_topic[topic]
        found += _without_record(sample, of_topic)
        found += _without_identity(sample, of_topic)
        found += _several_people(sample, of_topic)
        if not configs[topic].is_compacted and any(rule.action.kind == ERASE_KEY for rule in of_topic):
            text = "erase-key removes nothing here, as cleanup.policy has no compact: expected remove-record"
            found.append(MapProblem(NOT_COMPACTED, topic, "", text))
        found += _retention(topic, of_topic, configs[topic], now_ms)
        if sample.undecodable:
            text = (
                f"{counted(sample.undecodable, 'value')} of {sample.records:,} are neither JSON nor have a known schema"
            )
            found.append(MapProblem(UNDECODABLE, topic, "", text))
    found += _identifiers(people)
    found += _claims(by_topic, rules)
    return found


def _not_mentioned(samples: Sequence[TopicSample], rules: Collection[str]) -> Iterator[MapProblem]:
    seen: dict[str, list[str]] = {}
    for one in suggest(samples).places:
        seen.setdefault(one.topic, []).append(f"{one.place} looks like {one.identifier}")
    for sample in samples:
        if sample.topic not in rules:
            signs = seen.get(sample.topic, [])
            text = "; ".join(signs[:5]) or "no field looks like data of people"
            yield MapProblem(NOT_MENTIONED, sample.topic, "", f"the map does not mention it: {text}")


def _without_record(sample: TopicSample, rules: Iterable[TopicRule]) -> Iterator[MapProblem]:
    named: dict[FieldPath, None] = {}
    for rule in rules:
        named |= dict.fromkeys(place for _, place in rule.places)
        named |= dict.fromkeys([*rule.fields, *rule.action.blank])
    for place in named:
        if place not in sample.paths and sample.records:
            text = f"none of {counted(sample.records, 'record')} has a value there"
            yield MapProblem(NO_RECORD, sample.topic, place.text, text)


def _without_identity(sample: TopicSample, rules: Sequence[TopicRule]) -> Iterator[MapProblem]:
    """Report a topic if only some of its records have a field by which people are recognised."""
    places = {place for rule in rules for of_name in rule.identity.values() for place in of_name}
    without = sum(not places & row.keys() and at not in sample.tombstones for at, row in enumerate(sample.rows))
    if 0 < without < len(sample.rows) - len(sample.tombstones):
        texts = " nor ".join(sorted(place.text for place in places))
        text = f"{counted(without, 'record')} of {sample.records:,} have no {texts}: if they are of people, nothing finds them"
        yield MapProblem(WITHOUT_IDENTITY, sample.topic, "", text)


def _several_people(sample: TopicSample, rules: Iterable[TopicRule]) -> Iterator[MapProblem]:
    for rule in rules:
        for name, places in rule.identity.items():
            if any(
                not set(row[places[0]]) & set(row[other])
                for other in places[1:]
                for row in sample.rows
                if places[0] in row and other in row
            ):
                texts = ", ".join(place.text for place in places)
                text = f"{name} has several values in one record ({texts}): make an entry for each role"
                yield MapProblem(SEVERAL_PEOPLE, sample.topic, places[0].text, text)


def _retention(topic: str, rules: Iterable[TopicRule], config: LogConfig, now_ms: int) -> Iterator[MapProblem]:
    for rule in rules:
        if rule.keep is None:
            continue
        kept_ms = rule.keep.until_ms(now_ms) - now_ms
        ends = config.is_deleted and config.retention_ms >= 0
        keep = f"the map keeps records until {rule.keep.until} ({rule.keep.because})"
        if not ends:
            reason = "retention.ms=-1" if config.is_deleted else "cleanup.policy=compact"
            yield MapProblem(OUTLIVES_KEEP, topic, "", f"{keep}, and the topic forever: {reason}")
        elif config.retention_ms > kept_ms * _SAME_PERIOD:
            text = f"{keep}, and the topic for {duration_text(config.retention_ms)} (retention.ms)"
            yield MapProblem(OUTLIVES_KEEP, topic, "", text)
        elif config.retention_ms < kept_ms:
            text = f"{keep}, and the topic removes them after {duration_text(config.retention_ms)} (retention.ms)"
            yield MapProblem(ENDS_BEFORE_KEEP, topic, "", text)


def _identifiers(people: PeopleMap) -> Iterator[MapProblem]:
    """Report identifiers to which the most useful one does not lead, and identifiers that lead to each other in a circle."""
    leads = leads_of(people.rules)
    starts = {name: len(reached([name], leads)) for name in people.identifiers}
    usual = max(starts, key=lambda name: (starts[name], _used(people, name), name))
    for name in sorted(people.identifiers - reached([usual], leads)):
        topics = sorted({rule.topic for rule in people.rules if name in rule.identity})
        if topics:
            text = (
                f"nothing leads from {usual} to {name}: {', '.join(topics)} will be searched only if a request gives it"
            )
            yield MapProblem(UNRESOLVED, topics[0], "", text)
    circle = next((name for name in sorted(leads) if name in reached(leads[name], leads)), None)
    if circle is not None:
        others = sorted(name for name in reached([circle], leads) if circle in reached([name], leads))
        text = f"{', '.join(others)} lead in a circle: a shared value leads to other people, and a search then asks"
        yield MapProblem(CIRCLE, "", "", text)


def _used(people: PeopleMap, name: str) -> int:
    return sum(name in rule.identity for rule in people.rules)


def _claims(samples: Mapping[str, TopicSample], rules: Mapping[str, Sequence[TopicRule]]) -> Iterator[MapProblem]:
    """Report fields of an identifier whose values do not occur in any of its fields in other topics."""
    values: dict[str, list[tuple[str, str, set[int]]]] = {}
    for topic, of_topic in rules.items():
        for rule in of_topic:
            for name, place in rule.places:
                sample = samples[topic].places.get(place)
                if sample is not None and len(sample.values) >= _ENOUGH:
                    values.setdefault(name, []).append((topic, place.text, set(sample.values)))
    for name, spots in values.items():
        for topic, text, own in spots:
            others = [spot for spot in spots if spot[0] != topic]
            if others and not any(own & other for _, _, other in others):
                names = ", ".join(sorted({spot[0] for spot in others})[:3])
                doubt = f"{name} has no value in common with {names}, in samples: do they mean the same?"
                yield MapProblem(DIFFERENT_CLAIMS, topic, text, doubt)
