"""The broker of the shop: `diamant start` in a process of its own, on free ports, with a clock that can be moved."""

from __future__ import annotations

import selectors
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

GREETING = "Diamant listens on "
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0


class BrokerFailed(Exception):
    """It did not start, or did not stop."""


class BrokerProcess:
    """Runs while the `with` block does, unless `stop` ends it before. `settings`: more of its configuration, as for `--set`."""

    def __init__(self, data: Path, key_file: Path, log: Path, settings: Sequence[str] = ()) -> None:
        self.data = data
        self.log = log
        self.bootstrap = ""
        self._command = [
            *diamant(
                "start", "--listen", "127.0.0.1:0", "--data", str(data), "--clock", "manual", "--exit-with-parent"
            ),
            *("--set", "diamant.http.listen=127.0.0.1:0"),
            *("--set", f"diamant.certificate.key.file={key_file}"),
            *(word for setting in settings for word in ("--set", setting)),
        ]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> BrokerProcess:
        with self.log.open("w") as log:
            process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._process = process
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:  # not select(), which knows no descriptor above 1023
            selector.register(process.stdout, selectors.EVENT_READ)
            is_there = selector.select(START_TIMEOUT_S)
        greeting = process.stdout.readline() if is_there else ""
        if not greeting.startswith(GREETING):
            self._end()
            raise BrokerFailed(f"the broker did not start: {self.log.read_text().strip() or 'it said nothing'}")
        self.bootstrap = greeting.removeprefix(GREETING).partition(",")[0]
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._end()

    def stop(self) -> None:
        """Stop it as an operator does; its files stay."""
        code = self._end()
        if code != 0:
            raise BrokerFailed(f"the broker ended with {code}: {self.log.read_text().strip()}")

    def _end(self) -> int:
        process = self._process
        if process is None:
            return 0
        self._process = None
        process.terminate()
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        assert process.stdout is not None
        process.stdout.close()
        return code


def diamant(*arguments: str) -> list[str]:
    """The command `diamant` of the environment that this runs in."""
    return [str(Path(sys.executable).with_name("diamant")), *arguments]
