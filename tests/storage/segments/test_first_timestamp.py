"""The timestamp of a segment's first batch, read by a thread beside the owner."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import File, RealEnv, RealFile
from tests.storage.conftest import START_MS
from tests.storage.logs import batch, make_log, reopen


class FileThatIsOvertaken(RealFile):
    """Calls `then` after the first read."""

    __slots__ = ("then",)

    then: Callable[[], None]

    def pread(self, count: int, position: int) -> bytes:
        data = super().pread(count, position)
        then, self.then = self.then, lambda: None
        then()
        return data


class EnvThatIsOvertaken(RealEnv):
    """Calls `then` after the first read of a log file that is open for reading alone."""

    then: Callable[[], None]

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        if not read_only or not path.endswith(".log"):
            return super().open(path, create=create, read_only=read_only)
        file = FileThatIsOvertaken(path, os.open(path, os.O_RDONLY))
        file.then = self.then
        return file


def test_a_late_thread_does_not_replace_the_first_timestamp(clock: SettableClock, tmp_path: Path) -> None:
    """A segment that is emptied and appended to while a thread reads its first batch keeps the timestamp of the new one."""
    env = EnvThatIsOvertaken(clock)
    log = make_log(env, tmp_path)
    log.append_as_leader(batch(b"old", timestamp=START_MS))
    log = reopen(log)
    segment = log.active

    def overtake() -> None:
        segment.truncate_bytes(0)
        segment.append(batch(b"new", timestamp=START_MS + 5), 0, START_MS + 5, START_MS, 4096)

    env.then = overtake
    assert not segment.knows_first_timestamp
    segment.load_first_timestamp()
    assert segment.first_timestamp == START_MS + 5
    log.close()
