"""SIGKILL at one point of a broker's processes, defined by the files that they open, rename and remove (audit events).

    environment = kill_point.environment(tmp_path, KillPoint("child", "open", ".log.cleaned", 1, "broker"))

Every Python process of that broker listens to its own events through `sitecustomize`. The first one at the point records the
pids of all of them, kills the victim, and blocks there, unless the victim was a child.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

_POINT, _LINE, _TOLD = "KILL_POINT", "KILL_POINT_LINE", "KILL_POINT_TOLD"
ROLES = ("broker", "worker", "child")


class KillPoint(NamedTuple):
    """The `count`-th time that a process in the role `actor` raises `event` for a path that contains `part`."""

    actor: str
    event: str
    part: str
    count: int
    victim: str

    def __str__(self) -> str:
        return f"{self.actor}-{self.event}-{self.part.strip('.-')}-{self.count}-kills-{self.victim}"


def environment(place: Path, point: KillPoint) -> dict[str, str]:
    """Return the additional environment of a broker's process. `place`: a directory for the files of this module."""
    (place / "sitecustomize.py").write_text("from tests.broker.node import kill_point\nkill_point.install()\n")
    paths = [str(place), str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    fields = " ".join(str(field) for field in point)
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), _POINT: fields, _TOLD: str(place / "told")}


def told(place: Path) -> list[int]:
    """Return the pids of the broker's processes at the point; none before it."""
    path = place / "told"
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


def install() -> None:
    """Listen to this process's events; called by `sitecustomize`."""
    # The broker, and the worker behind it: a child of that is forked, and does not come here.
    line = [*os.environ.get(_LINE, "").split(), str(os.getpid())]
    os.environ[_LINE] = " ".join(line)
    actor, event, part, count, victim = os.environ[_POINT].split()
    left = int(count)

    def hear(heard: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if heard != event or part not in str(arguments[0]):
            return
        if _role(line) != actor:
            _leave_some(line, actor)
            return
        left -= 1
        if left == 0:
            _kill(line, victim)

    sys.addaudithook(hear)


def _leave_some(line: list[str], actor: str) -> None:
    """Make a worker wait until its child has reached the point: they share the work, and the worker may be faster."""
    if actor == "child" and _role(line) == "worker":
        while len(_descendants(os.getpid())) > 1 and not os.path.exists(os.environ[_TOLD]):
            os.sched_yield()


def _role(line: list[str]) -> str:
    return ROLES[len(line) - 1] if os.getpid() == int(line[-1]) else "child"


def _kill(line: list[str], victim: str) -> None:
    pids = _descendants(int(line[0]))
    path = os.environ[_TOLD]
    written = f"{path}.{os.getpid()}"
    Path(written).write_text(" ".join(map(str, pids)))
    try:
        os.link(written, path)
    except FileExistsError:
        return  # another process was here before
    if victim == "child" and _role(line) == "worker":
        os.kill(_descendants(os.getpid())[-1], signal.SIGKILL)
        return
    os.kill(os.getpid() if victim == _role(line) else int(line[ROLES.index(victim)]), signal.SIGKILL)
    while True:
        signal.pause()


def _descendants(pid: int) -> list[int]:
    """Return a process and its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            for child in (task / "children").read_text().split():
                found += _descendants(int(child))
    return found
