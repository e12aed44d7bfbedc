"""The generator of the pages in docs/reference on commands, HTTP paths and `diamant.Admin`, from their own descriptions.

python -m release.reference.pages DIRECTORY

Configurations and metrics have generators of their own, in `configuration.py` and `metrics.py`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from diamant.broker.cli import all_commands
from diamant.broker.cli import main as cli
from diamant.broker.client.admin import Admin, AdminClock
from diamant.broker.client.admin_methods import RemoteOperations
from diamant.broker.commands.terminal.remote import asking
from diamant.broker.http.serving.openapi import WAIT_PARAM
from diamant.broker.http.serving.route import Route
from diamant.broker.http.serving.routes import Routes
from diamant.broker.http.serving.token import TokenCheck
from diamant.broker.operation_errors import KINDS
from diamant.broker.operations.calls.parameters import Param
from release.reference.people_map_schema import people_map_schema

if TYPE_CHECKING:
    from diamant.broker.dispatch.services import Services

_WRITTEN = "<!-- Written by `make docs` from the commands, routes and tables themselves: change those. -->"


def _codes() -> str:
    return "".join(
        f"| `{code}` | {kind.exit_code} | {kind.status or ''} | {kind.meaning} |\n" for code, kind in KINDS.items()
    )


_COMMANDS = f"""\
# Commands

{_WRITTEN}

The commands that start a broker or query a running one, with their options and exit codes.
[Commands on topics and records](commands-kafka.md), [for tests](commands-testing.md), [to erase](commands-erase.md),
[on users and ACLs](commands-security.md), [on files](commands-log.md) and [on Spark](commands-spark.md) have pages of their own.

