"""Exempts loaded modules from the garbage collections of Python workers.

PySpark runs a full collection after each task (`pyspark/daemon.py`). With numpy, the kernels and PySpark loaded this takes
20 ms of CPU or more, the largest part of a small task.
"""

from __future__ import annotations

import gc
import sys
from functools import cache


def freeze_loaded() -> None:
    """Exempt live objects from later collections, if modules have been loaded since the last call. Call at the end of a task.

    Does nothing outside of a worker.
    """
    from pyspark import TaskContext

    if TaskContext.get() is not None:
        _freeze(len(sys.modules))


@cache
def _freeze(_modules: int) -> None:
    gc.collect()
    gc.freeze()
