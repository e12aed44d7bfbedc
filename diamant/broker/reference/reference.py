"""Prints docs/reference/reference.md: every command, HTTP path, and method of `diamant.Admin`, as they describe themselves.

python -m diamant.broker.reference.reference [FILE]

Configurations and metrics have pages of their own, which are made of tables, too; here stand the names of those that are
Diamant's and not Kafka's.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import click

from diamant.broker.cli import main as cli
from diamant.broker.client.admin import Admin, AdminClock
from diamant.broker.commands.terminal.remote import asking
from diamant.broker.config.broker_table import BROKER_CONFIGS
from diamant.broker.config.topic_table import TOPIC_CONFIGS
from diamant.broker.config.virtual_topic_table import ROWS
from diamant.broker.http.endpoints.table import ENDPOINTS
from diamant.broker.http.serving.openapi import WAIT_PARAM
from diamant.broker.http.serving.route import Param, Route
from diamant.broker.http.serving.routes import Routes
from diamant.broker.http.serving.token import TokenCheck
from diamant.broker.metrics.table import METRICS

if TYPE_CHECKING:
    from diamant.broker.dispatch.services import Services

OWN = "diamant."
"""The prefix of configurations that Kafka does not have."""

_INTRODUCTION = """\
# Reference

<!-- Written by `make docs` from the commands, routes and tables themselves: change those. -->

