"""Groups of commands that import a command only when it is run or its own help is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import click

from diamant.broker.commands.terminal.failures import EXIT_INTERRUPTED, fail, note_arguments, wants_json


class LazyCommand(NamedTuple):
    """The location of a command, `module:function`, and its line in the help of the group."""

    target: str
    help: str

    def is_there(self) -> bool:
        """Tell whether the module can be found, without importing it."""
        return find_spec(self.target.partition(":")[0]) is not None

    def load(self) -> click.Command:
        """Import the command."""
        module, _, function = self.target.partition(":")
        command = getattr(import_module(module), function)
        assert isinstance(command, click.Command), f"{self.target} is no command"
        return command


class LazyGroup(click.Group):
    """A group of ordinary commands and of those in the table `lazy` whose modules are there."""

    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand], **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.lazy = {name: command for name, command in lazy.items() if command.is_there()}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the group's own arguments."""
        note_arguments(ctx, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Ctrl-C ends it with its own exit code, and with --json what is wrong with arguments is JSON, too."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            fail("interrupted", EXIT_INTERRUPTED)
        except click.ClickException as error:
            if not wants_json():
                raise
            fail(error.format_message(), error.exit_code)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in order."""
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported if need be; None if there is none."""
        found = self.lazy.get(cmd_name)
        return super().get_command(ctx, cmd_name) if found is None else found.load()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, which needs no import."""
        rows = []
        for name in self.list_commands(ctx):
            found = self.lazy.get(name)
            command = super().get_command(ctx, name)
            rows.append((name, found.help if found is not None else command.get_short_help_str(100) if command else ""))
        with formatter.section("Commands"):
            formatter.write_dl(rows)
