"""Plans to forget a person: what would happen to which records, topic by topic. A preview and the job use the same plan.

Topics are read for all identifiers together (`following.py`). The conditions are then evaluated on the records found, as in a
redaction, so that the counts are exact at that time. The jobs reuse these records (`Plan.hits`). Planning changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from diamant.broker.operation_errors import BadArgument, NotPossible
from diamant.broker.operations.records.located_records import located_records
from diamant.broker.person.following import FollowedPerson, Following, given_people, people_of
from diamant.broker.person.register import RequestRegister
from diamant.cleaner.papers.person_intent import PersonJob, TopicFate
from diamant.cleaner.person.identifiers import IdentifierStep, RulePart
from diamant.cleaner.person.keeping import Keep
from diamant.cleaner.person.people_map import BLANK, ERASE_KEY, KEEP
from diamant.cleaner.redaction.blanking import parse_blanking
from diamant.cleaner.redaction.hits import HitsByPartition
from diamant.cleaner.redaction.json_path import NO, YES
from diamant.cleaner.redaction.where import DONE, Where, parse_where
from diamant.cleaner.values.schemas import Values
from diamant.progress import Progress
from diamant.protocol.batches.header import Record
from diamant.storage import names

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node
    from diamant.broker.operations.records.explain_operation import ExplainOperation

MAX_JOBS = 1_000
MAX_NAMED = 20
"""The maximum number of groups that a plan names for a partition, and of map entries that an error names."""


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """An entry of the map for a topic, and what it would do to the person's records."""

    topic: str
    do: str
    records: int
    """The number of matching records, including older values of their keys."""
    of_records: int
    undecided: int
    wheres: tuple[str, ...]
    """The conditions that together select these records."""
    keys: tuple[bytes, ...]
    """The keys of an erasure; empty for other actions."""
    fields: tuple[str, ...]
    fields_not_seen: tuple[str, ...]
    """Those of `fields` that none of the records has."""
    replacement: str
    keep: Keep | None
    kept_until_ms: int | None
    """Until when the newest record is kept; None if no record is kept."""
    identity: Mapping[str, tuple[str, ...]]
    """For each identifier, the places in a record that the map names."""
    groups_behind: Mapping[str, Sequence[str]]
    """For each partition, the groups that have not yet read to its end, where a tombstone would be written."""
    readers: tuple[str, ...]

    def to_fields(self) -> Mapping[str, Any]:
        """Return the JSON object, without identifiers."""
        return {
            "topic": self.topic,
            "do": self.do,
            "records": self.records,
            "of_records": self.of_records,
            "undecided": self.undecided,
            "fields": list(self.fields),
            "fields_not_seen": list(self.fields_not_seen),
            "keep": None if self.keep is None else self.keep.to_fields(),
            "kept_until_ms": self.kept_until_ms,
            "groups_behind": {name: list(groups) for name, groups in self.groups_behind.items()},
            "readers": list(self.readers),
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """What would happen to all data of a person that the map leads to."""

    identifiers: Mapping[str, tuple[str, ...]]
    topics: tuple[PlannedTopic, ...]
    not_searched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Topics that were not searched, and their identifiers, none of which is known for this person."""
    hits: HitsByPartition = field(default_factory=dict)
    """The records that the search found. The first attempts of the jobs examine only these."""
    doubts: tuple[str, ...] = ()
    """Reasons why identifiers may belong to several people. The caller has confirmed that they do not."""

    def to_fields(self) -> Mapping[str, Any]:
        """Return the JSON object of a preview. It has the number of the identifiers, but not the identifiers themselves."""
        return {
            "identifiers": {name: len(values) for name, values in self.identifiers.items()},
            "topics": [one.to_fields() for one in self.topics],
            "not_searched": {topic: list(found) for topic, found in self.not_searched.items()},
            "doubts": list(self.doubts),
            "records": sum(one.records for one in self.topics),
        }

    def entries(self) -> Iterator[Mapping[str, Any]]:
        """Yield the entry for each topic in the register."""
        for one in self.topics:
            kept = {} if one.kept_until_ms is None else {"kept_until_ms": one.kept_until_ms}
            yield {"topic": one.topic, "do": one.do, "records": one.records, **kept}

    def jobs(self) -> tuple[tuple[TopicFate, ...], tuple[PersonJob, ...]]:
        """Return the rows of a paper, and the jobs that make them true. Raises NotPossible if there are too many jobs."""
        by_key: dict[bytes, list[str]] = {}
        for one in self.topics:
            for key in one.keys if one.do == ERASE_KEY else ():
                by_key.setdefault(key, []).append(one.topic)
        erasures = {
            key: PersonJob(RequestRegister.new_id(), ERASE_KEY, tuple(dict.fromkeys(topics)), key=key.hex())
            for key, topics in by_key.items()
        }
        rows, jobs = [], list(erasures.values())
        for one in self.topics:
            redactions = [_redaction(one, where) for where in one.wheres if one.do not in (ERASE_KEY, KEEP)]
            jobs += redactions
            ids = tuple(erasures[key].id for key in one.keys) or tuple(job.id for job in redactions)
            rows.append(TopicFate(one.topic, one.do, one.records, ids, one.fields, one.keep, one.identity))
        if len(jobs) > MAX_JOBS:
            raise NotPossible(
                f"the request requires {len(jobs):,} erasures and redactions, but at most {MAX_JOBS:,} are possible"
            )
        return tuple(rows), tuple(jobs)


@dataclass(frozen=True, slots=True)
class Plans:
    """The plans for several people, in the order of the request."""

    people: Sequence[Plan]

    def to_fields(self) -> Mapping[str, Any]:
        """Return the JSON object of a preview."""
        found = [one.to_fields() for one in self.people]
        return {"people": found, "records": sum(one["records"] for one in found)}


class _Watched:
    """A `RecordCondition` that is met if one of several is. Notes the fields and the newest timestamp of matching records."""

    def __init__(self, wheres: Sequence[Where]) -> None:
        self._wheres = wheres
        self.newest_ms = -1
        self.fields: set[str] = set()
        """The fields to blank that at least one record has."""

    def examine(self, record: Record) -> tuple[int, None]:
        verdict = NO
        for where in self._wheres:
            one, changed = where.examine(record)
            self.fields.update(() if changed is None else changed.seen)
            # A record whose fields are already blank still belongs to the person.
            verdict = max(verdict, YES if one == DONE else one)
        if verdict == YES:
            self.newest_ms = max(self.newest_ms, record.timestamp)
        return verdict, None  # A plan only counts records.

    def may_be_in(self, payload: bytes) -> bool:
        return any(where.may_be_in(payload) for where in self._wheres)


class Planning:
    """Makes plans from the topics of one broker. Belongs to the loop thread."""

    def __init__(self, node: Node, explaining: ExplainOperation, groups: Lazy[GroupCoordinator]) -> None:
        self._node = node
        self._explaining = explaining
        self._groups = groups

    async def plans(
        self,
        subjects: Sequence[Mapping[str, Any]],
        people: Mapping[str, Any],
        progress: Progress,
        *,
        is_confirmed: bool,
        registry: str | None,
    ) -> list[Plan]:
        """Return a plan for each person, over all topics of the map. Raises BadArgument, NotPossible, TooMany, Unconfirmed."""
        given = given_people(subjects)
        following = Following(
            self._node, self._explaining, people_of(people), given, is_confirmed=is_confirmed, registry=registry
        )
        if following.without_topic:
            absent = ", ".join(following.without_topic[:MAX_NAMED])
            raise BadArgument(f"map: there is no topic for {absent}: remove these entries, or create the topics")
        await following.follow(progress)
        progress.begin("counting", total=len(given), unit="people")
        return [await self._plan(person, following.values, progress) for person in following.people]

    async def _plan(self, person: FollowedPerson, values: Mapping[str, Values], progress: Progress) -> Plan:
        known = person.known
        topics = [
            await self._planned(topic, part, values[topic], person.hits)
            for topic, parts in person.parts.items()
            for part in parts
        ]
        progress.advance()
        return Plan(_by_name(known.steps), tuple(topics), known.not_searched(), person.hits, tuple(known.doubts))

    async def _planned(self, topic: str, part: RulePart, values: Values, hits: HitsByPartition) -> PlannedTopic:
        explaining, rule = self._explaining, part.rule
        do = rule.action.kind
        if do == ERASE_KEY and not all(log.config.is_compacted for log in explaining.logs(topic, None)):
            raise NotPossible(
                f"{topic} is not compacted, so erase-key removes nothing from it: use remove-record in the map instead"
            )
        fields = tuple(place.text for place in rule.action.blank)
        blanking = parse_blanking(fields, rule.action.replacement, ()) if fields else None
        watched = _Watched([parse_where(where, values=values, blanking=blanking) for where in part.where])
        located = [one for _, one in await located_records(explaining, topic, watched, hits)]
        now_ms: int = self._node.env.clock.now_ms()
        keep = rule.keep
        until_ms = -1 if keep is None else keep.until_ms(watched.newest_ms)
        if do != BLANK and until_ms > now_ms:
            do = KEEP
        elif do != BLANK:
            keep = None  # The period for which records are kept has ended.
        return PlannedTopic(
            topic=topic,
            do=do,
            records=sum(one.removed for one in located),
            of_records=sum(one.records for one in located),
            undecided=sum(one.undecided for one in located),
            wheres=part.where,
            keys=part.keys if do == ERASE_KEY else (),
            fields=fields,
            fields_not_seen=tuple(one for one in fields if one not in watched.fields) if watched.newest_ms >= 0 else (),
            replacement=rule.action.replacement,
            keep=keep,
            kept_until_ms=None if keep is None or watched.newest_ms < 0 else until_ms,
            identity={name: tuple(place.text for place in places) for name, places in rule.identity.items()},
            groups_behind=await self._behind(topic) if do == ERASE_KEY else {},
            readers=rule.readers,
        )

    async def _behind(self, topic: str) -> dict[str, list[str]]:
        from diamant.broker.groups.coordinator.committed_offsets import groups_not_known, groups_of

        await groups_not_known(self._groups, self._node.topics)
        found = {}
        for log in self._explaining.logs(topic, None):
            end = log.log_end_offset
            behind = [group for committed, group in await groups_of(self._groups, log) if committed < end]
            if behind:
                found[names.partition_dir_name(topic, log.partition)] = sorted(behind)[:MAX_NAMED]
        return found


def _redaction(topic: PlannedTopic, where: str) -> PersonJob:
    return PersonJob(
        RequestRegister.new_id(),
        topic.do,
        (topic.topic,),
        where=where,
        fields=topic.fields,
        replacement=topic.replacement,
    )


def _by_name(steps: Iterable[IdentifierStep]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for step in steps:
        found.setdefault(step.identifier.name, []).append(step.identifier.value)
    return {name: tuple(values) for name, values in found.items()}


def values_of(identifiers: Mapping[str, tuple[str, ...]]) -> Iterable[bytes]:
    """Yield the values of all identifiers, which must not appear in a reason."""
    for values in identifiers.values():
        for value in values:
            yield value.encode()
