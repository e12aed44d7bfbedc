"""Replaces the sources of an output with the output, without blocking the loop.

The worker that wrote the output also renames the files, because renames by the loop, or by another thread of the broker, would
delay responses to clients. If there is no worker, the loop renames the files, a few in each turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager

from diamant.cleaner.rules.result import CheckDone, OutputSegment
from diamant.cleaner.runners.contract import Runner, WorkerRunner
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.log.log import Log
from diamant.storage.log.moves import EnvDirectory, in_turns
from diamant.storage.log.segment_swap import Replacement


class SwapHolds:
    """Holds on logs whose current segments are being read. While a log is held, no output replaces its segments.

    Rounds continue during a hold, but wait before each swap. A hold must be short, because the worker of a waiting round does no
    other work. Belongs to the loop thread. Memory: one entry for each log that is held.
    """

    def __init__(self) -> None:
        self._held: dict[TopicPartition, asyncio.Event] = {}

    @contextmanager
    def held(self, partitions: Collection[TopicPartition]) -> Iterator[None]:
        """Hold logs, none of which may be held already."""
        assert self._held.keys().isdisjoint(partitions), "one job at a time holds logs"
        over = asyncio.Event()
        self._held |= dict.fromkeys(partitions, over)
        try:
            yield
        finally:
            over.set()
            for partition in partitions:
                del self._held[partition]

    async def released(self, partition: TopicPartition) -> None:
        """Wait until a log is no longer held."""
        while (over := self._held.get(partition)) is not None:
            await over.wait()


async def exchange(
    log: Log,
    output: OutputSegment,
    source_sizes: Sequence[int],
    runner: Runner,
    *,
    check_done: CheckDone,
    blocking: Executor,
) -> None:
    """Replace the sources of `output` in `log`, on disk and in memory. `source_sizes`: the sizes that the plan has for them.

    Runs on the loop thread. Once the renames have begun, the exchange is completed even if the caller is cancelled.
    Raises the errors of `Replacement.steps` and `check_done`.
    """
    loop = asyncio.get_running_loop()
    replacement = Replacement(
        log,
        output.base_offset,
        output.source_base_offsets,
        source_sizes=source_sizes,
        size=output.size,
        outline=output.outline,
    )
    try:
        await yield_to_loop()
        replacement.open()
        if replacement.must_prepare:
            await loop.run_in_executor(blocking, replacement.prepare)
        await yield_to_loop()
        check_done()
    except BaseException:
        await loop.run_in_executor(blocking, replacement.abandon)
        raise
    if isinstance(runner, WorkerRunner):
        await _by_worker(log, replacement, runner)
    else:
        await _here(replacement)
        await loop.run_in_executor(blocking, replacement.finish)


async def _here(replacement: Replacement) -> None:
    turns = replacement.swap_in_turns()
    try:
        for _ in turns:
            await asyncio.sleep(0)
    finally:
        for _ in turns:
            pass


async def _by_worker(log: Log, replacement: Replacement, runner: WorkerRunner) -> None:
    steps = replacement.steps(is_synced=True)
    moves = next(steps, None)
    while moves is not None:
        try:
            # The files can be opened by either name until memory is updated, which happens in the turn in which this block ends.
            with log.env.renamed_elsewhere(moves.renames):
                await yield_to_loop()
                await runner.move(moves)
                await yield_to_loop()
        except OSError as error:
            moves = steps.throw(error)
        except asyncio.CancelledError:
            # Complete the exchange here. Moves that the worker has already made remain in effect.
            for _ in in_turns(EnvDirectory(log.env, log.path), steps, moves):
                pass
            raise
        else:
            moves = next(steps, None)


async def yield_to_loop() -> None:
    """Let the loop poll its sockets and serve those that are ready, before this task continues.

    One turn is not enough, because the loop would resume the task before it serves the sockets that were polled in that turn.
    """
    await asyncio.sleep(0)
    await asyncio.sleep(0)
