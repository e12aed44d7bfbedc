"""Operations that read the records of people: `person.show`.

The lines of `show`, in the order in which they are found, each with its `kind`:

    identifier   one identifier: `name`, `value`, and where it comes from: `topic`, `partition`, `offset`, `by`
    record       one record, as `latest` shows it, with `status`, `why` and `until_ms` (as `explain` has them), the `fields`
                 that the map names, and `others`: the places where the record has data of other people
    progress     `read_bytes` of `total_bytes`
    topic        at the end of a topic: its counts, and what could not be read
    end          at the end: counts, entries of the map without a topic, and topics that were `not_searched`, since none of
                 their `identifiers` is known of this person
    error        in its place, if the search ends early: `error`, `code`
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from diamant.broker.errors import OperationError
from diamant.broker.node.node import Node
from diamant.broker.operations.records.explain_operation import ExplainOperation
from diamant.broker.operations.records.search_operation import SearchOperation
from diamant.broker.person.following import Following, SearchedPartition, given_identifiers, people_of
from diamant.broker.person.reading_requests import ShowPersonRequest
from diamant.broker.record_json import record_fields
from diamant.cleaner.explain.explainer import Explainer
from diamant.cleaner.explain.scans import FoundRecord, KeyScan
from diamant.cleaner.person.identifiers import IdentifierStep, KnownIdentifiers, matching
from diamant.cleaner.person.others import others_in
from diamant.cleaner.person.partition_search import find_keys, read_matches
from diamant.cleaner.person.people_map import TopicRule
from diamant.cleaner.person.places import WHOLE_KEY, Parts
from diamant.cleaner.values.schemas import Values, decoded_fields
from diamant.progress import Progress
from diamant.protocol.batches.header import Record
from diamant.words import counted

PAGE_BYTES = 1024 * 1024
"""Keys and values that are sent at once, unless one record has more."""

Lines = list[Mapping[str, Any]]


async def show(
    node: Node, explaining: ExplainOperation, searching: SearchOperation, request: ShowPersonRequest, _: Progress
) -> AsyncGenerator[Lines, None]:
    """Yield the lines. The last one is an error if the search ends early. BadArgument, TooMany, Unconfirmed."""
    following = Following(
        node,
        explaining,
        people_of(request.map),
        given_identifiers(request.identifiers),
        is_confirmed=request.confirm,
        registry=request.registry,
    )
    is_begun = False
    try:
        with searching.place():
            async with aclosing(_lines(following, explaining)) as lines:
                async for some in lines:
                    is_begun = True
                    yield some
    except OperationError as error:
        if not is_begun:
            raise
        yield [{"kind": "error", "error": str(error), "code": error.code}]


async def _lines(following: Following, explaining: ExplainOperation) -> AsyncGenerator[Lines, None]:
    progress = Progress()
    shown_steps = 0
    count = 0
    topic: str | None = None
    async with aclosing(following.partitions(progress)) as partitions:
        async for one in partitions:
            if topic not in (None, one.log.topic):
                yield [_topic_line(following, topic)]
            topic = one.log.topic
            steps = following.known.steps[shown_steps:]
            shown_steps += len(steps)
            yield [*map(_step_line, steps), _progress_line(progress)]
            pages = _pages(one, following.known, following.values[topic], explaining)
            # A record of any size may have to be read and decoded.
            while (page := await explaining.read(partial(next, pages, None))) is not None:
                count += len(page)
                yield page
    end = [] if topic is None else [_topic_line(following, topic)]
    steps = following.known.steps[shown_steps:]
    not_searched = following.known.not_searched()
    problems = sum(len(one.problems) + one.undecided for one in following.topics.values())
    yield [
        *map(_step_line, steps),
        *end,
        {
            "kind": "end",
            "records": count,
            "identifiers": len(following.known.steps),
            "without_topic": list(following.without_topic),
            "not_searched": [{"topic": name, "identifiers": [*names]} for name, names in not_searched.items()],
            "is_complete": not problems and not not_searched,
        },
    ]


def _step_line(step: IdentifierStep) -> Mapping[str, Any]:
    name, value = step.identifier
    source = {"topic": step.topic, "partition": step.partition, "offset": step.offset, "by": step.by}
    return {"kind": "identifier", "name": name, "value": value, **source}


def _progress_line(progress: Progress) -> Mapping[str, Any]:
    return {"kind": "progress", "read_bytes": progress.done, "total_bytes": max(progress.done, progress.total or 0)}


def _topic_line(following: Following, topic: str | None) -> Mapping[str, Any]:
    assert topic is not None
    counts = following.topics[topic]
    problems = list(counts.problems)
    if counts.undecided:
        problems.append(
            f"{counted(counts.undecided, 'undecided record')}: neither JSON nor bytes that a known schema fits, possibly the "
            "person's"
        )
        problems += following.values[topic].schemas.problems
    return {"kind": "topic", "topic": topic, "records": counts.matched, "of": counts.total, "problems": problems}


def _pages(
    one: SearchedPartition, known: KnownIdentifiers, values: Values, explaining: ExplainOperation
) -> Iterator[Lines]:
    """Yield the lines of the records of a partition. Blocks."""
    found = one.matches.records
    if not found:
        return
    taken, rules = one.taken, one.search.rules
    is_whole = not taken.state.config.is_compacted or all(
        record.key is None or _is_known_key(record.key, rules, known) for record in found
    )
    start = taken.state.log_start_offset
    scans = find_keys(one.files, found, taken.outcomes, start, is_whole=is_whole, check=explaining.check)
    explainer = taken.explainer()
    page: Lines = []
    size = 0
    for record, facts in read_matches(one.files, found):
        explaining.check()
        scan = KeyScan() if facts.key is None else scans[facts.key]
        page.append(_record_line(one, record, facts, explainer, scan, known, values))
        size += len(record.key or b"") + len(record.value or b"")
        if size >= PAGE_BYTES:
            yield page
            page, size = [], 0
    if page:
        yield page


def _is_known_key(key: bytes, rules: Sequence[TopicRule], known: KnownIdentifiers) -> bool:
    """Tell whether all records of this key were searched for."""
    text = key.decode(errors="replace")
    return any(known.has(name, text) for rule in rules for name, places in rule.identity.items() if WHOLE_KEY in places)


def _record_line(
    one: SearchedPartition,
    record: Record,
    facts: FoundRecord,
    explainer: Explainer,
    scan: KeyScan,
    known: KnownIdentifiers,
    values: Values,
) -> Mapping[str, Any]:
    explained = explainer.record(facts, scan)
    parts = Parts(record, values)
    roles = [rule for rule in one.search.rules if matching(rule, parts, known)]
    return {
        "kind": "record",
        "topic": one.log.topic,
        **record_fields(one.log.partition, record),
        **decoded_fields(record, values),
        "by": sorted({name for rule in roles for name in matching(rule, parts, known)}),
        "fields": {place.text: category for rule in one.search.rules for place, category in rule.fields.items()},
        "others": [place.text for place in others_in(one.search.rules, roles, parts, known)],
        "status": explained.status,
        "superseded_by": explained.superseded_by,
        "why": [{"kind": gate.kind, "text": gate.text, "until_ms": gate.until_ms} for gate in explained.gates],
        "until_ms": explained.goes_ms,
        "until_is": explained.bound,
        "keep": [
            {"until_ms": rule.keep.until_ms(record.timestamp), "because": rule.keep.because}
            for rule in roles
            if rule.keep is not None
        ],
    }
