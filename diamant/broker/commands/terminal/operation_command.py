"""Commands made from operations. A command has the same arguments as its operation, with the same names and help.

@operation_command("compact")
def compact(asked: Asked, **fields: Any) -> None:
    report = asked.admin.compact(**fields, **asked.waiting)
    asked.show(report, ...)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import click

from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.completion import group_names, topic_names
from diamant.broker.commands.terminal.key_options import key_options
from diamant.broker.commands.terminal.remote import asking
from diamant.broker.dispatch.operation_table import OPERATIONS
from diamant.broker.operations.calls.parameters import Param, params_of

OF_ALL = ("timeout",)
"""Arguments that every command has."""


def operation_command(name: str, *, optional: Sequence[str] = ()) -> Callable[[Callable[..., None]], click.Command]:
    """Turn a function that takes the operation's arguments and `asked` into a command. The function's docstring is the help.

    `optional`: arguments that the command does not require, though the function may.
    """
    operation = OPERATIONS[name]

    def make(function: Callable[..., None]) -> click.Command:
        run = asking(function)
        params = [param for param in params_of(operation.request_class()) if param.name not in OF_ALL]
        named = next((one for one in params if one.is_required and not one.is_by_name and one.type != "key"), None)
        for param in reversed(params):
            is_named = param is named
            param = param._replace(is_required=param.is_required and param.name not in optional)
            run = (_positional if is_named else _option)(param)(run)
        return click.command(name.replace("_", "-"))(run)

    return make


def printing(name: str) -> click.Command:
    """Return a command that calls an operation and prints the answer as JSON."""
    operation = OPERATIONS[name]

    def run(asked: Asked, **fields: Any) -> None:
        waiting = asked.waiting if operation.is_job else {"timeout": asked.timeout_s}
        found = asked.admin.perform(operation.route, {**fields, **waiting})
        asked.show(
            found,
            lambda console: console.print(
                json.dumps(found, indent=2, ensure_ascii=False), markup=False, soft_wrap=True
            ),
        )

    run.__doc__ = operation.summary
    return operation_command(name)(run)


def _positional(param: Param) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    completion = topic_names if param.name in ("topic", "topics") else None
    count = -1 if param.type == "strings" else 1
    return click.argument(param.name, required=param.is_required, nargs=count, shell_complete=completion)


def _option(param: Param) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    if param.type == "key":
        return key_options(param.doc.rstrip("."))
    completion = group_names if param.name == "group" else None
    option = f"--{param.name.replace('_', '-')}"
    names = [option, *([param.short] if param.short else []), param.name]
    if param.type == "boolean" and param.default:
        return click.option(f"--no-{option[2:]}", param.name, is_flag=True, help=param.doc, callback=_negated)
    if param.type == "boolean":
        return click.option(*names, is_flag=True, help=param.doc, callback=_given)
    if param.type == "strings":
        return click.option(*names, multiple=True, help=param.doc, shell_complete=completion)
    kind: click.Choice[str] | click.IntRange | None = None
    if param.choices:
        kind = click.Choice(param.choices)
    elif param.type == "integer":
        kind = click.IntRange(min=param.least)
    metavar = "N" if param.type == "integer" else None
    shown = param.default is not None and param.default != ""
    return click.option(
        *names, type=kind, default=param.default, show_default=shown, metavar=metavar, help=param.doc,
        required=param.is_required, shell_complete=completion,
    )  # fmt: skip


def _negated(_context: click.Context, _: click.Parameter, value: bool) -> bool:
    return not value


def _given(_context: click.Context, _: click.Parameter, value: bool) -> bool | None:
    return value or None
