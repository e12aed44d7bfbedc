"""Putting an output in the place of its sources while the loop has other things to do.

What has to be renamed is renamed by the worker that has written the output: a loop that does it, or a thread that shares its
interpreter, is felt by those who wait for an answer. Without a worker the loop does it, a few files in each turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor

from diamant.cleaner.rules.result import CheckDone, OutputSegment
from diamant.cleaner.runners.contract import Runner, WorkerRunner
from diamant.storage.log.log import Log
from diamant.storage.log.moves import EnvDirectory, in_turns
from diamant.storage.log.segment_swap import Replacement


async def exchange(
    log: Log,
    output: OutputSegment,
    source_sizes: Sequence[int],
    runner: Runner,
    *,
    check_done: CheckDone,
    blocking: Executor,
) -> None:
    """Exchange segments of `log`, of which the sources had `source_sizes` when the plan was made, on disk and in memory.

    Loop thread; what has begun is ended even if the task is cancelled. Raises what `Replacement.steps` and `check_done` raise.
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
        await let_others_go()
        replacement.open()
        if replacement.must_prepare:
            await loop.run_in_executor(blocking, replacement.prepare)
        await let_others_go()
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
            # Until memory follows, in the turn in which this ends, files are found under both names.
            with log.env.renamed_elsewhere(moves.renames):
                await let_others_go()
                await runner.move(moves)
                await let_others_go()
        except OSError as error:
            moves = steps.throw(error)
        except asyncio.CancelledError:
            # What the worker has done of it stays done.
            for _ in in_turns(EnvDirectory(log.env, log.path), steps, moves):
                pass
            raise
        else:
            moves = next(steps, None)


async def let_others_go() -> None:
    """Have the loop look at its sockets, and serve those that have something, before this task continues.

    A task that waits for one turn is served before what a socket has brought in that turn.
    """
    await asyncio.sleep(0)
    await asyncio.sleep(0)
