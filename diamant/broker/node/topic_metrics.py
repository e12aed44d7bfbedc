"""Traffic per topic, as plain counters incremented by the handlers (Kafka's BrokerTopicMetrics).

Counts begin at 0 when the broker starts, and only grow. When a topic is deleted, the sums over all topics keep its counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from diamant.protocol.batches.validation import NO_KEY

_FIRST_PRUNING = 64


class TopicCounts:
    """The counts of one topic. The loop thread increments them."""

    __slots__ = ("bytes_in", "bytes_out", "messages_in")

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        """The number of bytes in appended batches."""
        self.bytes_out = 0
        """The number of bytes in batches sent to consumers."""

    def add(self, other: TopicCounts) -> None:
        self.messages_in += other.messages_in
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out


class BrokerTopicMetrics:
    """The counts of all topics. `exists` returns whether there is a topic with a given name.

    Bound: one small object for each existing topic, and as many again for deleted topics.
    """

    def __init__(self, exists: Callable[[str], bool]) -> None:
        self.no_key_compacted_topic_records = 0
        """The number of records without a key that producers sent to compacted topics; all were refused."""
        self.errors: Counter[tuple[int, int]] = Counter()
        """The number of partitions that Produce and Fetch answered with an error, by (API key, error code)."""
        self._exists = exists
        self._by_topic: dict[str, TopicCounts] = {}
        self._deleted = TopicCounts()
        self._prune_at = _FIRST_PRUNING

    def topic(self, name: str) -> TopicCounts:
        """Return the counts of a topic, to be incremented immediately: they may be replaced when other topics appear."""
        counts = self._by_topic.get(name)
        if counts is None:
            if len(self._by_topic) >= self._prune_at:
                self.prune()
                self._prune_at = 2 * len(self._by_topic) + _FIRST_PRUNING
            counts = self._by_topic[name] = TopicCounts()
        return counts

    def refused(self, record_errors: Iterable[tuple[int, str | None]]) -> None:
        """Count the records without a key in a refused Produce. `record_errors`: index and message of each invalid record."""
        self.no_key_compacted_topic_records += sum(message == NO_KEY for _, message in record_errors)

    def count_error(self, api_key: int, code: int) -> None:
        """Count a partition answered with an error."""
        self.errors[api_key, int(code)] += 1

    def by_topic(self) -> dict[str, TopicCounts]:
        """Return the counts of every existing topic that has been used."""
        self.prune()
        return dict(self._by_topic)

    def all_topics(self) -> TopicCounts:
        """Return the sums over all topics, including deleted ones."""
        total = TopicCounts()
        total.add(self._deleted)
        for counts in self._by_topic.values():
            total.add(counts)
        return total

    def prune(self) -> None:
        """Move the counts of deleted topics into the sums."""
        for name in [name for name in self._by_topic if not self._exists(name)]:
            self._deleted.add(self._by_topic.pop(name))
