"""`diamant consume`: print the records of a topic of any Kafka cluster."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping

import click

from diamant.broker.client.consuming import ReadRecord, TopicReader
from diamant.broker.client.kafka_client import EARLIEST, LATEST, KafkaClient, Place
from diamant.broker.client.kafka_group import KafkaGroup
from diamant.broker.commands.cluster.asking_kafka import on_cluster
from diamant.broker.commands.cluster.decoding import decoded_line, values_on, with_decoded
from diamant.broker.commands.cluster.places import place_offsets
from diamant.broker.commands.settings.schema_options import note_problems, schema_options
from diamant.broker.commands.terminal.completion import group_names, topic_names
from diamant.broker.commands.terminal.key_options import key_options
from diamant.broker.commands.terminal.progress_text import LiveProgress
from diamant.broker.operation_errors import no_partition
from diamant.broker.record_json import format_record_line
from diamant.cleaner.values.schema_places import SchemaPlaces
from diamant.cleaner.values.schemas import Values


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.option("--partition", "-p", type=click.IntRange(min=0), metavar="N", help="Only this partition.")
@click.option(
    "--offset",
    "-o",
    default="start",
    show_default=True,
    metavar="WHERE",
    help="Where to start in each partition: start, end, an offset, -N for N before the end, or @TIME (ISO 8601 or ms).",
)
@click.option(
    "--group",
    "-g",
    metavar="GROUP",
    help="Start at the committed offsets of this consumer group, or at --offset where it has none, and commit at the end.",
    shell_complete=group_names,
)
@click.option("--count", "-n", "-c", type=click.IntRange(min=0), metavar="N", help="Stop after N records.")
@click.option("--exit", "-e", "ends", is_flag=True, help="Stop at the current end instead of waiting for more.")
@key_options("Only records of a key")
@click.option("--json", "-J", "as_json", is_flag=True, help="Print one JSON object per line, like `diamant latest`.")
@click.option(
    "--format",
    "-f",
    "template",
    help="As in kcat: %t topic, %p partition, %o offset, %k key, %s value, %h headers, %T timestamp (ms), %K and %S lengths.",
)
@click.option("--uncommitted", is_flag=True, help="Include records of open and aborted transactions.")
@click.option(
    "--schema",
    "with_schema",
    is_flag=True,
    help="Print keys and values as JSON if their schema is in the topic _schemas, the schema directory or the registry.",
)
@schema_options
@on_cluster
def consume(
    client: KafkaClient,
    topic: str,
    partition: int | None,
    offset: str,
    group: str | None,
    count: int | None,
    ends: bool,
    key: bytes | None,
    as_json: bool,
    template: str | None,
    uncommitted: bool,
    with_schema: bool,
    places: SchemaPlaces,
) -> None:
    """Print the records of TOPIC, one value per line, and then new records until Ctrl-C.

    Records of a transaction are printed once it is committed; by default, Kafka's console consumer also prints uncommitted ones.
    A tombstone is printed as null with --json, and otherwise as an empty line; -f shows a length of -1.

    With --schema, a schema directory or a registry, --json also prints the decoded key_json and value_json; other output formats
    print JSON in place of bytes. Keys and values that cannot be decoded are printed unchanged, with the reasons at the end.

    With --group, all partitions are read without joining the group, so there is no rebalance; a group with active members is
    refused. At the end (the last record, -n records, or Ctrl-C) the group's offsets are committed up to the last record printed
    or skipped by --key. Nothing is committed if the command fails, is killed, or writes to a closed pipe.

    Exit codes: 0 done; 1 failed; 2 usage, or no such topic; 130 Ctrl-C.
    """
    if as_json and template is not None:
        raise ValueError("--json and --format exclude each other")
    values = values_on(client, topic, places) if with_schema or places.are_given else None
    show = _shown(topic, as_json, "%s\\n" if template is None else template, values)
    numbers = [one.number for one in client.topic(topic).partitions]
    if partition is not None:
        if partition not in numbers:
            raise ValueError(no_partition(topic, partition, len(numbers)))
        numbers = [partition]
    is_committed = not uncommitted
    committed = {} if group is None else _committed(client, group)
    known = _in_range(
        client, topic, {number: committed[topic, number] for number in numbers if (topic, number) in committed}
    )
    unknown = [number for number in numbers if number not in known]
    offsets = {**known, **place_offsets(client, topic, unknown, offset, committed=is_committed)}
    until = client.offsets(topic, numbers, LATEST, committed=is_committed) if ends else None
    if count == 0:
        return
    reader = TopicReader(client, topic, offsets, committed=is_committed)
    positions = dict(offsets)

    def commit() -> None:
        sys.stdout.buffer.flush()
        moved = {
            (topic, one): position for one, position in positions.items() if committed.get((topic, one)) != position
        }
        if group is not None and moved:
            # Reconnect: Ctrl-C may have left a response unread, and brokers close idle connections.
            client.close()
            KafkaGroup(client, group).commit(moved)
        note_problems([] if values is None else values.schemas.problems)

    try:
        with LiveProgress(is_shown=not sys.stdout.isatty()) as progress:
            _print_records(reader, positions, until, count, key, show, progress)
    except KeyboardInterrupt:
        commit()
        raise
    commit()


def _print_records(
    reader: TopicReader,
    positions: dict[int, int],
    until: Mapping[int, int] | None,
    count: int | None,
    key: bytes | None,
    show: Callable[[ReadRecord], bytes],
    progress: LiveProgress,
) -> None:
    """Print records, and advance `positions` past each record printed or skipped."""
    out = sys.stdout.buffer
    left = count
    begin = sum(positions.values())
    total = sum(until.values()) - begin if until is not None else 0
    done_bytes = 0

    def idle() -> None:
        out.flush()
        positions.update(reader.offsets)
        progress.show_bytes(done_bytes, (sum(positions.values()) - begin) / total if total > 0 else None)

    for read in reader.records(until, idle=idle):
        if key is None or read.record.key == key:
            done_bytes += out.write(show(read))
            left = None if left is None else left - 1
        # Advance only after printing: if Ctrl-C interrupts in between, the record is printed again rather than lost.
        positions[read.partition] = read.record.offset + 1
        if left == 0:
            return
    idle()


def _committed(client: KafkaClient, group: str) -> Mapping[Place, int]:
    """Return the group's committed offsets. Raises KafkaRefusal if it has members, because it would later refuse the commit."""
    kafka_group = KafkaGroup(client, group)
    kafka_group.check_inactive()
    return kafka_group.committed(stable=True)


