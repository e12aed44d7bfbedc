"""`diamant exec`: run a command, such as tests in any language, with a broker of its own."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

import click

from diamant.broker.broker import SMALL, BlockingBroker, Broker
from diamant.broker.cannot_start import CannotStart
from diamant.broker.commands.terminal.failures import duration, fail, tell
from diamant.broker.commands.terminal.progress_text import LiveProgress
from diamant.broker.config.broker_table import BROKERS, MANUAL_CLOCK, MAX_BROKERS, SYSTEM_CLOCK
from diamant.broker.launch import exec_options
from diamant.broker.launch.any_compaction import ANY_COMPACTION, RunLimits, run_any_compaction
from diamant.broker.launch.child import SIGNALLED, CannotRun, run_child
from diamant.broker.launch.launch_settings import (
    ArgumentError,
    acls_option,
    file_option,
    make_config,
    one_line,
    raise_file_limit,
    settings_option,
)
from diamant.broker.operation_errors import EXIT_FAILED, BadArgument, code_of_kafka_error
from diamant.protocol.errors import KafkaError
from diamant.storage.config_key import ConfigError
from diamant.storage.errors import StorageError

PROBLEM_LINES = 20
"""The maximum number of warnings and errors to show: the last ones in the log."""


class KeptLog:
    """The broker's log during a `with`, in a temporary file, which is removed at the end unless `show` was called."""

    def __init__(self) -> None:
        self._problems: deque[str] = deque(maxlen=PROBLEM_LINES)
        descriptor, self.path = tempfile.mkstemp(prefix="diamant-exec-", suffix=".log")
        self._file = os.fdopen(descriptor, "w", encoding="utf-8")
        self._is_shown = False

    def __enter__(self) -> KeptLog:
        problems = _LastLines(self._problems)
        problems.setLevel(logging.WARNING)
        form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
        logging.basicConfig(
            level=logging.INFO, format=form, handlers=[logging.StreamHandler(self._file), problems], force=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().handlers.clear()
        self._file.close()
        if not self._is_shown:
            os.unlink(self.path)

    def show(self, what: str) -> None:
        """Print what has failed, the last warnings and errors, and the path of the log to standard error. Keeps the log."""
        self._is_shown = True
        lines = [what, *self._problems] if self._problems else [f"{what}; the broker logged no warning and no error"]
        for line in lines:
            tell(f"diamant exec: {line}", err=True)
        tell(f"diamant exec: the broker's whole log: {self.path}", err=True)


class _LastLines(logging.Handler):
    """A handler that keeps the last log records as text."""

    def __init__(self, lines: deque[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a log record."""
        self._lines.append(self.format(record))


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True)
@click.option(
    "--topic",
    "-t",
    "topics",
    type=exec_options.TopicType(),
    metavar="NAME[:PARTITIONS[:POLICY]]",
    multiple=True,
    help="Create a topic, for example users:6:compact. Repeatable.",
)
@click.option(
    "--seed", "seeds", type=click.Path(exists=True, dir_okay=False), multiple=True,
    help='Write the records of a file, one JSON object per line: {"topic": "users", "key": "42", "value": "..."}. Repeatable.',
)  # fmt: skip
@click.option(
    "--env",
    "-e",
    "variables",
    type=exec_options.VariableType(),
    metavar="NAME=bootstrap|http|data|user|ca",
    multiple=True,
    help="Set another environment variable for the command. Repeatable.",
)
@click.option("--brokers", type=click.IntRange(1, MAX_BROKERS), metavar="N", help="Run N brokers on one directory.")
@click.option("--clock", type=click.Choice([SYSTEM_CLOCK, MANUAL_CLOCK]), help="The broker's clock. Default: system.")
@click.option(
    "--from", "source", type=click.Path(exists=True, file_okay=False), help="Start with a copy of this data directory."
)
@click.option(
    "--data",
    "-d",
    "data_dir",
    type=click.Path(file_okay=False),
    help="Keep the data here. Default: a temporary directory.",
)
@file_option
@settings_option
@click.option(
    "--user",
    "logins",
    multiple=True,
    metavar="NAME:PASSWORD-FILE",
    help="Add a user for SCRAM and PLAIN. Clients must then log in. Repeatable.",
)
@acls_option
@click.option("--tls", is_flag=True, help="Use TLS, with a certificate from a temporary CA.")
@click.option(
    "--any-compaction",
    "examples",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run the command N times, each time with a new broker that compacts between different fetches.",
)
@click.option("--in-time", is_flag=True, help="With --any-compaction: keep tombstones, as if consumers read in time.")
@click.option(
    "--run-timeout",
    "limit_ms",
    type=duration,
    metavar="DURATION",
    help="With --any-compaction: the time limit of a run; a run that takes longer counts as failed. Default: ten minutes for the "
    "first run, then ten times the longest run so far, but at least 30s.",
)
@click.option("--random-seed", type=int, help="The seed for the schedules of --any-compaction. Default: 0.")
def exec_(
    command: Sequence[str],
    topics: Sequence[exec_options.TopicOption],
    seeds: Sequence[str],
    variables: Sequence[tuple[str, str]],
    brokers: int | None,
    clock: str | None,
    source: str | None,
    data_dir: str | None,
    file: str | None,
    settings: Sequence[str],
    logins: Sequence[str],
    acls: Sequence[str],
    tls: bool,
    examples: int | None,
    in_time: bool,
    limit_ms: int | None,
    random_seed: int | None,
) -> None:
    """Run COMMAND with a broker of its own: diamant exec -- npm test.

    The broker uses a temporary directory and, unless --set listeners gives others, a free port. It stops when the command ends.
    The command finds the broker by environment variables: KAFKA_BOOTSTRAP_SERVERS (and DIAMANT_BOOTSTRAP_SERVERS),
    DIAMANT_HTTP_URL, DIAMANT_DATA. --env adds others, such as SPRING_KAFKA_BOOTSTRAP_SERVERS=bootstrap. --user sets DIAMANT_USER
    to the first user, and --tls sets DIAMANT_CA to the PEM file of the CA. If the command or the broker fails, the broker's last
    warnings and errors are shown, and its log is kept.

    --any-compaction tests consumers of compacted topics, which must work regardless of what the cleaner has removed. Topics
    are compacted by default. Only the output of the last run is shown: the run without any compaction, or the failing run with
    the fewest compactions, which are then explained.

    Exit codes: the command's; 128 plus the number of the signal that ended it; 124 if it did not end within --run-timeout; 126 or
    127 if it cannot be run, as in a shell; 1 the broker cannot start; 2 usage, or a topic or a seed is refused.
    """
    raise_file_limit()
    if examples is None and (in_time or limit_ms is not None or random_seed is not None):
        fail("--in-time, --run-timeout and --random-seed are for --any-compaction, which is not given", "bad-argument")
    if examples is not None:
        if data_dir is not None:
            fail("--any-compaction runs the command many times, each with new data: omit --data", "bad-argument")
        settings = [*ANY_COMPACTION, *settings]
    clocks = [] if clock is None else [f"diamant.clock={clock}"]
    several = [] if brokers is None else [f"{BROKERS}={brokers}"]
    small = [f"{name.replace('_', '.')}={brokers or 1}" for name in SMALL] if file is None and data_dir is None else []
    secured = ["diamant.tls=true"] if tls else []
    settings = ["diamant.http.listen=127.0.0.1:0", *small, *settings, *clocks, *several, *secured]
    with (
        KeptLog() as log,
        tempfile.TemporaryDirectory(prefix="diamant-exec-", ignore_cleanup_errors=True) as temporary,
        _failing(log),
    ):
        read = [line for path in seeds for line in exec_options.read_seed(path)]
        run = CommandRun(command, topics, read, variables, file, settings, source, logins, acls)
        if examples is not None:
            limits = RunLimits(None if limit_ms is None else limit_ms / 1000)
            code = run_any_compaction(run.once, temporary, examples, random_seed or 0, limits, may_be_late=not in_time)
        elif code := run.once(os.path.join(temporary, "data") if data_dir is None else data_dir):
            log.show(f"the command ended with exit code {code}{_signal_text(code)}")
    sys.exit(code)


@contextmanager
def _failing(log: KeptLog) -> Iterator[None]:
    """Report an error in the arguments or from the broker, and exit with its exit code."""
    try:
        yield
    except (ArgumentError, BadArgument, ConfigError, click.UsageError) as error:
        fail(str(error), "bad-argument")
    except KafkaError as error:
        fail(error.detail or str(error), code_of_kafka_error(error.code))
    except CannotStart as error:
        fail(error.reason)
    except CannotRun as error:
        fail(str(error), exit_code=error.exit_code)
    except (StorageError, OSError) as error:
        log.show(one_line(error))
        sys.exit(EXIT_FAILED)


def _signal_text(code: int) -> str:
    return f" (signal {code - SIGNALLED})" if code > SIGNALLED else ""


@dataclass(frozen=True)
class CommandRun:
    """A command to run, and the settings of its broker."""

    command: Sequence[str]
    topics: Sequence[exec_options.TopicOption]
    seeds: Sequence[exec_options.SeedLine]
    variables: Sequence[tuple[str, str]]
    file: str | None
    """The path of a server.properties file."""
    settings: Sequence[str]
    source: str | None
    """A data directory to copy."""
    logins: Sequence[str] = ()
    """The users, each as NAME:PASSWORD-FILE."""
    acls: Sequence[str] = ()

    def once(
        self,
        data: str,
        prepare: Callable[[BlockingBroker], object] | None = None,
        output: IO[bytes] | None = None,
        limit_s: float | None = None,
    ) -> int:
        """Start a broker on the directory `data`, call `prepare(broker)`, run the command, and return its exit code."""
        if self.source is not None:
            _copy(self.source, data)
        sets_listeners = any(setting.partition("=")[0].strip() == "listeners" for setting in self.settings)
        listen = [] if sets_listeners else ["127.0.0.1:0"]
        config = make_config(self.file, self.settings, listen, data, self.logins, self.acls)
        with Broker(config) as broker, tempfile.NamedTemporaryFile("w", prefix="diamant-ca-", suffix=".pem") as ca:
            http = broker.config.http_listener
            if http is not None and broker.http_url is None:  # a broker can run without HTTP, but tests may need it
                raise CannotStart(
                    f"no HTTP at {http.address}: the port may be in use. Expected a free port, or 0 to let the broker choose one"
                )
            if prepare is not None:
                prepare(broker)
            self._fill(broker)
            found = {
                exec_options.BOOTSTRAP: broker.bootstrap_servers,
                exec_options.HTTP: broker.http_url or "",
                exec_options.DATA: os.path.abspath(broker.config.data_dir),
            }
            if self.logins:
                user, _, path = self.logins[0].partition(":")
                found[exec_options.USER] = f"{user}:{os.path.abspath(path)}"
            if broker.node.tls is not None and broker.node.tls.authority is not None:
                ca.write(broker.node.tls.authority.certificate)
                ca.flush()
                found[exec_options.CA] = ca.name
            names = {
                name: what for name, what in (exec_options.VARIABLES | dict(self.variables)).items() if what in found
            }
            # DIAMANT_USER and DIAMANT_CA in this process's environment are for other brokers.
            inherited = {name: value for name, value in os.environ.items() if name not in exec_options.VARIABLES}
            variables = inherited | {name: found[what] for name, what in names.items()}
            return run_child(self.command, variables, output, limit_s)

    def _fill(self, broker: BlockingBroker) -> None:
        for topic in self.topics:
            configs: dict[str, object] = {} if topic.policy is None else {"cleanup_policy": topic.policy}
            broker.call(broker.services.produce().create_topic(topic.name, topic.partitions, configs))
        try:
            # Write the records of all files, or none if one is refused.
            broker.call(broker.services.produce().produce_all([line.record for line in self.seeds]))
        except KafkaError as error:
            number, _, reason = error.detail.partition(": ")
            if not number.isdecimal():  # a disk error
                raise
            line = self.seeds[int(number) - 1]
            raise BadArgument(f"{line.path}, line {line.number}: {reason}") from None


def _copy(source: str, data: str) -> None:
    if os.path.isdir(data) and os.listdir(data):
        raise click.UsageError(f"--from {source}: --data {data} is not empty; expected an empty directory")
    paths = [os.path.join(place, name) for place, _, names in os.walk(source) for name in names]
    total = sum(os.lstat(path).st_size for path in paths)
    with LiveProgress(total) as progress:

        def copy(path: str, target: str) -> str:
            shutil.copy2(path, target)
            progress.advance(os.stat(target).st_size)
            return target

        shutil.copytree(source, data, copy_function=copy, dirs_exist_ok=True)
