"""Command groups that import a command only to run it or to print its help."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, NoReturn, TypeAlias

import click

from diamant.broker.commands.terminal.failures import fail, note_arguments, wants_json
from diamant.broker.operation_errors import EXIT_REFUSED

_NO_ARGUMENTS: type[Exception] | tuple[()] = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""The exception, since Click 8.2, that shows the help of a group that was run without a command."""


class LazyCommand(NamedTuple):
    """The location of a command (`module:function`, or `module:COMMANDS` of a group), and its line in the group's help."""

    target: str
    help: str
    operation: str = ""
    """The operation whose answer the command prints as JSON, if `target` names no function."""

    def is_there(self) -> bool:
        """Return whether the module exists, without importing it."""
        return find_spec(self.target.partition(":")[0]) is not None

    def load(self, name: str) -> click.Command:
        """Import the command `name`."""
        module, _, function = self.target.partition(":")
        home = import_module(module)
        command = getattr(home, function) if function else home.printing(self.operation)
        if isinstance(command, dict):
            command = LazyGroup(name, help=self.help, lazy=command)
        assert isinstance(command, click.Command), f"{self.target} is not a command"
        return command


Sections: TypeAlias = Mapping[str, Mapping[str, LazyCommand]]
"""Commands by their heading in the help, then by name."""


class LazyGroup(click.Group):
    """A group of ordinary commands, and of the commands in `sections` (heading of the help → name → command) whose modules exist.

    `lazy` replaces `sections` for a group with a single section. `first`: sections to search for a command before calling
    `sections`. `synonyms`: commands to suggest for words that users of other programs try.
    """

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, LazyCommand] | None = None,
        sections: Callable[[], Sections] | None = None,
        first: Sections | None = None,
        synonyms: Mapping[str, Sequence[str]] | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(*args, **fields)
        self._synonyms = synonyms or {}
        self._all = sections or (lambda: {"Commands": lazy or {}})
        self._first = first or {}

    @cached_property
    def _sections(self) -> dict[str, dict[str, LazyCommand]]:
        """The commands that exist, by heading. Not used to run a command, because looking up all other commands takes time."""
        return {
            heading: {name: command for name, command in commands.items() if command.is_there()}
            for heading, commands in self._all().items()
        }

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the group's own arguments."""
        note_arguments(ctx, args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            with ctx.scope(cleanup=False):
                _refuse(error)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Ctrl-C has its own exit code, and errors in the arguments are one line, or JSON with --json."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            fail("interrupted", "interrupted")
        except ImportError as error:
            from diamant.kernels import KernelsMissing

            if not isinstance(error, KernelsMissing):
                raise
            fail(str(error), code="kernels-missing")
        except click.ClickException as error:
            if isinstance(error, _NO_ARGUMENTS) and not wants_json():
                raise
            _refuse(error)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted({*super().list_commands(ctx)}.union(*self._sections.values()))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with that name, importing it if necessary; None if there is none."""
        found = _named(cmd_name, self._first) or _named(cmd_name, self._all())
        return super().get_command(ctx, cmd_name) if found is None or not found.is_there() else found.load(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name. The error for an unknown command suggests similar ones."""
        name = str(args[0])
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r}. {self._suggestion(ctx, name)}".rstrip())
        found, command, rest = super().resolve_command(ctx, args)
        if command is not None and not ctx.resilient_parsing:
            _check_given_once(ctx, command, rest)
        return found, command, rest

    def _suggestion(self, ctx: click.Context, name: str) -> str:
        from difflib import get_close_matches

        from diamant.broker.commands.terminal.advice import did_you_mean, either, option_of

        option = option_of(ctx, name)
        if option is not None:
            return did_you_mean([option])
        names = self.list_commands(ctx)
        found = get_close_matches(name, names)
        if ctx.parent is None:
            leaves = self._leaves(ctx, names)
            if name in self._synonyms:
                found = [*self._synonyms[name]]
            elif name in leaves:  # "clean" is a command of "log" and of "spark".
                found = leaves[name]
            elif not found:
                found = [path for leaf in get_close_matches(name, leaves, n=1) for path in leaves[leaf]]
        elif not found:
            return f"Expected {either(names)}."
        return did_you_mean(found) or f"`{ctx.command_path} --help` lists the commands."

    def _leaves(self, ctx: click.Context, names: Iterable[str]) -> dict[str, list[str]]:
        """Return the commands of the subgroups, such as "log clean", by their last word."""
        found: dict[str, list[str]] = {}
        for name in names:
            group = self.get_command(ctx, name)
            for leaf in group.list_commands(ctx) if isinstance(group, click.Group) else ():
                found.setdefault(leaf, []).append(f"{name} {leaf}")
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in their sections, without importing them."""
        sections = {
            heading: {name: command.help for name, command in commands.items()}
            for heading, commands in self._sections.items()
            if commands
        }
        if self.commands:
            sections["Commands"] = {name: command.get_short_help_str(100) for name, command in self.commands.items()}
        width = max(len(name) for rows in sections.values() for name in rows)
        for heading, rows in sections.items():
            with formatter.section(heading):
                # Align the columns of all sections.
                formatter.write_dl([(name.ljust(width), text) for name, text in rows.items()])


def _named(name: str, sections: Sections) -> LazyCommand | None:
    return next((commands[name] for commands in sections.values() if name in commands), None)


def _check_given_once(parent: click.Context, command: click.Command, arguments: Sequence[str]) -> None:
    """Refuse a single-value option given twice, because click would drop all but the last value. Flags may be repeated."""
    context = click.Context(command, parent=parent, resilient_parsing=True, **command.context_settings)
    try:
        _, _, given = command.make_parser(context).parse_args([*arguments])
    except click.UsageError:
        return  # The command itself reports the error.
    for at, param in enumerate(given):
        is_single = isinstance(param, click.Option) and not (param.multiple or param.is_flag or param.count)
        if is_single and param in given[:at]:
            parent.fail(f"{max(param.opts, key=len)} is given more than once: expected one value")


def _refuse(error: click.ClickException) -> NoReturn:
    """Report a mistake in the arguments as one line, and exit."""
    from diamant.broker.commands.terminal.advice import advice

    fail(advice(error), "bad-argument" if error.exit_code == EXIT_REFUSED else "failed")
