"""The worker process of the cleaner: `python -m diamant.cleaner.runners.worker`, started by `process`.

It runs one plan at a time, at low priority for processor and disk, and within a limit of memory, so that a round neither slows
the broker down nor takes it along when it fails. Messages are described in `worker_messages`.

Threads: the main one works; a second one reads commands, so that a round can be told to stop. Limits: RLIMIT_DATA, which
counts what the process can write to and does not share: its heap, but neither code nor mapped files.

It ends when its standard input ends, and at once (SIGKILL) when the broker does: a worker that went on would write into
a directory that belongs to the next broker.
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
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Protocol

from diamant.cleaner.engines import plain_round
from diamant.cleaner.engines.output_sync import SYNC_THREADS
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CheckDone, CleaningAborted, CleanResult, OnOutput, OutputSegment
from diamant.cleaner.rules.result import Throttle as CountBytes
from diamant.cleaner.rules.throttle import Throttle
from diamant.cleaner.runners.child_main import PROGRESS_INTERVAL_S, run_child
from diamant.cleaner.runners.worker_messages import Message, error_fields
from diamant.storage.env.env import Env, RealEnv

NAME = "process"
"""The runner named in results."""


COMPILED_FROM_BYTES = 8 * 1024 * 1024
"""From this size on a plan is worth loading the compiled engine for, if it is in the cache: half a second."""
COMPILING_FROM_BYTES = 256 * 1024 * 1024
"""From this size on it is worth compiling it: some ten seconds."""


class Engine(Protocol):
    """Carries out a plan; see `result`."""

    def __call__(
        self,
        env: Env,
        plan: CleanPlan,
        *,
        on_output: OnOutput,
        check_done: CheckDone,
        throttle: CountBytes,
        sync_threads: int,
    ) -> CleanResult: ...


class Engines:
    """The plain engine, and the compiled one once it is loaded."""

    def __init__(self) -> None:
        self.compiled: Engine | None = None
        self.detail = ""
        """Why there is no compiled engine."""

    def warm_up(self) -> None:
        """Load the compiled engine, compiling it if need be. Without it the plain one serves."""
        if self.compiled is not None or self.detail:
            return
        try:
            from diamant.cleaner.engines import compiled

            compiled.warm_up()
        except MemoryError:
            raise
        except Exception as error:
            self.detail = f"{type(error).__name__}: {error}"
        else:
            self.compiled = compiled.clean
            # What the engine is made of stays: looking through it again after each round takes 30-60 ms.
            gc.collect()
            gc.freeze()

    def choose(self, plan: CleanPlan) -> Engine:
        """Return the engine for a plan."""
        size = sum(segment.size for segment in plan.segments)
        if size >= COMPILED_FROM_BYTES:
            from diamant.cleaner.engines import compiled

            if size >= COMPILING_FROM_BYTES or compiled.is_warm():
                self.warm_up()
        return plain_round.clean if self.compiled is None else self.compiled


class Worker:
    """Reads commands from `lines` until they end, and writes messages with `send`."""

    def __init__(self, env: Env, lines: Iterable[str], send: Callable[[Message], None]) -> None:
        self._env = env
        self._lines = lines
        self._send = send
        self._engines = Engines()
        self._throttle = Throttle()
        self._commands: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._cancelled = -1
        """The last round that is to end."""
        self._is_over = threading.Event()

    def run(self) -> None:
        """Work until the commands end."""
        threading.Thread(target=self._read, name="commands", daemon=True).start()
        self._send({"type": "ready", "pid": os.getpid()})
        while (command := self._commands.get()) is not None:
            if command["type"] == "warm_up":
                self._engines.warm_up()
                is_compiled = self._engines.compiled is not None
                self._send(
                    {"type": "warm", "engine": "compiled" if is_compiled else "plain", "detail": self._engines.detail}
                )
            else:
                self._clean(command)

    def _read(self) -> None:
        for line in self._lines:
            command: Message = json.loads(line)
            if command["type"] == "cancel":
                self._cancelled = command["round"]
            else:
                self._commands.put(command)
        self._is_over.set()
        self._commands.put(None)

    def _clean(self, command: Message) -> None:
        number: int = command["round"]
        limit_bytes: int = command["memory_limit_bytes"]
        counted = 0
        next_progress_s = time.monotonic() + PROGRESS_INTERVAL_S

        def check_done() -> None:
            if self._is_over.is_set() or self._cancelled >= number:
                raise CleaningAborted("the round was told to stop")

        def throttle(count: int) -> None:
            nonlocal counted, next_progress_s
            counted += count
            if time.monotonic() >= next_progress_s:
                next_progress_s = time.monotonic() + PROGRESS_INTERVAL_S
                self._send({"type": "progress", "round": number, "bytes": counted})
            self._throttle(count, check_done)

        def on_output(output: OutputSegment) -> None:
            self._send({"type": "output", "round": number, "output": asdict(output)})

        try:
            set_memory_limit(limit_bytes)
            plan = CleanPlan.from_json(command["plan"])
            self._throttle.bytes_per_second = plan.io_max_bytes_per_second
            engine = self._engines.choose(plan)
            result = engine(
                self._env,
                plan,
                on_output=on_output,
                check_done=check_done,
                throttle=throttle,
                sync_threads=SYNC_THREADS,
            )
            fields = asdict(replace(result, outputs=(), runner=NAME))
            message: Message = {"type": "result", "round": number, "result": fields}
        except Exception as error:
            # First of all, so that there is memory to tell of the lack of memory.
            set_memory_limit(None)
            message = {"type": "error", "round": number, **error_fields(error, limit_bytes)}
        set_memory_limit(None)
        self._send(message)
        gc.collect()


def set_memory_limit(limit_bytes: int | None) -> None:
    """Make allocations fail from `limit_bytes` on (None: as far as the system allows). Best effort."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = hard if limit_bytes is None else limit_bytes
    if hard != resource.RLIM_INFINITY and (soft == resource.RLIM_INFINITY or soft > hard):
        soft = hard
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    except (OSError, ValueError):
        pass  # A system without it: the round continues without a limit.


def main() -> int:
    """Run a worker."""
    return run_child(
        "diamant.cleaner.runners.worker", str(__doc__), lambda send: Worker(RealEnv(), sys.stdin, send).run()
    )


if __name__ == "__main__":
    sys.exit(main())
