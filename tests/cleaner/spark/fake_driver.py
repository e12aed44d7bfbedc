"""A driver without Spark: it does the job in its own process, and does what DIAMANT_TEST_DRIVER says on top.

die       ends by SIGKILL when the outputs are written
hang      tells nothing more when the outputs are written
flip      turns a bit of an output around
lose      removes an output
miscount  counts a record too many
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from diamant.cleaner.spark import clean_driver, clean_job, session
from diamant.cleaner.spark.manifest import Manifest
from tests.cleaner.spark.one_process import OneProcess

MISCHIEF = "DIAMANT_TEST_DRIVER"


@contextmanager
def no_session(*_: Any, **__: Any) -> Iterator[Any]:
    """Stands in for `spark_session`."""
    yield SimpleNamespace(sparkContext=OneProcess())


class Job(clean_job.CleanJob):
    """A job with something done to its outcome."""

    def run(self) -> Manifest:
        manifest = super().run()
        first = manifest.outputs[0]
        log = next(name for name in first.files if name.endswith(".log.cleaned"))
        path = self._job.target.child(first.directory).child(log).path
        match os.environ.get(MISCHIEF):
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                threading.Event().wait()
            case "flip":
                with open(path, "r+b") as file:
                    file.seek(100)
                    byte = file.read(1)[0]
                    file.seek(100)
                    file.write(bytes([byte ^ 1]))
            case "lose":
                os.remove(path)
            case "miscount":
                return replace(manifest, outputs=(replace(first, records=first.records + 1), *manifest.outputs[1:]))
        return manifest


def main() -> int:
    """Be a driver."""
    session.spark_session = no_session  # type: ignore[assignment]
    clean_job.CleanJob = Job  # type: ignore[misc]
    return clean_driver.main()


if __name__ == "__main__":
    sys.exit(main())
