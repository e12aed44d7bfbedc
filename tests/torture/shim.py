"""The preloaded library `shim.c`: its rules, in memory that the broker's processes share, and the record that it writes.

shim = Shim(compiled(place), place / "control", root=data)
warm = Warm("tests.torture.forking_broker", environment=shim.environment())
shim.arm(Rule(Op.WRITE, Kind.FAIL, errno.ENOSPC, skip=17, part=".log"))
"""

from __future__ import annotations

import enum
import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

RULES, PART = 8, 64
_HEAD, _RULE, _ENTRY = struct.Struct("6q"), struct.Struct(f"7q{PART}s"), struct.Struct("=IIQQqII")
_BROKER_AT, _QUOTA_AT, _AHEAD_AT, _FIRED_AT = 8, 16, 40, 48


class Op(enum.IntFlag):
    """Calls, as `shim.c` numbers them."""

    OPEN, READ, WRITE, SYNC, RENAME, UNLINK, TRUNCATE, LINK, MKDIR, SEND, RECEIVE = (1 << bit for bit in range(11))


class Kind(enum.IntEnum):
    """What happens at the call: it fails, does less, its process is killed before or in the middle of it, is stopped, or the
    connection is cut.
    """

    FAIL = 1
    SHORT = 2
    KILL = 3
    TORN = 4
    STOP = 5
    CUT = 6


class Who(enum.IntEnum):
    """The processes whose calls count."""

    ANYONE = 0
    BROKER = 1
    OTHERS = 2


class Rule(NamedTuple):
    """The calls `skip` to `skip + times` of some kind, and what happens there."""

    ops: Op
    kind: Kind
    value: int = 0
    """Of FAIL the errno; otherwise 1 if it is the broker that is killed or stopped, whoever calls."""
    who: Who = Who.ANYONE
    skip: int = 0
    times: int = 1
    part: str = ""
    """Of the path."""


class Entry(NamedTuple):
    """One change or sync of the record."""

    op: str
    """c created, w written, t truncated, s synced, S a directory synced, r renamed, l linked, u unlinked, m, d a directory."""
    call: int
    """Number of calls so far: compare it with `Shim.calls`."""
    inode: int
    offset: int
    name: str
    data: bytes
    """What was written; of r and l the second name."""


def can_compile() -> bool:
    """True if there is a compiler, and the library is that of GNU."""
    return shutil.which("gcc") is not None and Path("/usr/include/features.h").exists()


def compiled(place: Path) -> Path:
    """Compile the library into a directory."""
    library = place / "shim.so"
    source = Path(__file__).with_suffix(".c")
    command = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-O2", "-shared", "-fPIC"]
    subprocess.run([*command, "-o", library, source, "-ldl"], check=True, timeout=120)
    return library


def be_broker() -> None:
    """Tell the library that this process is the broker, if it is loaded: before it does anything that a rule may meet."""
    control = os.environ.get("TORTURE_CONTROL")
    if control is not None:
        with open(control, "r+b", buffering=0) as file:
            file.seek(_BROKER_AT)
            file.write(struct.pack("q", os.getpid()))


class Shim:
    """The library as one broker's processes load it. `close` it."""

    def __init__(self, library: Path, control: Path, *, root: Path, record: Path | None = None) -> None:
        control.write_bytes(bytes(_HEAD.size + RULES * _RULE.size))
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._environment = {
            "LD_PRELOAD": str(library),
            "TORTURE_CONTROL": str(control),
            "TORTURE_ROOT": str(root.resolve()),
        }
        if record is not None:
            self._environment["TORTURE_RECORD"] = str(record)

    def environment(self) -> dict[str, str]:
        """Return the additional environment of a process."""
        return dict(self._environment)

    @property
    def calls(self) -> int:
        """Calls so far, of all processes."""
        return int(struct.unpack_from("q", self._map)[0])

    def set_quota(self, left: int | None) -> None:
        """Leave so many bytes that may still be written; None: all."""
        struct.pack_into("qq", self._map, _QUOTA_AT, left is not None, left or 0)

    def set_clock(self, ahead_s: int) -> None:
        """Let the clock jump, to so many seconds before the real one."""
        struct.pack_into("q", self._map, _AHEAD_AT, ahead_s)

    def arm(self, *rules: Rule) -> None:
        """Replace the rules."""
        assert len(rules) <= RULES
        self.disarm()
        for index, rule in enumerate(rules):
            numbers = (int(rule.ops), rule.kind, rule.value, rule.who, rule.skip, rule.times, 0)
            _RULE.pack_into(self._map, self._at(index), *numbers, rule.part.encode())

    def disarm(self) -> None:
        """Remove the rules, and the limit of space; the clock jumps back."""
        self._map[_HEAD.size :] = bytes(RULES * _RULE.size)
        self.set_quota(None)
        self.set_clock(0)

    def fired(self) -> int:
        """Calls that the rules have met."""
        return sum(struct.unpack_from("q", self._map, self._at(index) + _FIRED_AT)[0] for index in range(RULES))

    def close(self) -> None:
        """Give the memory back."""
        self._map.close()

    def _at(self, index: int) -> int:
        return _HEAD.size + index * _RULE.size


def entries(record: bytes) -> Iterator[Entry]:
    """Read a record."""
    at = 0
    while at < len(record):
        size, op, call, inode, offset, first, second = _ENTRY.unpack_from(record, at)
        start = at + _ENTRY.size
        name, data = record[start : start + first], record[start + first : start + first + second]
        yield Entry(chr(op), call, inode, offset, name.decode(errors="surrogateescape"), data)
        at += size
