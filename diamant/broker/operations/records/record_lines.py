"""Streams of records as JSON objects: the compacted view of a topic (`latest`), and a search (`find`).

    {"partition": 0, "offset": 42, "timestamp": 1700000000000, "key": {"text": "a"}, "value": {"text": "1"}, "headers": []}

A key or value with a known schema is also given in decoded form, as `key_json` or `value_json`.

A search yields the matching records, newest first, and its progress. Keys and values are truncated to `EXCERPT_BYTES`, and are
decoded only if they are not truncated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from diamant.broker.operation_errors import BadArgument, OperationError
from diamant.broker.operations.records.explain_operation import ExplainOperation
from diamant.broker.operations.records.record_requests import FindRequest, LatestRequest
from diamant.broker.operations.records.records_operation import RecordPage, RecordsOperation
from diamant.broker.operations.records.search_operation import PlacedDamage, PlacedRecord, SearchOperation
from diamant.cleaner.queries.matching_records import Wanted
from diamant.cleaner.queries.record_fields import data_fields, record_fields
from diamant.cleaner.redaction.json_path import UNDECIDED, YES
from diamant.cleaner.redaction.where import WhereError, parse_where
from diamant.cleaner.values.schemas import Values, decoded_fields
from diamant.progress import Progress
from diamant.protocol.batches.header import Record

EXCERPT_BYTES = 1024
MAX_PROBLEMS = 100

_UNDECIDED = "their values are neither JSON nor bytes that fit a known schema, so these records may match"


async def latest(
    reading: RecordsOperation, request: LatestRequest, _: Progress
) -> AsyncGenerator[list[Mapping[str, Any]], None]:
    """Yield the latest record of each key."""
    pages = reading.latest_pages(request.topic, request.partition, tombstones=request.tombstones)
    values = reading.values(request.topic, request.registry)
    async with aclosing(pages):
        async for page in pages:
            # Decode in a thread: a value may have any size.
            yield await asyncio.to_thread(_lines, page, values)


def _lines(page: RecordPage, values: Values) -> list[Mapping[str, Any]]:
    """Return the records of a page, with keys and values decoded if their schema is known (`key_json`, `value_json`)."""
    return [{**record_fields(page.partition, one), **decoded_fields(one, values)} for one in page.records]


async def find(
    explaining: ExplainOperation, searching: SearchOperation, request: FindRequest, _: Progress
) -> AsyncGenerator[list[Mapping[str, Any]], None]:
    """Yield matching records and progress, then an error if the search ends early. Raises BadArgument, NotFound, TooMany."""
    topic, most = request.topic, request.limit
    total = sum(log.size for log in explaining.logs(topic, request.partition))
    undecided: list[int] = []
    values = explaining.values(topic, request.registry)
    wanted = _wanted(request, values, undecided)
    pages = searching.newest_first(topic, request.partition, wanted, most=most + 1, cut_bytes=EXCERPT_BYTES)
    read = found = 0
    problems: list[str] = []
    is_begun = is_cut = False
    try:
        async with aclosing(pages):
            async for page in pages:
                records = [one for one in page.found if isinstance(one, PlacedRecord)]
                is_cut = found + len(records) > most
                records = records[: most - found]
                found += len(records)
                read += page.bytes_read
                problems += [
                    f"{topic}-{one.partition}: {one.damage.text}" for one in page.found if isinstance(one, PlacedDamage)
                ]
                is_begun = True
                excerpts = await asyncio.to_thread(_excerpts, records, values)
                yield [*excerpts, {"read_bytes": read, "total_bytes": max(read, total)}]
    except OperationError as error:
        if not is_begun:
            raise
        yield [{"error": str(error), "code": error.code}]
    else:
        if undecided:
            problems.append(f"{topic}: {len(undecided)} records are undecided: {_UNDECIDED}")
            problems += values.schemas.problems
        yield [{"is_done": True, "found": found, "is_cut": is_cut, "problems": problems[:MAX_PROBLEMS]}]


def _wanted(request: FindRequest, values: Values, undecided: list[int]) -> Wanted:
    """Return the condition of a search. When it is tested, it adds the offsets of undecided records to `undecided`."""
    key, text, where = request.key, request.text, request.where
    if (key is not None) + (text is not None) + (where is not None) > 1:
        raise BadArgument("expected only one of key, text and where, or none of them for all records")
    if key is not None:
        return Wanted.key(key)
    if text is not None:
        if not text:
            raise BadArgument("text: expected at least one character")
        return Wanted.text(text.encode())
    if where is None:
        return Wanted(lambda _: True, lambda _: True)
    try:
        parsed = parse_where(where, values=values)
    except WhereError as error:
        raise BadArgument(str(error)) from None

    def is_wanted(record: Record) -> bool:
        verdict = parsed.judge(record)
        if verdict == UNDECIDED:
            undecided.append(record.offset)
        return verdict == YES

    return Wanted(is_wanted, parsed.may_be_in)


def _excerpts(records: Sequence[PlacedRecord], values: Values) -> list[Mapping[str, Any]]:
    # Runs in a thread, since it decodes.
    return [_excerpt(one, values) for one in records]


def _excerpt(one: PlacedRecord, values: Values) -> Mapping[str, Any]:
    record = one.record
    # A truncated key or value cannot be decoded.
    whole = record._replace(
        key=record.key if record.key is not None and len(record.key) == one.key_bytes else None,
        value=record.value if record.value is not None and len(record.value) == one.value_bytes else None,
    )
    return {
        "partition": one.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _cut(record.key, one.key_bytes),
        "key_bytes": one.key_bytes,
        "value": _cut(record.value, one.value_bytes),
        "value_bytes": one.value_bytes,
        **decoded_fields(whole, values),
    }


def _cut(data: bytes | None, size: int) -> Mapping[str, str] | None:
    """Like `data_fields`, for data that may be only the beginning of `size` bytes; leaves out a character that is cut off."""
    if data is None or len(data) == size:
        return data_fields(data)
    for left in range(4):
        if "text" in (fields := data_fields(data[: len(data) - left]) or {}):
            return fields
    return data_fields(data)
