"""Counts the contents of the partitions of a log directory: `diamant log stats` without the printing.

Batches with a wrong checksum or unreadable records are reported as problems, and are not counted.

Memory: `max_bytes` for the keys of one topic (key_counts.py), one batch (tolerant_reader.py), aborted and open transactions
(transaction_outcomes.py), `MAX_PROBLEMS` problems per partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

from diamant.cleaner.offline.index_check import check_indexes
from diamant.cleaner.queries.dirty_ratio import dirty_ratio
from diamant.cleaner.queries.key_counts import DEFAULT_MAX_BYTES, KeyCensus
from diamant.cleaner.queries.record_counter import RecordCounter
from diamant.cleaner.queries.top_keys import TopKey, TopKeys
from diamant.cleaner.rules.record_kinds import Kinds
from diamant.cleaner.segments.sound_rows import SoundRows
from diamant.cleaner.segments.tolerant_reader import (
    Advance,
    OpenLogDirectory,
    PartitionFiles,
    Problem,
)
from diamant.cleaner.segments.transaction_outcomes import DecidedBatches
from diamant.kernels import ARE_COMPILED
from diamant.protocol.kraft.records import TOPIC_RESOURCE
from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError
from diamant.storage.kraft.format import metadata_directory
from diamant.storage.kraft.replay import load_metadata

MAX_PROBLEMS = 100
"""Maximum number of problems kept per partition; further problems are only counted."""


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """The counts of one partition."""

    topic: str
    partition: int
    directory: str
    segments: int
    bytes: int
    """Size of all `.log` files."""
    batches: int
    kinds: Kinds
    """Counts of all records in the files, including deleted records."""
    log_start_offset: int
    log_end_offset: int
    first_dirty_offset: int | None
    """The cleaner's checkpoint; None if the cleaner never cleaned the partition."""
    last_cleaned_ms: int | None
    """Time of the last write to the checkpoint file, after the last cleaning of this partition or of another one."""
    dirty_ratio: float | None
    """None if the topic is not known to be compacted, or if no segment can be cleaned."""
    missing_indexes: int
    """Number of index files that are missing after a stop that was not orderly; the next start rebuilds them."""
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class TopicStats:
    """The counts of the partitions of a topic."""

    topic: str
    cleanup_policy: str | None
    """From the directory's metadata log; None if the topic does not set it, or there is no metadata log."""
    partitions: tuple[PartitionStats, ...]
    distinct_keys: int
    """Number of distinct keys in all of the topic's partitions in the directory."""
    shared_keys: int
    """Number of keys that are live in more than one partition. Compaction never merges such records."""
    top_keys: tuple[TopKey, ...] = ()
    """The keys whose records have the most bytes in total, as many as requested."""
    top_keys_missed_bytes: int = 0
    """Bytes by which any of the top keys may be undercounted; 0 unless there are very many keys."""


def read_stats(
    env: Env,
    directory: OpenLogDirectory,
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
    advance: Advance | None = None,
    top: int = 0,
    is_compiled: bool = ARE_COMPILED,
) -> Iterator[TopicStats]:
    """Yield the counts of each topic, in the order of the topics' names. `top`: number of largest keys to return per topic."""
    policies = _cleanup_policies(env, directory)
    for topic, group in groupby(directory.partitions, key=lambda partition: partition.topic):
        partitions = tuple(group)
        top_keys = TopKeys(top) if top else None
        with KeyCensus(len(partitions), max_bytes=max_bytes, is_compiled=is_compiled) as census:
            found = [
                _count_partition(env, partition, source, census, top_keys, advance, was_orderly=directory.was_orderly)
                for source, partition in enumerate(partitions)
            ]
            keys = census.finish()
        policy = None if policies is None else policies.get(topic)
        is_compacted = policies is None or "compact" in (policy or "")
        yield TopicStats(
            topic,
            policy,
            tuple(
                _partition_stats(
                    directory,
                    partition,
                    count,
                    count.kinds + keys.kinds[source],
                    is_compacted=is_compacted,
                )
                for source, (partition, count) in enumerate(zip(partitions, found, strict=True))
            ),
            keys.keys,
            keys.shared_keys,
            () if top_keys is None else top_keys.top(),
            0 if top_keys is None else top_keys.missed_bytes,
        )


@dataclass(slots=True)
class _Pass:
    """One pass over a partition."""

    batches: int = 0
    kinds: Kinds = field(default_factory=Kinds)
    """Counts of all kinds except the kinds that depend on keys."""
    log_end_offset: int = 0
    last_stable_offset: int | None = None
    missing_indexes: int = 0
    problem_count: int = 0
    problems: list[Problem] = field(default_factory=list)

    def report(self, problem: Problem) -> None:
        self.problem_count += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)


