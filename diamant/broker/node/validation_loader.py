"""Loads the compiled validation of records once traffic makes it worth the 0.5 s and 65 MB that numba costs.

Until then, and for batches of a few records always, the plain walk serves. Loading happens in a thread; the logs share one
`Validation`, whose walk is exchanged when the compiled one is ready.
"""

from __future__ import annotations

import logging
import threading

from diamant.protocol.batches.validation import RecordChecks, WalkOutcome, walk_records
from diamant.storage.log.append_checks import Validation

logger = logging.getLogger(__name__)

LOAD_AFTER_RECORDS = 50_000
"""Records walked in plain Python before the compiled walk is loaded: about 50 ms of work."""

WAIT_FROM_RECORDS = 100_000
"""From this size on a thread that checks a batch waits for the compiled walk."""

LOAD_TIMEOUT_S = 30


class ValidationLoader:
    """Counts the records that the plain walk checks and exchanges it for the compiled one when they are many."""

    def __init__(self, validation: Validation, *, load_after_records: int = LOAD_AFTER_RECORDS) -> None:
        self._validation = validation
        self._records_left = load_after_records
        self._thread: threading.Thread | None = None
        self._owner = threading.current_thread()
        validation.walk = self._walk

    def _walk(
        self, payload: bytes | memoryview, record_count: int, base_timestamp: int, checks: RecordChecks
    ) -> WalkOutcome:
        self._records_left -= record_count
        if self._records_left < 0 and self._thread is None:
            self._thread = threading.Thread(target=self._load, name="load-kernels", daemon=True)
            self._thread.start()
        is_waiting_better = record_count >= WAIT_FROM_RECORDS and threading.current_thread() is not self._owner
        # A batch that takes seconds: waiting for the compiled walk is quicker, and leaves the interpreter to others.
        if is_waiting_better and self.wait_loaded(LOAD_TIMEOUT_S):
            return self._validation.walk(payload, record_count, base_timestamp, checks)
        return walk_records(payload, record_count, base_timestamp, checks)

    def _load(self) -> None:
        try:
            from diamant.cleaner.kernels import produce_validation

            produce_validation.warm_up()
        except Exception:
            logger.exception("the compiled validation cannot be loaded; the plain one stays in use")
            return
        self._validation.walk = produce_validation.walk_records
        self._validation.is_compiled = True

    def wait_loaded(self, timeout_s: float) -> bool:
        """Wait until loading, if it has begun, has ended; whether the compiled walk is in use."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._validation.walk not in (self._walk, walk_records)
