"""The driver of cleaning jobs: a child process of the broker. `runner` starts it and sends it jobs.

Its standard input has one JSON object per line: first the settings of the session and its JVM, then the jobs (`job`). No
other channel is used, because Spark's configuration may contain secrets. It writes messages to its standard output:

    {"type": "progress", "stage": "map", "bytes": 1048576}          twice a second at most
    {"type": "outputs", "outputs": [{...}, ...]}                   outputs of the manifest, a few per message
    {"type": "manifest", "manifest": {...}}                        the end of a job: its `manifest`, without the outputs
    {"type": "error", "kind": "...", ...}                          the failure of a job, after which the driver ends

A job fails if no task ends for far longer than the largest task should take at the slowest rate (`JobProgress.patience_s`). Spark
detects lost executors, but not an executor that waits for a disk or an object store that does not answer.

The driver ends when its standard input ends, and immediately (SIGKILL) when the broker ends; the JVM ends when its pipe from the
driver closes. With `local[*]` the driver, its JVM and its Python workers run at low priority, like a worker of the cleaner. The
driver of a cluster only coordinates; at low priority on a busy machine it would keep the executors waiting.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.runners.child_main import PROGRESS_INTERVAL_S, Send, run_child
from diamant.cleaner.spark.clean.manifest import Manifest, fields_of
from diamant.cleaner.spark.environment.locations import Location
from diamant.cleaner.spark.environment.spark_errors import SparkError
from diamant.json_types import JsonObject
from diamant.storage.errors import StorageError

if TYPE_CHECKING:
    from diamant.cleaner.spark.clean.progress import JobProgress

OUTPUTS_TOGETHER = 64
"""Maximum number of outputs in a message; each takes about 500 bytes."""
SOURCES_TOGETHER = 4096
"""A message ends with the output that brings it to this many source segments; each takes 20 bytes."""


class Driver:
    """Runs jobs one at a time in one session; any thread may call `send`."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._heard: SimpleQueue[JsonObject | None] = SimpleQueue()
        self._job: DriverJob | None = None

    def read(self, lines: Iterable[str]) -> None:
        """Read the session's settings and the jobs from the broker. The end of input ends the driver."""
        for line in lines:
            self._heard.put(json.loads(line))
        if self._job is None or not self._job.is_over:
            # Do not stop Spark first, which may take long: the JVM and its executors end with this process.
            os._exit(1)
        self._heard.put(None)

    def run(self) -> None:
        """Run jobs until there are no more, or one fails, and report the end of each."""
        # A global import would load the session's code in processes that only start a driver.
        from diamant.cleaner.spark.session.session import spark_session

        settings = self._heard.get()
        fields = self._heard.get()
        assert settings is not None
        assert fields is not None
        job = self._job = DriverJob(fields, settings["master"], self._send)
        try:
            with spark_session(
                settings["master"],
                f"diamant clean {job.plan.topic}-{job.plan.partition}",
                settings["conf"],
                executor_timeout_ms=settings["executor_timeout_ms"],
            ) as session:
                # The end is reported before the session is stopped, which may take long if the cluster is gone.
                while job.run(session.sparkContext) and (fields := self._heard.get()) is not None:
                    job = self._job = DriverJob(fields, settings["master"], self._send)
        except Exception as error:
            job.fail(None, error)


class DriverJob:
    """One job of a driver."""

    def __init__(self, fields: Mapping[str, Any], master: str, send: Send) -> None:
        self.plan = CleanPlan.from_json(fields["plan"])
        self._source, self._target = Location(*fields["source"]), Location(*fields["target"])
        self._master = master
        self._send = send
        self._is_over = threading.Event()
        """Set once the end of the job has been reported. After that, no message may be sent."""
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        """True once the end of the job has been reported or is about to be reported."""
        return self._is_over.is_set()

    def run(self, context: Any) -> bool:
        """Run the job and report its end; return True if it succeeded."""
        from diamant.cleaner.spark.clean.in_session import new_round, size_of, whole_bytes

        self._send({"type": "progress", "stage": "planning", "bytes": 0})
        try:
            most = whole_bytes([size_of(self.plan)], context.defaultParallelism)
            job = new_round(context, self.plan, source=self._source, target=self._target, whole_bytes=most)
            threading.Thread(target=self._send_progress, args=(job.progress,), daemon=True).start()
            manifest = job.run()
            # Some or all tasks may have ended since the last progress message.
            last = {"type": "progress", "stage": job.progress.stage, "bytes": job.progress.bytes}
            self._send_end(last, *messages(manifest))
        except Exception as error:
            self.fail(context, error)
            return False
        return True

    def fail(self, context: Any, error: Exception) -> None:
        """Report the failure of the job, unless its end has already been reported."""
        self._send_end({"type": "error", **fields_of(_plain(context, error))})

    def _send_end(self, *messages: JsonObject) -> None:
        with self._lock:
            if not self._is_over.is_set():
                self._is_over.set()
                for message in messages:
                    self._send(message)

    def _send_progress(self, progress: JobProgress) -> None:
        told: tuple[str, int] | None = None
        seen: tuple[str, int] | None = None
        since_s = time.monotonic()
        while not self._is_over.wait(PROGRESS_INTERVAL_S):
            if seen != (progress.stage, progress.tasks):
                seen, since_s = (progress.stage, progress.tasks), time.monotonic()
            elif time.monotonic() - since_s > progress.patience_s:
                # The thread that waits for the job may never return; the broker ends the process.
                self._send_end({"type": "error", **fields_of(_stalled(progress, self._master))})
                return
            now = (progress.stage, progress.bytes)
            with self._lock:
                if now != told and not self._is_over.is_set():
                    self._send({"type": "progress", "stage": now[0], "bytes": now[1]})
                    told = now


def messages(
    manifest: Manifest, *, outputs_together: int = OUTPUTS_TOGETHER, sources_together: int = SOURCES_TOGETHER
) -> Iterator[JsonObject]:
    """Yield the messages that send a manifest to the broker, in parts."""
    outputs = manifest.outputs
    sources = 0
    begin = 0
    for end, output in enumerate(outputs, 1):
        sources += len(output.output.source_base_offsets)
        # Keep messages small, because the broker parses each in one step on its event loop.
        if end - begin == outputs_together or sources >= sources_together or end == len(outputs):
            yield {"type": "outputs", "outputs": [asdict(staged) for staged in outputs[begin:end]]}
            begin, sources = end, 0
    yield {"type": "manifest", "manifest": replace(manifest, outputs=()).to_fields()}


def _stalled(progress: JobProgress, master: str) -> SparkError:
    return SparkError(
        f"no task on {master} has ended for {progress.patience_s:.7g} s ({progress.stage}): does an executor wait for a disk "
        "or an object store that does not answer?"
    )


def _plain(context: Any, error: Exception) -> Exception:
    """Return an error that does not depend on Spark's own classes."""
    if isinstance(error, StorageError | OSError | MemoryError):
        return error
    from diamant.cleaner.spark.session.session import reason_of

    return SparkError(f"the job on Spark failed: {reason_of(context, error)}")


def main() -> int:
    """Run a driver."""

    def run(send: Send) -> None:
        driver = Driver(send)
        threading.Thread(target=driver.read, args=(sys.stdin,), name="stdin", daemon=True).start()
        driver.run()

    return run_child(run)
