"""Command-line options for the cleaner's settings, and the printed reports of cleaned partitions."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from diamant.broker.commands.settings.topic_settings import (
    CLEANUP_POLICY,
    names_set,
    read_topic_configs,
    with_topic_configs,
)
from diamant.broker.commands.terminal.failures import report, tell
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.broker_table import BROKER_CONFIGS
from diamant.broker.config.topic_table import TOPIC_CONFIGS
from diamant.broker.config.topic_values import log_config
from diamant.cleaner.offline.clean_on_spark import PartitionOutcome, total_removed
from diamant.cleaner.offline.offline_clean import OfflineReport, PartitionSettings
from diamant.cleaner.rules.plan import KAFKA_MAP_ENTRY_BYTES
from diamant.cleaner.rules.plan_of_log import CleanerSettings, kafka_map_entries
from diamant.storage.config_key import DOUBLE_MAX, ConfigError, parse_value
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError
from diamant.words import counted

DEDUPE_BUFFER = "log.cleaner.dedupe.buffer.size"


LOAD_FACTOR = "log.cleaner.io.buffer.load.factor"


IO_BUFFER = "log.cleaner.io.buffer.size"


IO_RATE = "log.cleaner.io.max.bytes.per.second"


THREADS = "log.cleaner.threads"


MESSAGE_MAX_BYTES = "message.max.bytes"


PRODUCER_EXPIRATION = "producer.id.expiration.ms"


KAFKA_VERSION = "diamant.cleaner.kafka.version"


BROKER_SETTINGS = (
    DEDUPE_BUFFER,
    LOAD_FACTOR,
    IO_BUFFER,
    IO_RATE,
    THREADS,
    MESSAGE_MAX_BYTES,
    PRODUCER_EXPIRATION,
    KAFKA_VERSION,
)
"""Broker configurations that --set accepts besides topic configurations."""


MIN_PUBLIC_SEGMENT_BYTES = 1 << 20


def all_settings(env: Env, log_directory: str, topic: str, settings: Sequence[str]) -> list[str]:
    """Return the topic's configuration from the log directory's metadata, if any, followed by `settings`.

    Raises StorageError if the metadata cannot be read and `settings` has no cleanup.policy.
    """
    try:
        configs = read_topic_configs(env, log_directory)
    except (StorageError, OSError) as error:
        if CLEANUP_POLICY in names_set(settings):
            return list(settings)
        raise StorageError(
            f"{error}; the configuration of {topic} is unknown: use --set cleanup.policy=compact to clean it anyway"
        ) from error
    return with_topic_configs(None if configs is None else configs.get(topic), settings)


def parse_settings(settings: Sequence[str], mode: str) -> PartitionSettings:
    """Parse the `--set` options. Raises ConfigError for an unknown name or an invalid value."""
    topic: dict[str, str] = {"cleanup.policy": "compact"}
    broker: dict[str, Any] = {name: BROKER_CONFIGS[name].default for name in BROKER_SETTINGS}
    for setting in settings:
        name, equals, value = setting.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ConfigError(f"--set {setting!r}: expected NAME=VALUE")
        if name == KAFKA_VERSION:
            broker[name] = BROKER_CONFIGS[name].parse(value)
        elif name in BROKER_SETTINGS:
            broker[name] = parse_value(name, BROKER_CONFIGS[name].type, value)
        elif name in TOPIC_CONFIGS:
            if name == "segment.bytes" and value.strip().isdigit() and int(value) < MIN_PUBLIC_SEGMENT_BYTES:
                name = "internal.segment.bytes"
            TOPIC_CONFIGS[name].parse(value)
            topic[name] = value
        else:
            raise ConfigError(f"--set {name}: expected a topic's configuration or one of {', '.join(BROKER_SETTINGS)}")
    topic.setdefault("max.message.bytes", str(broker[MESSAGE_MAX_BYTES]))
    threads = max(1, broker[THREADS])
    dedupe_buffer_bytes = broker[DEDUPE_BUFFER]
    rate = broker[IO_RATE]
    if rate <= 0:
        raise ConfigError(f"{IO_RATE}={rate}: expected more than 0")
    map_max_entries = kafka_map_entries(dedupe_buffer_bytes, broker[LOAD_FACTOR], threads)
    if map_max_entries < 1:
        raise ConfigError(
            f"{DEDUPE_BUFFER}={dedupe_buffer_bytes} holds no key; a key takes {KAFKA_MAP_ENTRY_BYTES} bytes"
        )
    cleaner = CleanerSettings(
        mode=mode,
        kafka_version=broker[KAFKA_VERSION],
        map_max_entries=map_max_entries,
        map_load_factor=broker[LOAD_FACTOR],
        map_memory_bytes=dedupe_buffer_bytes // threads,
        io_buffer_bytes=max(1, broker[IO_BUFFER] // threads // 2),
        io_max_bytes_per_second=math.inf if rate >= DOUBLE_MAX else rate,
        threads=threads,
        hash_key=os.urandom(16),
    )
    return PartitionSettings(log_config(topic, BrokerConfig()), cleaner, broker[PRODUCER_EXPIRATION])


def describe(report: OfflineReport, *, is_dry_run: bool, is_compacted: bool = True) -> str:
    """Format a report as a few lines of text."""
    found, result = report.range, report.result
    lines = [
        f"{report.partition}: offsets {report.log_start_offset} to {report.log_end_offset}, "
        f"dirty from {found.first_dirty_offset}, cleanable up to {found.first_uncleanable_offset}, "
        f"{found.cleanable_bytes} of {found.total_bytes} bytes dirty"
    ]
    lines[:0] = [f"{'would recover' if is_dry_run else 'recovered'}: {one}" for one in report.recovery]
    if result is None:
        if report.why_nothing is not None:
            why = f"nothing is cleanable: {report.why_nothing}"
        elif not is_compacted:
            why = "cleanup.policy is not compact"
        else:
            why = "it is not due (--force cleans it anyway)"
        lines.append(f"not cleaned: {why}")
    else:
        done = "would be cleaned" if is_dry_run else "cleaned"
        stats = asdict(result.stats)
        removed = ", ".join(f"{count} {reason}" for reason, count in sorted(stats["removed"].items())) or "nothing"
        lines.append(
            f"{done} up to offset {result.end_offset} by the {result.runner} engine; records removed: {removed}"
        )
    if report.deleted_segments:
        lines.append(
            f"retention {'would remove' if is_dry_run else 'removed'} {counted(report.deleted_segments, 'segment')}"
        )
    if report.bytes_after != report.bytes_before:
        lines.append(f"{report.bytes_before} bytes before, {report.bytes_after} after")
    return "\n".join(lines)


def print_outcome(
    outcome: PartitionOutcome, *, is_dry_run: bool = False, is_compacted: bool = True, as_json: bool
) -> None:
    """Print the outcome for one of several partitions: its report on standard output, or its error on standard error."""
    if as_json:
        fields: dict[str, object] = {"partition": outcome.partition, "error": outcome.error}
        tell(json.dumps(fields if outcome.report is None else outcome.report.to_fields()))
    elif outcome.report is not None:
        tell(describe(outcome.report, is_dry_run=is_dry_run, is_compacted=is_compacted))
    else:
        report(f"{outcome.partition}: {outcome.error}")


def sum_text(outcomes: Sequence[PartitionOutcome]) -> str:
    """Return the summary line for several partitions."""
    failed = sum(one.error is not None for one in outcomes)
    removed = ", ".join(f"{count:,} {reason}" for reason, count in sorted(total_removed(outcomes).items())) or "nothing"
    return f"{counted(len(outcomes), 'partition')}, {failed} failed; records removed: {removed}"
