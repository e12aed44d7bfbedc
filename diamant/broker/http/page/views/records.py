"""The records of a partition's log, from an offset or a time on, each with an explanation on demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import NamedTuple

from aiohttp import web

from diamant.broker.client.duration import parse_time_ms
from diamant.broker.client.errors import NotFound, NotPossible
from diamant.broker.http.page.making.rendering import HEADERS, find_call, page, shown_call, view
from diamant.broker.http.page.views.topic import query_number
from diamant.broker.http.serving.route import Call
from diamant.broker.operations.records.explain import ExplainRequest
from diamant.cleaner.evidence.certificates.page_words import moment, number, size
from diamant.cleaner.segments.transaction_outcomes import Outcome, TransactionOutcomes
from diamant.protocol.batches.control import parse_control_type
from diamant.protocol.batches.header import NO_PRODUCER_ID, BatchHeader, Record, parse_header
from diamant.protocol.batches.records import iter_records
from diamant.protocol.errors import CorruptBatch, KafkaError
from diamant.storage.log.log import Log
from diamant.storage.log.time_search import at_or_after
from diamant.storage.segments.segment import FileSlice

PAGE_RECORDS = 50
READ_BYTES = 1024 * 1024
MAX_READS = 64
"""The most reads for one page, since compaction leaves large gaps between records."""
MIN_BYTES_PER_SECOND = 256 * 1024
"""The slowest accepted reader of a value."""
MAX_SHOWN = 64 * 1024
"""The part of a value that is shown, in bytes."""
MAX_LINE = 160
"""The length of a value's preview, in characters."""
CODECS = ("not compressed", "gzip", "snappy", "lz4", "zstd")


class ShownRecord(NamedTuple):
    """A record in the list."""

    offset: int
    time: str
    key: str
    value: str | None
    preview: str
    """The beginning of the value in one line; empty if the value is that short."""
    value_more: str
    value_href: str
    """The address of the whole value, if only a part is shown."""
    headers: tuple[tuple[str, str], ...]
    badges: tuple[str, ...]
    batch: str
    is_dimmed: bool
    """True if a read_committed consumer does not get the record."""
    fate_href: str


