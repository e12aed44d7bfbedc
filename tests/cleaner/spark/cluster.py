"""A standalone Spark cluster from the pyspark package: a master and two workers with one core each, on the loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.ports import ReservedPort

WAIT_S = 180.0
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""For JVMs that end after some seconds: what they compile for longer lives, and verify of Spark's classes, costs more than all
else they do."""


class Cluster:
    """Started by `with`; the executors of an application are the children of its workers."""

    def __init__(self, java: str, directory: Path) -> None:
        self._directory = directory
        options = f"{JAVA_OPTIONS} {os.environ.get('SPARK_SUBMIT_OPTS', '')}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **os.environ,
            "JAVA_HOME": java,
            "SPARK_DAEMON_JAVA_OPTS": options,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(directory),
            "SPARK_LOG_DIR": str(directory),
            "PYSPARK_PYTHON": sys.executable,
        }
        self._port = ReservedPort()
        self.master = f"spark://{self._port.address}"
        self.conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": JAVA_OPTIONS,
            "spark.driver.memory": "512m",
            "spark.executor.extraJavaOptions": options,
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.cores.max": "2",
        }
        """For drivers."""

    def __enter__(self) -> Cluster:
        try:
            self._start("master.Master", "--host", "127.0.0.1", "--port", str(self._port.number), "--webui-port", "0")
            wait_until(lambda: answers(self._port.number))
            for _ in range(2):
                self._start(
                    "worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "-c", "1", "-m", "1g", self.master
                )
            wait_until(lambda: self._log().count("Successfully registered with master") == 2)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # Workers first: a worker that has lost its master goes on looking for it.
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(WAIT_S)
        self._port.close()

    def _start(self, what: str, *arguments: str) -> None:
        import pyspark

        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        log = self._directory / f"{len(self._processes)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [program, f"org.apache.spark.deploy.{what}", *arguments],
                env=self._environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip
        self._processes.append(process)

    def _log(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self._directory.glob("*.log"))

    def executors(self) -> list[int]:
        """Return the process ids of all executors that run."""
        workers = self.workers()
        return [pid for pid in pids() if parent_of(pid) in workers]

    def workers(self) -> list[int]:
        """Return the process ids of the workers."""
        return [process.pid for process in self._processes[1:]]

    def stop_workers(self) -> None:
        """End the workers and their executors, all at once; the master remains, without resources."""
        executors = self.executors()
        for process in self._processes[1:]:
            process.kill()
        for pid in executors:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @contextmanager
    def hung(self, processes: Sequence[int]) -> Iterator[None]:
        """Stop processes by SIGSTOP, so that they exist but do not answer; continue them afterwards."""
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in processes:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def kill_an_executor(self) -> None:
        """End one by SIGKILL."""
        os.kill(self.executors()[0], signal.SIGKILL)


def answers(port: int) -> bool:
    """Return whether a server listens."""
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", port)) == 0


def pids() -> list[int]:
    """Return all processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if the process has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    state, parent = stat.rpartition(")")[2].split()[:2]
    return 0 if state == "Z" else int(parent)


def wait_until(condition: Callable[[], bool]) -> None:
    """Look again and again until `condition` holds."""
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.05)
