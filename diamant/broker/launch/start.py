"""`diamant start`: run a broker until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from diamant.broker.cannot_start import CannotStart
from diamant.broker.commands.terminal.failures import fail
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.broker_table import BROKERS, MANUAL_CLOCK, MAX_BROKERS, SYSTEM_CLOCK
from diamant.broker.config.listeners import META_ADDRESSES
from diamant.broker.launch.launch_settings import (
    ArgumentError,
    acls_option,
    file_option,
    keep_returning_memory,
    limit_free_memory,
    make_config,
    one_line,
    raise_file_limit,
    settings_option,
)
from diamant.broker.operation_errors import EXIT_INTERRUPTED
from diamant.storage.config_key import ConfigError
from diamant.storage.errors import StorageError
from diamant.storage.kraft.features import DEFAULT_RELEASE, RELEASES

if TYPE_CHECKING:
    from diamant.broker.broker import Broker

SWITCH_INTERVAL_S = 0.0005
"""How long another thread may hold the interpreter lock while the loop thread waits for it. Only `diamant start` sets this."""

_REMEDIES = {
    errno.EBUSY: ". Is another broker running on it? --data takes another directory",
    errno.EEXIST: ". Expected a directory or an unused name, not a broken link. Is its disk mounted?",
    errno.EADDRINUSE: ". Is another broker running? --listen takes another address, port 0 a free port.",
}
"""Hints about what to do after a `CannotStart`, by its error number. They name command-line options."""


LOOK_S = 0.5
"""The interval at which to check for the parent on systems that do not report the end of a process."""


@click.command()
@file_option
@settings_option
@click.option(
    "--listen",
    "-l",
    "addresses",
    multiple=True,
    metavar="[NAME://]HOST:PORT",
    help="An address to listen on; port 0 takes a free port. Default: 127.0.0.1:9092.",
)
@click.option(
    "--user",
    "logins",
    multiple=True,
    metavar="NAME:PASSWORD-FILE",
    help="Add a user for SCRAM and PLAIN; may be repeated. Addresses of --listen without a name then require a login.",
)
@acls_option
@click.option("--data", "-d", "data_dir", type=click.Path(file_okay=False), help="Data directory. Default: ./data.")
@click.option(
    "--brokers",
    type=click.IntRange(1, MAX_BROKERS),
    metavar="N",
    help="Run N brokers on one directory, on the port of --listen and the ports after it, to test how clients follow leaders.",
)
@click.option("--ports", metavar="PORT,PORT,...", help="The ports of --brokers. Default: from the port of --listen up.")
@click.option(
    "--clock",
    type=click.Choice([SYSTEM_CLOCK, MANUAL_CLOCK]),
    help="The broker's clock; manual: a clock that `diamant clock` moves. Default: system.",
)
@click.option(
    "--release-version",
    type=click.Choice([*RELEASES]),
    help=f"The Kafka release to format a new data directory for; older releases cannot open it. Default: {DEFAULT_RELEASE}.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="The lowest level to log on standard error.",
)
@click.option(
    "--exit-with-parent",
    is_flag=True,
    help="Shut down cleanly when the parent process ends, even if it is killed. For brokers that a test runner starts.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help='Print one line of JSON when ready: {"kafka": ..., "http": ..., "data": ..., "pid": ...}.',
)
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False),
    help="Write the line of --json to this file, atomically, when ready; remove the file when the broker stops.",
)
def start(
    file: str | None,
    settings: Sequence[str],
    addresses: Sequence[str],
    logins: Sequence[str],
    acls: Sequence[str],
    data_dir: str | None,
    brokers: int | None,
    ports: str | None,
    clock: str | None,
    release_version: str | None,
    log_level: str,
    exit_with_parent: bool,
    as_json: bool,
    ready_file: str | None,
) -> None:
    """Start a broker and run it until Ctrl-C or SIGTERM.

    Once ready, the broker prints "Diamant listens on" with its addresses to standard output, and a line with the HTTP address.

    Metrics, health and /v1 are at http://127.0.0.1:9644. --set diamant.http.listen=HOST:PORT sets another address; an empty
    value turns HTTP off.

    Exit codes: 0 shut down cleanly; 1 cannot start, with the reason in one line; 2 usage.
    """
    # Read this first, because the parent may end, and then this process gets another parent.
    parent = os.getppid() if exit_with_parent else None
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        if brokers is not None:
            settings = [*settings, f"{BROKERS}={brokers}"]
        if ports is not None:
            settings = [*settings, f"{BROKERS}.ports={ports}"]
        if clock is not None:
            settings = [*settings, f"diamant.clock={clock}"]
        if release_version is not None:
            settings = [*settings, f"diamant.release.version={release_version}"]
        config = make_config(file, settings, addresses, data_dir, logins, acls)
    except ArgumentError as error:
        fail(str(error), "bad-argument")
    except ConfigError as error:
        from diamant.broker.commands.settings.value_hint import with_hint

        fail(with_hint(error), "bad-argument")
    raise_file_limit()
    # Otherwise, a thread that reads segments or checks a batch could delay the loop by 5 ms.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        asyncio.run(_run(config, parent, as_json=as_json, ready_file=ready_file))
    except CannotStart as error:
        fail(error.reason + _REMEDIES.get(error.errno or 0, ""))
    except (StorageError, OSError) as error:  # raised while the broker stops
        fail(one_line(error))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


GC_THRESHOLD = 10_000
"""The number of new containers after which the garbage collector examines the young ones. With Python's default of 700, it ran
after every few dozen pending requests, accounted for an eighth of the cost of a thousand idle consumers, and found nothing."""
GC_MIDDLE, GC_OLD = 3, 30
"""The number of young collections per middle collection, and of middle collections per old collection. With Python's defaults of
10 and 10, a middle collection took 40 ms while ten thousand clients connected."""


async def _run(config: BrokerConfig, parent: int | None, *, as_json: bool, ready_file: str | None) -> None:
    # Modules never become garbage, and each search through them would take 25-50 ms. Configure the collector only in
    # `diamant start`: in an embedded broker, it belongs to the host.
    gc.disable()
    limit_free_memory()  # before the first thread starts, which would get and keep an arena of its own
    from diamant.broker.broker import Broker

    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, GC_MIDDLE, GC_OLD)
    gc.enable()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stop.set)
    if parent is not None:
        _watch(parent, stop)
    async with Broker(config) as broker:
        gc.freeze()
        running = broker.running
        returning = loop.create_task(keep_returning_memory(lambda: running.node))
        line = ready_line(broker)
        if ready_file is not None:
            _write_whole(ready_file, line)
        # Write both lines in one call: a reader that closes the pipe after the first line must not end the broker.
        text = f"Diamant listens on {broker.bootstrap_servers}, data in {config.data_dir}{_http_line(broker)}"
        click.echo(line if as_json else text)
        await stop.wait()
        returning.cancel()
        if ready_file is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(ready_file)
    end_without_threads()


def ready_line(broker: Broker) -> str:
    """Return the addresses, data directory and process ID of a broker as a line of JSON."""
    where = {
        "kafka": broker.bootstrap_servers,
        "http": broker.http_url,
        "data": os.path.abspath(broker.config.data_dir),
        "pid": os.getpid(),
    }
    return json.dumps(where)


def _write_whole(file: str, line: str) -> None:
    partial = f"{file}.{os.getpid()}"
    with open(partial, "w", encoding="utf-8") as written:
        written.write(f"{line}\n")
    os.replace(partial, file)


def _http_line(broker: Broker) -> str:
    bound = broker.addresses.http_bound
    if bound is None:
        return ""
    if bound.host not in META_ADDRESSES:
        return f"\nMetrics, health and /v1 at {broker.http_url}"
    return f"\nMetrics, health and /v1 at {bound.address}, every interface of this machine, here as {broker.http_url}"


def _watch(parent: int, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def ended() -> None:
        logging.getLogger(__name__).info("the process that started this one (%d) has ended: stopping", parent)
        stop.set()

    def look() -> None:
        if os.getppid() == parent:
            loop.call_later(LOOK_S, look)
        else:
            ended()

    if not hasattr(os, "pidfd_open"):  # macOS
        look()
        return
    try:
        watched = os.pidfd_open(parent)
    except ProcessLookupError:
        ended()
        return

    def readable() -> None:
        loop.remove_reader(watched)
        os.close(watched)
        ended()

    loop.add_reader(watched, readable)


logger = logging.getLogger(__name__)

THREADS_TIMEOUT_S = 5.0
"""How long to wait for threads to end after the broker has stopped."""


def end_without_threads() -> None:
    """End the process after `THREADS_TIMEOUT_S` even if threads still run. Call this when everything is flushed and closed.

    Python waits for all threads of executors before it exits. A thread that reads from a dead disk or a pipe may never end.
    """
    threading.Thread(target=_end, name="end", daemon=True).start()


def _end() -> None:
    threading.Event().wait(THREADS_TIMEOUT_S)
    logger.warning("the process ends although some threads are stuck; the broker itself has stopped")
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(0)
