"""Options and one-line errors of the commands for any Kafka cluster. Imports little, so that commands start quickly."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from diamant.broker.client.bootstrap import BOOTSTRAP_VARIABLE, CA_VARIABLE, SYSTEM_CA, USER_VARIABLE, default_bootstrap
from diamant.broker.client.client_properties import COMMAND_CONFIG_HELP, configured
from diamant.broker.client.kafka_client import KafkaClient, KafkaRefusal
from diamant.broker.client.kafka_connection import ConnectionFailed
from diamant.broker.commands.terminal.failures import ADDRESS_HINT, LOGIN_HINT, duration, fail
from diamant.broker.operation_errors import BadArgument, code_of_kafka_error
from diamant.protocol.errors import CorruptBatch

if TYPE_CHECKING:
    import ssl

    from diamant.broker.client.login import Login


F = TypeVar("F", bound=Callable[..., Any])

EXPECTED = (ValueError, BadArgument, KafkaRefusal, ConnectionFailed, CorruptBatch)
"""Errors reported as one line."""
_HINTS = {"no-answer": ADDRESS_HINT, "unauthorized": LOGIN_HINT}
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def code_of(error: Exception) -> str:
    """Return the code by which programs recognize an error in `EXPECTED`."""
    if isinstance(error, KafkaRefusal):
        return code_of_kafka_error(error.code)
    if isinstance(error, ConnectionFailed):
        return error.code
    return "failed" if isinstance(error, CorruptBatch) else "bad-argument"


def told(error: Exception) -> str:
    """Return the message of an error in `EXPECTED`, with a hint about what to do."""
    return f"{error}{_HINTS.get(code_of(error), '')}"


def _login(user: str) -> Login:
    from diamant.broker.client.login import read_login

    return read_login(user)


def _tls(ca: str) -> ssl.SSLContext:
    from diamant.broker.client.client_config import trusting

    return trusting(None if ca == SYSTEM_CA else ca)


def on_cluster(command: F) -> F:
    """Add the options of a Kafka client, such as `--bootstrap-server`, to a command, and pass it `client` as first argument."""

    @click.option(
        "--bootstrap-server",
        "-b",
        "bootstrap",
        default=default_bootstrap,
        metavar="HOST:PORT",
        help=f"A broker of the cluster, or several, comma-separated. Default: ${BOOTSTRAP_VARIABLE}, else 127.0.0.1:9092.",
    )
    @click.option(
        "--timeout",
        "timeout_ms",
        type=duration,
        default="30s",
        show_default=True,
        metavar="DURATION",
        help="How long to keep trying.",
    )
    @click.option(
        "--user",
        "user",
        envvar=USER_VARIABLE,
        metavar="NAME:PASSWORD-FILE",
        help=f"The SCRAM or PLAIN login for clusters with SASL. Default: ${USER_VARIABLE}, else no login.",
    )
    @click.option(
        "--ca",
        "ca",
        envvar=CA_VARIABLE,
        metavar="FILE",
        help=f"Use TLS and trust the CA in this PEM file, or the system's CAs with `system`. Default: ${CA_VARIABLE}, else "
        "no TLS.",
    )
    @click.option("--command-config", metavar="FILE", help=COMMAND_CONFIG_HELP)
    @functools.wraps(command)
    def run(
        *args: Any,
        bootstrap: str,
        timeout_ms: int,
        user: str | None,
        ca: str | None,
        command_config: str | None,
        **options: Any,
    ) -> None:
        try:
            login = None if user is None else _login(user)
            tls = None if ca is None else _tls(ca)
            if command_config is not None:
                bootstrap, login, tls = configured(command_config, bootstrap)
            with KafkaClient(bootstrap, timeout_s=max(timeout_ms, 1) / 1000, login=login, tls=tls) as client:
                command(client, *args, **options)
        except EXPECTED as error:
            fail(told(error), code_of(error))
        except BrokenPipeError:
            # The reader has closed the pipe: the rest of the buffer is discarded.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    return run  # type: ignore[return-value]
