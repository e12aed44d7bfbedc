"""The cleaner's state of each partition: its checkpoint, whether it is in use, and the error that prevents cleaning, if any.

A partition without a state is free and can be acquired. The states are:

    in progress     a round, or the cleaner's retention, is in progress
    aborted         the round or the retention must stop: `check_done` raises
    paused(n)       not cleaned until `resume` has been called n times

Checkpoints are read once and then kept here; the file `cleaner-offset-checkpoint` is written from them. A partition whose round
failed is *uncleanable* until the next retry. The time between retries doubles. Mode kafka retries only after some failures.

This module does no I/O and needs no event loop. Only the owner of the logs calls it, but any thread may call `check_done`.

Source: Kafka's LogCleanerManager.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from diamant.cleaner.rules.result import CleaningAborted
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.log.log import Log

RETRY_FIRST_MS = 60_000
"""Time from the first failure to the retry; it doubles with each further failure."""
RETRY_MAX_MS = 3_600_000
"""Longest time until a retry."""


@dataclass(slots=True)
class _State:
    """The state of a partition that is not free."""

    is_in_progress: bool = False
    is_aborted: bool = False
    pauses: int = 0


@dataclass(frozen=True, slots=True)
class Uncleanable:
    """The failure that keeps a partition from being cleaned."""

    reason: str
    since_ms: int
    """Time of the first failure."""
    failures: int
    """Number of failures in a row; 0 after `retry_now`."""
    retry_ms: int | None
    """Time of the retry; None for never."""

    def retry_in_ms(self, now_ms: int) -> int | None:
        """Return the time left until the retry; None if there will be no retry."""
        return None if self.retry_ms is None else max(0, self.retry_ms - now_ms)


class PartitionStates:
    """The states of all partitions. `checkpoints`: the end of each partition's last round, as read from the file."""

    def __init__(self, checkpoints: Mapping[TopicPartition, int] | None = None) -> None:
        self._checkpoints = dict(checkpoints or {})
        self._last_cleaned_ms: dict[TopicPartition, int] = {}
        self._states: dict[TopicPartition, _State] = {}
        self._uncleanable: dict[TopicPartition, Uncleanable] = {}
        self.is_stopping = False
        """True if the cleaner is stopping, so all rounds must end."""
        self.generation = 0
        """Number that grows with every change of a checkpoint or of a round's end time."""
        self.on_paused: Callable[[TopicPartition], object] | None = None
        """Called when an aborted round has ended and its partition is paused."""

    # -- states ------------------------------------------------------------------------------------------------------

    def state(self, partition: TopicPartition) -> str:
        """Return the state as a string: none, in progress, aborted or paused(n)."""
        state = self._states.get(partition)
        if state is None:
            return "none"
        if state.is_in_progress:
            return "aborted" if state.is_aborted else "in progress"
        return f"paused({state.pauses})"

    def is_free(self, partition: TopicPartition) -> bool:
        """Return whether the partition has no state, so that a round may begin."""
        return partition not in self._states

    def is_in_progress(self, partition: TopicPartition) -> bool:
        """Return whether a round or retention is in progress."""
        state = self._states.get(partition)
        return state is not None and state.is_in_progress

    def acquire(self, partition: TopicPartition) -> None:
        """Mark a free partition as in progress, for a round or for retention."""
        if partition in self._states:
            raise self._unexpected(partition, "none")
        self._states[partition] = _State(is_in_progress=True)

    def abort_and_pause(self, partition: TopicPartition) -> bool:
        """Pause a partition until `resume`, and abort its round or retention. Return True if neither is in progress.

        Otherwise `on_paused` is called when it has ended. (Kafka refuses a second caller while the first is waiting; here both
        wait.)
        """
        state = self._states.setdefault(partition, _State())
        state.pauses += 1
        state.is_aborted = state.is_in_progress
        return not state.is_in_progress

    def resume(self, partition: TopicPartition) -> None:
        """Undo one pause."""
        state = self._states.get(partition)
        if state is None or state.is_in_progress:
            raise self._unexpected(partition, "paused")
        self.give_up_pause(partition)

    def give_up_pause(self, partition: TopicPartition) -> None:
        """Undo one pause whose caller has stopped waiting. Unlike `resume`, this is allowed before the aborted round has ended.

        The round still ends without effect.
        """
        state = self._states.get(partition)
        if state is None or not state.pauses:
            raise self._unexpected(partition, "aborted or paused")
        state.pauses -= 1
        if not state.pauses and not state.is_in_progress:
            del self._states[partition]

    def abort(self, partition: TopicPartition) -> None:
        """Abort the round in progress, if any. The round ends without effect, and the partition becomes free."""
        state = self._states.get(partition)
        if state is not None and state.is_in_progress:
            state.is_aborted = True

    def check_done(self, partition: TopicPartition) -> None:
        """Raise CleaningAborted if the round of a partition must stop. Callable from any thread."""
        if self.is_stopping:
            raise CleaningAborted(f"{partition[0]}-{partition[1]}: the cleaner stops")
        state = self._states.get(partition)
        if state is not None and state.is_aborted:
            raise CleaningAborted(f"{partition[0]}-{partition[1]}: the cleaning was aborted")

    def done_cleaning(self, partition: TopicPartition, end_offset: int | None) -> bool:
        """End a round, and make `end_offset` the checkpoint unless it is None. Return True if the checkpoint was set.

        An aborted round does not set it.
        """
        is_aborted = self._end(partition)
        if is_aborted or end_offset is None:
            return False
        self.set_checkpoint(partition, end_offset)
        self._uncleanable.pop(partition, None)
        return True

    def done_deleting(self, partition: TopicPartition) -> None:
        """End retention on a partition."""
        self._end(partition)

    def _end(self, partition: TopicPartition) -> bool:
        """Release a partition; return True if its round or retention was aborted."""
        state = self._states.get(partition)
        if state is None or not state.is_in_progress:
            raise self._unexpected(partition, "in progress or aborted")
        is_aborted = state.is_aborted
        state.is_in_progress = state.is_aborted = False
        if not state.pauses:
            del self._states[partition]
        elif self.on_paused is not None:
            self.on_paused(partition)
        return is_aborted

    def _unexpected(self, partition: TopicPartition, expected: str) -> RuntimeError:
        return RuntimeError(f"{partition[0]}-{partition[1]}: expected state {expected}, got {self.state(partition)}")

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def checkpoint(self, partition: TopicPartition) -> int | None:
        """Return the partition's checkpoint, below which rounds have covered everything; None if there was no round."""
        return self._checkpoints.get(partition)

    def first_dirty(self, log: Log) -> int:
        """Return the offset up to which rounds have covered the log completely, without leaving out a quarantined segment."""
        return max(self._checkpoints.get((log.topic, log.partition), 0), log.log_start_offset)

    def checkpoints(self) -> dict[TopicPartition, int]:
        """Return all checkpoints, to be written to the file."""
        return dict(self._checkpoints)

    def set_checkpoint(self, partition: TopicPartition, offset: int) -> None:
        """Set a partition's checkpoint."""
        if self._checkpoints.get(partition) != offset:
            self._checkpoints[partition] = offset
            self.generation += 1

    def last_cleaned(self) -> dict[TopicPartition, int]:
        """Return the time at which each partition's last round ended, on the broker's clock."""
        return dict(self._last_cleaned_ms)

    def last_cleaned_ms(self, partition: TopicPartition) -> int | None:
        """Return the time at which the partition's last round ended, even if an earlier process ran it; None if unknown."""
        return self._last_cleaned_ms.get(partition)

    def set_last_cleaned(self, partition: TopicPartition, time_ms: int) -> None:
        """Record the time at which a round ended."""
        self._last_cleaned_ms[partition] = time_ms
        self.generation += 1

    # -- partitions that cannot be cleaned ---------------------------------------------------------------------------

    @property
    def uncleanable(self) -> Mapping[TopicPartition, Uncleanable]:
        """The partitions whose last round failed, including those whose retry is due or in progress."""
        return self._uncleanable

    def is_uncleanable(self, partition: TopicPartition, now_ms: int) -> bool:
        """Return whether a partition must not be cleaned now because its last round failed."""
        uncleanable = self._uncleanable.get(partition)
        return uncleanable is not None and (uncleanable.retry_ms is None or now_ms < uncleanable.retry_ms)

    def mark_uncleanable(self, partition: TopicPartition, reason: str, now_ms: int, *, is_retried: bool) -> Uncleanable:
        """Record a failure; with `is_retried`, schedule a retry."""
        before = self._uncleanable.get(partition)
        failures = 1 if before is None else before.failures + 1
        retry_ms = None
        if is_retried:
            retry_ms = now_ms + min(RETRY_FIRST_MS << min(failures - 1, 10), RETRY_MAX_MS)
        since_ms = now_ms if before is None else before.since_ms
        uncleanable = self._uncleanable[partition] = Uncleanable(reason, since_ms, failures, retry_ms)
        return uncleanable

    def mark_cleanable(self, partition: TopicPartition) -> None:
        """Record that a round succeeded."""
        self._uncleanable.pop(partition, None)

    def retry_now(self, partition: TopicPartition, now_ms: int) -> bool:
        """Make the retry of an uncleanable partition due now, and reset its backoff; return False if it is not uncleanable."""
        uncleanable = self._uncleanable.get(partition)
        if uncleanable is None:
            return False
        self._uncleanable[partition] = Uncleanable(uncleanable.reason, uncleanable.since_ms, 0, now_ms)
        return True

    # -- deleted partitions ------------------------------------------------------------------------------------------

    def forget(self, partition: TopicPartition) -> None:
        """Discard the state of a deleted partition, and abort its round. Pauses remain until `resume`."""
        self.abort(partition)
        self._uncleanable.pop(partition, None)
        known = self._checkpoints.pop(partition, None), self._last_cleaned_ms.pop(partition, None)
        if known != (None, None):
            self.generation += 1

    def keep_only(self, partitions: Collection[TopicPartition]) -> None:
        """Forget all partitions except these."""
        known = {**self._checkpoints, **self._uncleanable, **self._last_cleaned_ms}
        for partition in [one for one in known if one not in partitions]:
            self.forget(partition)