- [Errors and exit codes](#errors-and-exit-codes)
- [Shared options](#shared-options)

## Errors and exit codes

An error is one line on standard error. With `--json`, the line is an object, for some errors with more fields:
`{{"error": "a sentence", "code": "a-word", "exit_code": 2}}`. The sentences and codes are those of [HTTP](http.md#errors) and of
`diamant.Admin`.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed: the same command may work later, when the broker, a file or a limit allows it |
| 2 | refused, and it would be again: an argument is wrong, what it names does not exist, or the broker does not allow it |
| 3 | the requested state is not reached (yet), or nothing was found; only from commands that say so |
| 4 | nothing was found to remove: `erase`, `redact`, `verify` |
| 130 | Ctrl-C |

| code | exit code | HTTP status | meaning |
|---|---|---|---|
{_codes()}
A command that handles several names prints a line for each error, and ends with the exit code of the last one.

## Shared options

Commands that query a running broker share these options:
"""

_TEST_COMMANDS = f"""\
# Commands for tests

{_WRITTEN}

These run a broker beside tests, move its clock, make it fail, and reset it to an earlier state. [Diamant in
tests](../how-to/testing.md), [Move the clock](../how-to/clock.md), [Faults on demand](../how-to/faults.md) and [Snapshots and
forks](../how-to/snapshots.md) show how to use them. Shared options and exit codes: see [commands](commands.md).
"""

_ERASE_COMMANDS = f"""\
# Commands to erase

{_WRITTEN}

These erase and redact, and check certificates. [Erase](../how-to/erase.md), [Redact](../how-to/redact.md) and
[Verify a certificate](../how-to/verify-a-certificate.md) show how to use them. Shared options and exit codes: see
[commands](commands.md).
"""

_SECURITY_COMMANDS = f"""\
# Commands on users and ACLs

{_WRITTEN}

These manage users and their permissions. [Secure a broker](../how-to/secure-a-broker.md) shows how to use them. Shared
options and exit codes: see [commands](commands.md).
"""

_KAFKA_COMMANDS = f"""\
# Commands on topics and records

{_WRITTEN}

These work with any Kafka cluster; [Topics and records on the command line](../how-to/topics-and-records.md) shows how.
Exit codes: see [commands](commands.md), unless a command says otherwise.
"""

_BY_PURPOSE = all_commands()

PATHS = {
    **dict.fromkeys(_BY_PURPOSE["Erase and certify"], "erase"),
    **dict.fromkeys(("clock", "faults", "reset", "snapshots"), "testing"),
}
"""The pages of paths, by their first segment below /v1; the other paths are on the main page."""

FAMILIES = {
    **dict.fromkeys(_BY_PURPOSE["For tests"], "testing"),
    **dict.fromkeys(_BY_PURPOSE["Erase and certify"], "erase"),
    **dict.fromkeys(_BY_PURPOSE["Users and permissions of any Kafka cluster"], "security"),
    **dict.fromkeys(_BY_PURPOSE["Topics, records and groups of any Kafka cluster"], "kafka"),
    "log": "log",
    "spark": "spark",
}
"""The commands with pages of their own, by the sections of the help."""

_LOG_COMMANDS = f"""\
# Commands on files

{_WRITTEN}

`diamant log` reads and cleans the files of a log directory without a broker. [Look into log files](../how-to/log-tools.md) and
[Clean a log](../how-to/cleaning.md) show how to use it. Exit codes: see [commands](commands.md), unless a command says
otherwise.
"""

_SPARK_COMMANDS = f"""\
# Commands on Spark

{_WRITTEN}

`diamant spark` does the work of `diamant log` on Apache Spark. [Log directories in Apache Spark](../how-to/spark.md) and
[Clean a 500 GB partition](../how-to/spark-clean.md) show how to use it. Exit codes: see [commands](commands.md), unless a
command says otherwise.
"""

_HTTP = f"""\
# HTTP paths

{_WRITTEN}

All paths and their parameters; those [of erasures](http-paths-erase.md) and [for tests](http-paths-testing.md) have their own
pages. [HTTP](http.md) explains jobs, errors and tokens. `GET /v1/openapi.json` has the same for programs.

- *Job*: `?wait_ms=` ({{default_ms}} unless given, {{most_ms}} at most) limits the wait. After that, the response is 202 and the
  [job](http.md#jobs).
- *Token*: required if the broker [has one](http.md#who-may-ask).
- A key is `{{{{"text": …}}}}`, `{{{{"hex": …}}}}` or `{{{{"base64": …}}}}`.
"""

_HTTP_ERASE = f"""\
# HTTP paths of erasures

{_WRITTEN}

The paths that erase and redact, and return and check certificates. Jobs, tokens and keys: see [paths](http-paths.md).
"""

_HTTP_TESTING = f"""\
# HTTP paths for tests

{_WRITTEN}

The paths of the clock, of faults and of snapshots. Jobs, tokens and keys: see [paths](http-paths.md).
"""

_PYTHON = f"""\
# Python

{_WRITTEN}

The methods of `diamant.Admin`. `diamant.Admin("127.0.0.1:9092")` finds the HTTP address by itself; [HTTP](http.md#from-python)
has an example. Every method returns the response of its path as a dict. Those of `Broker` have the same names and arguments, but
return objects. Diamant's own [configurations](configuration.md) and [metrics](metrics.md) begin with `diamant`.

"""


@click.command()
@asking
def _any_asking(asked: object) -> None:
    """Represents all commands that query a broker."""


ASKING_OPTIONS = [param for param in _any_asking.params if isinstance(param, click.Option)]


def reference_pages() -> dict[str, str]:
    """Return the text of each generated page in docs/reference, by file name."""
    sections: dict[str, list[str]] = {page: [] for page in ("", *FAMILIES.values())}
    for path, command in commands():
        sections[FAMILIES.get(path.split()[1], "")].append(_command(path, command))
    options = _options_table(_context(cli, "diamant"), ASKING_OPTIONS)
    http = _HTTP.format(default_ms=f"{WAIT_PARAM.default:,}", most_ms=f"{WAIT_PARAM.most:,}")
    paths = sorted(routes(), key=lambda route: (route.path, route.method))
    pages: dict[str, list[str]] = {"": [], "erase": [], "testing": []}
    for one in paths:
        pages[PATHS.get("".join(one.path.split("/")[2:3]), "")].append(_route(one))
    return {
        "commands.md": "".join([_COMMANDS, options, *sections[""]]),
        "commands-testing.md": "".join([_TEST_COMMANDS, *sections["testing"]]),
        "commands-erase.md": "".join([_ERASE_COMMANDS, *sections["erase"]]),
        "commands-security.md": "".join([_SECURITY_COMMANDS, *sections["security"]]),
        "commands-kafka.md": "".join([_KAFKA_COMMANDS, *sections["kafka"]]),
        "commands-log.md": "".join([_LOG_COMMANDS, *sections["log"]]),
        "commands-spark.md": "".join([_SPARK_COMMANDS, *sections["spark"]]),
        "http-paths.md": "".join([http, *pages[""]]),
        "http-paths-erase.md": "".join([_HTTP_ERASE, *pages["erase"]]),
        "http-paths-testing.md": "".join([_HTTP_TESTING, *pages["testing"]]),
        "people-map.schema.json": json.dumps(people_map_schema(), indent=2) + "\n",
        "python.md": "".join([_PYTHON, *_methods()]),
    }


# -- commands ------------------------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, in the order of the help."""
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
    table = _options_table(context, own)
    if asks:
        at = "commands.md#shared-options" if path.split()[1] in FAMILIES else "#shared-options"
        table = f"{table}| | and the [shared options]({at}) |\n" if table else f"\nOptions: the [shared ones]({at}).\n"
    return f"\n## `{path}`\n\n    {path} {usage}\n\n{help_text(command)}{table}"


def help_text(command: click.Command) -> str:
    """Return the help text of a command, with its paragraphs joined as in Markdown."""
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
    """Every HTTP path, except those of the page."""
    return asyncio.run(_routes_of(cast("Services", None)))  # the rows are not called


async def _routes_of(services: Services) -> list[Route]:
    routes = Routes(services, 0.0, TokenCheck(is_needed=False))
    return [route for route in await routes.table.load_all() if route.refuse is None]


def _route(route: Route) -> str:
    traits = [word for word, is_so in (("job", route.is_job), ("token", route.changes_data)) if is_so]
    marks = f" *{', '.join(traits)}*" if traits else ""
    rows = [("path", Param(step, "string", "")) for step in re.findall(r"\{(\w+)\}", route.path)]
    rows += [("query", param) for param in route.query]
    rows += [("body", param) for param in route.fields]
    lines = [f"| `{param.name}` | {where} | {_traits(param)} | {_escaped(param.doc)} |\n" for where, param in rows]
    table = "".join(["\n| parameter | in | type | |\n|---|---|---|---|\n", *lines]) if lines else ""
    answer = "" if route.answer == Route._field_defaults["answer"] else f" Answer: {_escaped(route.answer)}"
    return f"\n## `{route.method} {route.path}`\n\n{_escaped(route.summary)}{answer}{marks}\n{table}"


def _traits(param: Param) -> str:
    kind = " or ".join(f"`{choice}`" for choice in param.choices) or {
        "strings": "list of strings",
        "objects": "list of objects",
    }.get(param.type, param.type)
    if param.is_required:
        return f"{kind}, required"
    if param.default is None or param.default == "":
        return kind
    shown = str(param.default).lower() if isinstance(param.default, bool) else param.default
    return f"{kind}, default `{shown}`"


# -- Python, configurations ----------------------------------------------------------------------------------------------


def _methods() -> Iterator[str]:
    for prefix, of in (("", Admin), ("", RemoteOperations), ("clock.", AdminClock)):
        for name, method in vars(of).items():
            if inspect.isfunction(method) and not name.startswith("_") and name != "perform":
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


def main() -> None:
    """Write the pages to the directory named on the command line."""
    for name, text in reference_pages().items():
        (Path(sys.argv[1]) / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
