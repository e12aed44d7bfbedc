"""The main function of child processes that runners start; `child_process` is the broker's side."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable

from diamant.json_types import JsonObject

PROGRESS_INTERVAL_S = 0.5
"""Minimum time between two progress messages."""

Send = Callable[[JsonObject], None]
"""Sends a message to the broker. Callable from any thread."""


def run_child(run: Callable[[Send], None]) -> int:
    """Call `run` with a function that sends messages to the broker. Return the process's exit code."""
    # Output printed by a library or a JVM must not mix with the messages.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        lock = threading.Lock()

        def send(message: JsonObject) -> None:
            line = json.dumps(message, separators=(",", ":")) + "\n"
            with lock:
                out.write(line)
                out.flush()

        try:
            run(send)
        except BrokenPipeError:
            return 1  # the parent is gone
    return 0
