"""The limit on the reads and writes of rounds: `log.cleaner.io.max.bytes.per.second`.

One `Throttle` serves all rounds of a process. It counts bytes. If the rate exceeds the limit after a check interval, the
caller waits for the rest of the time that the bytes should have taken. Then counting starts again.

Source: Kafka's Throttler, which the cleaner's threads share.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from diamant.cleaner.rules.result import CheckDone, never_done

CHECK_INTERVAL_S = 0.3
MAX_SLEEP_S = 0.1
"""A wait is divided into sleeps of at most this length, between which the round can be stopped."""


class Throttle:
    """Counts bytes read or written, and makes callers wait. Callable from any thread; while one thread waits, others wait, too.

    `clock` returns monotonic seconds; `sleep` takes seconds.
    """

    def __init__(
        self,
        bytes_per_second: float = math.inf,
        *,
        check_interval_s: float = CHECK_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.bytes_per_second = bytes_per_second
        """The limit. May be set at any time; applies from the next call on."""
        self._check_interval_s = check_interval_s
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._start_s = clock()
        self._count = 0

    def __call__(self, count: int, check_done: CheckDone = never_done) -> None:
        """Count `count` bytes, and wait if the rate is too high. An exception from `check_done` ends the wait."""
        with self._lock:
            self._count += count
            elapsed_s = self._clock() - self._start_s
            if elapsed_s <= self._check_interval_s or not self._count:
                return
            if self._count / elapsed_s > self.bytes_per_second:
                # Kafka sleeps for whole milliseconds.
                left_ms = round((self._count / self.bytes_per_second - elapsed_s) * 1000)
                while left_ms > 0:
                    check_done()
                    sleep_ms = min(left_ms, round(MAX_SLEEP_S * 1000))
                    self._sleep(sleep_ms / 1000)
                    left_ms -= sleep_ms
            self._start_s = self._clock()
            self._count = 0
