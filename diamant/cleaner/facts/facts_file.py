"""Files beside segments that hold facts about them (mode prompt). Kafka ignores files whose names do not begin with a number.

Facts belong to one file, identified by size, modification time and birth, since a segment that is cleaned again is another file.
Facts of larger segments are filed, and collected again if they do not belong to the present segment:

    diamant-<base offset, 20 digits>.facts
        4   b"DSF1"
        4   uint32   bytes of the text that follows
        4   uint32   its CRC-32C
        n   text     JSON: the fields of SegmentFacts
        4   uint32   CRC-32C of the rest                      this and the rest only if the JSON has "keys"
        m            the filter of the segment's keys, see `key_filter`

Integers are big-endian. A lost or damaged file costs a read of the segment's headers, and the next round rewrites the segment.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict
from struct import Struct

from crc32c import crc32c

from diamant.cleaner.facts.segment_facts import Emptied, FactsCollector, Horizon, KeyFacts, SegmentFacts, Step
from diamant.cleaner.rules.result import OutputSegment
from diamant.json_types import JsonObject
from diamant.storage import names
from diamant.storage.env.env import MAX_STATE_FILE, Buffer, Env, File
from diamant.storage.segments.segment import scan_headers

MIN_FILED_BYTES = 1024 * 1024
"""Facts of smaller segments are not filed: collecting them again takes some milliseconds."""

MAX_SENT_CHARS = 16 * 1024
"""Longer facts are not sent with an output, because parsing them would take the loop more than 0.2 ms."""

_MAGIC = b"DSF1"
_HEAD = Struct(">4sII")


def read_facts(
    env: Env, directory: str, base_offset: int, size: int, *, min_filed_bytes: int = MIN_FILED_BYTES
) -> SegmentFacts:
    """Return the facts of a closed segment of `size` bytes, from their file if that is up to date, else from the segment.

    Callable from any thread. From the segment it reads headers, and the records of batches with a horizon. Raises CorruptLog,
    and OSError if the segment is gone.
    """
    path = names.log_file(directory, base_offset)
    modified_ms, birth_ms = env.mtime_ms(path), env.birth_ms(path)
    filed = load_facts(env, directory, base_offset)
    if filed is not None and is_of(filed, size, modified_ms, birth_ms):
        return filed
    collector = FactsCollector()
    file = env.open(path, read_only=True)
    try:
        for position, header in scan_headers(file, 0, size):
            collector.add(header, file, position)
    finally:
        file.close()
    facts = collector.facts(base_offset, size, modified_ms, birth_ms)
    if size >= min_filed_bytes:
        file_facts(env, directory, facts)
    return facts


def text_of_output(env: Env, directory: str, output: OutputSegment) -> str | None:
    """Return the filed facts of an output, whose files are `.cleaned`, as JSON (`facts_from`); None if missing or too long."""
    birth_ms = env.birth_ms(names.log_file(directory, output.base_offset) + names.CLEANED_SUFFIX)
    filed = load_facts(env, directory, output.base_offset)
    if filed is None or not is_of(filed, output.size, output.modified_ms, birth_ms):
        return None
    text = _to_json(filed)
    return text if len(text) <= MAX_SENT_CHARS else None


def is_of(facts: SegmentFacts, size: int, modified_ms: int, birth_ms: int | None) -> bool:
    """Tell whether facts from a file belong to the present segment. False without a birth time."""
    return birth_ms is not None and (facts.size, facts.modified_ms, facts.birth_ms) == (size, modified_ms, birth_ms)


def facts_path(directory: str, base_offset: int) -> str:
    """Return the path of the file with a segment's facts."""
    return f"{directory}/{names.FACTS_PREFIX}{base_offset:020d}{names.FACTS_SUFFIX}"


def file_facts(env: Env, directory: str, facts: SegmentFacts, key_filter: Buffer = b"") -> None:
    """Write a segment's facts, with its filter if they have keys. Not synced; write errors are ignored."""
    text = _to_json(facts).encode()
    parts: list[Buffer] = [_HEAD.pack(_MAGIC, len(text), crc32c(text)), text]
    if facts.keys is not None:
        parts += [crc32c(key_filter).to_bytes(4, "big"), key_filter]
    with suppress(OSError):
        env.write_atomically(facts_path(directory, facts.base_offset), b"".join(parts), sync=False)


def load_facts(env: Env, directory: str, base_offset: int) -> SegmentFacts | None:
    """Return the facts in a segment's file; None if it is missing or damaged."""
    try:
        file = env.open(facts_path(directory, base_offset), read_only=True)
    except OSError:
        return None
    try:
        text = _read_text(file)
        facts = None if text is None else facts_from(text)
        return facts if facts is not None and facts.base_offset == base_offset else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    finally:
        file.close()


def load_filter_bytes(env: Env, directory: str, base_offset: int) -> memoryview | None:
    """Return the filter in a segment's file; None if it is missing or damaged."""
    try:
        data = env.read_bytes(facts_path(directory, base_offset), MAX_STATE_FILE)
    except OSError:
        return None
    if len(data) < _HEAD.size:
        return None
    at = _HEAD.size + _HEAD.unpack_from(data)[1]
    body = memoryview(data)[at + 4 :]
    return body if data[at : at + 4] == crc32c(body).to_bytes(4, "big") else None


def prune(env: Env, directory: str, base_offsets: Collection[int]) -> None:
    """Remove the facts of segments that no longer exist. Blocking; ignores errors."""
    with suppress(OSError):
        for name in env.list_dir(directory):
            if name.startswith(names.FACTS_PREFIX) and name.endswith(names.FACTS_SUFFIX):
                number = name[len(names.FACTS_PREFIX) : -len(names.FACTS_SUFFIX)]
                if number.isascii() and number.isdigit() and int(number) not in base_offsets:
                    env.remove(f"{directory}/{name}", missing_ok=True)


def _read_text(file: File) -> bytes | None:
    head = file.pread(_HEAD.size, 0)
    if len(head) < _HEAD.size:
        return None
    magic, size, crc = _HEAD.unpack(head)
    if magic != _MAGIC or size > file.size():
        return None
    text = file.pread(size, _HEAD.size)
    return text if crc32c(text) == crc else None


def _to_json(facts: SegmentFacts) -> str:
    return json.dumps(asdict(facts), separators=(",", ":"))


def facts_from(text: bytes | str) -> SegmentFacts:
    """Return the facts of this JSON. Raises ValueError, KeyError or TypeError for anything else."""
    fields: JsonObject = json.loads(text)
    fields["horizons"] = tuple(Horizon(*horizon) for horizon in fields["horizons"])
    if fields["steps"] is not None:
        fields["steps"] = tuple(Step(*step) for step in fields["steps"])
    if fields["emptied"] is not None:
        fields["emptied"] = tuple(Emptied(*one) for one in fields["emptied"])
    if fields["keys"] is not None:
        fields["keys"] = KeyFacts(**fields["keys"])
    return SegmentFacts(**fields)
