"""The command line: `diamant start`, and the table of the other commands.

What a user did wrong is one line on standard error and exit code 1; a traceback means that Diamant did something wrong.
The broker itself is imported only when it is started, so that `--help` and mistakes are answered at once.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import click

from diamant.broker.cannot_start import CannotStart
from diamant.broker.commands.terminal.failures import EXIT_USAGE, fail
from diamant.broker.commands.terminal.lazy import LazyCommand, LazyGroup
from diamant.broker.config.broker_config import BrokerConfig, read_properties
from diamant.broker.config.broker_table import DEFAULT_HTTP_LISTEN, MANUAL_CLOCK, SYSTEM_CLOCK
from diamant.broker.config.config_key import ConfigError
from diamant.broker.config.listeners import META_ADDRESSES, listener_text
from diamant.storage.errors import StorageError
from diamant.version import __version__

if TYPE_CHECKING:
    from diamant.broker.broker import Broker

SWITCH_INTERVAL_S = 0.0005
"""The time for which a thread may keep the interpreter from the loop thread. For `diamant start` only."""

_REMEDIES = {
    errno.EBUSY: ". Is another broker running on it? --data takes another directory",
    errno.EEXIST: ". Expected a directory, or a name that is free; a link that leads nowhere is neither. Is its disk mounted?",
    errno.EADDRINUSE: ". Is another broker running? --listen takes another address, port 0 a free port.",
}
"""The texts for a `CannotStart`, by its number, in the words of the command line."""


class ArgumentError(ConfigError):
    """An argument of the command line that is wrong whatever the configuration is."""


COMMANDS = {
    "cancel": LazyCommand(
        "diamant.broker.commands.admin.cancel:cancel", "End an erasure or a redaction without finishing it."
    ),
    "certificates": LazyCommand(
        "diamant.broker.commands.admin.certificates:certificates", "List the certificates of a broker, or fetch one."
    ),
    "clock": LazyCommand(
        "diamant.broker.commands.admin.clock:clock", "Show a broker's clock, or move one that is manual."
    ),
    "compact": LazyCommand(
        "diamant.broker.commands.admin.compact:compact", "Compact a topic now, and wait until it is clean."
    ),
    "erase": LazyCommand(
        "diamant.broker.commands.admin.erase:erase", "Erase a key from topics and certify that it is gone."
    ),
    "erase-now": LazyCommand(
        "diamant.broker.commands.admin.erase:erase_now", "Remove the tombstones of an erasure before their horizon."
    ),
    "count": LazyCommand("diamant.broker.commands.admin.count:count", "Print how many records a topic has, by kind."),
    "explain": LazyCommand(
        "diamant.broker.commands.admin.explain:explain", "Explain why records are still there, and until when."
    ),
    "redact": LazyCommand("diamant.broker.commands.admin.redact:redact", "Remove records that match from a topic."),
    "status": LazyCommand("diamant.broker.commands.admin.status:status", "Show the state of a broker and its cleaner."),
    "verify": LazyCommand("diamant.broker.commands.admin.verify:verify", "Check a certificate of an erasure."),
    "latest": LazyCommand(
        "diamant.broker.commands.admin.latest:latest", "Print the latest record of each key of a topic."
    ),
    "log": LazyCommand("diamant.broker.commands.log.group:log", "Read and clean log files without a broker."),
    "spark": LazyCommand(
        "diamant.broker.commands.spark.group:spark", "Read and clean logs of any size on Apache Spark."
    ),
}
"""Commands that `start` must not pay for."""


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="diamant")
def main() -> None:
    """Diamant, a Kafka-compatible broker."""


@main.command()
@click.option(
    "--config",
    "-c",
    "file",
    type=click.Path(exists=True, dir_okay=False),
    help="A server.properties file, as of Kafka.",
)
@click.option(
    "--set",
    "-s",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="One configuration; may be repeated, wins over the file. --listen and --data win over it.",
)
@click.option(
    "--listen",
    "-l",
    "addresses",
    multiple=True,
    metavar="[NAME://]HOST:PORT",
    help="Where to listen; port 0 takes a free port. Default: 127.0.0.1:9092.",
)
@click.option("--data", "-d", "data_dir", type=click.Path(file_okay=False), help="Data directory. Default: ./data.")
@click.option(
    "--clock",
    type=click.Choice([SYSTEM_CLOCK, MANUAL_CLOCK]),
    help="Which time counts; manual: a clock that `diamant clock` moves. Default: system.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="How much to log on standard error.",
)
@click.option(
    "--exit-with-parent",
    is_flag=True,
    help="Stop in order when the process that started this one ends, however it ends. For brokers of test runners.",
)
def start(
    file: str | None,
    settings: Sequence[str],
    addresses: Sequence[str],
    data_dir: str | None,
    clock: str | None,
    log_level: str,
    exit_with_parent: bool,
) -> None:
    """Start a broker and run it until Ctrl-C or SIGTERM.

    When it is ready, it prints "Diamant listens on" with its addresses to standard output, and a line with the address of HTTP.

    Metrics, health and /v1 are at http://127.0.0.1:9644 (--set diamant.http.listen=HOST:PORT for another
    address, nothing behind the = for none).

    Exit codes: 0 stopped in order; 1 it cannot start, and says why in one line; 2 usage.
    """
    # At once: when it has gone, its place is taken by the one who takes in orphans.
    parent = os.getppid() if exit_with_parent else None
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        if clock is not None:
            settings = [*settings, f"diamant.clock={clock}"]
        config = make_config(file, settings, addresses, data_dir)
    except ArgumentError as error:
        fail(str(error), EXIT_USAGE)
    except ConfigError as error:
        from diamant.broker.commands.terminal.value_hint import with_hint

        _fail(with_hint(error))
    except OSError as error:
        _fail(_one_line(error))
    raise_file_limit()
    # A thread that reads segments or checks a batch would otherwise keep the loop waiting for 5 ms.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        asyncio.run(_run(config, parent))
    except CannotStart as error:
        _fail(error.reason + _REMEDIES.get(error.errno or 0, ""))
    except (StorageError, OSError) as error:  # of its stop
        _fail(_one_line(error))
    except KeyboardInterrupt:
        sys.exit(130)


def make_config(
    file: str | None, settings: Sequence[str], addresses: Sequence[str], data_dir: str | None
) -> BrokerConfig:
    """The configuration from the options of `start`: file, --set, --listen, --data. Raises ConfigError, OSError."""
    properties = {"diamant.http.listen": DEFAULT_HTTP_LISTEN}
    if file is not None:
        properties.update(read_properties(file))
    if addresses:
        # The file's advertised addresses belong to the listeners that --listen replaces.
        properties.pop("advertised.listeners", None)
    for address in addresses:
        if "://" not in address and listener_text(address) == address:
            port = address if address.isdecimal() else 9092
            raise ArgumentError(f"--listen {address}: expected HOST:PORT, e.g. 127.0.0.1:{port}")
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise ArgumentError(f"--set {setting!r}: expected NAME=VALUE")
        properties[name.strip()] = value
    return BrokerConfig(
        listen=[listener_text(address) for address in addresses] or None, data_dir=data_dir, properties=properties
    )


def raise_file_limit() -> None:
    """Raise this process's soft limit of open files to its hard limit.

    Each connection and each open segment takes a descriptor, and the usual soft limit of 1024 is for the sake of programs
    that call select(). What the system refuses (macOS: "unlimited") leaves the limit as it was.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        logging.getLogger(__name__).warning("the limit of open files stays at %d: %s", soft, error)


