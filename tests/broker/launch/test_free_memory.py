"""The memory that a broker's process keeps when its buffers are freed."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

BUFFERS_IN_THREADS = """
import ctypes, threading
from diamant.broker.launch.launch_settings import return_free_memory

class Figures(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]

if {is_bounded}:
    return_free_memory()
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


def _kept_bytes(*, is_bounded: bool) -> int:
    """Have six threads take and free large buffers in a process; return what is free and not given back."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))
    }
    code = BUFFERS_IN_THREADS.format(is_bounded=is_bounded)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="mallinfo2 is glibc's")
def test_free_memory_of_threads_is_given_back() -> None:
    """Of 48 MiB that six threads had in large buffers, hardly any stays; glibc would keep most of it."""
    assert _kept_bytes(is_bounded=True) < 4 << 20 < 24 << 20 < _kept_bytes(is_bounded=False)
