"""A broker process that is killed and started again where it was: the same address, the same data."""

from __future__ import annotations

import asyncio
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.broker.broker_process import BrokerProcess, Child
from tests.ports import ReservedPort

EARLY_S = 0.7
"""A start takes about as long; a kill before is in the middle of it."""


class RestartedBroker:
    """Use with `with`, and `start` it. Its address can be had before: nobody else is given the port."""

    def __init__(
        self,
        directory: Path,
        *settings: str,
        program: str = "diamant.broker.cli",
        listens_also: str = "",
        popen: Callable[..., Child] = subprocess.Popen,
    ) -> None:
        self.data_dir = directory / "data"
        self.kills = 0
        self._directory = directory
        self._settings = settings
        self._program = program
        self._listens_also = listens_also
        self._popen = popen
        self._runs = 0
        self._process: BrokerProcess | None = None
        self._port = ReservedPort()
        self.address = self._port.address

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
        self._port.close()

    @property
    def process(self) -> BrokerProcess:
        """The present run, or the last one."""
        assert self._process is not None, "it was not started yet"
        return self._process

    def spawn(self) -> None:
        """Start it, without waiting."""
        self._runs += 1
        log_dir = self._directory / f"run-{self._runs}"
        self._process = BrokerProcess(
            self.data_dir,
            log_dir,
            listen=f"PLAINTEXT://{self.address}{self._listens_also}",
            settings=self._settings,
            program=self._program,
            popen=self._popen,
        )

    async def start(self, rng: random.Random | None = None) -> None:
        """Start it and wait for its answer; with `rng` it is killed, in one of four starts, before that."""
        self.spawn()
        if rng is not None and rng.random() < 0.25:
            await asyncio.to_thread(self.process.wait_for_end, rng.uniform(0, EARLY_S))
            self.kill()
            self.spawn()
        await asyncio.to_thread(self.process.wait_for_address)

    def kill(self) -> None:
        """SIGKILL. Raises AssertionError if the run has had a failure of its own."""
        self.process.kill()
        self.kills += 1
        assert "Traceback" not in self.process.log, self.process.log

    def check_log(self) -> None:
        """Nothing went wrong in the present run by itself."""
        for word in ("Traceback", " ERROR "):
            assert word not in self.process.log, self.process.log
