"""The memory that a broker's process keeps when its buffers are freed."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from tests.waiting import PATIENCE_S

MIB = 1 << 20
BUFFERS_IN_THREADS = """
import ctypes, threading
from diamant.broker.launch import launch_settings

class Figures(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]

if {is_limited}:
    launch_settings.limit_free_memory()
together = threading.Barrier(6)

def work():
    for _ in range(3):
        buffers = [bytearray(4 << 20) for _ in range(2)]
        together.wait()
        del buffers
        together.wait()

threads = [threading.Thread(target=work) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Figures
print(mallinfo().fordblks)
"""
BUFFERS_BETWEEN = """
import asyncio, time
from diamant.broker.launch import launch_settings

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

launch_settings.limit_free_memory()
pairs = [(bytes([1]) * (1 << 20), bytes(200_000)) for _ in range(48)]
stay = [small for _, small in pairs]
del pairs
before = resident()
launch_settings.RETURN_S = 0

async def main():
    returning = asyncio.create_task(launch_settings.keep_returning_memory(lambda: None))
    until_s = time.monotonic() + {patience_s}
    while before - resident() < {expected} and time.monotonic() < until_s:
        await asyncio.sleep(0.001)

asyncio.run(main())
print(before - resident())
"""
FIRST_TURN = """
import asyncio, sys
from diamant.broker.launch import launch_settings

async def main():
    returning = asyncio.create_task(launch_settings.keep_returning_memory(lambda: None))
    await asyncio.sleep(0)
    returning.cancel()

asyncio.run(main())  # waits for its threads
print(int("ctypes" in sys.modules))
"""
FORMER_STATE = """
import asyncio, gc, time, weakref
from diamant.broker.launch import launch_settings

class State:
    def __init__(self):
        self.own = self

states = [State()]
former = weakref.ref(states[0])
gc.freeze()
launch_settings.RETURN_S = 0

async def main():
    returning = asyncio.create_task(launch_settings.keep_returning_memory(lambda: states[0]))
    await asyncio.sleep(0)
    states[0] = State()
    until_s = time.monotonic() + {patience_s}
    while former() is not None and time.monotonic() < until_s:
        await asyncio.sleep(0.001)

asyncio.run(main())
print(int(former() is None))
"""
_C = ctypes.CDLL(None)


def _printed(code: str) -> int:
    """Run code in a process, whose malloc nobody has set up; return the number that it prints."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(_C, "mallinfo2"), reason="mallinfo2 is glibc's")
def test_free_memory_of_threads_is_given_back() -> None:
    """Of 48 MiB that six threads had in large buffers, hardly any stays; glibc would keep most of it."""
    limited, as_it_comes = (_printed(BUFFERS_IN_THREADS.format(is_limited=limited)) for limited in (True, False))
    assert limited < 4 * MIB < 24 * MIB < as_it_comes


@pytest.mark.skipif(not hasattr(_C, "malloc_trim"), reason="malloc_trim is glibc's")
def test_free_memory_between_what_is_in_use_is_given_back() -> None:
    """48 MiB of buffers, each before a smaller one that stays, leave the process; nothing at the end of the heap is free."""
    assert _printed(BUFFERS_BETWEEN.format(expected=40 * MIB, patience_s=PATIENCE_S)) >= 40 * MIB


def test_the_first_requests_do_not_wait_for_ctypes() -> None:
    """A broker that begins to serve imports ctypes, which takes 10 ms, only after its first requests."""
    assert _printed(FIRST_TURN) == 0


def test_a_state_before_a_reset_is_given_back() -> None:
    """Its parts refer to each other, and what was there at the start is frozen: without help it would stay."""
    assert _printed(FORMER_STATE.format(patience_s=PATIENCE_S)) == 1