def _in_range(client: KafkaClient, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
    """Return the offsets that are still between the start and the end (inclusive) of their partition's log."""
    starts, ends = client.offsets(topic, offsets, EARLIEST), client.offsets(topic, offsets, LATEST)
    return {one: offset for one, offset in offsets.items() if starts[one] <= offset <= ends[one]}


def _shown(topic: str, as_json: bool, template: str, values: Values | None) -> Callable[[ReadRecord], bytes]:
    if as_json and values is not None:
        return lambda read: decoded_line(topic, read, values)
    if as_json:
        return lambda read: format_record_line(topic, read.partition, read.record).encode() + b"\n"
    show = record_format(topic, template)
    return show if values is None else lambda read: show(with_decoded(read, values))


_PARTS = re.compile(rb"%(.)|\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}
_FIELDS: dict[bytes, Callable[[ReadRecord], bytes]] = {
    b"p": lambda read: b"%d" % read.partition,
    b"o": lambda read: b"%d" % read.record.offset,
    b"k": lambda read: read.record.key or b"",
    b"s": lambda read: read.record.value or b"",
    b"v": lambda read: read.record.value or b"",
    b"K": lambda read: b"%d" % _length(read.record.key),
    b"S": lambda read: b"%d" % _length(read.record.value),
    b"T": lambda read: b"%d" % read.record.timestamp,
    b"h": lambda read: b",".join(
        header.key.encode(errors="surrogateescape") + b"=" + (b"NULL" if header.value is None else header.value)
        for header in read.record.headers
    ),
}


def record_format(topic: str, template: str) -> Callable[[ReadRecord], bytes]:
    """Return a function that formats a record as `template` says. Raises ValueError for an unknown name in it."""
    text = template.encode(errors="surrogateescape")
    parts: list[bytes | Callable[[ReadRecord], bytes]] = []
    position = 0
    for match in _PARTS.finditer(text):
        parts.append(text[position : match.start()])
        position = match.end()
        name, escape = match.groups()
        if escape is not None:
            parts.append(bytes.fromhex(escape[1:].decode()) if len(escape) == 3 else _ESCAPES.get(escape, match[0]))
        elif name in (b"%", b"t"):
            parts.append(b"%" if name == b"%" else topic.encode())
        elif name in _FIELDS:
            parts.append(_FIELDS[name])
        else:
            raise ValueError(f"--format: unknown name {match[0].decode(errors='replace')}")
    parts.append(text[position:])
    return lambda read: b"".join(part if isinstance(part, bytes) else part(read) for part in parts)


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)
