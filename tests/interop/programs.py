"""The two brokers and the tools that the checks run, and what they say of them."""

from __future__ import annotations

import argparse
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Lines at level ERROR with which Kafka comments on what it does itself: new partitions of a topic that exists; slowness on a
# busy machine.
KAFKA_NOISE = re.compile(
    r"Expected partition .* to exist, but it was missing\. Creating|Exceptionally slow controller event|channel manager timed out"
)
# What either broker may say when it starts on a directory that was not closed, and Diamant when there is work to continue.
RECOVERY_NOISE = re.compile(r"cut off \d+ bytes|the last shutdown was not clean: \d+ logs were checked")
PENDING = re.compile(r"(erasure|person) \w+ is unfinished \(\w+\), it continues")
SHOWN = 5


class Checks:
    """Prints the outcome of each check and remembers whether one failed."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0

    def report(self, what: str, faults: list[str], remark: str = "") -> None:
        if faults:
            self.failed += 1
            print(f"FAILED  {what}")
            for fault in faults[:SHOWN]:
                print(f"          {fault}")
            if len(faults) > SHOWN:
                print(f"          and {len(faults) - SHOWN} more")
        else:
            self.passed += 1
            print(f"ok      {what}{f' ({remark})' if remark else ''}")
        sys.stdout.flush()


class NotStarted(Exception):
    """A broker ended before it listened; `log` is what it said."""

    def __init__(self, who: str, directory: Path, log: Path) -> None:
        super().__init__(f"{who} did not start on {directory}: see {log}")
        self.log = log.read_text()


class Programs:
    """Starts the two brokers and Kafka's tools; their output goes to files in the work directory."""

    def __init__(self, kafka: list[str], diamant: list[str], work: Path, port: int, checks: Checks) -> None:
        self.kafka = kafka
        self.diamant = diamant
        self.work = work
        self.port = port
        self.checks = checks
        self.runs = 0

    def _log(self, name: str) -> Path:
        self.runs += 1
        return self.work / f"{self.runs:02d}-{name}.log"

    @contextmanager
    def diamant_broker(
        self,
        directory: Path,
        *,
        is_killed: bool = False,
        configs: Sequence[str] = (),
        has_http: bool = False,
        may_warn: bool = False,
    ) -> Iterator[str]:
        """Diamant on a directory; stopped with SIGTERM, which has to end well and leave the mark of a clean shutdown, or
        with SIGKILL. HTTP is at the next port.
        """
        log = self._log("diamant")
        port = free_port(self.port)
        command = [
            *self.diamant,
            "start",
            "--listen",
            f"127.0.0.1:{port}",
            "--data",
            str(directory),
            "--exit-with-parent",
        ]
        http = f"127.0.0.1:{port + 1}" if has_http else ""
        command += [word for config in (f"diamant.http.listen={http}", *configs) for word in ("--set", config)]
        was_killed = not (directory / ".kafka_cleanshutdown").exists()
        with (
            log.open("w") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        ):
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                if "Diamant listens on" not in line:
                    raise NotStarted("Diamant", directory, log)
                yield f"127.0.0.1:{port}"
            finally:
                code = kill(process) if is_killed else stop(process)
        if not is_killed:
            self._report_stop("Diamant", directory, [] if code == 0 else [f"exit code {code}, see {log}"])
        lines = log.read_text().splitlines()
        if was_killed:
            lines = [line for line in lines if not RECOVERY_NOISE.search(line)]
        lines = [line for line in lines if not may_warn and not PENDING.search(line)]
        noise = [line for line in lines if re.search(r"\b(ERROR|WARNING)\b|Traceback", line)]
        self.checks.report(f"Diamant has no warnings or errors on {directory.name}", noise)

    @contextmanager
    def kafka_broker(self, directory: Path, *, is_killed: bool = False, configs: Sequence[str] = ()) -> Iterator[str]:
        """Kafka on a directory, stopped with SIGTERM or SIGKILL."""
        log = self._log("kafka")
        port = free_port(self.port)
        with log.open("w") as output:
            process = subprocess.Popen(
                [*self.kafka, "broker", str(directory), str(port), *configs], stdout=output, stderr=subprocess.STDOUT
            )
            try:
                wait_until(lambda: process.poll() is not None or is_listening(port), f"Kafka listens, see {log}", 120)
                if process.poll() is not None:
                    raise NotStarted("Kafka", directory, log)
                yield f"127.0.0.1:{port}"
            finally:
                code = kill(process) if is_killed else stop(process)
        if not is_killed:
            # A JVM ends with 143 after SIGTERM, also when it took its time to close everything.
            self._report_stop("Kafka", directory, [] if code in (0, 143, -15) else [f"exit code {code}, see {log}"])
        lines = [line for line in log.read_text().splitlines() if not KAFKA_NOISE.search(line)]
        noise = [line for line in lines if re.search(r"\b(ERROR|FATAL)\b|[Cc]orrupt", line)]
        self.checks.report(f"Kafka has no errors on {directory.name}", noise)

    def _report_stop(self, who: str, directory: Path, faults: list[str]) -> None:
        if not (directory / ".kafka_cleanshutdown").exists():
            faults.append(f"no .kafka_cleanshutdown in {directory}")
        self.checks.report(f"{who} stops cleanly on {directory.name}", faults)

    def tool(self, *arguments: str) -> str:
        """Run a subcommand of the launcher; its whole output, standard error included. An exit code is a last line."""
        run = subprocess.run(
            [*self.kafka, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=300,
            check=False,
        )
        self._log(arguments[0]).write_text(run.stdout)
        return run.stdout + (f"\nERROR exit code {run.returncode}" if run.returncode else "")


def stop(process: subprocess.Popen[Any]) -> int:
    """Ask a process to end and wait for it."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def kill(process: subprocess.Popen[Any]) -> int:
    """End a process without warning, as a crash would."""
    if process.poll() is not None:
        raise RuntimeError(f"the broker ended by itself with {process.returncode}")
    process.kill()
    return process.wait(30)


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
    """Look again and again until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"waited {seconds} s in vain until {what}")
        time.sleep(0.05)


