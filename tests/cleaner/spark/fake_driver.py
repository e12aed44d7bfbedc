"""A driver without Spark: it runs the job in its own process, divided, with the fault given by DIAMANT_TEST_DRIVER.

mute      never begins a job
unseen    finds no segments at their paths, as on another disk
stale     finds shorter segments there
delete    renames the partition's directory, as a deletion does, before the outputs are written
litter    leaves files in the temporary directory and in Spark's, and ends by SIGKILL
die       ends by SIGKILL when the outputs are written
hang      sends no messages once the outputs are written
stall     likewise, and the driver has little patience
flip      flips a bit of an output
lose      removes an output
miscount  counts one record too many
forget    omits the last output
corrupt   reports a batch within a segment as corrupt
full      has no room for the outputs
read-only cannot write them at all
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from diamant.cleaner.spark.clean import in_session, job
from diamant.cleaner.spark.clean.manifest import Manifest
from diamant.cleaner.spark.environment.locations import Location
from diamant.cleaner.spark.runner import driver
from diamant.cleaner.spark.runner.runner import DRIVER_PROGRAM
from diamant.cleaner.spark.session import session
from diamant.storage import names
from diamant.storage.errors import CorruptLog
from tests.cleaner.spark.one_process import OneProcess

FAKE = DRIVER_PROGRAM.replace(
    "from diamant.cleaner.spark.runner.driver",
    f"sys.path.insert(0, {str(Path(__file__).resolve().parents[3])!r}); from tests.cleaner.spark.fake_driver",
)
"""The program of drivers without Spark."""
MISCHIEF = "DIAMANT_TEST_DRIVER"
_REFUSALS = {"full": errno.ENOSPC, "read-only": errno.EROFS}


def _refuse(place: Location) -> Any:
    number = _REFUSALS[str(mischief())]
    raise OSError(number, os.strerror(number), place.path)


@contextmanager
def no_session(_master: str, _name: str, conf: dict[str, str], **_: Any) -> Iterator[Any]:
    """Stands in for `spark_session`."""
    if mischief() == "mute":
        threading.Event().wait()
    if mischief() == "litter":
        for directory in (tempfile.gettempdir(), *conf["spark.local.dir"].split(",")):
            Path(directory, "blockmgr-1").mkdir()
            Path(directory, "blockmgr-1", "values").write_bytes(b"values")
        os.kill(os.getpid(), signal.SIGKILL)
    yield SimpleNamespace(sparkContext=OneProcess())


def mischief() -> str | None:
    """Return the fault to inject."""
    return os.environ.get(MISCHIEF)


class Job(job.CleanJob):
    """A job with a fault in its input or its outcome."""

    def run(self) -> Manifest:
        elsewhere = self._job.target.child("elsewhere")
        if mischief() in ("unseen", "stale"):
            self._job = replace(self._job, source=elsewhere)
        if mischief() == "stale":
            os.mkdir(elsewhere.path)
            for whole in Path(self._plan.directory).glob("*.log"):
                Path(elsewhere.path, whole.name).write_bytes(whole.read_bytes()[:-1])
        if mischief() == "corrupt":
            name = names.log_file("", self._plan.segments[2].base_offset).lstrip("/")
            raise CorruptLog(self._job.source.child(name).path, 70, "CRC")
        if mischief() in _REFUSALS:
            Location.open_output = _refuse  # type: ignore[method-assign]
        manifest = super().run()
        first = manifest.outputs[0]
        log = next(name for name in first.files if name.endswith(".log.cleaned"))
        path = self._job.target.child(first.directory).child(log).path
        match mischief():
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang" | "stall":
                if mischief() == "stall":
                    # Not before: on a slow machine its own tasks may take longer.
                    self.progress.patience_s = 0.5
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
                manifest.stats.messages_written += 1
                return replace(manifest, outputs=(replace(first, records=first.records + 1), *manifest.outputs[1:]))
            case "forget":
                return replace(manifest, outputs=manifest.outputs[:-1])
        return manifest

    def _rewrite(self, *arguments: Any) -> Manifest:
        if mischief() == "delete":
            os.rename(self._plan.directory, f"{self._plan.directory}-delete")
        return super()._rewrite(*arguments)


def main() -> int:
    """Run the driver."""
    session.spark_session = no_session  # type: ignore[assignment]
    in_session.CleanJob = Job  # type: ignore[misc]
    in_session.whole_bytes = lambda *_: -1
    return driver.main()


if __name__ == "__main__":
    sys.exit(main())
