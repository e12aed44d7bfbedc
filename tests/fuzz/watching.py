"""What every target watches: the log, the memory and the time of one input."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_INPUT_S = 20.0
"""The processor time that one input may take."""
MAX_GROWTH_BYTES = 256 << 20


class Finding(AssertionError):
    """A property that does not hold; the message has what repeats it."""


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []
        self.lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += 1
        if record.exc_info or (record.levelno >= logging.ERROR and record.name == "asyncio"):
            self.found.append(logging.Formatter().format(record))


@contextmanager
def watched(context: str) -> Iterator[None]:
    """Finding if a traceback is logged in here, or if it takes too much time or memory."""
    errors, root = _Errors(), logging.getLogger()
    root.addHandler(errors)
    cpu_s, resident = time.process_time(), resident_bytes()
    try:
        yield
    except Finding:
        raise
    except Exception as error:
        raise Finding(f"{context}: {type(error).__name__}: {error}") from error
    finally:
        root.removeHandler(errors)
    if errors.found:
        raise Finding(f"{context}: {errors.found[0][-4000:]}")
    if time.process_time() - cpu_s > MAX_INPUT_S:
        raise Finding(f"{context}: {time.process_time() - cpu_s:.0f} s of processor time")
    if resident_bytes() - resident > MAX_GROWTH_BYTES:
        raise Finding(f"{context}: {(resident_bytes() - resident) >> 20} MiB more")


def resident_bytes() -> int:
    """Return the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors() -> int:
    """Return the number of descriptors that this process has open."""
    return len(os.listdir("/proc/self/fd"))
