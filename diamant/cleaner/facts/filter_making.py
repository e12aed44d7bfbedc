"""Makes key filters for closed segments that have none: rolled segments, and segments written by Spark or by a thread.

A round makes the filters of its outputs while they are in the page cache. A rolled segment may wait a long time for its first
round; until then, an erasure, an explanation or a search for superseded records would have to read all of it. So its filter is
made as soon as the cleaner is idle, about a second after the roll. Filters that are missing after a crash or an upgrade are made
in the same way.

Segments are read one at a time, in the worker process, at low priority and within `log.cleaner.io.max.bytes.per.second`. A thread
of the broker would compete with produce requests for the interpreter and for memory. A round, a stop or the deletion of the
segment ends the work, which resumes after the next scan of the logs. A broker tries each segment only once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from diamant.cleaner.facts.facts_file import prune
from diamant.cleaner.facts.key_filter import has_filter
from diamant.cleaner.facts.prompt_state import PromptLog
from diamant.cleaner.rules.plan_of_log import CleanerSettings
from diamant.cleaner.rules.result import CheckDone, CleaningAborted
from diamant.kernels import ARE_COMPILED
from diamant.storage.env.env import Env
from diamant.storage.segments.segment import Segment

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FactsTask:
    """The task of reading a segment, and storing its facts with its filter."""

    directory: str
    base_offset: int
    size: int
    hash_key: bytes
    io_max_bytes_per_second: float


FileFacts: TypeAlias = Callable[[FactsTask, CheckDone], Awaitable[None]]
"""Runs a task. Raises CorruptLog, OSError, StorageError, and the exceptions of `check_done`, which stop the task."""


class FilterMaking:
    """Makes missing filters (see the module docstring). Belongs to the loop thread.

    `blocking` reads small files; `has_other_work`, which is called from any thread, tells whether to stop for now.
    """

    def __init__(self, env: Env, blocking: Executor, file_facts: FileFacts, has_other_work: Callable[[], bool]) -> None:
        self._env = env
        self._blocking = blocking
        self._file_facts = file_facts
        self._has_other_work = has_other_work
        self._is_stopping = False
        self._making: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """True while filters are being made."""
        return self._making is not None and not self._making.done()

    def begin(self, logs: Sequence[PromptLog], settings: CleanerSettings) -> None:
        """Start making the missing filters of some logs, unless there is other work."""
        if ARE_COMPILED and logs and not self.is_busy and not self._has_other_work():
            self._making = asyncio.get_running_loop().create_task(self._make_all(logs, settings))

    async def stop(self) -> None:
        """Stop making filters, and wait until the work has ended."""
        self._is_stopping = True
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait({self._making})

    def _check_done(self) -> None:
        if self._is_stopping or self._has_other_work():
            raise CleaningAborted("rounds take precedence over filters")

    async def _make_all(self, logs: Sequence[PromptLog], settings: CleanerSettings) -> None:
        with suppress(CleaningAborted):
            for known in logs:
                for segment in known.without_filter():
                    self._check_done()
                    # Until the exchange is over, the file of a new segment has another name.
                    if not (segment.is_deleted or known.log.is_exchanging):
                        await self._make(known, segment, settings)

    async def _make(self, known: PromptLog, segment: Segment, settings: CleanerSettings) -> None:
        in_thread = asyncio.get_running_loop().run_in_executor
        size, hash_key, rate = segment.size, settings.hash_key, settings.io_max_bytes_per_second
        task = FactsTask(known.log.path, segment.base_offset, size, hash_key, rate)
        try:
            if not await in_thread(self._blocking, has_filter, self._env, segment.path, size, hash_key):
                await self._file_facts(task, self._check_done)
        except CleaningAborted:
            raise
        except Exception as error:  # continue with the other filters
            if not segment.is_deleted:
                logger.warning("%s: the key filter of this segment could not be made: %s", segment.path, error)
        finally:
            if segment.is_deleted and not known.log.is_deleted:
                bases = {one.base_offset for one in known.log.segments}
                await in_thread(self._blocking, prune, self._env, task.directory, bases)
        known.note_filter(segment)
