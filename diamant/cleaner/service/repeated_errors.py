"""Errors of the logs that the cleaner has trouble with: each is logged once, not in every loop."""

from __future__ import annotations

import logging
from collections.abc import Container

from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.errors import StorageError

logger = logging.getLogger(__name__)


class RepeatedErrors:
    """See the module. Memory: one line for each log and matter that is in trouble."""

    def __init__(self) -> None:
        self._told: dict[tuple[TopicPartition, str], str] = {}

    def tell(self, partition: TopicPartition, matter: str, error: Exception, *, level: int = logging.WARNING) -> None:
        """Log an error, unless it is the last one that was told of this; with its traceback if it is unexpected."""
        text = f"{type(error).__name__}: {error}"
        if self._told.get((partition, matter)) == text:
            return
        self._told[partition, matter] = text
        is_expected = isinstance(error, StorageError | OSError)
        logger.log(level, "%s-%d: %s: %s", *partition, matter, error, exc_info=None if is_expected else error)

    def is_over(self, partition: TopicPartition, matter: str) -> None:
        """Record that the trouble is over: the next error is logged, even if it is the same."""
        if self._told:
            self._told.pop((partition, matter), None)

    def keep_only(self, partitions: Container[TopicPartition]) -> None:
        """Forget all other logs."""
        if self._told:
            self._told = {key: text for key, text in self._told.items() if key[0] in partitions}