GC_THRESHOLD = 10_000
"""Containers by which the heap may grow before the young ones are looked through. With Python's 700 every few dozen requests that
wait have that done, an eighth of the time that a thousand idle consumers cost; what waits is no garbage."""


async def _run(config: BrokerConfig, parent: int | None) -> None:
    # Modules stay. Looking through them for garbage takes 25-50 ms each time, while they are loaded and ever after. Only of
    # `diamant start`: embedded, the collector is the host's.
    gc.disable()
    from diamant.broker.broker import Broker

    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    gc.enable()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stop.set)
    if parent is not None:
        _watch(parent, stop)
    for listener in config.listeners:
        if listener.host in META_ADDRESSES:
            logging.getLogger(__name__).warning(
                "%s is every interface of this machine: there is no security, every client may do everything",
                listener.address,
            )
    async with Broker(config) as broker:
        gc.freeze()
        # In one go: who reads the first line only, and closes the pipe, is no reason to end.
        click.echo(f"Diamant listens on {broker.bootstrap_servers}, data in {config.data_dir}{_http_line(broker)}")
        await stop.wait()


def _http_line(broker: Broker) -> str:
    bound = broker.addresses.http_bound
    if bound is None:
        return ""
    if bound.host not in META_ADDRESSES:
        return f"\nMetrics, health and /v1 at {broker.http_url}"
    return f"\nMetrics, health and /v1 at {bound.address}, every interface of this machine, here as {broker.http_url}"


def _watch(parent: int, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    try:
        watched = os.pidfd_open(parent)
    except ProcessLookupError:
        stop.set()
        return

    def ended() -> None:
        loop.remove_reader(watched)
        os.close(watched)
        logging.getLogger(__name__).info("the process that started this one (%d) has ended: stopping", parent)
        stop.set()

    loop.add_reader(watched, ended)


def _one_line(error: StorageError | OSError) -> str:
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)


def _fail(message: str) -> NoReturn:
    click.echo(f"diamant: {message}", err=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