def _count_partition(
    env: Env,
    partition: PartitionFiles,
    source: int,
    census: KeyCensus,
    top: TopKeys | None,
    advance: Advance | None,
    *,
    was_orderly: bool,
) -> _Pass:
    count = _Pass()
    for name in partition.leftovers:
        if not name.endswith((names.DELETED_SUFFIX, names.ASIDE_SUFFIX)):
            count.report(Problem(f"{partition.directory}/{name}", None, "left by an interrupted cleaning; not read"))
    log_start_offset = partition.log_start_offset
    count.log_end_offset = max([log_start_offset, *(segment.base_offset for segment in partition.segments)])
    count_end = 0
    counter = RecordCounter(census, source, log_start_offset, count.report, top)
    batches = DecidedBatches(env, partition, count.report, advance, is_compiled=census.is_compiled)
    current = None
    for segment, piece, outcome in batches:
        if segment is not current:
            current = segment
            if segment.base_offset < count_end:
                count.report(Problem(segment.path, None, _overlap(count_end)))
        count.batches += piece.end - piece.first if isinstance(piece, SoundRows) else 1
        last_offset = piece.last_offset if isinstance(piece, SoundRows) else piece.header.last_offset
        count_end = max(count_end, last_offset + 1)
        counter.add(segment.path, piece, outcome)
    count.log_end_offset = max(count.log_end_offset, count_end)
    counter.finish()
    count.kinds = counter.kinds(with_deleted=True)
    if batches.transactions is not None:
        count.last_stable_offset = batches.transactions.first_open_offset
    _check_indexes(env, partition, batches, count, was_orderly=was_orderly)
    return count


def _overlap(end: int) -> str:
    return (
        f"an earlier segment reaches up to offset {end}, so records are counted twice. One of the two dates from before a "
        "cleaning, as in a copy made while a broker ran; Diamant sets it aside at its start"
    )


def _check_indexes(
    env: Env, partition: PartitionFiles, batches: DecidedBatches, count: _Pass, *, was_orderly: bool
) -> None:
    marker_offsets: set[int] = set()
    # If a segment's offset index is missing, a broker's start rebuilds all indexes of the segment.
    rebuilt = [
        segment.base_offset
        for segment in partition.segments
        if not env.exists(segment.path.removesuffix(names.LOG_SUFFIX) + names.INDEX_SUFFIX)
    ]
    for segment in partition.segments:
        indexes = check_indexes(env, segment)
        for problem in indexes.problems:
            count.report(problem)
        for path in indexes.missing if segment.size else ():
            if not path.endswith(names.TXN_INDEX_SUFFIX):
                _report_missing(count, path, was_orderly=was_orderly)
        marker_offsets.update(aborted.last_offset for aborted in indexes.aborted or ())
    for aborted in () if batches.transactions is None else batches.transactions.aborted_with_records:
        base_offset = max(one.base_offset for one in partition.segments if one.base_offset <= aborted.last_offset)
        if aborted.last_offset not in marker_offsets and base_offset not in rebuilt:
            reason = (
                f"no index has the aborted transaction of producer {aborted.producer_id} with the marker at offset "
            )
            count.report(Problem(partition.directory, None, f"{reason}{aborted.last_offset}"))


def _report_missing(count: _Pass, path: str, *, was_orderly: bool) -> None:
    """Report a missing index. After a kill, the segment being written has no indexes; after an orderly stop, all have them."""
    if was_orderly:
        count.report(Problem(path, None, "is missing; the next start rebuilds it"))
    else:
        count.missing_indexes += 1


def _partition_stats(
    directory: OpenLogDirectory,
    partition: PartitionFiles,
    count: _Pass,
    kinds: Kinds,
    *,
    is_compacted: bool,
) -> PartitionStats:
    first_dirty_offset = directory.cleaner_checkpoint.get((partition.topic, partition.partition))
    problems = list(count.problems)
    if count.problem_count > len(problems):
        problems.append(Problem(partition.directory, None, f"{count.problem_count - len(problems)} more problems"))
    ratio = None
    if is_compacted or first_dirty_offset is not None:
        end = count.log_end_offset
        stable = end if count.last_stable_offset is None else count.last_stable_offset
        ratio = dirty_ratio(partition, first_dirty_offset, end, stable)
    return PartitionStats(
        topic=partition.topic,
        partition=partition.partition,
        directory=partition.directory,
        segments=len(partition.segments),
        bytes=partition.size,
        batches=count.batches,
        kinds=kinds,
        log_start_offset=partition.log_start_offset,
        log_end_offset=count.log_end_offset,
        first_dirty_offset=first_dirty_offset,
        last_cleaned_ms=None if first_dirty_offset is None else directory.cleaner_checkpoint_ms,
        dirty_ratio=ratio,
        missing_indexes=count.missing_indexes,
        problems=tuple(problems),
    )


def _cleanup_policies(env: Env, directory: OpenLogDirectory) -> dict[str, str] | None:
    """Return the cleanup policies of topics that set one; None if there is no readable metadata log."""
    path = metadata_directory(directory.path)
    if not env.exists(path):
        return None
    try:
        image = load_metadata(env, path).image
    except (StorageError, OSError) as error:
        directory.problems.append(Problem(path, None, str(error)))
        return None
    return {
        name: values["cleanup.policy"]
        for (resource, name), values in image.configs.items()
        if resource == TOPIC_RESOURCE and "cleanup.policy" in values
    }
