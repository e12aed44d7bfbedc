"""A stop of `diamant start` although threads wait for something that never comes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from diamant.storage import names
from tests.waiting import wait_until

STUCK = """
import sys, threading
from diamant.broker import cli, running
from diamant.broker.launch import start
from diamant.cleaner.evidence.certificates.files import CertificateList

stuck = sys.argv[-1]

def describe(*_arguments):
    open(f"{stuck}/stuck-{threading.get_ident()}", "w").close()
    threading.Event().wait()

CertificateList.describe = describe
start.end_without_threads.__defaults__ = (0.1,)
sys.argv[1:] = sys.argv[1:-1]
cli.main()
"""


@pytest.mark.slow
def test_sigterm_stops_a_broker_with_stuck_threads(tmp_path: Path) -> None:
    """All threads of the loop's executor wait for ever; the broker flushes, marks the stop as clean, and the process ends."""
    ready, stuck = tmp_path / "ready.json", tmp_path / "stuck"
    stuck.mkdir()
    options = (
        f"start --listen 127.0.0.1:0 --data {tmp_path}/data --set diamant.http.listen=127.0.0.1:0 --ready-file {ready}"
    )
    command = [sys.executable, "-c", STUCK, *options.split(), str(stuck)]
    threads = min(32, (os.cpu_count() or 1) + 4)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        asyncio.run(wait_until(ready.exists))
        url = json.loads(ready.read_text())["http"]
        callers = [
            subprocess.Popen(
                [sys.executable, "-c", f"import urllib.request as u; u.urlopen('{url}/v1/certificates')"],
                stderr=subprocess.DEVNULL,
            )
            for _ in range(threads)
        ]
        asyncio.run(wait_until(lambda: len([*stuck.iterdir()]) >= threads))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        for caller in callers:
            caller.wait(60)
    assert (tmp_path / "data" / names.CLEAN_SHUTDOWN).exists()
