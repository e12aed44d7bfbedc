"""Steps of a redaction between locating records and the scan: they remove the records from the logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from diamant.broker.erasure.redact.redact_result import Work
from diamant.broker.operations.blocking import to_its_end
from diamant.broker.operations.progress import Progress
from diamant.cleaner.prompt.segment_facts import facts_path
from diamant.cleaner.redaction.rewrite import RedactionPlan, SegmentRedaction, write_redacted
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.log.log import Log
from diamant.storage.log.segment_swap import Replacement

if TYPE_CHECKING:
    from diamant.broker.node.cleaner import NodeCleaner
    from diamant.storage.env.env import Env


class RedactSteps:
    """Pauses cleaning, and puts new segments in the place of those that hold such records."""

    def __init__(self, env: Env, cleaning: NodeCleaner) -> None:
        """`cleaning`: what is paused."""
        self._env = env
        self._cleaning = cleaning

    @asynccontextmanager
    async def paused(self, partitions: Sequence[TopicPartition]) -> AsyncIterator[None]:
        """While this holds, no other job rewrites segments of these partitions."""
        service = await self._cleaning.service()
        paused = []
        try:
            for partition in partitions:
                await service.abort_and_pause(partition)
                paused.append(partition)
            yield
        finally:
            for partition in paused:
                service.resume(partition)

    async def rewrite(self, works: Sequence[Work], progress: Progress) -> None:
        total = sum(one.size for work in works for one in work.log.segments if one.base_offset in work.located.offsets)
        progress.begin("rewriting segments", total, "bytes")
        for work in works:
            log = work.log
            if not work.located.offsets or log.is_deleted:
                continue
            if log.active.base_offset in work.located.offsets:
                log.roll()
                work.was_rolled = True
            plan = await self._plan(work)
            for segment in plan.segments:
                work.rewritten += await to_its_end(self._replace(log, plan, segment))
                progress.advance(segment.size)

    async def _replace(self, log: Log, plan: RedactionPlan, segment: SegmentRedaction) -> bool:
        """Put a segment without the records in the place of the one with them."""
        base_offset = segment.base_offset
        try:
            output = await asyncio.to_thread(write_redacted, self._env, plan, segment)
        except FileNotFoundError:
            if log.segments[0].base_offset > base_offset:
                return False  # Retention was quicker.
            raise
        if output is None:
            return False
        replacement = Replacement(
            log, base_offset, output.source_base_offsets, source_sizes=[segment.size], size=output.size
        )
        try:
            await asyncio.to_thread(replacement.prepare)
        except BaseException:
            replacement.abandon()
            raise
        replacement.swap()
        await asyncio.to_thread(self._settle, replacement, facts_path(log.path, base_offset))
        return True

    async def _plan(self, work: Work) -> RedactionPlan:
        log = work.log
        closed = {segment.base_offset: segment for segment in log.segments[:-1] if not segment.is_deleted}
        found = [(closed[base], work.located.offsets[base]) for base in sorted(work.located.offsets) if base in closed]
        return RedactionPlan(
            directory=log.path,
            segments=await asyncio.to_thread(
                lambda: tuple(
                    SegmentRedaction(segment.base_offset, segment.size, tuple(segment.txn_index.all()), offsets)
                    for segment, offsets in found
                )
            ),
            index_interval_bytes=log.config.index_interval_bytes,
            segment_index_bytes=log.config.segment_index_bytes,
        )

    def _settle(self, replacement: Replacement, facts: str) -> None:
        # What is known of the old segment, its filter of keys among it, is not true of the new one.
        self._env.remove(facts, missing_ok=True)
        replacement.finish()
