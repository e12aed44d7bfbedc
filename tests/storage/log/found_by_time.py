"""Searches by time, run to their end."""

from __future__ import annotations

from diamant.storage.log import time_search
from diamant.storage.log.log import Log
from diamant.storage.log.time_search import TimestampOffset


def offset_for_timestamp(log: Log, timestamp: int) -> TimestampOffset | None:
    """First record at or after `timestamp` ms that is not below the log start."""
    return next(filter(None, (step.run() for step in time_search.at_or_after(log, timestamp))), None)


def offset_of_max_timestamp(log: Log) -> TimestampOffset | None:
    """First record with the log's largest timestamp."""
    return next(filter(None, (step.run() for step in time_search.with_largest_timestamp(log))), None)
