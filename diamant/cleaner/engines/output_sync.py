"""Syncs finished outputs and hands them over in order, while the next ones are being written.

Several concurrent syncs take hardly longer than one. Sequential syncs took half of the time in a round with many outputs.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from types import TracebackType
from typing import Self

from diamant.cleaner.rules.result import OnOutput, OutputSegment, no_output
from diamant.storage import names
from diamant.storage.env.env import Env

SYNC_THREADS = 4
"""Number of threads for engines that run in a separate process."""

MAX_PENDING = 8
"""Maximum number of outputs that are complete but not yet durable; if there are more, `add` waits for the oldest."""


class OutputSync:
    """Syncs outputs. As a context manager, it hands over pending outputs on exit or, after an error, removes them.

    `threads` threads sync concurrently; with 0, `add` syncs and hands over each output before it returns. For each output,
    `on_written` is called before or during the sync, and `on_output` when the output is durable, both in the thread that calls
    `add`.
    """

    def __init__(
        self, env: Env, directory: str, on_output: OnOutput, threads: int, on_written: OnOutput = no_output
    ) -> None:
        self._env = env
        self._directory = directory
        self._on_output = on_output
        self._on_written = on_written
        self._pending: deque[tuple[OutputSegment, list[Future[None]]]] = deque()
        self._pool = ThreadPoolExecutor(threads, "sync-output") if threads else None

    def add(self, output: OutputSegment) -> None:
        """Add an output whose files are written and closed. The OSError of a failed sync is raised here, later, or on exit."""
        paths = self._paths(output)
        if self._pool is None:
            self._on_written(output)
            for path in paths:
                self._env.sync_file(path)
            self._on_output(output)
            return
        self._pending.append((output, [self._pool.submit(self._env.sync_file, path) for path in paths]))
        self._on_written(output)
        while self._pending and (len(self._pending) > MAX_PENDING or all(one.done() for one in self._pending[0][1])):
            self._hand_over()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            while self._pending and error is None:
                self._hand_over()
        finally:
            self._give_up()

    def _hand_over(self) -> None:
        output, syncs = self._pending[0]
        for sync in syncs:
            sync.result()
        self._pending.popleft()  # from now on the receiver owns it
        self._on_output(output)

    def _give_up(self) -> None:
        for output, syncs in self._pending:
            wait(syncs)
            for path in self._paths(output):
                with suppress(OSError):
                    self._env.remove(path, missing_ok=True)
        self._pending.clear()
        if self._pool is not None:
            self._pool.shutdown()

    def _paths(self, output: OutputSegment) -> list[str]:
        files = [names.log_file, names.index_file, names.time_index_file]
        if output.has_txn_index:
            files.append(names.txn_index_file)
        return [file(self._directory, output.base_offset) + names.CLEANED_SUFFIX for file in files]
