"""The memory that a broker's process keeps when its buffers are freed."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.broker.broker_process import broker_process
from tests.broker.wire import WireClient
from tests.waiting import PATIENCE_S

MIB = 1 << 20
HEAP_BYTES = 64 * MIB
"""The alignment of the memory of an arena of a thread."""
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
FORMER_STATE = """
import asyncio, gc, time, weakref
from diamant.broker.launch import launch_settings

class State:
    def __init__(self):
        self.own = self

states = [State()]
former = weakref.ref(states[0])
gc.disable()  # what Python finds due by itself
if {is_frozen}:
    gc.freeze()
launch_settings.RETURN_S = 0

async def main():
    returning = asyncio.create_task(launch_settings.keep_returning_memory(lambda: {state}))
    await asyncio.sleep(0)
    states[0] = State()
    until_s = time.monotonic() + {patience_s}
    while former() is not None and time.monotonic() < until_s:
        await asyncio.sleep(0.001)

asyncio.run(main())
print(int(former() is None))
"""
COLLECTIONS = """
import asyncio, gc
from diamant.broker.launch import launch_settings

collections, rounds = [], []
gc.disable()  # what Python finds due by itself
gc.callbacks.append(lambda phase, _: collections.append(phase))
launch_settings.RETURN_S = 0
launch_settings.COLLECTIONS_APART = {apart}

async def main():
    returning = asyncio.create_task(launch_settings.keep_returning_memory(lambda: rounds.append(0)))
    while len(rounds) < 20:
        await asyncio.sleep(0)

asyncio.run(main())
print(collections.count("start"))
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


def _heaps(pid: int) -> int:
    """Return how many arenas of threads a process has, by the alignment of their memory."""
    maps = (line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    return sum(fields[1] == "rw-p" and int(fields[0].partition("-")[0], 16) % HEAP_BYTES == 0 for fields in maps)


@pytest.mark.skipif(not hasattr(_C, "mallinfo2"), reason="arenas are glibc's")
@pytest.mark.skipif(
    any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ), reason="malloc is configured"
)
async def test_threads_of_the_first_requests_share_an_arena(tmp_path: Path) -> None:
    """A thread keeps the arena that it gets first, so the limit comes before all threads: memory would rise for hours."""
    with broker_process(tmp_path / "data", tmp_path) as process:
        address = process.wait_for_address()
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(WireClient(address)) for _ in range(8)]
            await asyncio.gather(*[client.create(f"t{number}", 8) for number, client in enumerate(clients)])
        # Other memory may have that alignment by chance; without a limit there are 7.
        assert _heaps(process.pid) < 4


@pytest.mark.parametrize(("is_frozen", "state"), [(True, "states[0]"), (False, "None")], ids=["reset", "garbage"])
def test_what_refers_to_itself_is_given_back(is_frozen: bool, state: str) -> None:
    """A state before a reset, frozen at the start, would stay for ever; old garbage, until 70,000 objects have come."""
    assert _printed(FORMER_STATE.format(is_frozen=is_frozen, state=state, patience_s=PATIENCE_S)) == 1


def test_collections_are_spaced_by_what_they_take() -> None:
    """A collection that takes long is not repeated at the next interval; one that takes nothing is."""
    assert _printed(COLLECTIONS.format(apart=1 << 40)) == 1
    assert _printed(COLLECTIONS.format(apart=0)) >= 15
