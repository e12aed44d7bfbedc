"""Counts of a consumer group's members by subscription."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from diamant.broker.groups.consumer.member import ConsumerGroupMember


@dataclass(slots=True)
class SubscriptionCounts:
    """The number of members that subscribe to each topic name and to each regular expression. Zero counts are dropped."""

    names: Counter[str] = field(default_factory=Counter)
    regexes: Counter[str] = field(default_factory=Counter)

    def replaced(self, before: ConsumerGroupMember | None, after: ConsumerGroupMember | None) -> SubscriptionCounts:
        """Return the counts with `before` replaced by `after`."""
        counts = SubscriptionCounts(Counter(self.names), Counter(self.regexes))
        counts.replace(before, after)
        return counts

    def replace(self, before: ConsumerGroupMember | None, after: ConsumerGroupMember | None) -> None:
        """Replace `before` with `after` in the counts."""
        count_change(self.names, _names_of(before), _names_of(after))
        count_change(self.regexes, _regexes_of(before), _regexes_of(after))

    def are_homogeneous(self, member_count: int, resolved_count: int) -> bool:
        """Return whether all `member_count` members have the same subscription, given the number of resolved expressions."""
        if not self.regexes:
            return all(count == member_count for count in self.names.values())
        is_one = len(self.regexes) == 1 and self.regexes.total() == member_count
        return is_one and not self.names and resolved_count <= 1


def count_change(counts: Counter[str], before: Iterable[str], after: Iterable[str]) -> None:
    """Subtract `before` and add `after`; drop entries with a count of 0."""
    counts.update(after)
    for name in before:
        counts[name] -= 1
        if counts[name] <= 0:
            del counts[name]


def _names_of(member: ConsumerGroupMember | None) -> frozenset[str]:
    return frozenset() if member is None else member.subscribed_topic_names


def _regexes_of(member: ConsumerGroupMember | None) -> frozenset[str]:
    return frozenset((member.subscribed_topic_regex,)) if member and member.subscribed_topic_regex else frozenset()
