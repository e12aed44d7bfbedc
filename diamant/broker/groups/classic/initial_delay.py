"""The initial delay, in which an empty classic group waits for more members (`group.initial.rebalance.delay.ms`)."""

from __future__ import annotations


class InitialDelay:
    """The delay, extended step by step while new members join, up to the rebalance timeout of the first member.

    Source: InitialDelayedJoin; GroupMetadataManager.maybeCompleteJoinElseSchedule, tryCompleteInitialRebalanceElseSchedule.
    """

    __slots__ = ("_delay_ms", "_remaining_ms", "_step_ms", "is_joined_by_new")

    def __init__(self, step_ms: int, rebalance_timeout_ms: int) -> None:
        self.is_joined_by_new = False
        """Whether a new member has joined in the current step."""
        self._step_ms = self._delay_ms = step_ms
        self._remaining_ms = max(rebalance_timeout_ms - step_ms, 0)

    def extended_ms(self) -> int | None:
        """Begin another step and return its length in ms, or return None if the delay is over."""
        if not self.is_joined_by_new or not self._remaining_ms:
            return None
        self.is_joined_by_new = False
        last_ms = self._delay_ms
        self._delay_ms = min(self._step_ms, self._remaining_ms)
        self._remaining_ms = max(self._remaining_ms - last_ms, 0)
        return self._delay_ms
