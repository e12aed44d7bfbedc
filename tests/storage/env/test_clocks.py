"""Clocks: real, frozen, real with jumps, and the one that a broker's users move, with its state file."""

from __future__ import annotations

import time

import pytest

from diamant.storage.checkpoints.manual_clock_file import (
    ClockState,
    keep_clock,
    open_clock,
    read_clock_file,
    write_clock_file,
)
from diamant.storage.env.clocks import ManualClock, SettableClock, SystemClock, bounds_now_ms
from diamant.storage.errors import StorageError
from tests.memory_env import MemoryEnv

DAY_MS = 86_400_000
DIRECTORY = "/data"


@pytest.fixture
def env() -> MemoryEnv:
    """A file system with the directory."""
    env = MemoryEnv(SystemClock())
    env.make_dirs(DIRECTORY)
    env.sync_dir("/")
    return env


def test_system_clock_gives_milliseconds() -> None:
    """The system's clock counts milliseconds since the Unix epoch."""
    before = int(time.time() * 1000)
    assert before <= SystemClock().now_ms() <= int(time.time() * 1000) + 1


def test_a_settable_clock_stands_still_until_it_is_moved() -> None:
    """A frozen clock moves by exactly the given amount, and calls its callbacks."""
    clock = SettableClock(1000)
    seen: list[int] = []
    clock.on_change.append(lambda: seen.append(clock.now_ms()))
    assert clock.now_ms() == 1000
    assert clock.advance_ms(500) == 1500
    assert clock.set_ms(10) == 10
    assert seen == [1500, 10]


def test_a_clock_is_not_advanced_backwards() -> None:
    """Advancing by a negative time is an error; only `set_ms` moves back."""
    with pytest.raises(ValueError, match="0 ms or more"):
        SettableClock(0).advance_ms(-1)


def test_a_running_clock_follows_real_time_from_where_it_is_set() -> None:
    """A running clock never falls behind the time it was set or advanced to."""
    clock = SettableClock(5000, is_running=True)
    assert clock.advance_ms(10_000) >= 15_000
    assert 100 <= clock.set_ms(100) < 15_000
    assert clock.now_ms() >= 100


def test_a_manual_clock_moves_forward_only() -> None:
    """A move back is refused without effect; callbacks run at each move."""
    clock = ManualClock(1_000, is_frozen=True)
    told: list[int] = []
    clock.on_change.append(lambda: told.append(clock.now_ms()))
    assert clock.advance_ms(5) == clock.set_ms(1_005) == clock.now_ms() == 1_005
    with pytest.raises(ValueError, match="cannot go back to 1004"):
        clock.set_ms(1_004)
    with pytest.raises(ValueError, match="got -1"):
        clock.advance_ms(-1)
    assert clock.now_ms() == 1_005
    assert told == [1_005, 1_005]


def test_a_manual_clock_runs_and_stands() -> None:
    """A running clock never goes back; a frozen one stops; a resumed one continues from there."""
    clock = ManualClock(1_000)
    stood = clock.freeze()
    assert clock.now_ms() == clock.now_ms() == stood >= 1_000
    clock.advance_ms(DAY_MS)
    assert clock.now_ms() == clock.now_ms() == stood + DAY_MS
    assert clock.resume() == stood + DAY_MS
    assert clock.advance_ms(DAY_MS) >= stood + 2 * DAY_MS
    assert [ManualClock(is_frozen=True).is_frozen, clock.is_frozen] == [True, False]


def test_bounds_count_from_the_later_clock() -> None:
    """Bounds use the later of a manual clock and real time; other clocks are used unchanged."""
    real_ms = SystemClock().now_ms()
    assert bounds_now_ms(ManualClock(5, is_frozen=True)) >= real_ms
    assert bounds_now_ms(ManualClock(real_ms + DAY_MS, is_frozen=True)) == real_ms + DAY_MS
    assert bounds_now_ms(SettableClock(5)) == 5
    assert bounds_now_ms(SystemClock()) >= real_ms


@pytest.mark.parametrize("is_frozen", [True, False])
def test_the_file_says_what_was_written(env: MemoryEnv, is_frozen: bool) -> None:
    """The state file round-trips, even for a clock behind real time."""
    state = ClockState(1_767_225_600_000, -5, is_frozen)
    assert read_clock_file(env, DIRECTORY) is None
    write_clock_file(env, DIRECTORY, state)
    assert read_clock_file(env, DIRECTORY) == state
    env.crash()
    assert read_clock_file(env, DIRECTORY) == state


def test_a_kept_clock_continues_as_if_it_had_run() -> None:
    """It is as far ahead as before; if the system's clock was set back, at least at its stored time."""
    state = ClockState(now_ms=1_000_000, ahead_ms=400_000, is_frozen=False)
    assert state.clock(real_now_ms=700_000).now_ms() >= 1_100_000
    assert state.clock(real_now_ms=5_000).now_ms() >= 1_000_000
    assert state._replace(is_frozen=True).clock(real_now_ms=700_000).now_ms() == 1_000_000


def test_opening_notes_that_there_is_a_manual_clock(env: MemoryEnv) -> None:
    """The first start writes the state file; a test's own clock is used, and moved forward to the file's time."""
    opened = open_clock(env, DIRECTORY)
    assert env.clock is opened
    assert isinstance(opened, ManualClock)
    opened.freeze()
    opened.advance_ms(DAY_MS)
    keep_clock(env, DIRECTORY)
    env.clock = SettableClock(5)
    assert open_clock(env, DIRECTORY) is env.clock
    assert env.clock.now_ms() == opened.now_ms()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe\0",
        b"version=1\nnow.ms=1\nahead.ms=0\nis.frozen=true\n",
        b"version=0\nnow.ms=1\nis.frozen=true\n",
        b"version=0\nnow.ms=x\nahead.ms=0\nis.frozen=true\n",
        b"version=0\nnow.ms=-1\nahead.ms=0\nis.frozen=true\n",
        b"version=0\nnow.ms=1\nahead.ms=0\nis.frozen=maybe\n",
        b"version=0\nnow.ms=999999999999999999\nahead.ms=0\nis.frozen=true\n",
    ],
)
def test_a_file_that_makes_no_sense_is_an_error(env: MemoryEnv, text: bytes) -> None:
    """The error names the file and the expected contents; a guess could move time back."""
    env.write_atomically(f"{DIRECTORY}/diamant-clock", text)
    with pytest.raises(StorageError, match="/data/diamant-clock: expected version=0"):
        open_clock(env, DIRECTORY)
