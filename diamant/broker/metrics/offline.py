"""The number of partitions that are not served, for metrics and health."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diamant.broker.node.node import Node


def offline_partitions(node: Node) -> int:
    """The number of partitions that could not be opened or can no longer be written."""
    topics = node.topics.image.topics
    failed = sum(failure.topic in topics for failure in node.directory.failures)
    return failed + sum(log.write_failure is not None for log in node.directory.logs.values())
