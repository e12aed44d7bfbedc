"""Ctrl-C and --timeout end a command but not its job: the output names the job and commands to follow or cancel it."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from diamant.broker.broker import Broker
from diamant.broker.cli import main
from diamant.broker.client.admin import Admin
from diamant.broker.erasure.erase.erase_tombstones import EraseTombstones
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from tests.broker.certifying_broker import certifying_broker
from tests.broker.commands.running import INSTALLED
from tests.waiting import wait_until

TIMEOUT_S = 120
COMMANDS = {
    "erase": ["erase", "users", "--key", "customer-42", "--reason", "asked for"],
    "redact": ["redact", "users", "--where", 'key == "customer-42"', "--reason", "asked for"],
    "compact": ["compact", "users", "--until", "tombstones-gone"],
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with HTTP, and a topic with the key and a tombstone in it."""
    with certifying_broker(tmp_path_factory.mktemp("interrupted"), prepare) as running:
        yield running


async def prepare(broker: Broker) -> None:
    await broker.awaited.create_topic("users", 1, compact=True)
    records = [Record(0, 1000, b"customer-42", b"the first of two values"), Record(1, 1000, b"customer-7", None)]
    broker.node.topics.log("users", 0).append_as_leader(memoryview(build_batch(records, codec=2)))


@contextmanager
def turn_taken(broker: Broker) -> Iterator[None]:
    """Hold the turn of erasures and redactions, so that no other runs."""
    lock = broker.call(_lock_of(broker))
    broker.call(lock.acquire())
    try:
        yield
    finally:
        broker.call(_release(lock))


async def _lock_of(broker: Broker) -> Any:
    return broker.services.erasures().queue.attempts.lock


async def _release(lock: Any) -> None:
    lock.release()


def interrupted(broker: Broker, arguments: list[str], *, undertaking: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command in its own process, and send SIGINT once its job runs."""
    command = [*INSTALLED, *arguments, "-b", broker.bootstrap_servers]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        Admin(broker.bootstrap_servers).status()
        jobs = broker.awaited.running.http._serving._routes.jobs  # type: ignore[union-attr]

        def is_waiting() -> bool:
            """It waits for the job of this command, not one that it asks for before, so it has been told which."""
            running = [one for one in jobs.list() if one.state == "running" and one.verb == f"POST /v1/{arguments[0]}"]
            return jobs._waiters > 0 and any(one.progress.job_id or not undertaking for one in running)

        broker.call(wait_until(is_waiting))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def running_jobs(admin: Admin) -> list[dict[str, Any]]:
    return [one for one in admin.call("GET", "/v1/jobs")["jobs"] if one["state"] == "running"]


def pasted(line: str) -> Result:
    """Run a hint exactly as printed."""
    program, *arguments = shlex.split(line.partition(": ")[2])
    assert program == "diamant"
    return CliRunner().invoke(main, arguments)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_an_interrupted_command_says_what_continues_and_how_to_end_it(broker: Broker, name: str) -> None:
    """Exit code 130, the job's number, and working hints: one shows the job, the other cancels it."""
    with turn_taken(broker):
        found = interrupted(broker, COMMANDS[name])
        assert (found.returncode, found.stdout, "Traceback" in found.stderr) == (130, "", False), found.stderr
        [job] = running_jobs(Admin(broker.bootstrap_servers))
        first, watch, end = found.stderr.splitlines()
        assert first.startswith(f"diamant: interrupted; {name} continues in the broker as job {job['id']} (")
        assert f"job {job['id']}: POST /v1/{name}" in pasted(watch).output
        result = pasted(end)
        assert (result.exit_code, "was cancelled before its end" in result.output) == (0, True), result.output
        assert not running_jobs(Admin(broker.bootstrap_servers))
    assert Admin(broker.bootstrap_servers).call("GET", "/v1/certificates")["unfinished"] == []


@pytest.mark.slow
def test_an_interrupted_erasure_that_has_begun_is_named_by_its_id(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ID is that of `diamant certificates` and `diamant cancel`; its job cannot be cancelled halfway."""
    held = broker.call(_event())

    async def wait(*_: Any, **__: Any) -> Any:
        await held.wait()
        raise AssertionError

    monkeypatch.setattr(EraseTombstones, "locate", wait)
    found = interrupted(broker, COMMANDS["erase"], undertaking=True)
    assert (found.returncode, found.stdout) == (130, ""), found.stderr
    first, certificate, watch, end = found.stderr.splitlines()
    erasure = re.fullmatch(r"diamant: interrupted; erasure ([0-9a-f]{32}) continues in the broker \(.*\)", first)
    assert erasure is not None, first
    assert erasure[1] in certificate
    [job] = running_jobs(Admin(broker.bootstrap_servers))
    refused = CliRunner().invoke(main, ["cancel", job["id"], "-b", broker.bootstrap_servers])
    assert (refused.exit_code, f"/v1/cancel cancels {erasure[1]}" in refused.output) == (2, True), refused.output
    assert erasure[1] in pasted(watch).output
    monkeypatch.undo()
    result = pasted(end)
    assert (result.exit_code, "cancelled: not-certified" in result.output) == (0, True), result.output
    assert pasted(certificate).exit_code == 0


async def _event() -> Any:
    import asyncio

    return asyncio.Event()


def test_a_command_whose_time_is_over_says_what_continues(broker: Broker) -> None:
    """--timeout prints the hints of Ctrl-C, with exit code 1; with --json they are in the error."""
    # The job has to begin in that time, on a busy machine too.
    arguments = [*COMMANDS["compact"], "--timeout", "2s", "-b", broker.bootstrap_servers]
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert "is still in progress" in result.stderr
    assert pasted(result.stderr.splitlines()[-1]).exit_code == 0
    result = CliRunner().invoke(main, [*arguments, "--json"])
    error = json.loads(result.stderr)
    assert (error["code"], error["exit_code"]) == ("timed-out", 1)
    assert pasted(f": {error['hints']['to cancel']}").exit_code == 0
    assert not running_jobs(Admin(broker.bootstrap_servers))


@pytest.mark.parametrize(
    "arguments",
    [["compact"], ["compact", "t", "--nonsense"], ["nonsense"], ["log", "find", "/", "--key", "a", "--pattern", "b"]],
    ids=" ".join,
)
def test_with_json_a_wrong_command_line_is_an_object_on_standard_error(arguments: list[str]) -> None:
    """The object has `error`, `code` and `exit_code`; standard output is empty."""
    result = CliRunner().invoke(main, [*arguments, "--json"])
    error = json.loads(result.stderr)
    assert (result.exit_code, result.stdout, error["code"], error["exit_code"]) == (2, "", "bad-argument", 2)
    assert CliRunner().invoke(main, arguments).stderr == f"diamant: {error['error']}\n"


@pytest.mark.slow
def test_ctrl_c_while_the_command_line_is_imported_shows_no_traceback(tmp_path: Path) -> None:
    """Ctrl-C during imports gives exit code 130 and no output."""
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; import diamant.__main__ as m; m.main()",
    ]
    found = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "")
