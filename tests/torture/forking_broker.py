"""`diamant start` whose broker forks when it gets SIGUSR1: `python -m tests.torture.forking_broker start …`.

The file beside its data directory that `FORK` names then gets a line of JSON: the fork's address and its directory, or the error.
SIGUSR2 ends the fork. The file is open from the start, since there may be no descriptor left to tell of that.

Rounds on Spark have drivers without Spark, which run the job themselves.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from diamant.broker import broker, cli
from diamant.broker.broker import Broker
from diamant.broker.cannot_start import CannotStart
from diamant.broker.launch import start  # noqa: F401 - a process that forks brokers has imported it
from diamant.broker.operation_errors import OperationError
from diamant.cleaner.spark.runner import runner
from tests.cleaner.spark.fake_driver import FAKE
from tests.torture.shim import be_broker

FORK = "fork.json"


class ForkingBroker(Broker):
    """The first of its process; forks are of the same class."""

    is_first = True

    async def start(self) -> None:
        """Start, and be ready for the signals."""
        await super().start()
        if ForkingBroker.is_first:
            ForkingBroker.is_first = False
            self._tasks: set[asyncio.Task[None]] = set()
            self._file = os.open(Path(self.config.data_dir).with_name(FORK), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self._ends = asyncio.Event()
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGUSR1, lambda: self._tasks.add(loop.create_task(self._fork_once())))
            loop.add_signal_handler(signal.SIGUSR2, self._ends.set)

    async def _fork_once(self) -> None:
        self._ends.clear()
        try:
            async with await self.fork() as fork:
                self._tell(address=fork.bootstrap_servers, data=str(fork.config.data_dir))
                await self._ends.wait()
            self._tell(ended=True)
        except (OperationError, CannotStart) as error:
            self._tell(error=f"{type(error).__name__}: {error}")
        except Exception:
            self._tell(bug=traceback.format_exc())

    def _tell(self, **fields: Any) -> None:
        os.write(self._file, f"{json.dumps(fields)}\n".encode())


def main() -> None:
    """Run `diamant` with these classes."""
    be_broker()
    broker.Broker = ForkingBroker  # type: ignore[misc]
    runner.SparkRunner = partial(runner.SparkRunner, program=FAKE)  # type: ignore[assignment,misc]
    cli.main()


if __name__ == "__main__":
    main()