def text_of(data: bytes) -> str:
    """Return bytes as text: long JSON is indented, other text unchanged, else hexadecimal. Control characters are escaped."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data.hex(" ")
    if text[:1] in ("{", "["):
        try:
            parsed = json.loads(text)
            line = json.dumps(parsed, ensure_ascii=False)
            text = line if len(line) <= MAX_LINE else json.dumps(parsed, indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
    return "".join(one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode() for one in text)


def _shown(record: Record, header: BatchHeader, outcome: Outcome, href: str) -> ShownRecord:
    badges = []
    if header.is_control:
        try:
            badges.append(f"marker: {parse_control_type(record.key or b'').name.lower()}")
        except (CorruptBatch, ValueError):
            badges.append("marker")
    elif outcome is Outcome.ABORTED:
        badges.append("aborted")
    elif outcome is Outcome.OPEN:
        badges.append("transaction open")
    elif header.is_transactional:
        badges.append("committed")
    if record.value is None:
        badges.append("tombstone")
    value = None if record.value is None else text_of(record.value[:MAX_SHOWN])
    line = " ".join(value[: 10 * MAX_LINE].split()) if value else ""
    left = 0 if record.value is None else len(record.value) - MAX_SHOWN
    return ShownRecord(
        record.offset,
        moment(record.timestamp) if record.timestamp >= 0 else "no time",
        "null" if record.key is None else text_of(record.key[:MAX_SHOWN]),
        value,
        f"{line[:MAX_LINE]} …" if value and (len(line) > MAX_LINE or "\n" in value) else "",
        f"{size(left)} more of {size(len(record.value or b''))}" if left > 0 else "",
        f"{href}/value" if left > 0 else "",
        tuple((name, "null" if one is None else text_of(one[:1024])) for name, one in record.headers),
        tuple(badges),
        _batch_text(header),
        header.is_control or outcome is not Outcome.COMMITTED,
        "" if header.is_control else href,
    )


def _batch_text(header: BatchHeader) -> str:
    words = [f"offsets {number(header.base_offset)} to {number(header.last_offset)}", CODECS[min(header.codec, 4)]]
    if header.producer_id != NO_PRODUCER_ID:
        words.append(f"producer {header.producer_id}, epoch {header.producer_epoch}")
    if header.has_delete_horizon:
        words.append(f"delete horizon {moment(header.base_timestamp)}")
    return ", ".join(words)


def _decode(
    data: bytes, least: int, most: int, outcomes: TransactionOutcomes, place: str
) -> tuple[list[ShownRecord], int]:
    """Return records from an offset on, in whole batches and bounded in number, and the next offset."""
    found: list[ShownRecord] = []
    position, after = 0, least
    while position < len(data) and len(found) < most:
        header = parse_header(data, position)
        outcome = Outcome.COMMITTED if header.is_control else outcomes.of(header)
        for record in iter_records(data, position) if header.record_count else ():
            if record.offset >= least and len(found) < most:
                found.append(_shown(record, header, outcome, f"{place}/{record.offset}"))
                after = record.offset + 1
        if len(found) < most:
            after = max(after, header.next_offset)
        position += header.size
    return found, after


def _bytes_of(slices: Sequence[FileSlice]) -> bytes:
    return b"".join(one.read() for one in slices)


async def _read(call: Call, log: Log, offset: int, place: str) -> tuple[list[ShownRecord], int]:
    taken, files = await call.services.explain().open(log)
    files.close()
    found: list[ShownRecord] = []
    for _ in range(MAX_READS):
        if len(found) >= PAGE_RECORDS or offset >= log.log_end_offset:
            break
        result = log.read(offset, READ_BYTES, isolation_level=0, min_one_message=True)
        data = await asyncio.to_thread(_bytes_of, result.slices)
        if not data:
            break
        more, offset = await asyncio.to_thread(_decode, data, offset, PAGE_RECORDS - len(found), taken.outcomes, place)
        found += more
    return found, offset


async def _at(call: Call, log: Log) -> tuple[int, str]:
    """Return the offset at which to start, and the error in the query, if any."""
    text = call.request.query.get("at", "")
    if text:
        try:
            at_ms = parse_time_ms(text)
        except ValueError:
            return log.log_start_offset, f"{text[:40]!r} is not a time: expected one such as 2026-01-31T12:00"
        for step in at_or_after(log, max(0, at_ms)):
            if (found := await asyncio.to_thread(step.run)) is not None:
                return found.offset, ""
        return log.log_end_offset, "No record is that late."
    return min(max(query_number(call, "offset", log.log_start_offset), log.log_start_offset), log.log_end_offset), ""


async def show(call: Call) -> web.StreamResponse:
    """Return the view. NotFound."""
    log = _log(call)
    place = f"/topics/{log.topic}/{log.partition}"
    found: list[ShownRecord] = []
    after = 0
    offset, problem = await _at(call, log)
    try:
        found, after = await _read(call, log, offset, place)
    except CorruptBatch as error:
        problem = f"The log cannot be read from here on: {error.reason}."
    except KafkaError as error:
        problem = str(error)
    return page(
        "records.html.j2",
        {
            "topic": log.topic,
            "partition": log.partition,
            "find": find_call(call, log.topic, {"text": "TEXT"}),
            "log_start_offset": log.log_start_offset,
            "log_end_offset": log.log_end_offset,
            "last_stable_offset": log.last_stable_offset,
            "offset": offset,
            "at": call.request.query.get("at", "")[:40],
            "problem": problem,
            "records": found,
            "previous": max(log.log_start_offset, offset - PAGE_RECORDS) if offset > log.log_start_offset else None,
            "next": after if found and after < log.log_end_offset else None,
        },
        title=f"{log.topic}-{log.partition}",
        view="Topics",
    )


async def fate(call: Call) -> web.StreamResponse:
    """Return the explanation of a record and of all others with its key. NotFound, NotPossible."""
    log, offset = _log(call), _offset(call)
    found = await call.services.explain().explain(ExplainRequest(log.topic, log.partition, offset=offset))
    records = [record for one in found.partitions for record in one.records]
    return page(
        "fate.html.j2",
        {
            "topic": log.topic,
            "partition": log.partition,
            "offset": offset,
            "records": records,
            "call": shown_call(
                call,
                "POST",
                "/v1/explain",
                {"topic": log.topic, "partition": log.partition, "offset": offset},
                f"diamant explain {log.topic} --partition {log.partition} --offset {offset}",
                f'diamant.Admin().explain("{log.topic}", partition={log.partition}, offset={offset})',
            ),
        },
        title=f"{log.topic}-{log.partition}, offset {offset}",
        view="Topics",
    )


async def value(call: Call) -> web.StreamResponse:
    """Return the whole value of a record, as a file. NotFound, NotPossible."""
    log, offset = _log(call), _offset(call)
    result = log.read(offset, 1, isolation_level=0, min_one_message=True) if offset < log.log_end_offset else None
    data = await asyncio.to_thread(_bytes_of, result.slices) if result is not None else b""
    found = await asyncio.to_thread(_value, data, offset)
    if found is None:
        raise NotFound(f"{log.topic}-{log.partition} has no record with a value at offset {offset}")
    name = f"{log.topic}-{log.partition}-{offset}.bin"
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    call.extend(len(found) / MIN_BYTES_PER_SECOND)
    return web.Response(body=found, content_type="application/octet-stream", headers=headers)


def _value(data: bytes, offset: int) -> bytes | None:
    position = 0
    while position < len(data):
        header = parse_header(data, position)
        if header.base_offset <= offset <= header.last_offset and not header.is_control and header.record_count:
            return next((one.value for one in iter_records(data, position) if one.offset == offset), None)
        position += header.size
    return None


def _offset(call: Call) -> int:
    text = call.path["offset"]
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise NotPossible(f"{text[:40]!r} is not an offset")
    return int(text)


def _log(call: Call) -> Log:
    text = call.path["partition"]
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise NotPossible(f"{text[:40]!r} is not a partition: expected a number")
    return call.services.explain().logs(call.path["topic"], int(text))[0]


ROUTES = (
    view("/topics/{topic}/{partition}", show, "Records.", shows_records=True),
    view("/topics/{topic}/{partition}/{offset}", fate, "The explanation of a record.", shows_records=True),
    view("/topics/{topic}/{partition}/{offset}/value", value, "The value of a record.", shows_records=True),
)
