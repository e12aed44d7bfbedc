"""One word for each thing: docs/reference/words.md has every argument that users write."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.cli import all_commands
from diamant.broker.client.admin import Admin, AdminClock
from diamant.broker.faults.installed_faults import Faults
from diamant.broker.operations.broker_state.broker_clock import BlockingClock, BrokerClock
from release.reference.pages import commands, routes
from release.reference.words import FURTHER, words, words_page

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = (Broker, BlockingBroker, Admin, AdminClock, BrokerClock, BlockingClock, Faults)
MADE_BY_USERS = (Broker, Admin)
OF_US = ("Admin.perform", "Admin.stream")
SECTIONS = ("Look into a topic", "Compact", "Erase and certify", "For tests")


def python_words() -> Iterator[tuple[str, str]]:
    """Yield the parameters of each public method, with the method."""
    for of in PUBLIC:
        for name, method in inspect.getmembers(of, inspect.isfunction):
            is_constructor = name == "__init__" and of in MADE_BY_USERS
            if (is_constructor or not name.startswith("_")) and f"{of.__name__}.{name}" not in OF_US:
                for parameter in [*inspect.signature(method).parameters.values()][1:]:
                    if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                        yield parameter.name, f"{of.__name__}.{name}"


def http_words() -> Iterator[tuple[str, str]]:
    """Yield the parameters of each route: in its path, its query and its body."""
    for route in routes():
        for step in route.path.split("/"):
            if step.startswith("{"):
                yield step[1:-1], route.path
        for param in (*route.query, *route.fields):
            yield param.name, route.path


def command_words() -> Iterator[tuple[str, str]]:
    """Yield the arguments and options of commands for a running broker, with underscores and without `no`."""
    own = {name for section in SECTIONS for name in all_commands()[section]} - {"exec"} | {"status"}
    for path, command in commands():
        if path.split()[1] in own:
            for param in command.params:
                names = [one for one in param.opts if one.startswith("--")] or [param.name or ""]
                for name in names:
                    word = name.removeprefix("--").removeprefix("no-").replace("-", "_")
                    yield word, path if isinstance(param, click.Option) else f"{path} (argument)"


def test_every_argument_that_users_write_is_a_known_word() -> None:
    """A parameter of Python, a field of HTTP or an option of a command is in the table; no entry of `FURTHER` is stale."""
    known = words().keys() | FURTHER.keys()
    used = [*python_words(), *http_words(), *command_words()]
    assert sorted({(word, where) for word, where in used if word not in known}) == []
    assert FURTHER.keys() <= {word for word, _ in used}
    assert not FURTHER.keys() & words().keys()


def test_no_python_parameter_is_named_like_an_attribute() -> None:
    """What a user writes is `force`, not `is_forced`."""
    assert [one for one in python_words() if one[0].startswith(("is_", "has_", "with_"))] == []


def test_the_page_of_words_is_current() -> None:
    """docs/reference/words.md is what the tables print: run `make docs` after changing them."""
    assert (ROOT / "docs" / "reference" / "words.md").read_text() == words_page()
