"""The audit log: a line of JSON for every request over HTTP that changes data, or hands out records.

    {"time": "2026-11-26T12:00:00.000Z", "who": "User:alice", "from": "10.0.0.7", "what": "POST /v1/erase", "topics": ["users"],
     "job": "3", "outcome": "done"}

`outcome` is `begun` of a job whose end has a line of its own, `done`, `denied`, or the word of the error. A line holds no key, no
value, and nothing of a body but the names of topics. It goes to the logger `diamant.audit`, and to `diamant.audit.file`
if that is set: mode 0600, written by a thread of its own.

Bounds: the file has `MAX_FILE_BYTES` at most, and one file of before, with `.1`. A minute has `DENIALS_PER_MINUTE` lines of
denials at most, or they would push out what others did; the next line says how many were left out. Lines on their way to the file
are no more than requests and jobs.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import NamedTuple

audit = logging.getLogger("diamant.audit")
logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 10 * 1024 * 1024
DENIALS_PER_MINUTE = 60
MAX_TOPICS = 20
DENIED = "denied"


class Deed(NamedTuple):
    """Something that was asked for: who, from where, what (method and path of the row), about which topics."""

    who: str
    host: str
    what: str
    topics: tuple[str, ...] = ()
    job: str | None = None


class AuditLog:
    """The audit log of a broker; `write` and `close` on its loop thread."""

    def __init__(
        self, path: str | None, now_s: Callable[[], float] = time.time, max_file_bytes: int = MAX_FILE_BYTES
    ) -> None:
        """`path` of the file; None for none."""
        self._path = path
        self._max_file_bytes = max_file_bytes
        self._now_s = now_s
        self._writer = ThreadPoolExecutor(1, "audit") if path else None
        self._minute = 0
        self._denials = 0
        self._left_out = 0

    def write(self, deed: Deed, outcome: str) -> None:
        """Write one line; the file has it a moment later."""
        if outcome == DENIED and not self._has_room_for_denial():
            return
        now = datetime.fromtimestamp(self._now_s(), UTC)
        fields: dict[str, object] = {
            "time": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "who": deed.who,
            "from": deed.host,
            "what": deed.what,
        }
        if deed.topics:
            fields["topics"] = deed.topics[:MAX_TOPICS]
        if deed.job is not None:
            fields["job"] = deed.job
        fields["outcome"] = outcome
        if self._left_out:
            fields["denials_left_out"], self._left_out = self._left_out, 0
        line = json.dumps(fields)
        audit.info("%s", line)
        if self._writer is not None:
            self._writer.submit(self._append, line)

    def close(self) -> None:
        """Have all lines in the file."""
        if self._writer is not None:
            self._writer.shutdown()

    def _has_room_for_denial(self) -> bool:
        minute = int(self._now_s() // 60)
        if minute != self._minute:
            self._minute, self._denials = minute, 0
        self._denials += 1
        self._left_out += self._denials > DENIALS_PER_MINUTE
        return self._denials <= DENIALS_PER_MINUTE

    def _append(self, line: str) -> None:
        assert self._path is not None
        try:
            with open(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as file:
                file.write(line + "\n")
                size = file.tell()
            if size >= self._max_file_bytes:
                os.replace(self._path, f"{self._path}.1")
        except OSError as error:
            logger.error("the audit log %s cannot be written, this is missing there: %s (%s)", self._path, line, error)
