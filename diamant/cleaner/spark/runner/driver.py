"""The driver of a cleaning job: a process of its own beside the broker, which `runner` starts with the job as a file.

It has the session, and so the JVM, carries out one plan (`job`), and says on its standard output what happens:

    {"type": "progress", "step": "map", "bytes": 1048576}          twice a second at most
    {"type": "outputs", "outputs": [{...}, ...]}                   those of the manifest, a few at a time: as often as need be
    {"type": "manifest", "manifest": {...}}                        the end, see `manifest`; the outputs are left out
    {"type": "error", "kind": "...", ...}                          the other end

A job of which no task comes to its end for far longer than the largest takes at the slowest (`Progress.patience_s`) is given
up: Spark sees executors that are gone, but not one that waits for a disk or an object store which does not answer.

It ends when its standard input does, and at once (SIGKILL) when the broker does; the JVM sees the driver's end at its own
standard input. Like a worker of the cleaner it gives way to others, and so do the JVM and the Python workers of `local[*]`. The
job's file holds the configuration of Spark, which may name secrets: it has mode 0600, and goes as soon as it was read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.runners.child_process import PROGRESS_INTERVAL_S, die_with, step_back
from diamant.cleaner.runners.worker_messages import Message
from diamant.cleaner.spark.clean.manifest import Manifest, fields_of
from diamant.cleaner.spark.environment.errors import SparkError
from diamant.cleaner.spark.environment.locations import Location
from diamant.storage.errors import StorageError

if TYPE_CHECKING:
    from diamant.cleaner.spark.clean.job import Progress

OUTPUTS_TOGETHER = 64
"""Of a message, at some 500 bytes each."""
SOURCES_TOGETHER = 4096
"""Of a message, at 20 bytes each; more only for an output that has more."""


class Driver:
    """Carries out the job of a file; `send` may be called by any thread."""

    def __init__(self, job_file: str, send: Any) -> None:
        self._fields: dict[str, Any] = json.loads(Path(job_file).read_text(encoding="utf-8"))
        Path(job_file).unlink()
        self._send = send
        self._is_over = threading.Event()
        """The end was told: nothing is to follow."""
        self._lock = threading.Lock()

    def run(self) -> None:
        """Run it and send how it ended."""
        # Beside the other imports it would be loaded by code that only needs to know how a driver is started.
        from diamant.cleaner.spark.session.session import spark_session

        fields = self._fields
        plan = CleanPlan.from_json(fields["plan"])
        try:
            with spark_session(
                fields["master"],
                f"diamant clean {plan.topic}-{plan.partition}",
                fields["conf"],
                executor_timeout_ms=fields["executor_timeout_ms"],
            ) as session:
                self._send({"type": "progress", "step": "planning", "bytes": 0})
                # Told before the session is stopped: where the cluster is gone that may take long.
                self._tell_end(*self._outcome(session.sparkContext, plan))
        except Exception as error:
            self._tell_end({"type": "error", **fields_of(_plain(None, error))})

    def _outcome(self, context: Any, plan: CleanPlan) -> list[Message]:
        from diamant.cleaner.spark.clean.job import CleanJob

        fields = self._fields
        try:
            job = CleanJob(context, plan, source=Location(*fields["source"]), target=Location(*fields["target"]))
            threading.Thread(target=self._tell_progress, args=(job.progress,), daemon=True).start()
            return list(messages(job.run()))
        except Exception as error:
            return [{"type": "error", **fields_of(_plain(context, error))}]

    def _tell_end(self, *messages: Message) -> None:
        with self._lock:
            if not self._is_over.is_set():
                self._is_over.set()
                for message in messages:
                    self._send(message)

    def _tell_progress(self, progress: Progress) -> None:
        told: tuple[str, int] | None = None
        seen: tuple[str, int] | None = None
        since_s = time.monotonic()
        while not self._is_over.wait(PROGRESS_INTERVAL_S):
            if seen != (progress.step, progress.tasks):
                seen, since_s = (progress.step, progress.tasks), time.monotonic()
            elif time.monotonic() - since_s > progress.patience_s:
                # The code that waits for the job may never return; the broker ends the process.
                self._tell_end({"type": "error", **fields_of(_stalled(progress, self._fields["master"]))})
                return
            now = (progress.step, progress.bytes)
            with self._lock:
                if now != told and not self._is_over.is_set():
                    self._send({"type": "progress", "step": now[0], "bytes": now[1]})
                    told = now


def messages(
    manifest: Manifest, *, outputs_together: int = OUTPUTS_TOGETHER, sources_together: int = SOURCES_TOGETHER
) -> Iterator[Message]:
    """Yield what tells the broker of a manifest, in parts."""
    outputs = manifest.outputs
    sources = 0
    begin = 0
    for end, one in enumerate(outputs, 1):
        sources += len(one.output.source_base_offsets)
        # The broker reads a message in one go, on its loop.
        if end - begin == outputs_together or sources >= sources_together or end == len(outputs):
            yield {"type": "outputs", "outputs": [asdict(staged) for staged in outputs[begin:end]]}
            begin, sources = end, 0
    yield {"type": "manifest", "manifest": replace(manifest, outputs=()).to_fields()}


def _stalled(progress: Progress, master: str) -> SparkError:
    return SparkError(
        f"no task on {master} has come to its end for {progress.patience_s:.7g} s ({progress.step}): does an executor wait for a "
        "disk or an object store that does not answer?"
    )


def _plain(context: Any, error: Exception) -> Exception:
    """Return an error that makes sense without Spark's own."""
    if isinstance(error, StorageError | OSError | MemoryError):
        return error
    from diamant.cleaner.spark.session.session import reason_of

    return SparkError(f"the job on Spark failed: {reason_of(context, error)}")


def main() -> int:
    """Run a driver."""
    parser = argparse.ArgumentParser(prog="diamant.cleaner.spark.runner.driver", description=__doc__.partition("\n")[0])
    parser.add_argument("--parent", type=int, required=True, help="process id of the caller")
    parser.add_argument("--nice", type=int, default=10, help="how much to give way (default: 10)")
    parser.add_argument("job", help="file with the job")
    arguments = parser.parse_args()
    die_with(arguments.parent)
    step_back(arguments.nice)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        # What a library or the JVM prints must not come between the messages.
        os.dup2(2, 1)
        lock = threading.Lock()

        def send(message: Message) -> None:
            line = json.dumps(message, separators=(",", ":")) + "\n"
            with lock:
                out.write(line)
                out.flush()

        def watch() -> None:
            while sys.stdin.read(1):
                pass
            # Spark has no stop that is sure to be quick; the JVM and its executors end with this process.
            os._exit(1)

        threading.Thread(target=watch, name="stdin", daemon=True).start()
        try:
            Driver(arguments.job, send).run()
        except BrokenPipeError:
            return 1
        out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
