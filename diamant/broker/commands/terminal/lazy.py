"""Command groups that import a command only to run it or to print its help."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import click

from diamant.broker.commands.terminal.failures import EXIT_INTERRUPTED, fail, note_arguments, wants_json


class LazyCommand(NamedTuple):
    """The location of a command (`module:function`), and its line in the group's help."""

    target: str
    help: str

    def is_there(self) -> bool:
        """Return whether the module exists, without importing it."""
        return find_spec(self.target.partition(":")[0]) is not None

    def load(self) -> click.Command:
        """Import the command."""
        module, _, function = self.target.partition(":")
        command = getattr(import_module(module), function)
        assert isinstance(command, click.Command), f"{self.target} is not a command"
        return command


class LazyGroup(click.Group):
    """A group of ordinary commands, and of the commands in `lazy` whose modules exist."""

    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand], **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.lazy = {name: command for name, command in lazy.items() if command.is_there()}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the group's own arguments."""
        note_arguments(ctx, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Ctrl-C has its own exit code. With --json, errors in the arguments are JSON, too."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            fail("interrupted", EXIT_INTERRUPTED)
        except click.ClickException as error:
            if not wants_json():
                raise
            fail(error.format_message(), error.exit_code)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, sorted."""
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with that name, importing it if necessary; None if there is none."""
        found = self.lazy.get(cmd_name)
        return super().get_command(ctx, cmd_name) if found is None else found.load()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, without importing them."""
        rows = []
        for name in self.list_commands(ctx):
            found = self.lazy.get(name)
            command = super().get_command(ctx, name)
            rows.append((name, found.help if found is not None else command.get_short_help_str(100) if command else ""))
        with formatter.section("Commands"):
            formatter.write_dl(rows)
