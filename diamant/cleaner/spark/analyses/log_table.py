"""A table of facts about partitions, made without reading their segments. Analyses join it with their results.

It has a row for each partition in each log directory:

    log_id, topic, partition, directory      as in the data source
    segments, bytes                          of `.log` files
    log_start_offset                         records below it are deleted
    first_dirty_offset                       the cleaner's checkpoint; NULL if the log was never cleaned
    dirty_ratio                              as the cleaner computes it, but regardless of min.compaction.lag.ms and open
                                             transactions; NULL if nothing can be cleaned, or if the topic is known not to be
                                             compacted and the log was never cleaned
    cleanup_policy                           the topic's policy in the directory's metadata log, `delete` if none is set there;
                                             NULL if there is no metadata log, or if it does not have the topic
    max_compaction_lag_ms                    the topic's value in the metadata log; NULL if none is set

The driver makes the table from listings of the directories, and from their checkpoints and metadata logs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diamant.cleaner.queries.dirty_ratio import dirty_ratio
from diamant.cleaner.segments.tolerant_reader import PartitionFiles
from diamant.cleaner.spark.environment.locations import Location
from diamant.cleaner.spark.source.partition_logs import (
    find_partitions,
    log_directories,
    log_id,
    place_of,
    read_checkpoint,
)
from diamant.protocol.kraft.records import TOPIC_RESOURCE
from diamant.storage import names
from diamant.storage.env.env import RealEnv
from diamant.storage.errors import StorageError
from diamant.storage.kraft.replay import load_metadata

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


FACTS = (
    "log_id bigint, topic string, partition int, directory string, segments int, bytes bigint, log_start_offset bigint, "
    "first_dirty_offset bigint, dirty_ratio double, cleanup_policy string"
)
SCHEMA = f"{FACTS}, max_compaction_lag_ms bigint"
COMPACT = "compact"
_CLEANUP_POLICY = "cleanup.policy"
_DEFAULT_POLICY = "delete"
"""Kafka's default policy."""


def log_table(session: SparkSession, paths: Sequence[str], topics: Sequence[str] = ()) -> DataFrame:
    """Return the table of the partitions below `paths`. Raises SparkMisuse for the same reasons as `find_partitions`."""
    return session.createDataFrame(facts_of(find_partitions(paths, topics)), SCHEMA)


def facts_of(logs: Sequence[PartitionFiles]) -> list[tuple[Any, ...]]:
    """Return the rows of the table."""
    configs = {directory: topic_configs(directory) for directory in log_directories(logs)}
    checkpoints = {directory: read_checkpoint(directory, names.CLEANER_CHECKPOINT) for directory in configs}
    rows = []
    for log in logs:
        place = place_of(log)
        log_directory = place.parent
        checkpoint = checkpoints[log_directory].get((log.topic, log.partition))
        config = configs[log_directory].get(log.topic, {})
        policy = config.get(_CLEANUP_POLICY)
        may_be_dirty = policy is None or COMPACT in policy or checkpoint is not None
        rows.append(
            (
                log_id(place),
                log.topic,
                log.partition,
                str(place),
                len(log.segments),
                log.size,
                log.log_start_offset,
                checkpoint,
                dirty_ratio(log, checkpoint) if may_be_dirty else None,
                policy,
                _number(config.get("max.compaction.lag.ms")),
            )
        )
    return rows


def topic_configs(log_directory: Location) -> dict[str, Mapping[str, str]]:
    """Return the topic configs in the metadata log of a log directory; empty if the log is missing or unreadable.

    Each topic's cleanup.policy is included, even if it is the default.
    """
    place = log_directory.child(names.partition_dir_name(names.METADATA_TOPIC, 0))
    try:
        entries = place.entries()
    except OSError:
        return {}
    with tempfile.TemporaryDirectory(prefix="diamant-metadata-") as copy:
        # Copy the metadata log, which is small: a broker may write to it, and it may not be on a local disk.
        for entry in entries:
            if not entry.is_dir and entry.name.endswith((names.LOG_SUFFIX, names.METADATA_SNAPSHOT_SUFFIX)):
                Path(copy, entry.name).write_bytes(place.child(entry.name).read_bytes())
        try:
            image = load_metadata(RealEnv(), copy).image
        except (StorageError, OSError):
            return {}
    return {
        name: {_CLEANUP_POLICY: _DEFAULT_POLICY, **image.configs.get((TOPIC_RESOURCE, name), {})}
        for name in image.topics
    }


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.lstrip("-").isdecimal() else None
