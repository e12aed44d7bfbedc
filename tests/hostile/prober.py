"""The second client: asks a hundred times a second, and prints its latencies in milliseconds, as JSON, when its input ends.

It runs as a program that imports nothing of the project. A latency is measured twice: on the clock, and in processor time
that the broker has taken until the answer, which other work on the machine does not change. A client that nothing delays
would have asked again and again during a long wait, so a wait of a second counts as those hundred requests (Gil Tene's
correction for coordinated omission).
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
import time
from contextlib import suppress

INTERVAL_S = 0.01
NEW_CONNECTION_EVERY = 50
TIMEOUT_S = 60


def exchange(connection: socket.socket, frame: bytes) -> None:
    """Send a request and read its answer."""
    connection.sendall(frame)
    received, size = b"", 4
    while len(received) < size:
        more = connection.recv(65536)
        if not more:
            raise ConnectionError("the broker has closed the connection of the second client")
        received += more
        if len(received) >= 4:
            size = 4 + struct.unpack(">i", received[:4])[0]


def with_omitted(latencies_s: list[float]) -> list[float]:
    """In milliseconds, with the requests that were not sent during a long wait."""
    found = []
    for latency_s in latencies_s:
        found += [(latency_s - n * INTERVAL_S) * 1000 for n in range(max(1, int(latency_s / INTERVAL_S)))]
    return sorted(found)


def probe(broker: int, address: tuple[str, int], frames: list[bytes], *, is_new: bool) -> dict[str, list[float]]:
    """Ask until standard input ends."""
    processor_clock = (~broker << 3) | 2  # as `clock_getcpuclockid` of the process
    waited, computed = list[float](), list[float]()
    connection = socket.create_connection(address, TIMEOUT_S)
    print("ready", flush=True)
    number = 0
    while not select.select([sys.stdin], [], [], INTERVAL_S)[0]:
        began_s, began_cpu_s = time.monotonic(), time.clock_gettime(processor_clock)
        if is_new and number % NEW_CONNECTION_EVERY == NEW_CONNECTION_EVERY - 1:
            connection.close()
            connection = socket.create_connection(address, TIMEOUT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        exchange(connection, frames[number % len(frames)])
        waited.append(time.monotonic() - began_s)
        computed.append(time.clock_gettime(processor_clock) - began_cpu_s)
        number += 1
    return {"waited": with_omitted(waited), "computed": with_omitted(computed)}


if __name__ == "__main__":
    broker, host, port, new, *texts = sys.argv[1:]
    # Its parent attacks and gives way to others. It must not: it would find answers late.
    if os.sched_getscheduler(int(broker)) == os.SCHED_RR:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(2))
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    found = probe(int(broker), (host, int(port)), [bytes.fromhex(text) for text in texts], is_new=new == "new")
    print(json.dumps(found), flush=True)
