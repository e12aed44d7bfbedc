"""The protocol, or assignor, that the members of a classic group choose for the next generation.

Source: ClassicGroup (supportsProtocols, candidateProtocols, selectProtocol).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from diamant.broker.coordinators.java_order import strings_in_java_order
from diamant.broker.groups.classic.member import ClassicMember


class ProtocolChoice:
    """The number of members that support each protocol. Bound: the protocol names of the present members."""

    __slots__ = ("_supporters",)

    def __init__(self) -> None:
        self._supporters: Counter[str] = Counter()

    def add(self, member: ClassicMember) -> None:
        self._supporters.update(member.protocol_names)

    def remove(self, member: ClassicMember) -> None:
        for name in member.protocol_names:
            self._supporters[name] -= 1
            if not self._supporters[name]:
                del self._supporters[name]

    def has_common(self, names: Iterable[str], member_count: int) -> bool:
        """Return whether all of `member_count` members support one of `names`."""
        return any(self._supporters[name] == member_count for name in names)

    def choose(self, members: Collection[ClassicMember]) -> str:
        """Return the protocol of the next generation: each member votes for the first of its protocols that all support.

        One exists if every member was admitted after `has_common`.
        """
        candidates = {name for name, count in self._supporters.items() if count == len(members)}
        votes = Counter(member.vote(candidates) for member in members)
        most = max(votes.values())
        # Kafka breaks a tie by the order of its hash map.
        return next(name for name in strings_in_java_order(votes) if votes[name] == most)
