"""Logs an error about a partition only once, even if it occurs again and again.

This module is separate from `log_messages` because even an idle broker imports it.
"""

from __future__ import annotations

import logging
from collections.abc import Container

from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.errors import StorageError

logger = logging.getLogger(__name__)


class RepeatedErrors:
    """The last error for each partition and `matter`, the text that opens the message. Memory: one string for each."""

    def __init__(self) -> None:
        self._told: dict[tuple[TopicPartition, str], str] = {}

    def log(self, partition: TopicPartition, matter: str, error: Exception, *, level: int = logging.WARNING) -> None:
        """Log an error, unless it equals the last one for this `matter`. An unexpected error is logged with its traceback."""
        text = f"{type(error).__name__}: {error}"
        if self._told.get((partition, matter)) == text:
            return
        self._told[partition, matter] = text
        is_expected = isinstance(error, StorageError | OSError)
        logger.log(level, "%s-%d: %s: %s", *partition, matter, error, exc_info=None if is_expected else error)

    def is_over(self, partition: TopicPartition, matter: str) -> None:
        """Record that the error no longer occurs, so that the next one is logged even if it is the same."""
        if self._told:
            self._told.pop((partition, matter), None)

    def keep_only(self, partitions: Container[TopicPartition]) -> None:
        """Forget the errors of all other partitions."""
        if self._told:
            self._told = {key: text for key, text in self._told.items() if key[0] in partitions}
