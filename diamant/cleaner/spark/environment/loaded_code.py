"""The garbage collections of Python workers leave out what was loaded once.

PySpark makes a full collection after each task (`pyspark/daemon.py`). With numpy, the kernels and PySpark loaded that takes
20 ms of a processor and more, the largest part of a small task.
"""

from __future__ import annotations

import gc
import sys
from functools import cache


def freeze_loaded() -> None:
    """At the end of a task: take what is alive out of later collections, if modules came since the last call.

    Does nothing outside of a worker.
    """
    from pyspark import TaskContext

    if TaskContext.get() is not None:
        _freeze(len(sys.modules))


@cache
def _freeze(_modules: int) -> None:
    gc.collect()
    gc.freeze()
