"""The state file of a manual clock, kept in the data directory so that time never goes backward across a restart.

    diamant-clock          text, replaced atomically:
        version=0
        now.ms=1767225600000       the clock's time when the file was written
        ahead.ms=691200000         how far it was ahead of the system's clock; may be negative
        is.frozen=false

A frozen clock resumes at `now.ms`. A running one resumes as if it had never stopped: at the system's time plus `ahead.ms`, but
no earlier than `now.ms`, in case the system's clock was set back. The file is written durably before the clock moves, so after
a crash no stored timestamp is later than the clock.
"""

from __future__ import annotations

from typing import NamedTuple

from diamant.storage import names
from diamant.storage.env.clocks import ManualClock, SettableClock, SystemClock
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError

_VERSION = "0"
MAX_TIME_MS = 253_402_300_799_999
"""Latest possible time of a manual clock: the end of the year 9999."""


class ClockState(NamedTuple):
    """The contents of a state file."""

    now_ms: int
    ahead_ms: int
    is_frozen: bool

    def clock(self, real_now_ms: int) -> ManualClock:
        """Return a clock that continues from this state."""
        now_ms = self.now_ms if self.is_frozen else max(self.now_ms, real_now_ms + self.ahead_ms)
        return ManualClock(now_ms, is_frozen=self.is_frozen)


def read_clock_file(env: Env, directory: str) -> ClockState | None:
    """Return the state of this data directory's manual clock; None if it has none. Raises StorageError if the file is invalid."""
    path = f"{directory}/{names.MANUAL_CLOCK}"
    try:
        text = env.read_bytes(path).decode(errors="replace")
    except FileNotFoundError:
        return None
    entries = dict(line.split("=", 1) for line in text.split("\n") if "=" in line)
    try:
        if entries["version"] != _VERSION or entries["is.frozen"] not in ("true", "false"):
            raise ValueError
        state = ClockState(int(entries["now.ms"]), int(entries["ahead.ms"]), entries["is.frozen"] == "true")
        if not 0 <= state.now_ms <= MAX_TIME_MS or abs(state.ahead_ms) > MAX_TIME_MS:
            raise ValueError
    except (KeyError, ValueError):
        raise StorageError(
            f"{path}: expected version=0 and now.ms, ahead.ms and is.frozen of a manual clock. Correct the file, or remove it "
            "to let the clock start at the system's time"
        ) from None
    return state


def write_clock_file(env: Env, directory: str, state: ClockState) -> None:
    """Replace the state file. Blocks on the disk; raises OSError."""
    text = (
        f"version={_VERSION}\nnow.ms={state.now_ms}\nahead.ms={state.ahead_ms}\n"
        f"is.frozen={'true' if state.is_frozen else 'false'}\n"
    )
    env.write_atomically(f"{directory}/{names.MANUAL_CLOCK}", text.encode())


def open_clock(env: Env, directory: str) -> SettableClock:
    """Give `env` the manual clock of a data directory, write the clock's state file, and return the clock.

    The clock resumes from the file, or starts at the system's time. A settable clock that `env` already has is kept, but moved
    forward if the stored time is later. Raises StorageError, OSError.
    """
    state = read_clock_file(env, directory)
    clock = env.clock
    real_now_ms = SystemClock().now_ms()
    if not isinstance(clock, SettableClock):
        clock = ManualClock(real_now_ms) if state is None else state.clock(real_now_ms)
    elif state is not None and state.now_ms > clock.now_ms():
        clock.set_ms(state.now_ms)
    env.clock = clock
    keep_clock(env, directory)
    return clock


def keep_clock(env: Env, directory: str) -> None:
    """Write the state of `env`'s clock to its state file. Blocks on the disk; raises OSError."""
    clock = env.clock
    now_ms = clock.now_ms()
    is_frozen = isinstance(clock, ManualClock) and clock.is_frozen
    write_clock_file(env, directory, ClockState(now_ms, now_ms - SystemClock().now_ms(), is_frozen))
