"""Cleans all partitions of a log directory that no broker uses, in one Spark application, largest first.

`cleaner.offline` opens each partition, cleans it if it is due (or forced) and closes it, as `diamant log clean` does; so Kafka or
Diamant can open the directory afterwards. Several partitions are cleaned at a time: a Spark job may have only one task, and while
one partition is planned or its output is put in place, jobs of others can run. Small partitions are not worth a job, and are
cleaned in this process.

Memory: one open log for each partition that is being cleaned, and the engine's memory in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diamant.cleaner.offline.offline_clean import (
    Engine,
    OfflineReport,
    PartitionSettings,
    clean_partition,
    compiled_engine,
)
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CleanResult, OnOutput
from diamant.storage import names
from diamant.storage.errors import StorageError

if TYPE_CHECKING:
    from diamant.storage.env.env import Env

SMALL_BYTES = 16 * 1024 * 1024
"""Partitions below this size are cleaned locally, which takes less time than Spark needs to start its workers."""
MAX_AT_ONCE = 32
"""Maximum number of partitions that are cleaned at the same time, regardless of the number of cores."""


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """The outcome for a partition: a report, or the reason why it could not be cleaned."""

    partition: str
    report: OfflineReport | None
    error: str | None = None


def partitions_by_size(env: Env, log_directory: str) -> list[tuple[str, int]]:
    """Return the directory and the total segment size of each partition except the metadata partition, largest first."""
    found = []
    for name in env.list_dir(log_directory):
        directory = f"{log_directory}/{name}"
        if not env.is_dir(directory) or names.set_aside_suffix(name):
            continue
        try:
            topic, _ = names.parse_partition_dir(name)
        except ValueError:
            continue
        if topic == names.METADATA_TOPIC:
            continue
        logs = [entry for entry in env.list_dir(directory) if entry.endswith(names.LOG_SUFFIX)]
        if logs:
            found.append((directory, sum(env.file_size(f"{directory}/{entry}") for entry in logs)))
    return sorted(found, key=lambda one: (-one[1], one[0]))


def clean_directory(
    env: Env,
    directories: Sequence[str],
    settings_of: Callable[[str], PartitionSettings | None],
    engine: Engine,
    *,
    force: bool,
    is_clean: bool,
    small_bytes: int = SMALL_BYTES,
    at_once: int = 1,
    on_end: Callable[[PartitionOutcome], object] = lambda _: None,
) -> Iterator[PartitionOutcome]:
    """Clean partitions, `at_once` at a time, and yield their outcomes in the order of `directories`.

    If a partition fails, the others are cleaned nevertheless. `settings_of` returns the settings for a topic, or None to skip it.
    `on_end` is called in another thread with each outcome as soon as it is known, even while an interrupted caller waits for
    partitions in progress. The caller must hold the directory's lock.
    """
    chosen = _by_size(engine, small_bytes)

    def clean(directory: str, settings: PartitionSettings) -> PartitionOutcome:
        outcome = cleaned(directory, settings)
        on_end(outcome)
        return outcome

    def cleaned(directory: str, settings: PartitionSettings) -> PartitionOutcome:
        name = directory.rpartition("/")[2]
        try:
            report = clean_partition(
                env,
                directory,
                settings,
                force=force,
                is_clean=is_clean,
                engine=chosen,
            )
        except (StorageError, OSError) as error:
            return PartitionOutcome(name, None, str(error))
        return PartitionOutcome(name, report)

    with ThreadPoolExecutor(at_once, "clean") as threads:
        begun = []
        try:
            for directory in directories:
                settings = settings_of(topic_of(directory))
                if settings is not None:
                    begun.append(threads.submit(clean, directory, settings))
            for future in begun:
                yield future.result()
        finally:
            for future in begun:
                future.cancel()


def topic_of(directory: str) -> str:
    """Return the topic of the partition in a directory."""
    return names.parse_partition_dir(directory.rpartition("/")[2])[0]


def _by_size(engine: Engine, small_bytes: int) -> Engine:
    """Return an engine that runs small plans in this process and other plans with `engine`."""

    def clean(env: Env, plan: CleanPlan, on_output: OnOutput) -> CleanResult:
        is_small = sum(segment.size for segment in plan.segments) < small_bytes
        return (compiled_engine if is_small else engine)(env, plan, on_output)

    return clean


def total_removed(outcomes: Sequence[PartitionOutcome]) -> Mapping[str, int]:
    """Return the number of removed records by reason."""
    removed: dict[str, int] = {}
    for one in outcomes:
        if one.report is not None and one.report.result is not None:
            for reason, count in one.report.result.stats.removed.items():
                removed[reason] = removed.get(reason, 0) + count
    return removed
