"""`diamant log dump`: print the contents of a partition's files, or of one file, as lines of text or JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from uuid import UUID

import click

from diamant.broker.commands.settings.schema_options import note_problems, schema_options
from diamant.broker.commands.terminal.files import bytes_json, bytes_text, one_line_errors, problem_fields, time_text
from diamant.broker.commands.terminal.progress_text import LiveProgress
from diamant.cleaner.offline.dump import BatchItem, EntryItem, Item, RecordItem, SegmentItem, dump_directory, dump_file
from diamant.cleaner.segments.tolerant_reader import Advance, Problem, open_log_directory
from diamant.cleaner.values.schema_places import SchemaPlaces
from diamant.cleaner.values.schemas import Values, decoded_fields
from diamant.cleaner.values.schemas_topic import SCHEMAS_TOPIC, SchemasTopic
from diamant.json_types import JsonObject
from diamant.storage.env.env import RealEnv
from diamant.storage.names import partition_dir_name
from diamant.storage.uuid_text import uuid_to_text
from diamant.words import counted


@click.command()
@click.argument("path", type=click.Path(exists=True))
@click.option("--records", "with_records", is_flag=True, help="Also print every record.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@schema_options
def dump(path: str, *, with_records: bool, as_json: bool, places: SchemaPlaces) -> None:
    """Print the segments, indexes and batches in PATH, and with --records every record.

    PATH is a partition directory, a log directory, or one file: .log, .index, .timeindex, .txnindex, .snapshot,
    leader-epoch-checkpoint, partition.metadata, an offset checkpoint, or a .checkpoint of the metadata log.

    Keys and values are decoded if their schema is in the topic _schemas of the same log directory, in the schema directory, or
    in the registry. Damage is reported where it occurs, and the dump continues.

    Exit codes: 0 done; 1 a file is damaged or unreadable; 2 usage.
    """
    show = _json_line if as_json else _text_line
    schemas = places.schemas(RealEnv(), *schemas_topic_above(path))
    values = Values(schemas)
    problems = 0
    with one_line_errors():
        total_bytes = _size(path)
        # On the same terminal, the lines and the progress bar would overwrite each other.
        with LiveProgress(total_bytes, is_shown=not sys.stdout.isatty()) as bar:
            for item in _items(path, bar.advance, with_records=with_records):
                problems += isinstance(item, Problem)
                if isinstance(item, SegmentItem | BatchItem):
                    values = Values(schemas, os.path.basename(os.path.dirname(item.file)).rpartition("-")[0])
                click.echo(show(item, values))
    note_problems(schemas.problems)
    sys.exit(1 if problems else 0)


def schemas_topic_above(path: str) -> list[SchemasTopic]:
    """Return the schemas in the log directory at or above a path."""
    place = os.path.abspath(path)
    above = (place, os.path.dirname(place), os.path.dirname(os.path.dirname(place)))
    directory = next((one for one in above if os.path.isdir(f"{one}/{partition_dir_name(SCHEMAS_TOPIC, 0)}")), None)
    return [] if directory is None else [SchemasTopic(RealEnv(), directory)]


def _size(path: str) -> int:
    if os.path.isfile(path):
        return os.path.getsize(path)
    with open_log_directory(RealEnv(), path) as directory:
        return sum(partition.size for partition in directory.partitions)


def _items(path: str, advance: Advance, *, with_records: bool) -> Iterator[Item]:
    env = RealEnv()
    if os.path.isfile(path):
        yield from dump_file(env, path, with_records=with_records, advance=advance)
        return
    with open_log_directory(env, path) as directory:
        yield from dump_directory(env, directory, with_records=with_records, advance=advance)


# -- text --------------------------------------------------------------------------------------------------------------


def _text_line(item: Item, values: Values) -> str:
    if isinstance(item, SegmentItem):
        return _segment_text(item)
    if isinstance(item, BatchItem):
        return _batch_text(item)
    if isinstance(item, RecordItem):
        return _record_text(item, values)
    if isinstance(item, EntryItem):
        return f"{item.kind} of {item.file}: {_pairs(item.values)}"
    return f"DAMAGED {item}"


def _segment_text(item: SegmentItem) -> str:
    counts = (
        f"no {name} entries" if count is None else counted(count, f"{name} entry", f"{name} entries")
        for name, count in (
            ("index", item.offset_index_entries),
            ("time index", item.time_index_entries),
            ("transaction index", item.txn_index_entries),
        )
    )
    return f"{item.file}: base offset {item.base_offset}, {item.size} bytes, {', '.join(counts)}"


def _batch_text(item: BatchItem) -> str:
    parts = [
        f"  at {item.position}: offsets {item.base_offset} to {item.last_offset}",
        f"{counted(item.record_count, 'record')} in {counted(item.size, 'byte')}",
        item.codec,
        f"{item.timestamp_type} up to {time_text(item.max_timestamp)}",
        f"leader epoch {item.leader_epoch}",
    ]
    if item.magic != 2:
        parts.append(f"magic {item.magic}")
    if item.producer_id != -1:
        sequence = "" if item.base_sequence == -1 else f" sequence {item.base_sequence} to {item.last_sequence}"
        parts.append(f"producer {item.producer_id} epoch {item.producer_epoch}{sequence}")
    if item.is_transactional:
        parts.append("transactional")
    if item.is_control:
        parts.append("control")
    if item.delete_horizon_ms is not None:
        parts.append(f"delete horizon {time_text(item.delete_horizon_ms)}")
    parts.append(f"CRC {item.crc:08x} {'valid' if item.crc_is_valid else 'WRONG'}")
    return ", ".join(parts)


def _record_text(item: RecordItem, values: Values) -> str:
    start = f"    {item.offset} {time_text(item.timestamp)}"
    if item.decoded is not None:
        name, fields = item.decoded
        return f"{start} {name} {_pairs(fields)}".rstrip()
    headers = ", ".join(f"{bytes_text(_name_bytes(key))}: {bytes_text(value)}" for key, value in item.headers)
    decoded = {name: json.dumps(node) for name, node in decoded_fields(item, values).items()}
    key, value = decoded.get("key_json", bytes_text(item.key)), decoded.get("value_json", bytes_text(item.value))
    return f"{start} {key} = {value}" + (f" [{headers}]" if headers else "")


def _pairs(values: JsonObject) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {json.dumps(value, default=_plain)}" for name, value in values.items())


# -- JSON --------------------------------------------------------------------------------------------------------------


def _json_line(item: Item, values: Values) -> str:
    return json.dumps(_fields(item, values), default=_plain)


def _fields(item: Item, values: Values) -> dict[str, object]:
    if isinstance(item, SegmentItem):
        return {"type": "segment", **asdict(item)}
    if isinstance(item, BatchItem):
        return {"type": "batch", **asdict(item)}
    if isinstance(item, EntryItem):
        return {"type": item.kind, "file": item.file, **item.values}
    if isinstance(item, Problem):
        return {"type": "problem", **problem_fields(item)}
    fields: JsonObject = {
        "type": "record",
        "offset": item.offset,
        "timestamp": item.timestamp,
        "sequence": item.sequence,
        "key": bytes_json(item.key),
        "value": bytes_json(item.value),
        "headers": [{"key": bytes_json(_name_bytes(key)), "value": bytes_json(value)} for key, value in item.headers],
    }
    if item.decoded is not None:
        name, own = item.decoded
        fields["decoded"] = {"name": name, **own}
        return fields
    return {**fields, **decoded_fields(item, values)}


def _plain(value: object) -> object:
    """Convert a value in a metadata record to a value for JSON."""
    if isinstance(value, bytes):
        return bytes_json(value)
    if isinstance(value, UUID):
        return uuid_to_text(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)


def _name_bytes(name: str) -> bytes:
    return name.encode(errors="surrogateescape")
