"""Records as the page shows them: one line for each record, and further details below it."""

from __future__ import annotations

import json
from typing import NamedTuple

from diamant.broker.operations.records.search_operation import PlacedDamage, PlacedRecord
from diamant.cleaner.segments.transaction_outcomes import Outcome, TransactionOutcomes
from diamant.protocol.batches.control import parse_control_type
from diamant.protocol.batches.header import NO_PRODUCER_ID, BatchHeader
from diamant.protocol.errors import CorruptBatch
from diamant.words import moment, number, size

MAX_SHOWN = 64 * 1024
"""The maximum number of bytes shown of a value."""
MAX_LINE = 160
"""The maximum length of a preview line, in characters."""
CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")


class ShownRecord(NamedTuple):
    """A record in the list."""

    partition: int
    offset: int
    time: str
    key: str
    key_line: str
    """The beginning of the key, on one line."""
    value: str | None
    value_line: str
    value_more: str
    value_href: str
    """The address of the whole value; empty if all of it is shown."""
    headers: tuple[tuple[str, str], ...]
    badges: tuple[str, ...]
    batch: str
    is_dimmed: bool
    """True if a read_committed consumer does not get the record (yet)."""
    fate_href: str


class ShownDamage(NamedTuple):
    """Offsets in the list that cannot be read."""

    partition: int
    text: str
    next_offset: int | None
    """The next undamaged offset; None at the end of the log."""


def text_of(data: bytes, whole_bytes: int | None = None) -> str:
    """Return bytes as text: long JSON indented, other text unchanged, binary data in hexadecimal. Escapes control characters.

    `whole_bytes`: the full size, if `data` may be only the beginning.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if whole_bytes is None or len(data) == whole_bytes or error.start < len(data) - 3:
            return data.hex(" ")
        text = data[: error.start].decode()  # the last character is cut off
    if text[:1] in ("{", "["):
        try:
            parsed = json.loads(text)
            line = json.dumps(parsed, ensure_ascii=False)
            text = line if len(line) <= MAX_LINE else json.dumps(parsed, indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
    return "".join(one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode() for one in text)


def shown_damage(found: PlacedDamage, log_end_offset: int) -> ShownDamage:
    """Return a damaged range of offsets for the list."""
    text, after = found.damage.text, found.damage.next_offset
    return ShownDamage(found.partition, text[0].upper() + text[1:], after if after < log_end_offset else None)


def shown_record(found: PlacedRecord, outcomes: TransactionOutcomes, topic_href: str) -> ShownRecord:
    """Return a record for the list. `topic_href`: the address of its topic."""
    record, header = found.record, found.header
    outcome = Outcome.COMMITTED if header.is_control else outcomes.of(header)
    href = f"{topic_href}/{found.partition}/{record.offset}"
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
    value = None if record.value is None else text_of(record.value, found.value_bytes)
    key = "null" if record.key is None else text_of(record.key, found.key_bytes)
    left = found.value_bytes - MAX_SHOWN
    return ShownRecord(
        found.partition,
        record.offset,
        moment(record.timestamp) if record.timestamp >= 0 else "no timestamp",
        key,
        _line(key),
        value,
        _line(value or ""),
        f"{size(left)} of {size(found.value_bytes)} not shown" if left > 0 else "",
        f"{href}/value" if left > 0 else "",
        tuple((name, "null" if one is None else text_of(one[:1024])) for name, one in record.headers),
        tuple(badges),
        _batch_text(header),
        header.is_control or outcome is not Outcome.COMMITTED,
        "" if header.is_control else href,
    )


def _line(text: str) -> str:
    line = " ".join(text[: 10 * MAX_LINE].split())
    return f"{line[:MAX_LINE]} …" if len(line) > MAX_LINE else line


def _batch_text(header: BatchHeader) -> str:
    words = [f"offsets {number(header.base_offset)} to {number(header.last_offset)}", CODECS[min(header.codec, 4)]]
    if header.producer_id != NO_PRODUCER_ID:
        words.append(f"producer {header.producer_id}, epoch {header.producer_epoch}")
    if header.has_delete_horizon:
        words.append(f"delete horizon {moment(header.base_timestamp)}")
    return ", ".join(words)
