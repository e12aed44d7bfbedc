"""Exit codes of the commands, and errors on standard error: one line of text, or of JSON with --json.

diamant: there is no topic 'users'
{"error": "there is no topic 'users'", "code": "not-found", "exit_code": 2}
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NoReturn

import click

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_NOT_SO, EXIT_NOTHING = 0, 1, 2, 3, 4
EXIT_INTERRUPTED = 130
"""Ctrl-C, by the convention of shells: 128 plus the number of SIGINT."""

_CODES = {EXIT_FAILED: "failed", EXIT_USAGE: "usage", EXIT_NOT_SO: "not-so", EXIT_INTERRUPTED: "interrupted"}
_JSON_GIVEN = "diamant.json"


def note_arguments(ctx: click.Context, arguments: list[str]) -> None:
    """Record whether --json is among the arguments: an error can occur before the options are parsed."""
    ctx.meta[_JSON_GIVEN] = "--json" in arguments


def wants_json() -> bool:
    """Return whether the current command has --json."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.meta.get(_JSON_GIVEN) or ctx.params.get("as_json"))


def tell(text: str, *, err: bool = False) -> None:
    """Print a line of a command that changes something. Its work continues if the reader has closed the pipe."""
    try:
        click.echo(text, err=err)
    except BrokenPipeError:
        # What the stream has buffered goes there, too, so no flush fails later.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), (sys.stderr if err else sys.stdout).fileno())


def say(message: str, **fields: Any) -> None:
    """Print one line to standard error. `fields` appear only in JSON."""
    tell(json.dumps({"error": message, **fields}) if wants_json() else f"diamant: {message}", err=True)


def fail(message: str, exit_code: int = EXIT_FAILED, *, code: str | None = None, **fields: Any) -> NoReturn:
    """Exit with one line on standard error. `code` is an error code for programs; `fields` appear only in JSON."""
    say(message, code=code or _CODES.get(exit_code, "failed"), exit_code=exit_code, **fields)
    sys.exit(exit_code)
