"""The end of a broker's process, which no stuck thread can hold up."""

from __future__ import annotations

import logging
import os
import sys
import threading

logger = logging.getLogger(__name__)

THREADS_TIMEOUT_S = 5.0
"""The time that threads have to end once the broker has stopped."""


def end_without_threads(timeout_s: float = THREADS_TIMEOUT_S) -> None:
    """End the process after some time even if threads are left; call it when everything is flushed and closed.

    Python waits for all threads of executors before it exits. One that reads from a dead disk or a pipe may never end.
    """
    threading.Thread(target=_end, args=(timeout_s,), name="end", daemon=True).start()


def _end(timeout_s: float) -> None:
    threading.Event().wait(timeout_s)
    logger.warning("the process ends although threads are stuck; the broker itself has stopped")
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(0)
