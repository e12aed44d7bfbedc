"""`diamant produce`: write lines as records to a topic of any Kafka cluster."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

import click

from diamant.broker.client.kafka_client import KafkaClient
from diamant.broker.client.producing import TopicWriter
from diamant.broker.commands.cluster.asking_kafka import on_cluster
from diamant.broker.commands.terminal.completion import topic_names
from diamant.broker.commands.terminal.key_options import key_options
from diamant.broker.commands.terminal.progress_text import LiveProgress
from diamant.broker.operation_errors import BadArgument, no_partition
from diamant.broker.record_json import RecordLine, parse_record_line
from diamant.protocol.batches.compression import CODEC_NAMES
from diamant.protocol.batches.header import Header, Record

CHUNK_BYTES = 64 * 1024
MAX_LINE_BYTES = 16 * 1024 * 1024


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--partition", "-p", type=click.IntRange(min=0), metavar="N", help="Write to this partition.")
@click.option("--key-delimiter", "-K", metavar="TEXT", help="In each line, the text before TEXT is the key.")
@key_options("The key of every record")
@click.option("--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", help="A header; may be repeated.")
@click.option(
    "--null", "-Z", "is_null", is_flag=True, help="Write an empty value or key as null. A null value deletes a key."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Read lines in the format that `diamant consume --json` and `latest` print, and print a summary as JSON.",
)
@click.option(
    "--compression",
    "-z",
    type=click.Choice(CODEC_NAMES),
    default="none",
    show_default=True,
    help="The compression codec of batches.",
)
@on_cluster
def produce(
    client: KafkaClient,
    topic: str,
    file: BinaryIO,
    partition: int | None,
    key_delimiter: str | None,
    key: bytes | None,
    headers: Sequence[str],
    is_null: bool,
    as_json: bool,
    compression: str,
) -> None:
    """Write each line of FILE, or of standard input, to TOPIC as the value of a record.

    Keys determine partitions as in Kafka's own producer. The command ends when all in-sync replicas have all records. After an
    error, the command reports the affected lines and ends; nearby lines may have been written. With --json, the topic, partition
    and offset in a line are ignored.

    Exit codes: 0 done; 1 failed; 2 usage, an unreadable line, or no such topic; 130 Ctrl-C.
    """
    if as_json and (key_delimiter is not None or key is not None or is_null):
        raise ValueError("--json excludes --key, --key-delimiter and --null: the lines have their own keys and nulls")
    if key_delimiter is not None and (not key_delimiter or key is not None):
        raise ValueError("--key-delimiter: expected a non-empty string, and no --key")
    delimiter = None if key_delimiter is None else key_delimiter.encode(errors="surrogateescape")
    all_headers = tuple(_header(header) for header in headers)
    parse = _json_record if as_json else _line_record(delimiter, key, is_null)
    writer = TopicWriter(client, topic, codec=CODEC_NAMES.index(compression))
    if partition is not None and partition >= writer.partition_count:
        raise ValueError(no_partition(topic, partition, writer.partition_count))
    with LiveProgress(_size(file), is_shown=not file.isatty()) as progress:
        for number, line in lines_of(file, writer.flush):
            try:
                record = parse(line)
            except BadArgument as error:
                writer.flush()
                raise BadArgument(f"line {number}: {error}") from None
            writer.add(number, record._replace(headers=all_headers + record.headers), partition)
            progress.advance(len(line) + 1)
        writer.flush()
    if as_json:
        partitions = [{"partition": number, **written._asdict()} for number, written in sorted(writer.written.items())]
        count = sum(written.records for written in writer.written.values())
        click.echo(json.dumps({"topic": topic, "records": count, "partitions": partitions, "outcome": "written"}))


def lines_of(file: BinaryIO, idle: Callable[[], object]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with their numbers, without newlines. Calls `idle` before waiting for more.

    Raises BadArgument for a line of more than `MAX_LINE_BYTES`.
    """
    number, rest = 0, b""
    read = getattr(file, "read1", file.read)
    while data := read(CHUNK_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            number += 1
            yield number, line
        if len(rest) > MAX_LINE_BYTES:
            raise BadArgument(f"line {number + 1} has more than {MAX_LINE_BYTES} bytes")
        if len(data) < CHUNK_BYTES:
            idle()
    if rest:
        yield number + 1, rest


def _line_record(delimiter: bytes | None, key: bytes | None, is_null: bool) -> Callable[[bytes], Record]:
    def parse(line: bytes) -> Record:
        found, value = key, line
        if delimiter is not None and delimiter in line:
            found, _, value = line.partition(delimiter)
        if is_null:
            return Record(0, _now_ms(), found or None, value or None)
        return Record(0, _now_ms(), found, value)

    return parse


def _json_record(line: bytes) -> Record:
    record_line: RecordLine = parse_record_line(line, topic="-")
    timestamp_ms = _now_ms() if record_line.timestamp_ms is None else record_line.timestamp_ms
    return Record(
        0, timestamp_ms, record_line.key, record_line.value, tuple(Header(*header) for header in record_line.headers)
    )


def _size(file: BinaryIO) -> int:
    """Return the size of a file, or 0 for a pipe."""
    try:
        return os.fstat(file.fileno()).st_size
    except OSError:
        return 0


def _header(text: str) -> Header:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"--header {text!r}: expected NAME=VALUE")
    return Header(name, value.encode(errors="surrogateescape"))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
