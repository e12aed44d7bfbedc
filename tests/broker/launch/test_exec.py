"""`diamant exec`: the child's environment, exit code and signals, and the topics and records at its start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diamant import Broker
from diamant.broker.cli import main
from tests.ports import ReservedPort
from tests.waiting import wait_until

EXEC = [sys.executable, "-m", "diamant.broker.cli", "exec"]
READS = """
import os, sys
from diamant.admin import Admin
for record in Admin(http_url=os.environ["DIAMANT_HTTP_URL"]).latest(sys.argv[1]):
    print(record["partition"], record["key"], record["value"], record["headers"], record["timestamp"])
"""

pytestmark = pytest.mark.slow


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run([*EXEC, *arguments], input=stdin, capture_output=True, text=True, check=False, timeout=120)


def refused(*arguments: str) -> Result:
    """Call it in this process without a command; output and errors are separate."""
    return CliRunner().invoke(main, ["exec", *arguments], catch_exceptions=False)


def shell(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script with it."""
    return run(*options, "--", "sh", "-c", script)


def test_the_child_finds_the_broker_and_gives_the_exit_code() -> None:
    """Usual and named variables have the address. Only the child's output is printed, and the data is removed."""
    names = "$KAFKA_BOOTSTRAP_SERVERS $DIAMANT_BOOTSTRAP_SERVERS $SPRING $DIAMANT_HTTP_URL $WEB $DIAMANT_DATA $FILES"
    found = shell(
        f"test -d $DIAMANT_DATA && echo {names}", "--env", "SPRING=bootstrap", "-e", "WEB=http", "-e", "FILES=data"
    )
    assert (found.returncode, found.stderr) == (0, "")
    kafka, same, spring, http, web, data, files = found.stdout.split()
    assert kafka == same == spring
    assert (http, data) == (web, files)
    assert kafka.startswith("127.0.0.1:")
    assert http.startswith("http://127.0.0.1:")
    assert not os.path.exists(data)


def test_a_broker_with_users_acls_and_tls(tmp_path: Path) -> None:
    """The child's commands log in as the first user over TLS, with the permissions of the ACLs."""
    (tmp_path / "password").write_text("secret\n")
    commands = f"{sys.executable} -m diamant.broker.cli"
    found = shell(
        f"{commands} topic list && test -f $CERTIFICATE && ! {commands} topic create more && echo as $DIAMANT_USER",
        *("--topic", "users", "--topic", "others", "--tls", "--user", f"alice:{tmp_path / 'password'}"),
        *("--acl", "User:alice DESCRIBE topic users", "--env", "CERTIFICATE=ca"),
    )
    assert found.returncode == 0, found.stderr
    assert "users" in found.stdout
    assert "others" not in found.stdout
    assert "TOPIC_AUTHORIZATION_FAILED" in found.stderr
    assert f"as alice:{tmp_path / 'password'}" in found.stdout


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)])
def test_a_failure_names_the_exit_code_and_the_log(script: str, code: int) -> None:
    """The exit code is a shell's. Only warnings of the broker are printed; the whole log is in the file that is named."""
    found = shell(script, "--set", "no.such.setting=1")
    assert found.returncode == code
    ended, problem, kept = found.stderr.splitlines()
    assert f"the command ended with exit code {code}" in ended
    assert "WARNING" in problem
    assert "no.such.setting has no effect" in problem
    log = Path(kept.rpartition(": ")[2])
    assert "started with 0 partitions" in log.read_text()
    log.unlink()


def test_a_success_keeps_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is printed, and nothing stays in the temporary directory."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert (shell("true").stderr, [*tmp_path.iterdir()]) == ("", [])


def test_listeners_that_are_set_are_used() -> None:
    """The command gets their address in place of the usual free port."""
    with ReservedPort() as port:
        found = shell("echo $KAFKA_BOOTSTRAP_SERVERS", "--set", f"listeners=PLAINTEXT://{port.address}")
    assert found.stdout.split() == [port.address], found.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--set", "log.dirs=/x"), "--data names the directory"),
        (("--in-time",), "are for --any-compaction"),
        (("--run-timeout", "1s"), "are for --any-compaction"),
        (("--random-seed", "0"), "are for --any-compaction"),
    ],
)
def test_an_option_without_effect_is_refused(options: tuple[str, ...], said: str) -> None:
    """The command is not run."""
    found = refused(*options, "--", "false")
    assert (found.exit_code, found.stdout, said in found.stderr) == (2, "", True), found.stderr


@pytest.mark.parametrize(
    ("name", "mode", "code"), [("absent", None, 127), ("file", 0o600, 126), ("script", 0o700, 127)]
)
def test_a_command_that_cannot_be_run(tmp_path: Path, name: str, mode: int | None, code: int) -> None:
    """The exit code is a shell's, and the error is one line."""
    if mode is not None:
        (tmp_path / name).write_text("#!/no/such/program\n")
        (tmp_path / name).chmod(mode)
    found = run("--", str(tmp_path / name))
    assert (found.returncode, len(found.stderr.splitlines())) == (code, 1)
    assert str(tmp_path / name) in found.stderr


