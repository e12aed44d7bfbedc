"""Operations without descriptors: the modules that a first call imports, and the files of a log, cannot be read."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource
from diamant import Broker
from diamant.broker.operation_errors import OperationError

usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
with Broker() as broker:
    calls = {
        "create_topic": lambda: broker.create_topic("t"),
        "records": lambda: [*broker.records("t")],
        "status": broker.status,
        "faults": lambda: broker.faults,
        "latest": lambda: [*broker.latest("t")],
        "latest again": lambda: [*broker.latest("t")],
        "fork": broker.fork,
        "reset": lambda: broker.reset(broker.snapshot()),
    }
    for name, call in calls.items():
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, most))
        try:
            call()
        except OperationError as error:
            print(name, "Too many open files" in str(error))
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))
        call()
"""


def test_a_first_call_without_descriptors_is_refused_and_the_next_is_served() -> None:
    """The error is an OperationError that names the cause, and the next call imports what this one could not."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    called = ("create_topic", "records", "status", "faults", "latest", "latest again", "fork", "reset")
    assert (done.stderr, done.stdout) == ("", "".join(f"{name} True\n" for name in called))
