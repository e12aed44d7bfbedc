"""`diamant consume`: the records of a topic of any Kafka cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import click

from diamant.broker.client.consuming import ReadRecord, TopicReader
from diamant.broker.client.kafka_client import EARLIEST, LATEST, KafkaClient
from diamant.broker.client.record_line import format_record_line
from diamant.broker.commands.cluster.asking_kafka import on_cluster
from diamant.broker.commands.cluster.record_format import record_format
from diamant.broker.commands.terminal.key_options import key_options


@click.command()
@click.argument("topic")
@click.option("--partition", "-p", type=click.IntRange(min=0), metavar="N", help="Only this partition.")
@click.option(
    "--offset",
    "-o",
    default="start",
    show_default=True,
    metavar="WHERE",
    help="Where to begin in each partition: start, end, an offset, -N for N before the end, or @TIME (ISO 8601 or ms).",
)
@click.option("--count", "-n", type=click.IntRange(min=0), metavar="N", help="End after so many records.")
@click.option("--exit", "-e", "ends", is_flag=True, help="End at what is the end now, instead of waiting for more.")
@key_options("Only records of a key")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on each line, as `diamant latest` has it.")
@click.option(
    "--format",
    "-f",
    "template",
    help="As in kcat: %t topic, %p partition, %o offset, %k key, %s value, %h headers, %T timestamp (ms), %K and %S lengths.",
)
@click.option("--uncommitted", is_flag=True, help="Also records of transactions that are open or were aborted.")
@on_cluster
def consume(
    client: KafkaClient,
    topic: str,
    partition: int | None,
    offset: str,
    count: int | None,
    ends: bool,
    key: bytes | None,
    as_json: bool,
    template: str | None,
    uncommitted: bool,
) -> None:
    """Print the records of TOPIC: the value of each on a line, and then what comes, until Ctrl-C.

    Records of transactions are printed once they are committed (unlike Kafka's console consumer, which has --uncommitted
    as its default). A tombstone is printed as null with --json, and as an empty line without; -f shows a length of -1.

    Exit codes: 0 done; 1 failed; 2 usage, or no such topic; 130 Ctrl-C.
    """
    if as_json and template is not None:
        raise ValueError("expected one of --json and --format")
    show = _shown(topic, as_json, "%s\\n" if template is None else template)
    numbers = [one.number for one in client.topic(topic).partitions]
    if partition is not None:
        if partition not in numbers:
            raise ValueError(f"topic {topic!r} has no partition {partition}: it has {len(numbers)}")
        numbers = [partition]
    offsets = start_offsets(client, topic, numbers, offset, committed=not uncommitted)
    until = client.offsets(topic, numbers, LATEST, committed=not uncommitted) if ends else None
    left = count
    if left == 0:
        return
    out = sys.stdout.buffer
    for read in TopicReader(client, topic, offsets, committed=not uncommitted).records(until, idle=out.flush):
        if key is not None and read.record.key != key:
            continue
        out.write(show(read))
        if left is not None:
            left -= 1
            if left == 0:
                break
    out.flush()


def _shown(topic: str, as_json: bool, template: str) -> Callable[[ReadRecord], bytes]:
    if as_json:
        return lambda read: format_record_line(topic, read.partition, read.record).encode() + b"\n"
    return record_format(topic, template)


def start_offsets(
    client: KafkaClient, topic: str, numbers: list[int], where: str, *, committed: bool
) -> Mapping[int, int]:
    """Return where to begin in each partition; ValueError for what is no place. Out of range is the nearer bound."""
    if where in ("start", "beginning", "earliest"):
        return client.offsets(topic, numbers, EARLIEST)
    ends = client.offsets(topic, numbers, LATEST, committed=committed)
    if where in ("end", "latest"):
        return ends
    if where.startswith("@"):
        found = client.offsets(topic, numbers, _time_ms(where[1:]))
        return {number: ends[number] if one < 0 else one for number, one in found.items()}
    try:
        offset = int(where)
    except ValueError:
        raise ValueError(f"--offset {where}: expected start, end, an offset, -N or @TIME") from None
    starts = client.offsets(topic, numbers, EARLIEST)
    return {
        number: min(max(offset + ends[number] if where.startswith("-") else offset, starts[number]), ends[number])
        for number in numbers
    }


def _time_ms(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"--offset @{text}: expected ms since 1970, or a time as 2026-01-31T12:00:00Z") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
