"""Replaces closed segments, while cleaning is paused, with segments that lack the records to remove."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from diamant.cleaner.facts.facts_file import facts_path
from diamant.cleaner.rules.result import OutputSegment
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env
from diamant.storage.log.log import Log
from diamant.storage.log.segment_swap import Replacement

if TYPE_CHECKING:
    from diamant.broker.node.cleaner import NodeCleaner


@asynccontextmanager
async def cleaning_paused(cleaning: NodeCleaner, partitions: Iterable[TopicPartition]) -> AsyncIterator[None]:
    """Keep the cleaner from replacing segments of these partitions during the block."""
    service = await cleaning.service()
    paused = []
    try:
        for partition in partitions:
            await service.abort_and_pause(partition)
            paused.append(partition)
        yield
    finally:
        for partition in paused:
            service.resume(partition)


async def replace_segment(
    env: Env, log: Log, base_offset: int, size: int, write: Callable[[], OutputSegment | None]
) -> bool:
    """Replace a closed segment with the output of `write`, which may block. Returns False if nothing was replaced.

    Call this on the loop thread, through `to_its_end`, since it must not be cancelled.
    """
    try:
        output = await asyncio.to_thread(write)
    except FileNotFoundError:
        if log.segments[0].base_offset > base_offset:
            return False  # Retention removed the segment first.
        raise
    if output is None:
        return False
    replacement = Replacement(log, base_offset, output.source_base_offsets, source_sizes=[size], size=output.size)

    def settle() -> None:
        # The facts of the old segment, including its key filter, do not apply to the new segment.
        env.remove(facts_path(log.path, base_offset), missing_ok=True)
        replacement.finish()

    try:
        await asyncio.to_thread(replacement.prepare)
    except BaseException:
        replacement.abandon()
        raise
    replacement.swap()
    await asyncio.to_thread(settle)
    return True
