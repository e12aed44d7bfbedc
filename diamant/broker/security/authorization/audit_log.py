"""The audit log: a line of JSON for every request that changes data or returns records over HTTP.

    {"time": "2026-11-26T12:00:00.000Z", "who": "User:alice", "from": "10.0.0.7", "what": "POST /v1/erase", "topics": ["users"],
     "job": "3", "outcome": "done"}
    {"time": "2026-11-26T12:00:01.000Z", "who": "User:bob", "from": "10.0.0.8", "what": "DeleteGroups", "names": ["group g"],
     "outcome": "denied"}

`outcome` is `done`, `denied`, an error's name, or `failed` for an unexpected error; for a dry run it is `validated`, and for a
job `begun`, with a second line at its end. A line never contains a key, a value or a password; of a configuration it has only the
name. Lines are written to the logger `diamant.audit`, and to `diamant.audit.file` if it is set (mode 0600). A dedicated thread
builds and writes them. Successful read-only requests are logged at DEBUG, because tests that poll would fill the broker's own
log; all others are logged at INFO.

Bounds: the file exceeds `MAX_FILE_BYTES` by one line at most; one older file is kept, with the suffix `.1`. A line has at most
`MAX_NAMES` names of each kind, each cut to `MAX_NAME_LETTERS`. At most `DENIALS_PER_MINUTE` denials are written per minute, so
that they cannot displace other lines; the next line has the number of denials left out. A response waits until its request's line
is written, so pending lines are bounded by the requests and jobs in progress.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

audit = logging.getLogger("diamant.audit")
logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 10 * 1024 * 1024
DENIALS_PER_MINUTE = 60
MAX_NAMES = 20
MAX_NAME_LETTERS = 260
DONE, VALIDATED, DENIED, FAILED = "done", "validated", "denied", "failed"


class AuditedAction(NamedTuple):
    """One audited request: the client, its address, the action, and the topics and other resources affected."""

    who: str
    host: str
    what: str
    """The method and path of an HTTP route, or the name of a Kafka API."""
    topics: tuple[str, ...] = ()
    job: str | None = None
    names: tuple[str, ...] = ()
    """Other resources, each with its kind: `group billing`."""
    configs: tuple[str, ...] = ()
    """The names of the configurations to change."""
    is_reading: bool = False
    """True if the request changes nothing."""


Lines: TypeAlias = Iterable[tuple[AuditedAction, str]]
"""Audited actions and their outcomes."""


class AuditLog:
    """The audit log of a broker. Belongs to the loop thread, except `is_wanted`."""

    def __init__(
        self, path: str | None, now_s: Callable[[], float] = time.time, max_file_bytes: int = MAX_FILE_BYTES
    ) -> None:
        """`path`: the file to write, or None."""
        self._path = path
        self._max_file_bytes = max_file_bytes
        self._now_s = now_s
        self._writer = ThreadPoolExecutor(1, "audit")  # starts its thread when the first line is queued
        self._minute = 0
        self._denials = 0
        self._left_out = 0

    @property
    def is_wanted(self) -> bool:
        """True if lines are written to a file or a logger; otherwise, callers need not build any."""
        return self._path is not None or audit.isEnabledFor(logging.INFO)

    def append(self, make: Callable[[], Lines]) -> Future[None] | None:
        """Queue lines, in the order of the calls. Return a future that is done when they are written, or None if not `is_wanted`.

        `make` builds the lines; the writing thread calls it.
        """
        return self._writer.submit(self._write, make, self._now_s()) if self.is_wanted else None

    async def written(self, make: Callable[[], Lines]) -> None:
        """Like `append`, but wait until the lines are written. Cancelling the wait does not cancel the writing."""
        writing = self.append(make)
        if writing is not None:
            await asyncio.shield(asyncio.wrap_future(writing))

    async def write(self, action: AuditedAction, outcome: str) -> None:
        """Write one line, and wait for it."""
        await self.written(lambda: ((action, outcome),))

    def close(self) -> None:
        """Write all queued lines and stop the thread."""
        self._writer.shutdown()

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _write(self, make: Callable[[], Lines], now_s: float) -> None:
        try:
            for action, outcome in make():
                if outcome != DENIED or self._has_room_for_denial(now_s):
                    level = logging.DEBUG if action.is_reading and outcome != DENIED else logging.INFO
                    self._write_line(self._line(action, outcome, now_s), level)
        except Exception:
            logger.exception("a line of the audit log could not be built")

    def _line(self, action: AuditedAction, outcome: str, now_s: float) -> str:
        now = datetime.fromtimestamp(now_s, UTC)
        fields: dict[str, object] = {
            "time": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "who": action.who[:MAX_NAME_LETTERS],
            "from": action.host,
            "what": action.what,
        }
        for kind, names in (("topics", action.topics), ("names", action.names), ("configs", action.configs)):
            if names:
                fields[kind] = [name[:MAX_NAME_LETTERS] for name in names[:MAX_NAMES]]
            if len(names) > MAX_NAMES:
                fields[f"{kind}_left_out"] = len(names) - MAX_NAMES
        if action.job is not None:
            fields["job"] = action.job
        fields["outcome"] = outcome
        if self._left_out:
            fields["denials_left_out"], self._left_out = self._left_out, 0
        return json.dumps(fields)

    def _has_room_for_denial(self, now_s: float) -> bool:
        minute = int(now_s // 60)
        if minute != self._minute:
            self._minute, self._denials = minute, 0
        self._denials += 1
        self._left_out += self._denials > DENIALS_PER_MINUTE
        return self._denials <= DENIALS_PER_MINUTE

    def _write_line(self, line: str, level: int) -> None:
        audit.log(level, "%s", line)
        if self._path is None:
            return
        try:
            with open(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as file:
                file.write(line + "\n")
                size = file.tell()
            if size >= self._max_file_bytes:
                os.replace(self._path, f"{self._path}.1")
        except OSError as error:
            logger.error("the audit log %s cannot be written; it lacks this line: %s (%s)", self._path, line, error)
