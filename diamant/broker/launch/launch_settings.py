"""The configuration of a broker that a command runs, and limits and memory settings of its process."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import time
from collections.abc import Callable, Sequence

import click

from diamant.broker.client.login import read_login
from diamant.broker.config.broker_config import BrokerConfig, read_properties
from diamant.broker.config.broker_table import DEFAULT_HTTP_LISTEN
from diamant.broker.config.listeners import listener_text
from diamant.broker.operation_errors import BadArgument
from diamant.storage.config_key import ConfigError
from diamant.storage.errors import StorageError

file_option = click.option(
    "--config",
    "-c",
    "file",
    type=click.Path(exists=True, dir_okay=False),
    help="A server.properties file in Kafka's format.",
)
settings_option = click.option(
    "--set",
    "-s",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a configuration; may be repeated. Overrides the file.",
)
acls_option = click.option(
    "--acl",
    "acls",
    multiple=True,
    metavar="ACL",
    help='Add an ACL, such as "User:alice READ topic users"; may be repeated. Everything that no ACL allows is then denied.',
)


class ArgumentError(ConfigError):
    """A command-line argument that is invalid regardless of the configuration."""


def make_config(
    file: str | None,
    settings: Sequence[str],
    addresses: Sequence[str],
    data_dir: str | None,
    logins: Sequence[str] = (),
    acls: Sequence[str] = (),
) -> BrokerConfig:
    """Build the configuration from the options of `start`: file, --set, --listen, --data, --user, --acl.

    Raises ConfigError if an option is invalid, or contradicts another one.
    """
    properties = {"diamant.http.listen": DEFAULT_HTTP_LISTEN}
    if file is not None:
        try:
            properties.update(read_properties(file))
        except OSError as error:
            raise ArgumentError(one_line(error)) from None
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
        # --listen and --data may override the file, but a user who gives --set as well expects it to have an effect.
        if addresses and name.strip() == "listeners":
            raise ArgumentError(f"--set {setting}: --listen names the addresses; expected only one of them")
        if data_dir is not None and name.strip() in ("log.dirs", "log.dir"):
            raise ArgumentError(f"--set {setting}: --data names the directory; expected only one of them")
    return BrokerConfig(
        listen=[*addresses] or None,
        data_dir=data_dir,
        properties=properties,
        users=_users(logins),
        acls=acls or None,
    )


def _users(logins: Sequence[str]) -> dict[str, str] | None:
    """Return the passwords of the users in --user; None if the option is not given."""
    try:
        return {login.user: login.password for login in map(read_login, logins)} or None
    except BadArgument as error:
        raise ArgumentError(f"--user {error}") from None


def raise_file_limit() -> None:
    """Raise this process's soft limit on open files to its hard limit.

    Each connection and each open segment takes a file descriptor, and the usual soft limit of 1024 exists only for programs that
    call select(). If the system refuses (for example, on macOS, if the hard limit is "unlimited"), the limit is unchanged.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        logging.getLogger(__name__).warning("the limit of open files stays at %d: %s", soft, error)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3)."""
_LARGE_BYTES = 4 << 20
"""Blocks of at least this size are mapped separately. Buffers for searching segments have this size; requests are smaller."""
_ARENAS = 2
"""One arena for the loop, and one for all other threads, few of which allocate without holding the interpreter lock."""
RETURN_S = 60.0
"""The interval, in real time, at which free memory is returned to the system. This takes about 4 ms each time, in a thread."""
COLLECTIONS_APART = 3000
"""The least time between two garbage collections, as a multiple of the processor time of the first one. With all features in use,
one takes 5 to 30 ms, so there is one at each interval or every second one. If one takes a second, they are 50 minutes apart."""


def limit_free_memory() -> None:
    """Limit the freed memory that glibc keeps, which by default is up to 64 MiB in each of eight arenas per processor.

    By default, the first large buffer that is freed makes glibc keep all later buffers of its size. Does nothing with another C
    library, or if the environment configures malloc.
    """
    import ctypes  # takes about 3 ms

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    mallopt(_M_ARENA_MAX, _ARENAS)
    mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE_BYTES)


async def keep_returning_memory(state: Callable[[], object]) -> None:
    """Regularly collect garbage, and return free memory inside malloc's arenas to the system.

    By itself, Python may let 70,000 objects become garbage before it looks at old ones, and glibc returns only memory at the ends
    of arenas. `state` returns the object that a reset of the broker replaces. After a reset, frozen objects are garbage, too.
    """
    import ctypes

    last, due_s = state(), 0.0
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while True:
        await asyncio.sleep(RETURN_S)
        if last is not state():
            last = state()
            gc.unfreeze()
            gc.collect()
            gc.freeze()
        elif time.monotonic() >= due_s:
            began_s = time.thread_time()
            gc.collect()
            due_s = time.monotonic() + COLLECTIONS_APART * (time.thread_time() - began_s)
        if trim is not None:
            await asyncio.to_thread(trim, 0)


def one_line(error: StorageError | OSError) -> str:
    """Format an error for a user, in one line."""
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
