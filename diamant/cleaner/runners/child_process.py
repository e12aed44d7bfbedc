"""The broker's side of its child processes: starts them, exchanges messages, and reports why they ended (see `child_main`).

    worker of the cleaner     `process` and `worker`
    driver of Spark           `spark.runner.runner` and `spark.runner.driver`

A child writes messages to its standard output, one JSON object per line. Its standard error is logged; the last lines are
kept for the error report. The runner decides when the child ends.

Everything belongs to the loop thread. Memory: a `MessagePipe`, and `_KEPT_STDERR_LINES` lines.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from diamant.cleaner.rules.result import OutputSegment
from diamant.cleaner.runners.contract import SwapOutput
from diamant.json_types import JsonObject
from diamant.own_thread import wait_in_spite_of_cancelling

logger = logging.getLogger(__name__)

_PLACE = str(Path(__file__).resolve().parents[3])
"""Directory that holds the package."""
_KEPT_STDERR_LINES = 20
_MAX_STDERR_LINE = 1000


READ_BYTES = 64 * 1024


class MessagePipe:
    """Reads the lines that another process writes to a pipe. Owns the descriptor. Belongs to the loop thread.

    An asyncio stream takes three more turns of the loop per message, which would delay responses to clients.
    Memory: `max_line_bytes` for a line, and `READ_BYTES` more. Reading pauses while the buffer is full.
    """

    def __init__(self, descriptor: int, max_line_bytes: int) -> None:
        self.is_at_end = False
        """True after `close`, or if the other end is closed and everything was read."""
        self._descriptor = descriptor
        self._max_line_bytes = max_line_bytes
        self._unread = bytearray()
        self._searched = 0
        """Number of bytes at the start of `_unread` that are known to contain no line end."""
        self._is_paused = False
        self._arrival: asyncio.Future[None] | None = None
        """The future on which a caller of `line` is waiting."""
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    async def line(self, timeout_s: float | None) -> bytes | None:
        """Return the next line without its terminator; None at the end.

        Raises TimeoutError if no line arrives in time, ValueError if the line is too long.
        """
        while (end := self._unread.find(b"\n", self._searched)) < 0:
            self._searched = len(self._unread)
            if self.is_at_end:
                return None
            if self._is_paused:
                raise ValueError(f"a message has more than {self._max_line_bytes} bytes")
            self._arrival = self._loop.create_future()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrival
            finally:
                self._arrival = None
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        self._searched = 0
        if self._is_paused and not self.is_at_end and len(self._unread) <= self._max_line_bytes:
            self._is_paused = False
            self._loop.add_reader(self._descriptor, self._read)
        return line

    def close(self) -> None:
        """Stop reading and close the descriptor."""
        if not self.is_at_end:
            self.is_at_end = True
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)

    def _read(self) -> None:
        data = os.read(self._descriptor, READ_BYTES)
        self._unread += data
        if not data:
            self.close()
        elif len(self._unread) > self._max_line_bytes:
            self._is_paused = True
            self._loop.remove_reader(self._descriptor)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


def bootstrap(module: str) -> str:
    """Return the source of a child program that calls `main` of `module`.

    The program imports the package from the same directory as this process, even if the working directory contains one.
    """
    return (
        "import sys; place, parent, niceness = sys.argv[1:]; place in sys.path or sys.path.insert(0, place); "
        "from diamant.cleaner.runners.child_priority import die_with, step_back; "
        "die_with(int(parent)); step_back(int(niceness)); "
        f"from {module} import main; sys.exit(main())"
    )


async def swap_to_the_end(on_output: SwapOutput, output: OutputSegment) -> None:
    """Await `on_output` until it is done, even if the round is cancelled."""

    async def swap() -> None:
        await on_output(output)

    task = asyncio.get_running_loop().create_task(swap())
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await wait_in_spite_of_cancelling(task)
        raise


class ChildProcess:
    """A child process, which is running or has ended. `what` names it in errors, `name` in the log."""

    def __init__(
        self, process: asyncio.subprocess.Process, output: int, max_line_bytes: int, what: str, name: str, level: int
    ) -> None:
        assert process.stdin is not None
        assert process.stderr is not None
        self._process = process
        self._what = what
        self._name = name
        self._level = level
        self._stdin = process.stdin
        self._messages = MessagePipe(output, max_line_bytes)
        self._said: deque[str] = deque(maxlen=_KEPT_STDERR_LINES)
        self._stderr_reader = asyncio.get_running_loop().create_task(self._read_stderr(process.stderr))

    @classmethod
    async def start(
        cls,
        program: str,
        *,
        niceness: int = 0,
        what: str,
        name: str,
        level: int,
        max_line_bytes: int,
        environment: Mapping[str, str] | None = None,
    ) -> ChildProcess:
        """Start `program` (see `bootstrap`) in a new session. `environment` adds environment variables. Raises OSError."""
        output, its_end = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-c", program, _PLACE, str(os.getpid()), str(niceness),
                stdin=asyncio.subprocess.PIPE,
                stdout=its_end,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                env=None if environment is None else {**os.environ, **environment},
            )  # fmt: skip
        except BaseException:
            os.close(output)
            raise
        finally:
            os.close(its_end)
        return cls(process, output, max_line_bytes, what, name, level)

    @property
    def pid(self) -> int:
        """Process id of the child, which is also its session id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """True if the child has exited."""
        return self._process.returncode is not None

    @property
    def is_silent(self) -> bool:
        """True if the child has closed its standard output, as it does when it exits."""
        return self._messages.is_at_end

    def send(self, message: JsonObject) -> None:
        """Queue a message. If the child has ended, the message is lost, and `receive` returns None."""
        if not self._stdin.is_closing():
            self._stdin.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    async def receive(self, timeout_s: float | None = None) -> JsonObject | None:
        """Return the next message; None if the child closed its output. Raises TimeoutError, and ValueError for bad messages."""
        line = await self._messages.line(timeout_s)
        if line is None:
            return None
        message: JsonObject = json.loads(line)
        return message

    def end_input(self) -> None:
        """Close the child's standard input, which asks it to exit."""
        self._stdin.close()

    def kill(self, *, with_children: bool = False) -> None:
        """Kill the child (SIGKILL) if it is running; with `with_children`, kill all processes left in its session."""
        with suppress(ProcessLookupError):
            if with_children:
                os.killpg(self.pid, signal.SIGKILL)
            elif not self.has_ended:
                self._process.kill()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the child has exited. Raises TimeoutError."""
        await asyncio.wait_for(self._process.wait(), timeout_s)

    async def read_rest(self, timeout_s: float | None = None) -> None:
        """Read the rest of the ended child's stderr, and close the pipes. A grandchild may keep them open, so set a timeout."""
        await asyncio.wait({self._stderr_reader}, timeout=timeout_s)
        self._stderr_reader.cancel()
        self._messages.close()
        self._stdin.close()

    def obituary(self) -> str:
        """Return why the child ended, with the last lines of its standard error. Call this after `read_rest`."""
        code = self._process.returncode
        how = f"exited with status {code}"
        if code is not None and code < 0:
            how = f"was killed by signal {-code} ({signal.strsignal(-code)})"
        said = "".join(f"\n{line}" for line in self._said)
        return f"{self._what} {self.pid} {how}{said}"

    async def _read_stderr(self, stream: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await stream.readline()
            except ValueError:
                continue  # the line exceeds the stream's limit; its first part is lost
            if not line:
                return
            text = line.decode(errors="replace").rstrip()[:_MAX_STDERR_LINE]
            self._said.append(text)
            logger.log(self._level, "%s %d: %s", self._name, self.pid, text)
