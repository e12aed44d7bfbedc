"""Runs commands against a test's broker, in this process or as the installed command, and lists them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import click
from click.testing import CliRunner, Result

from diamant.broker.broker import BlockingBroker
from diamant.broker.cli import main
from diamant.broker.client.bootstrap import BOOTSTRAP_VARIABLE

INSTALLED = (sys.executable, "-c", "from diamant.__main__ import main; main()")
"""The command as it is installed, for tests of Ctrl-C.

By `-m`, CPython ends by SIGINT, whatever the exit code, if Ctrl-C comes while the text of a class is executed.
"""


def run(broker: BlockingBroker, *words: str, lines: str = "") -> Result:
    """Run a command that finds the broker through the environment, with `lines` as its input."""
    return CliRunner().invoke(main, words, env={BOOTSTRAP_VARIABLE: broker.bootstrap_servers}, input=lines)


def leaves(command: click.Command, path: Sequence[str] = ()) -> Iterator[tuple[str, click.Command]]:
    """Return every command below, with its name."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, [*path, name])
