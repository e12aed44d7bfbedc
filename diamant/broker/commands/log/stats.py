"""`diamant log stats`: count the records in the partitions of a log directory, as a table or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict

import click

from diamant.broker.commands.terminal import files
from diamant.broker.commands.terminal.console import Console
from diamant.broker.commands.terminal.progress_text import LiveProgress
from diamant.broker.commands.terminal.strip_text import DrawnPartition, draw
from diamant.broker.commands.terminal.wide_table import TableColumn, print_table
from diamant.broker.operations.figures.strip_values import DrawnSegment
from diamant.broker.topics.internal_names import INTERNAL_TOPICS
from diamant.cleaner.explain.scans import OpenSegment
from diamant.cleaner.offline.partition_stats import PartitionStats, TopicStats, read_stats
from diamant.cleaner.queries.segment_census import count_by_segment
from diamant.cleaner.queries.top_keys import TopKey
from diamant.cleaner.rules.record_kinds import COUNTS, shown, used
from diamant.cleaner.segments.tolerant_reader import OpenLogDirectory, PartitionFiles, Problem, open_log_directory
from diamant.cleaner.segments.transaction_outcomes import TransactionOutcomes
from diamant.storage.env.env import Env, RealEnv
from diamant.words import counted, size_text

STRIP_BYTES = 64 * files.MIB
"""The total size of the partitions that may be drawn segment by segment: drawing one reads it a second time."""


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--memory",
    "memory_mib",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    metavar="MIB",
    help="Memory for keys. Keys that do not fit spill to temporary files.",
)
@click.option(
    "--top",
    type=click.IntRange(0, 1000),
    default=0,
    metavar="N",
    help="For each topic, list the N keys with the most bytes.",
)
@click.option("--all", "is_all", is_flag=True, help="Also list the empty partitions of internal topics.")
def stats(directory: str, *, as_json: bool, memory_mib: int, top: int, is_all: bool) -> None:
    """Count the records in DIRECTORY, a log directory or a partition directory.

    A live record is the latest of its key. "dirty" is the dirty ratio: cleanable bytes divided by clean and cleanable bytes.

    Exit codes: 0 done; 1 a file is damaged or unreadable; 2 usage.
    """
    env = RealEnv()
    with files.one_line_errors(), open_log_directory(env, directory) as opened:
        with LiveProgress(sum(partition.size for partition in opened.partitions)) as bar:
            topics = list(read_stats(env, opened, max_bytes=memory_mib * files.MIB, advance=bar.advance, top=top))
            strips = [] if as_json else _strips(env, opened, topics)
        problems = list(opened.problems)
        problems += [problem for topic in topics for one in topic.partitions for problem in one.problems]
        if as_json:
            click.echo(json.dumps(_document(opened, topics)))
        else:
            _print_tables(opened, topics, problems, strips, is_all=is_all)
    sys.exit(1 if problems else 0)


def _strips(env: Env, opened: OpenLogDirectory, topics: Sequence[TopicStats]) -> list[DrawnPartition]:
    """Return the partitions to draw: small ones by segment, unless they have aborted or undecided records or problems."""
    stats = {(one.topic, one.partition): one for topic in topics for one in topic.partitions}
    found, left = [], STRIP_BYTES
    for partition in opened.partitions:
        of = stats[partition.topic, partition.partition]
        drawn = [DrawnSegment(of.bytes, of.kinds.to_fields())]
        if partition.topic in INTERNAL_TOPICS or not of.bytes:
            continue
        if partition.size <= left and not of.kinds.aborted and not of.kinds.undecided and not of.problems:
            left -= partition.size
            drawn = _by_segment(env, partition)
        found.append(DrawnPartition(partition.name, drawn))
    return found


def _by_segment(env: Env, partition: PartitionFiles) -> list[DrawnSegment]:
    with ExitStack() as opened:
        segments = []
        for one in partition.segments:
            segments.append(OpenSegment.of(env, one.path, one.base_offset, one.size))
            opened.callback(segments[-1].file.close)
        census = count_by_segment(env, segments, len(segments), TransactionOutcomes(), partition.log_start_offset)
    return [DrawnSegment(one.size, one.kinds.to_fields()) for one in census.segments]


# -- JSON --------------------------------------------------------------------------------------------------------------


def _document(opened: OpenLogDirectory, topics: Sequence[TopicStats]) -> dict[str, object]:
    return {
        "log_directory": opened.path,
        "topics": [
            {
                "topic": topic.topic,
                "cleanup_policy": topic.cleanup_policy,
                "distinct_keys": topic.distinct_keys,
                "shared_keys": topic.shared_keys,
                "top_keys": [_key_fields(one) for one in topic.top_keys],
                "top_keys_missed_bytes": topic.top_keys_missed_bytes,
                "partitions": [_partition_fields(partition) for partition in topic.partitions],
            }
            for topic in topics
        ],
        "set_aside": list(opened.set_aside),
        "problems": [files.problem_fields(problem) for problem in opened.problems],
    }


def _key_fields(one: TopKey) -> dict[str, object]:
    return {"key": files.bytes_json(one.key), "is_cut": one.is_cut, "records": one.records, "bytes": one.bytes}


def _partition_fields(partition: PartitionStats) -> dict[str, object]:
    fields = asdict(partition)
    del fields["topic"], fields["kinds"]
    return {
        **fields,
        **partition.kinds.to_fields(),
        "distinct_keys": partition.kinds.distinct_keys,
        "problems": [files.problem_fields(problem) for problem in partition.problems],
    }


# -- tables ------------------------------------------------------------------------------------------------------------


def _print_tables(
    opened: OpenLogDirectory,
    topics: Sequence[TopicStats],
    problems: Sequence[Problem],
    strips: Sequence[DrawnPartition],
    *,
    is_all: bool,
) -> None:
    partitions = [partition for topic in topics for partition in topic.partitions]
    missing_indexes = sum(one.missing_indexes for one in partitions)
    folded = 0
    if not is_all and len(partitions) > 1:
        with_records = [one for one in partitions if one.bytes or one.topic not in INTERNAL_TOPICS]
        partitions, folded = with_records, len(partitions) - len(with_records)
    counts = used(COUNTS, [one.kinds for one in partitions])
    heads = ("segments", "size", *map(shown, counts), "dirty", "clean to", "checkpoint written")
    rows = [
        [
            f"{one.topic}-{one.partition}",
            f"{one.segments:,}",
            size_text(one.bytes),
            *(f"{getattr(one.kinds, name):,}" for name in counts),
            "-" if one.dirty_ratio is None else f"{one.dirty_ratio:.2f}",
            "-" if one.first_dirty_offset is None else f"{one.first_dirty_offset:,}",
            files.time_text(one.last_cleaned_ms)[: len("2026-01-31T12:00:00")],
        ]
        for one in partitions
    ]
    print_table([TableColumn("partition", is_text=True), *map(TableColumn, heads)], rows)
    draw(Console(), strips)
    if folded:
        click.echo(f"and {counted(folded, 'empty partition')} of internal topics (--all lists them)")
    if missing_indexes:
        are_missing = "1 index is missing; the next start rebuilds it"
        if missing_indexes > 1:
            are_missing = f"{missing_indexes:,} indexes are missing; the next start rebuilds them"
        click.echo(f"the broker did not shut down cleanly; {are_missing}")
    for topic in topics:
        if topic.shared_keys:
            click.echo(
                f"{topic.topic}: {topic.shared_keys:,} of {topic.distinct_keys:,} keys are live on several partitions; "
                "compaction works within a partition and keeps them all"
            )
    for topic in topics:
        if topic.top_keys:
            _print_top_keys(topic)
    if opened.set_aside:
        click.echo(f"not counted, because set aside: {', '.join(opened.set_aside)}")
    for problem in problems:
        files.show_problem(problem)


def _print_top_keys(topic: TopicStats) -> None:
    click.echo(f"\n{topic.topic}: keys with the most bytes over all their records, before compression")
    rows = [(f"{one.records:,}", size_text(one.bytes)) for one in topic.top_keys]
    widths = [max(map(len, cells)) for cells in zip(("records", "size"), *rows, strict=True)]
    # The terminal wraps a long key, so that it can be copied whole and does not widen the other lines.
    click.echo(f"{'records':>{widths[0]}}  {'size':>{widths[1]}}  key")
    for (records, size), one in zip(rows, topic.top_keys, strict=True):
        rest = "..." if one.is_cut else ""
        click.echo(f"{records:>{widths[0]}}  {size:>{widths[1]}}  {files.bytes_text(one.key)}{rest}")
    if topic.top_keys_missed_bytes:
        click.echo(f"too many keys for exact totals: each may have up to {size_text(topic.top_keys_missed_bytes)} more")
