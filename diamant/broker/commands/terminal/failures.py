"""Errors of commands, each printed to standard error as one line of text, or of JSON with --json. See `operation_errors.KINDS`.

diamant: there is no topic 'users': `diamant topic list` lists those that exist, `diamant topic create` makes one
{"error": "there is no topic 'users': ...", "code": "not-found", "exit_code": 2}
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import click

from diamant.broker.client.bootstrap import BOOTSTRAP_VARIABLE
from diamant.broker.operation_errors import kind_of
from diamant.duration import parse_duration_ms

ADDRESS_HINT = f". If the broker listens elsewhere, name its address: -b HOST:PORT or ${BOOTSTRAP_VARIABLE}"
"""A hint for the user if no broker answers."""
LOGIN_HINT = ". The login is that of --user, or of the file of --command-config"
"""A hint for the user if a broker refuses a login."""
DOWN_HINT = (
    "If it is down, add the other brokers, -b HOST:PORT,HOST:PORT, or name the HTTP address, -b http://HOST:PORT"
)
"""A hint for the user to try the other brokers of the same process, or its HTTP port, if the broker does not answer."""

_JSON_GIVEN = "diamant.json"


def duration(text: str | int) -> int:
    """Parse a duration such as `8d` into milliseconds. Use this as the `type` of an option."""
    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def note_arguments(ctx: click.Context, arguments: list[str]) -> None:
    """Record whether --json is among the arguments, because an error can occur before the options are parsed."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    ctx.meta[_JSON_GIVEN] = "--json" in own


def wants_json() -> bool:
    """Return whether the current command has --json."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.meta.get(_JSON_GIVEN) or ctx.params.get("as_json"))


def tell(text: str, *, err: bool = False) -> None:
    """Print a line from a command that changes something. The command continues even if the reader has closed the pipe."""
    try:
        click.echo(text, err=err)
    except BrokenPipeError:
        # Send buffered output to /dev/null, too, so that no later flush fails.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), (sys.stderr if err else sys.stdout).fileno())


def note(text: str, **fields: Any) -> None:
    """Print a note (not an error) as one line on standard error. `fields` appear only in JSON."""
    tell(json.dumps({"note": text, **fields}) if wants_json() else f"diamant: {text}", err=True)


def report(message: str, code: str = "failed", **fields: Any) -> int:
    """Print an error as one line on standard error, and return its exit code. `fields` appear only in JSON."""
    exit_code = kind_of(code).exit_code
    _print(message, code, exit_code, fields)
    return exit_code


def fail(message: str, code: str = "failed", *, exit_code: int | None = None, **fields: Any) -> NoReturn:
    """Exit with one line on standard error. `exit_code` replaces the exit code of `code`. `fields` appear only in JSON."""
    if exit_code is None:
        exit_code = kind_of(code).exit_code
    _print(message, code, exit_code, fields)
    sys.exit(exit_code)


def _print(message: str, code: str, exit_code: int, fields: Mapping[str, Any]) -> None:
    line = {"error": message, "code": code, "exit_code": exit_code, **fields}
    tell(json.dumps(line) if wants_json() else f"diamant: {message}", err=True)
