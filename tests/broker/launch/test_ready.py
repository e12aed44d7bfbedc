"""`diamant start` for test runners: the output of a ready broker."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until


@pytest.mark.slow
def test_one_line_of_json_and_a_file(tmp_path: Path) -> None:
    """Output and file have the same line once clients are served. The file is written atomically and removed at the stop."""
    ready = tmp_path / "ready.json"
    options = (
        f"--listen 127.0.0.1:0 --data {tmp_path}/data --set diamant.http.listen=127.0.0.1:0 --json --ready-file {ready}"
    )
    command = [sys.executable, "-m", "diamant.broker.cli", "start", *options.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        asyncio.run(wait_until(ready.exists))
        found = json.loads(ready.read_text())
        host, port = found["kafka"].split(":")
        socket.create_connection((host, int(port)), timeout=60).close()
        assert (found["pid"], found["data"]) == (process.pid, str(tmp_path / "data"))
        assert found["http"].startswith("http://127.0.0.1:")
        assert process.stdout
        assert json.loads(process.stdout.readline()) == found
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
