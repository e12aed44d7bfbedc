"""The cleaner's state of each partition: checkpoint, occupation, and the error that keeps it uncleaned, if any.

A partition is in one of these states; only one that is in none of them can be taken:

    in progress     a round, or the cleaner's retention, is at work
    aborted         as before, but told to stop: `check_done` raises
    paused(n)       left alone until it was resumed n times

Checkpoints are read once and then kept here; the file `cleaner-offset-checkpoint` is written from them. A partition whose
round failed is *uncleanable*: for good in mode kafka, else until its next try, which comes later each time.

No I/O, no event loop. The owner of the logs calls everything; `check_done` may be called by any thread.

Source: Kafka's LogCleanerManager.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from diamant.cleaner.rules.result import CleaningAborted
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.log.log import Log

RETRY_FIRST_MS = 60_000
"""A partition that could not be cleaned is tried again after this time; twice as long after each further failure."""
RETRY_MAX_MS = 3_600_000
"""The longest time to the next try."""


@dataclass(slots=True)
class _State:
    """The occupation of a partition; a free one has none."""

    is_in_progress: bool = False
    is_aborted: bool = False
    pauses: int = 0


@dataclass(frozen=True, slots=True)
class Uncleanable:
    """Why a partition is not cleaned."""

    reason: str
    since_ms: int
    """Time of the first failure."""
    failures: int
    """In a row."""
    retry_ms: int | None
    """Time of the next try; None: never."""

    def retry_in_ms(self, now_ms: int) -> int | None:
        """Return the time to the next try; None: never."""
        return None if self.retry_ms is None else max(0, self.retry_ms - now_ms)


class PartitionStates:
    """See the module. `checkpoints`: where the last round of each partition ended, as the file says."""

    def __init__(self, checkpoints: Mapping[TopicPartition, int] | None = None) -> None:
        self._checkpoints = dict(checkpoints or {})
        self._last_cleaned_ms: dict[TopicPartition, int] = {}
        self._states: dict[TopicPartition, _State] = {}
        self._uncleanable: dict[TopicPartition, Uncleanable] = {}
        self.is_stopping = False
        """True when all rounds are to end."""
        self.generation = 0
        """Grows with every change of the checkpoints and of when rounds ended."""
        self.on_paused: Callable[[TopicPartition], object] | None = None
        """Called when a round that was aborted has ended and its partition is paused."""

    # -- states ------------------------------------------------------------------------------------------------------

    def state(self, partition: TopicPartition) -> str:
        """Return the state in words: none, in progress, aborted, paused(n)."""
        state = self._states.get(partition)
        if state is None:
            return "none"
        if state.is_in_progress:
            return "aborted" if state.is_aborted else "in progress"
        return f"paused({state.pauses})"

    def is_free(self, partition: TopicPartition) -> bool:
        """Tell whether the partition is in no state, so that a round may begin."""
        return partition not in self._states

    def is_in_progress(self, partition: TopicPartition) -> bool:
        """Tell whether a round, or retention, is at work."""
        state = self._states.get(partition)
        return state is not None and state.is_in_progress

    def acquire(self, partition: TopicPartition) -> None:
        """Begin a round, or retention, at a partition that is free."""
        if partition in self._states:
            raise self._unexpected(partition, "none")
        self._states[partition] = _State(is_in_progress=True)

    def abort_and_pause(self, partition: TopicPartition) -> bool:
        """Stop the work at a partition, and let none begin until `resume`; return True if it has stopped already.

        If not, `on_paused` tells when it does. (Kafka refuses a second caller while the first one waits; here both wait.)
        """
        state = self._states.setdefault(partition, _State())
        state.pauses += 1
        state.is_aborted = state.is_in_progress
        return not state.is_in_progress

    def resume(self, partition: TopicPartition) -> None:
        """Take back one pause."""
        state = self._states.get(partition)
        if state is None or state.is_in_progress:
            raise self._unexpected(partition, "paused")
        self.give_up_pause(partition)

    def give_up_pause(self, partition: TopicPartition) -> None:
        """Take back one pause whose caller no longer waits for it: as `resume`, but a round may still be in
        progress.

        That round has been told to stop, and ends without effect.
        """
        state = self._states.get(partition)
        if state is None or not state.pauses:
            raise self._unexpected(partition, "aborted or paused")
        state.pauses -= 1
        if not state.pauses and not state.is_in_progress:
            del self._states[partition]

    def abort(self, partition: TopicPartition) -> None:
        """Abort the round in progress, if any: it ends without effect, and then the partition is free again."""
        state = self._states.get(partition)
        if state is not None and state.is_in_progress:
            state.is_aborted = True

    def check_done(self, partition: TopicPartition) -> None:
        """Raise CleaningAborted if the round at a partition is to stop. Any thread."""
        if self.is_stopping:
            raise CleaningAborted(f"{partition[0]}-{partition[1]}: the cleaner stops")
        state = self._states.get(partition)
        if state is not None and state.is_aborted:
            raise CleaningAborted(f"{partition[0]}-{partition[1]}: the cleaning was aborted")

    def done_cleaning(self, partition: TopicPartition, end_offset: int | None) -> bool:
        """End a round; return True if its end (None: it failed) became the checkpoint. An aborted one's does not."""
        is_aborted = self._end(partition)
        if is_aborted or end_offset is None:
            return False
        self.set_checkpoint(partition, end_offset)
        self._uncleanable.pop(partition, None)
        return True

    def done_deleting(self, partition: TopicPartition) -> None:
        """End the retention at a partition."""
        self._end(partition)

    def _end(self, partition: TopicPartition) -> bool:
        """Release a partition; return True if the work at it was aborted."""
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
        """Return where the partition's last round ended; None if there was none."""
        return self._checkpoints.get(partition)

    def first_dirty(self, log: Log) -> int:
        """Return from where on no round has been over all of a log: rounds around a segment in quarantine do not count."""
        return max(self._checkpoints.get((log.topic, log.partition), 0), log.log_start_offset)

    def checkpoints(self) -> dict[TopicPartition, int]:
        """Return all checkpoints, for the file."""
        return dict(self._checkpoints)

    def set_checkpoint(self, partition: TopicPartition, offset: int) -> None:
        """Note where the next round begins."""
        if self._checkpoints.get(partition) != offset:
            self._checkpoints[partition] = offset
            self.generation += 1

    def last_cleaned(self) -> dict[TopicPartition, int]:
        """Return when the last round of each partition ended, by the clock."""
        return dict(self._last_cleaned_ms)

    def last_cleaned_ms(self, partition: TopicPartition) -> int | None:
        """Return when the partition's last round ended, before the start, too; None if that is not known."""
        return self._last_cleaned_ms.get(partition)

    def set_last_cleaned(self, partition: TopicPartition, time_ms: int) -> None:
        """Note when a round ended."""
        self._last_cleaned_ms[partition] = time_ms
        self.generation += 1

    # -- partitions that cannot be cleaned ---------------------------------------------------------------------------

    @property
    def uncleanable(self) -> Mapping[TopicPartition, Uncleanable]:
        """Partitions whose last round failed, those whose next try is due or in progress included."""
        return self._uncleanable

    def is_uncleanable(self, partition: TopicPartition, now_ms: int) -> bool:
        """Tell whether a partition is to be left alone for now because its last round failed."""
        found = self._uncleanable.get(partition)
        return found is not None and (found.retry_ms is None or now_ms < found.retry_ms)

    def mark_uncleanable(self, partition: TopicPartition, reason: str, now_ms: int, *, is_retried: bool) -> Uncleanable:
        """Note a failure; with `is_retried` the partition is tried again after a time."""
        before = self._uncleanable.get(partition)
        failures = 1 if before is None else before.failures + 1
        retry_ms = None
        if is_retried:
            retry_ms = now_ms + min(RETRY_FIRST_MS << min(failures - 1, 10), RETRY_MAX_MS)
        since_ms = now_ms if before is None else before.since_ms
        found = self._uncleanable[partition] = Uncleanable(reason, since_ms, failures, retry_ms)
        return found

    def mark_cleanable(self, partition: TopicPartition) -> None:
        """Note that a round succeeded."""
        self._uncleanable.pop(partition, None)

    def retry_now(self, partition: TopicPartition, now_ms: int) -> bool:
        """Retry an uncleanable partition at once; return True if it is one. The wait starts again if that fails."""
        found = self._uncleanable.get(partition)
        if found is None:
            return False
        self._uncleanable[partition] = Uncleanable(found.reason, found.since_ms, 0, now_ms)
        return True

    # -- partitions that are no more ---------------------------------------------------------------------------------

    def forget(self, partition: TopicPartition) -> None:
        """Drop what is known of a partition that was deleted, and abort the round at it. Pauses stay to be resumed."""
        self.abort(partition)
        self._uncleanable.pop(partition, None)
        known = self._checkpoints.pop(partition, None), self._last_cleaned_ms.pop(partition, None)
        if known != (None, None):
            self.generation += 1

    def keep_only(self, partitions: Collection[TopicPartition]) -> None:
        """Forget all other partitions."""
        known = {**self._checkpoints, **self._uncleanable, **self._last_cleaned_ms}
        for partition in [one for one in known if one not in partitions]:
            self.forget(partition)
