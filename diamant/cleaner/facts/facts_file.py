"""Stores facts about segments in files beside them (mode prompt). Kafka ignores files whose names do not begin with a number.

Facts apply to one `.log` file, identified by its size, modification time and birth time, because cleaning a segment replaces its
file. Facts of larger segments are stored. If they do not match the present file, they are collected again.

    diamant-<base offset, 20 digits>.facts
        4   b"DSF1"
        4   uint32   length of the text in bytes
        4   uint32   CRC-32C of the text
        n   text     JSON: the fields of SegmentFacts
        4   uint32   CRC-32C of the filter                    this and the filter only if the JSON has "keys"
        m            the filter of the segment's keys, see `key_filter`

Integers are big-endian. If the file is lost or damaged, the segment's headers are read again, and the next round rewrites the
segment.
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
"""Facts of smaller segments are not stored, because collecting them again takes only a few milliseconds."""

MAX_SENT_CHARS = 16 * 1024
"""Longer facts are not sent with an output, because parsing them would block the loop for more than 0.2 ms."""

_MAGIC = b"DSF1"
_HEAD = Struct(">4sII")


def read_facts(
    env: Env, directory: str, base_offset: int, size: int, *, min_filed_bytes: int = MIN_FILED_BYTES
) -> SegmentFacts:
    """Return the facts of a closed segment of `size` bytes, from the facts file if that is current, otherwise from the segment.

    Callable from any thread. From the segment it reads only headers, and the records of batches with a horizon. Raises
    CorruptLog, and OSError if the segment is gone.
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
    """Return the stored facts of an output with `.cleaned` files, as JSON (`facts_from`); None if missing or too long."""
    birth_ms = env.birth_ms(names.log_file(directory, output.base_offset) + names.CLEANED_SUFFIX)
    filed = load_facts(env, directory, output.base_offset)
    if filed is None or not is_of(filed, output.size, output.modified_ms, birth_ms):
        return None
    text = _to_json(filed)
    return text if len(text) <= MAX_SENT_CHARS else None


def is_of(facts: SegmentFacts, size: int, modified_ms: int, birth_ms: int | None) -> bool:
    """Return whether stored facts belong to the file with this size and these times. Without a birth time, they do not."""
    return birth_ms is not None and (facts.size, facts.modified_ms, facts.birth_ms) == (size, modified_ms, birth_ms)


def facts_path(directory: str, base_offset: int) -> str:
    """Return the path of the file with a segment's facts."""
    return f"{directory}/{names.FACTS_PREFIX}{base_offset:020d}{names.FACTS_SUFFIX}"


def file_facts(env: Env, directory: str, facts: SegmentFacts, key_filter: Buffer = b"") -> None:
    """Store a segment's facts and, if they include keys, its filter. Does not sync the file, and ignores write errors."""
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
    """Remove the facts files of all segments but those at `base_offsets`. Blocks on disk I/O; ignores errors."""
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
    """Parse facts that are stored as JSON. Raises ValueError, KeyError or TypeError if the text is anything else."""
    fields: JsonObject = json.loads(text)
    fields["horizons"] = tuple(Horizon(*horizon) for horizon in fields["horizons"])
    if fields["steps"] is not None:
        fields["steps"] = tuple(Step(*step) for step in fields["steps"])
    if fields["emptied"] is not None:
        fields["emptied"] = tuple(Emptied(*one) for one in fields["emptied"])
    if fields["keys"] is not None:
        fields["keys"] = KeyFacts(**fields["keys"])
    return SegmentFacts(**fields)
