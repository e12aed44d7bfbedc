"""One partition, created and opened with defaults for most tests, and searches by time in it, run to their end."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from diamant.storage.env.env import Env
from diamant.storage.log import time_search
from diamant.storage.log.append_checks import Validation
from diamant.storage.log.log import Log
from diamant.storage.log.time_search import TimestampOffset
from diamant.storage.recovery.open_log import create_log, load_log
from diamant.storage.segments.log_config import LogConfig

PATH = "/data/t-0"
TOPIC_ID = UUID(int=7)
EXPIRATION_MS = 86_400_000


def create_one(
    env: Env, config: LogConfig | None = None, *, path: str = PATH, expiration_ms: int = EXPIRATION_MS
) -> Log:
    """Return a new, empty log; partition and topic are those of the path."""
    topic, _, partition = path.rpartition("/")[2].rpartition("-")
    return create_log(
        env, path, topic, int(partition), TOPIC_ID, config or LogConfig(), Validation(), producer_expiration_ms=expiration_ms
    )  # fmt: skip


def load_one(
    env: Env,
    config: LogConfig | None = None,
    *,
    path: str = PATH,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    expiration_ms: int = EXPIRATION_MS,
    **fields: Any,
) -> Log:
    """Open the log like a start, after a crash unless `is_clean`."""
    topic, _, partition = path.rpartition("/")[2].rpartition("-")
    return load_log(
        env, path, topic, int(partition), TOPIC_ID, config or LogConfig(), Validation(), recovery_point=recovery_point,
        log_start_offset=log_start_offset, producer_expiration_ms=expiration_ms, **({"is_clean": False} | fields),
    )  # fmt: skip


def offset_for_timestamp(log: Log, timestamp: int) -> TimestampOffset | None:
    """First record at or after `timestamp` ms that is not below the log start."""
    return next(filter(None, (step.run() for step in time_search.at_or_after(log, timestamp))), None)


def offset_of_max_timestamp(log: Log) -> TimestampOffset | None:
    """First record with the log's largest timestamp."""
    return next(filter(None, (step.run() for step in time_search.with_largest_timestamp(log))), None)