def test_topics_and_seeds_are_there_when_the_child_begins(tmp_path: Path) -> None:
    """Keys and values of every form are written; the key determines the partition."""
    lines = [
        {"topic": "users", "key": "42", "value": "old"},
        {"topic": "users", "key": {"hex": "00ff"}, "value": {"base64": "AP8="}, "partition": 1, "timestamp": 7},
        {"topic": "users", "key": "42", "value": {"json": {"name": "Ä"}}, "headers": [{"key": "h", "value": None}]},
    ]
    (tmp_path / "seed.ndjson").write_text("\n\n".join(map(json.dumps, lines)))
    options = ("--topic", "users:2:compact", "--seed", str(tmp_path / "seed.ndjson"))
    found = run(*options, "--", sys.executable, "-c", READS, "users")
    assert (found.returncode, found.stderr) == (0, "")
    assert sorted(found.stdout.splitlines())[-1] == "1 {'base64': 'AP8='} {'base64': 'AP8='} [] 7"
    assert "{'text': '42'} {'text': '{\"name\":\"Ä\"}'} [{'key': 'h', 'value': None}]" in found.stdout


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "expected an object"),
        ('{"key": "k"}', "topic"),
        ('{"topic": "users", "kee": "k"}', "'kee'"),
        ('{"topic": "users", "key": {"hex": "0"}}', "hex"),
        ('{"topic": "users", "partition": -1}', "partition"),
        ('{"topic": "users", "key": "k", "partition": 9}', "partition 9"),
        ('{"topic": "users", "value": "without a key"}', "key"),
        ('{"topic": "users", "key": "k", "headers": {}}', "headers"),
    ],
)
def test_a_broken_line_of_a_seed_is_named(tmp_path: Path, line: str, reason: str) -> None:
    """The error has file, line and reason. The command is not run, and no records are written."""
    seed = tmp_path / "seed.ndjson"
    seed.write_text('{"topic": "users", "key": "k"}\n' * 2 + line + "\n")
    found = refused("--topic", "users::compact", "--seed", str(seed), "--data", str(tmp_path / "data"), "--", "false")
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.startswith(f"diamant: {seed}, line 3: ")
    assert reason in found.stderr
    log = tmp_path / "data" / "users-0" / "00000000000000000000.log"
    assert not log.exists() or log.stat().st_size == 0


def test_a_broken_second_seed(tmp_path: Path) -> None:
    """The records of the first seed are not written either."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text('{"topic": "users", "key": "k"}\n')
    second.write_text('\n{"topic": "users", "partition": 9}\n')
    found = run("--seed", str(first), "--seed", str(second), "--data", str(tmp_path / "data"), "--", "echo", "run")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith(f"diamant: {second}, line 2: ")
    assert not (tmp_path / "data" / "users-0" / "00000000000000000000.log").read_bytes()


def test_a_port_that_is_taken() -> None:
    """The command is not run, and one line names the port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        found = run("--set", f"diamant.http.listen={address}", "--", "echo", "run")
    assert (found.returncode, found.stdout, len(found.stderr.splitlines())) == (1, "", 1)
    assert f"no HTTP at {address}" in found.stderr


def test_a_copy_of_a_directory(tmp_path: Path) -> None:
    """The original is unchanged. --data keeps the changed copy, and must be empty before."""
    with Broker(data_dir=tmp_path / "first") as broker:
        broker.produce("users", "v", key="k")
    before = {path: path.read_bytes() for path in (tmp_path / "first").rglob("*") if path.is_file()}
    options = ("--from", str(tmp_path / "first"), "--data", str(tmp_path / "second"))
    found = run(*options, "--", sys.executable, "-c", READS, "users")
    assert found.stdout.startswith("0 {'text': 'k'} {'text': 'v'}"), found.stderr
    assert {path: path.read_bytes() for path in (tmp_path / "first").rglob("*") if path.is_file()} == before
    found = run(*options, "--", "true")
    assert (found.returncode, "expected an empty directory" in found.stderr) == (2, True)


@pytest.mark.parametrize(
    ("option", "value"), [("--topic", ":1"), ("--topic", "a:b"), ("--env", "A"), ("--env", "A=b"), ("--set", "x")]
)
def test_options_that_make_no_sense(option: str, value: str) -> None:
    """Meaningless options are usage errors with exit code 2."""
    found = refused(option, value, "--", "true")
    assert (found.exit_code, "expected" in found.stderr) == (2, True)


def test_signals_are_the_childs(tmp_path: Path) -> None:
    """SIGTERM is passed on, and the broker is there until the child has ended in its own way; a second one ends a child that
    ignores it.
    """
    ready, told = tmp_path / "ready", tmp_path / "told"
    orderly = f"trap 'test -d $DIAMANT_DATA && exit 5' TERM; touch {ready}; while :; do sleep 0.01; done"
    deaf = f"trap 'touch {told}' TERM; touch {ready}; while :; do sleep 0.01; done"
    for script, code in ((orderly, 5), (deaf, 137)):
        with subprocess.Popen(
            [*EXEC, "--", "sh", "-c", script], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as process:
            asyncio.run(wait_until(ready.exists))
            process.send_signal(signal.SIGTERM)
            if script is deaf:
                asyncio.run(wait_until(told.exists))
                process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
            assert process.returncode == code
        ready.unlink()


def test_an_orphan_does_not_keep_it(tmp_path: Path) -> None:
    """The broker ends with the child, even if the child leaves processes behind."""
    found = run("--", "sh", "-c", f"sleep 60 >/dev/null 2>&1 </dev/null & echo $! > {tmp_path}/pid")
    assert found.returncode == 0
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
