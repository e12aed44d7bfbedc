"""What is done to logs so that values, and then the key, go: the steps of `Erasures` between its scans.

What is looked for here may be hidden by a filter that is wrong; then the certifying scan finds it, and there is no certificate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from diamant.broker.verbs.erasure import EraseFailed, claim_ends, claim_of
from diamant.broker.verbs.erasure_certificates import ErasureCertificates
from diamant.broker.verbs.errors import NotFound, NotPossible, TimedOut, VerbError
from diamant.broker.verbs.progress import Progress
from diamant.broker.verbs.tombstones import remove_tombstones
from diamant.broker.verbs.undertakings import RETRY_MS
from diamant.cleaner.evidence.intent import Intent
from diamant.cleaner.evidence.locate import filter_skip
from diamant.cleaner.evidence.record_search import Subject
from diamant.cleaner.evidence.scan import ScanReport, scan_partitions
from diamant.cleaner.evidence.scan_report import VALUES_PRESENT
from diamant.cleaner.service_settings import HASH_KEY_FILE
from diamant.storage import names
from diamant.storage.checkpoints import TopicPartition
from diamant.storage.log import Log

logger = logging.getLogger(__name__)

ROUNDS = 5
"""Compactions that are tried until the values are gone, unless somebody waits and time may help."""
LOOK_AGAIN_S = 0.05
MAX_LOOK_AGAIN_S = 2.0
"""While something is waited for the pause between two compactions grows from the one to the other."""
COMPACTIONS_AT_ONCE = 128


class ErasureSteps(ErasureCertificates):
    """Compacts, and looks for what is left."""

    # -- values ----------------------------------------------------------------------------------------------------------

    async def _remove_values(self, intent: Intent, subject: Subject, progress: Progress, *, is_patient: bool) -> None:
        """Compact until no value is left below the claims, or until that cannot be had.

        With `is_patient` somebody waits for it, and so does this while time may help.
        """
        affected = self._affected(intent)
        rounds, pause_s = 0, LOOK_AGAIN_S
        while True:
            progress.begin("compacting", len(affected), "partitions")
            await self._compact_all(intent, affected, "clean", progress)
            rounds += 1
            removed = await asyncio.to_thread(self._remove_doomed, intent.topics, affected)
            self._count_removed(intent, removed)
            left = await self._left(intent, subject, affected)
            is_held = is_patient and any(self._is_held(intent, one) for one in left)
            if not left or (rounds >= ROUNDS and not is_held):
                break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_LOOK_AGAIN_S)
        for step in intent.done:
            step["compactions"] = rounds

    async def _compact_all(
        self, intent: Intent, partitions: Sequence[TopicPartition], until: str, progress: Progress
    ) -> None:
        """Compact partitions; several are asked for at once, so that the cleaner need not look for work after each."""
        for first in range(0, len(partitions), COMPACTIONS_AT_ONCE):
            try:
                async with asyncio.TaskGroup() as group:
                    for partition in partitions[first : first + COMPACTIONS_AT_ONCE]:
                        if self._log(partition) is not None:
                            group.create_task(self._compact(intent, partition, until, progress))
            except BaseExceptionGroup as failures:
                raise failures.exceptions[0] from None

    async def _compact(self, intent: Intent, partition: TopicPartition, until: str, progress: Progress) -> None:
        try:
            report = await self._broker.compact(
                *partition,
                until=until,
                is_forced=intent.is_forced,
                return_at_horizon=until != "clean",
                engine=intent.engine,
            )
            _note_runners(intent, partition, report.partitions[0].runners)
        except (TimedOut, NotFound, NotPossible):
            raise
        except VerbError as error:
            # Quarantined, uncleanable: the scan says what is left there.
            logger.warning("erasure %s: %s-%d cannot be compacted: %s", intent.id, *partition, error)
        progress.advance()

    async def _look(self, subject: Subject, partitions: Sequence[TopicPartition]) -> ScanReport:
        """Look for records of the key where it may be as far as filters know; the certifying scan tells whether they lie."""
        ends = self._ends()

        def look(check: Callable[[], object]) -> ScanReport:
            skip = filter_skip(self._env, subject.key, self._hash_key())
            return scan_partitions(self._env, self._directory, subject, ends, partitions, skip=skip, check=check)

        return await self._in_thread(look)

    async def _left(
        self, intent: Intent, subject: Subject, partitions: Sequence[TopicPartition]
    ) -> list[TopicPartition]:
        """Return the partitions that have a value below their claim's end still."""
        report = await self._look(subject, partitions)
        digest = subject.key_digest.hex()
        ends = claim_ends(intent)
        return [one for one in partitions if report.state(one, ends.get(one, 0), digest) == VALUES_PRESENT]

    def _is_held(self, intent: Intent, partition: TopicPartition) -> bool:
        """Tell whether time may help: an open transaction, or `min.compaction.lag.ms`."""
        log = self._log(partition)
        if log is None:
            return False
        end = claim_ends(intent).get(partition, 0)
        return log.last_stable_offset < end or (log.config.min_compaction_lag_ms > 0 and not intent.is_forced)

    # -- the key ---------------------------------------------------------------------------------------------------------

    async def _remove_key(self, intent: Intent, subject: Subject, progress: Progress) -> None:
        """After the horizon, or with `is_now` before: have the tombstones go. EraseFailed, and a later time, if some are left."""
        affected = self._affected(intent)
        progress.begin("removing tombstones", len(affected), "partitions")
        behind = await self._groups_behind(intent) if intent.is_now else {}
        if intent.is_now:
            for partition in affected:
                log = self._log(partition)
                if log is not None:
                    await self._remove_tombstones(intent, log, behind.get(names.partition_dir_name(*partition), []))
                progress.advance()
        else:
            await self._compact_all(intent, affected, "tombstones-gone", progress)
        removed = await asyncio.to_thread(self._remove_doomed, intent.topics, affected)
        self._count_removed(intent, removed)
        report = await self._look(subject, affected)
        left = [one for claim in self._claims(intent) for one in report.tombstones(*claim_of(claim))]
        if left:
            now_ms = self._env.clock.now_ms()
            later = max((one.horizon_ms or 0 for one in left), default=0)
            intent.due_ms = later if later > now_ms else now_ms + RETRY_MS
            raise EraseFailed(
                f"erasure {intent.id}: {len(left)} tombstones are still there, it goes on at {intent.due_ms} ms since the epoch"
            )

    async def _remove_tombstones(self, intent: Intent, log: Log, behind: list[str]) -> None:
        """Override the horizon in one partition, and put down whom that may concern."""
        override = {
            "what": "delete.retention.ms was overridden: the tombstone went before its horizon",
            "topic": log.topic,
            "partition": log.partition,
            "groups_that_had_not_passed_it": behind,
        }
        if (log.topic, log.partition) not in [(one["topic"], one["partition"]) for one in intent.overrides]:
            intent.overrides.append(override)
        for step in intent.done:
            if (step["topic"], step["partition"]) == (log.topic, log.partition):
                step["removed_before_horizon"] = True
        await remove_tombstones(self._broker, log, intent.key, claim_ends(intent).get((log.topic, log.partition), 0))

    # -- what both need --------------------------------------------------------------------------------------------------

    def _hash_key(self) -> bytes | None:
        """The key of the filters; None if there are none."""
        try:
            found: bytes = self._env.read_bytes(f"{self._directory}/{HASH_KEY_FILE}")
            return found
        except OSError:
            return None

    def _count_removed(self, intent: Intent, removed: Mapping[TopicPartition, int]) -> None:
        for step in intent.done:
            count = removed.get((step["topic"], step["partition"]), 0)
            step["files_removed_at_once"] = step.get("files_removed_at_once", 0) + count


def _note_runners(intent: Intent, partition: TopicPartition, runners: Sequence[str]) -> None:
    """Put down who has compacted a partition: each runner once, in the order in which they came."""
    for step in intent.done:
        if (step["topic"], step["partition"]) == partition:
            step["runners"] = list(dict.fromkeys([*step.get("runners", ()), *runners]))