| | |
|---|---|
| [Commands](#commands) | every command with its options and exit codes |
| [HTTP](#http) | every path with its parameters; [http.md](http.md) says how jobs, errors and tokens work |
| [Python](#python) | what `diamant.Admin` can do |
| [Configurations](#configurations) | Diamant's own; [configuration.md](configuration.md) has all, with defaults and limits |
| [Metrics](#metrics) | Diamant's own; [metrics.md](metrics.md) has all of them, with units and labels |
"""

_COMMANDS = """
## Commands

Errors that somebody can do something about are one line on standard error. Unless a command says otherwise, its exit codes are

| code | means |
|---|---|
| 0 | done |
| 1 | failed: no broker, no such file, something is damaged, not in time |
| 2 | usage: an option or argument is wrong, also in the eyes of the broker |
| 3 | what was asked for is not (yet) so; only of commands that say so |

Commands that ask a running broker have these options besides their own:
"""

_HTTP = """
## HTTP

*Job*: `?wait_ms=` ({default_ms} unless given, {most_ms} at most) says how long to wait for the end; after that the answer is
202 and the job ([jobs](http.md#jobs)). *Token*: needed where the broker wants one ([who may ask](http.md#who-may-ask)). A key is
`{{"text": …}}`, `{{"hex": …}}` or `{{"base64": …}}`. The same as a document for programs: `GET /v1/openapi.json`.
"""

_PYTHON = """
## Python

`diamant.Admin("127.0.0.1:9092")` finds the HTTP address by itself; [http.md](http.md#from-python) has an example. All methods
return what the path answers, as a dict.

"""

_CONFIGURATIONS = """
## Configurations

[configuration.md](configuration.md) has {count} configurations; all but these are Kafka's:

"""

_METRICS = """
## Metrics

[metrics.md](metrics.md) has {count} metrics; all but these have the names that a JMX exporter, or kafka_exporter, gives them:

"""


@click.command()
@asking
def _any_asking(asked: object) -> None:
    """Stand for all commands that ask a broker."""


ASKING_OPTIONS = [param for param in _any_asking.params if isinstance(param, click.Option)]


def reference_page() -> str:
    """The text of docs/reference/reference.md."""
    return "".join(
        [
            _INTRODUCTION,
            _COMMANDS,
            _options_table(_context(cli, "diamant"), ASKING_OPTIONS),
            *(_command(path, command) for path, command in commands()),
            _HTTP.format(default_ms=f"{WAIT_PARAM.default:,}", most_ms=f"{WAIT_PARAM.most:,}"),
            *(_route(route) for route in sorted(routes(), key=lambda route: (route.path, route.method))),
            _PYTHON,
            *_methods(),
            _CONFIGURATIONS.format(count=len(TOPIC_CONFIGS) + len(BROKER_CONFIGS)),
            *_configurations(),
            _METRICS.format(count=len(METRICS)),
            *(f"- `{name}`: {metric.meaning}\n" for name, metric in METRICS.items() if name.startswith("diamant_")),
        ]
    )


# -- commands ------------------------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that can be run, with its whole name, in the order of the help."""
    return _below("diamant", cli)


def _below(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = _context(command, path)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from _below(f"{path} {name}", found)


def _context(command: click.Command, path: str) -> click.Context:
    return click.Context(command, info_name=path, terminal_width=200, max_content_width=200)


def _command(path: str, command: click.Command) -> str:
    context = _context(command, path)
    usage = " ".join(command.collect_usage_pieces(context))
    shared = {option.name for option in ASKING_OPTIONS}
    asks = shared <= {param.name for param in command.params}
    own = [param for param in command.params if isinstance(param, click.Option) and not (asks and param.name in shared)]
    more = "\nAnd the options of every command that asks a broker.\n" if asks else ""
    return f"\n### `{path}`\n\n    {path} {usage}\n\n{help_text(command)}{_options_table(context, own)}{more}"


def help_text(command: click.Command) -> str:
    """The help text of a command, with its paragraphs filled as Markdown does."""
    text = inspect.cleandoc(command.help or "").replace("\f", "")
    paragraphs = (paragraph.replace("\n", " ") for paragraph in text.split("\n\n") if paragraph.strip() != "\b")
    return "\n".join(f"{_escaped(paragraph)}\n" for paragraph in paragraphs)


def _options_table(context: click.Context, options: list[click.Option]) -> str:
    rows = []
    for option in options:
        record = option.get_help_record(context)
        if record is not None and option.name != "help":
            names, text = record
            rows.append(f"| `{names.replace('|', ' or ')}` | {_escaped(text)} |\n")
    return "".join(["\n| option | |\n|---|---|\n", *rows]) if rows else ""


def _escaped(text: str) -> str:
    return re.sub(r"([|<>*])", r"\\\1", " ".join(text.split()))


# -- HTTP ----------------------------------------------------------------------------------------------------------------


def routes() -> list[Route]:
    """Every path that HTTP answers."""
    return asyncio.run(_routes_of(cast("Services", None)))  # the rows are not called


async def _routes_of(services: Services) -> list[Route]:
    return await Routes(services, ENDPOINTS, 0.0, TokenCheck(is_needed=False, token=None, problem=None)).load_all()


def _route(route: Route) -> str:
    traits = [word for word, is_so in (("job", route.is_job), ("token", route.changes_data)) if is_so]
    marks = f" *{', '.join(traits)}*" if traits else ""
    rows = [("path", Param(step, "string", "")) for step in re.findall(r"\{(\w+)\}", route.path)]
    rows += [("query", param) for param in route.query]
    rows += [("body", param) for param in route.fields]
    lines = [f"| `{param.name}` | {where} | {_traits(param)} | {_escaped(param.doc)} |\n" for where, param in rows]
    table = "".join(["\n| parameter | in | type | |\n|---|---|---|---|\n", *lines]) if lines else ""
    answer = "" if route.answer == Route._field_defaults["answer"] else f" Answer: {_escaped(route.answer)}"
    return f"\n### `{route.method} {route.path}`\n\n{_escaped(route.summary)}{answer}{marks}\n{table}"


def _traits(param: Param) -> str:
    kind = " or ".join(f"`{choice}`" for choice in param.choices) or {"strings": "list of strings"}.get(
        param.type, param.type
    )
    if param.is_required:
        return f"{kind}, required"
    if param.default is None or param.default == "":
        return kind
    shown = str(param.default).lower() if isinstance(param.default, bool) else param.default
    return f"{kind}, default `{shown}`"


# -- Python, configurations ----------------------------------------------------------------------------------------------


def _methods() -> Iterator[str]:
    for prefix, of in (("", Admin), ("clock.", AdminClock)):
        for name, method in vars(of).items():
            if inspect.isfunction(method) and not name.startswith("_"):
                yield f"- `{prefix}{name}({_parameters(method)})`: {_first_paragraph(method)}\n"


def _parameters(method: Any) -> str:
    shown = []
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            shown.append(f"**{parameter.name}")
        elif parameter.default is parameter.empty:
            shown.append(parameter.name)
        else:
            shown.append(f"{parameter.name}={parameter.default!r}")
    return ", ".join(shown)


def _first_paragraph(method: Any) -> str:
    return " ".join(inspect.cleandoc(method.__doc__ or "").split("\n\n")[0].split())


def _configurations() -> Iterator[str]:
    for of, keys in (("broker", BROKER_CONFIGS), ("topics", TOPIC_CONFIGS)):
        for key in keys.values():
            if key.name.startswith(OWN):
                yield f"- `{key.name}` ({of}): {key.documentation}\n"
    for name, row in ROWS.items():
        where = "topics; [in DescribeConfigs only](../how-to/compact-on-demand.md#what-describeconfigs-shows)"
        yield f"- `{name}` ({where}): {row.documentation}\n"


def main() -> None:
    """Write the page to the file that is named, or to standard output."""
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            file.write(reference_page())
    else:
        sys.stdout.write(reference_page())


if __name__ == "__main__":
    main()
