"""The main function of the processes that runners start beside the broker; `child_process` is the broker's side."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable

from diamant.cleaner.runners.worker_messages import Message

PROGRESS_INTERVAL_S = 0.5
"""Least time between two messages of progress."""

Send = Callable[[Message], None]
"""Tells the broker something. Any thread."""


def run_child(run: Callable[[Send], None]) -> int:
    """Call `run` with what tells the broker something; return the exit code."""
    # What a library or a JVM prints must not come between the messages.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        lock = threading.Lock()

        def send(message: Message) -> None:
            line = json.dumps(message, separators=(",", ":")) + "\n"
            with lock:
                out.write(line)
                out.flush()

        try:
            run(send)
        except BrokenPipeError:
            return 1  # the parent is gone
    return 0
