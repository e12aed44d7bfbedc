"""The worker process of the cleaner, started by `process`.

It runs one plan at a time, at low CPU and disk priority and within a memory limit, so that a round neither slows the broker down
nor crashes it. Messages are described in `worker_messages`.

Threads: the main thread executes plans; a second one reads commands, so that a round can be cancelled. The memory limit is
RLIMIT_DATA, which counts private writable memory: the heap, but neither code nor mapped files.

The worker exits when its standard input ends. It is killed immediately (SIGKILL) when the broker ends, because otherwise it might
write into a directory that belongs to the next broker.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from diamant.cleaner.engines.output_sync import SYNC_THREADS
from diamant.cleaner.facts.facts_file import text_of_output
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CheckDone, CleaningAborted, OutputSegment
from diamant.cleaner.rules.result import Throttle as CountBytes
from diamant.cleaner.rules.throttle import Throttle
from diamant.cleaner.runners.best_engine import best_engine
from diamant.cleaner.runners.child_main import PROGRESS_INTERVAL_S, run_child
from diamant.cleaner.runners.worker_messages import error_fields, facts_task_from
from diamant.json_types import JsonObject
from diamant.storage import names
from diamant.storage.env.env import Env, RealEnv
from diamant.storage.log.moves import carry_out, moves_from
from diamant.storage.segments.log_config import LogConfig
from diamant.storage.segments.segment import Segment
from diamant.storage.segments.segment_files import outline_of
from diamant.storage.segments.segment_outline import SegmentOutline

NAME = "process"
"""The runner's name in results."""


class Worker:
    """Reads commands from `lines` until they end, and writes messages with `send`."""

    def __init__(self, env: Env, lines: Iterable[str], send: Callable[[JsonObject], None]) -> None:
        self._env = env
        self._lines = lines
        self._send = send
        self._engine = best_engine()
        self._throttle = Throttle()
        self._commands: queue.SimpleQueue[JsonObject | None] = queue.SimpleQueue()
        self._cancelled = -1
        """Number of the last cancelled round."""
        self._is_over = threading.Event()

    def run(self) -> None:
        """Execute commands until there are no more."""
        threading.Thread(target=self._read, name="commands", daemon=True).start()
        # Exempt the engine's modules from garbage collection: each pass over them would take 30-60 ms.
        gc.collect()
        gc.freeze()
        self._send({"type": "ready", "pid": os.getpid()})
        while (command := self._commands.get()) is not None:
            self._carry_out(command)

    def _read(self) -> None:
        for line in self._lines:
            command: JsonObject = json.loads(line)
            if command["type"] == "cancel":
                self._cancelled = command["round"]
            elif command["type"] == "move":
                self._move(command["moves"])
            else:
                self._commands.put(command)
        self._is_over.set()
        self._commands.put(None)

    def _move(self, fields: list[Any]) -> None:
        moves = moves_from(fields)
        try:
            with held(moves.directory) as place:
                carry_out(place, moves)
        except Exception as error:
            self._send({"type": "not moved", **error_fields(error, 0)})
        else:
            self._send({"type": "moved"})

    def _carry_out(self, command: JsonObject) -> None:
        number: int = command["round"]
        limit_bytes: int = command["memory_limit_bytes"]
        counted = 0
        next_progress_s = time.monotonic() + PROGRESS_INTERVAL_S

        def check_done() -> None:
            if self._is_over.is_set() or self._cancelled >= number:
                raise CleaningAborted("the round was stopped")

        def throttle(count: int) -> None:
            nonlocal counted, next_progress_s
            counted += count
            if time.monotonic() >= next_progress_s:
                next_progress_s = time.monotonic() + PROGRESS_INTERVAL_S
                self._send({"type": "progress", "round": number, "bytes": counted})
            self._throttle(count, check_done)

        try:
            set_memory_limit(limit_bytes)
            work = self._file_facts if command["type"] == "facts" else self._clean
            message: JsonObject = {"type": "result", "round": number, "result": work(command, check_done, throttle)}
        except Exception as error:
            # Lift the limit first, so that there is enough memory to report that memory ran out.
            set_memory_limit(None)
            message = {"type": "error", "round": number, **error_fields(error, limit_bytes)}
        set_memory_limit(None)
        self._send(message)
        gc.collect()

    def _clean(self, command: JsonObject, check_done: CheckDone, throttle: CountBytes) -> JsonObject:
        def on_output(output: OutputSegment) -> None:
            outline = look_at_output(self._env, plan.directory, output)
            facts = None if plan.is_kafka else text_of_output(self._env, plan.directory, output)
            fields = asdict(replace(output, outline=outline, facts=facts))
            self._send({"type": "output", "round": command["round"], "output": fields})

        plan = CleanPlan.from_json(command["plan"])
        self._throttle.bytes_per_second = plan.io_max_bytes_per_second
        result = self._engine(
            self._env,
            plan,
            on_output=on_output,
            check_done=check_done,
            throttle=throttle,
            sync_threads=SYNC_THREADS,
        )
        return asdict(replace(result, outputs=(), runner=NAME))

    def _file_facts(self, command: JsonObject, check_done: CheckDone, throttle: CountBytes) -> JsonObject:
        from diamant.cleaner.facts.segment_keys import file_segment_facts

        task = facts_task_from(command["task"])
        self._throttle.bytes_per_second = task.io_max_bytes_per_second
        file_segment_facts(self._env, task, check_done=check_done, throttle=throttle)
        return {}


def look_at_output(env: Env, directory: str, output: OutputSegment) -> SegmentOutline:
    """Return the outline of an output from its finished `.cleaned` files. Raises OSError, CorruptLog."""
    segment = Segment(env, directory, output.base_offset, LogConfig(), suffix=names.CLEANED_SUFFIX)
    try:
        for index in (segment.offset_index, segment.time_index):
            index.sanity_check()
        return outline_of(env, segment)
    finally:
        segment.release_file()


def set_memory_limit(limit_bytes: int | None) -> None:
    """Make allocations beyond `limit_bytes` fail (None: the system's own limit). Best effort."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = hard if limit_bytes is None else limit_bytes
    if hard != resource.RLIM_INFINITY and (soft == resource.RLIM_INFINITY or soft > hard):
        soft = hard
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    except (OSError, ValueError):
        pass  # The system has no such limit, so the round continues without a limit.


def main() -> int:
    """Run a worker."""
    return run_child(lambda send: Worker(RealEnv(), sys.stdin, send).run())


class HeldDirectory:
    """The directory of a partition, accessed through a descriptor, so that renames apply to it even if its path has changed.

    The broker may delete the partition at the same time, and create a new partition with the same name.
    See `storage.log.moves.MovesDirectory`.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def exists(self, name: str) -> bool:
        """Return whether a file with this name exists."""
        try:
            os.stat(name, dir_fd=self._fd)
        except FileNotFoundError:
            return False
        return True

    def rename(self, old: str, new: str) -> None:
        """Rename a file."""
        os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            pass

    def sync(self) -> None:
        """Make the directory entries durable."""
        os.fsync(self._fd)


@contextmanager
def held(path: str) -> Iterator[HeldDirectory]:
    """Open a directory, so that it can be accessed through a descriptor. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield HeldDirectory(fd)
    finally:
        os.close(fd)