def is_listening(port: int) -> bool:
    """Whether somebody listens on a port of this machine."""
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def free_port(first: int) -> int:
    """Return the first port from `first` on that is free now together with the next one."""
    for port in range(first, first + 90, 2):
        with socket.socket() as one, socket.socket() as two:
            for number, each in enumerate((one, two)):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    each.bind(("127.0.0.1", port + number))
                except OSError:
                    break
            else:
                return port
    raise RuntimeError(f"no two free ports from {first} on")


def command_line(document: str | None, epilog: str | None = None) -> argparse.ArgumentParser:
    """Return the options that the checks with both brokers have in common."""
    parser = argparse.ArgumentParser(
        description=(document or "").split("\n\n")[0],
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kafka", required=True, type=shlex.split, metavar="COMMAND", help="launcher of Apache Kafka")
    own = [str(Path(sys.executable).parent / "diamant")]
    text = "command of Diamant (default: the one beside this Python)"
    parser.add_argument("--diamant", type=shlex.split, metavar="COMMAND", default=own, help=text)
    text = "directory for data and logs, kept (default: a temporary one)"
    parser.add_argument("--work", type=Path, metavar="DIR", help=text)
    text = "where to look for two free ports (default: 19092); better none that the system gives to clients"
    parser.add_argument("--port", type=int, default=19092, help=text)
    return parser


def run_parts(options: argparse.Namespace, parts: Mapping[str, Callable[[Programs], None]]) -> int:
    """Run the checks; the exit code. What cannot go on is a failed check, and the other parts still run."""
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="diamant-interop-") as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        programs = Programs(options.kafka, options.diamant, work.resolve(), options.port, checks)
        for name, run in parts.items():
            try:
                run(programs)
            except Exception as error:
                checks.report(f"{name} ran to its end", [f"{type(error).__name__}: {error}"])
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0
