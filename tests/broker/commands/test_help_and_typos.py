"""The help of all commands, and the answer to a command that does not exist."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

from diamant.broker.cli import COMMANDS, main
from diamant.broker.commands.terminal.lazy import LazyGroup


def test_the_help_groups_the_commands_by_purpose() -> None:
    """Each section has a heading, and each command is in one of them, with its line."""
    shown = CliRunner().invoke(main, ["--help"]).stdout
    at = [shown.index(f"\n{heading}:\n") for heading in COMMANDS]
    assert at == sorted(at)
    assert "\nCommands:\n" not in shown
    sections = [shown[begin:end] for begin, end in zip(at, [*at[1:], len(shown)], strict=True)]
    for section, commands in zip(sections, COMMANDS.values(), strict=True):
        assert [line.split()[0] for line in section.strip().splitlines()[1:]] == [*commands]
    names = [name for commands in COMMANDS.values() for name in commands]
    assert sorted(names) == main.list_commands(click.Context(main))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["topics"], "Did you mean 'topic'?"),
        (["prodce", "t"], "Did you mean 'produce'?"),
        (["erase_now"], "Did you mean 'erase-now' or 'erase'?"),
        (["clean", "/data/t-0"], "Did you mean 'log clean' or 'spark clean'?"),
        (["cleen"], "Did you mean 'log clean' or 'spark clean'?"),
        (["delete"], "Did you mean 'group delete', 'snapshot delete' or 'topic delete'?"),
        (["topic", "creat", "t"], "Did you mean 'create'?"),
        (["topic", "remove", "t"], "Expected alter, create, delete, describe or list."),
        (["clock", "froze"], "Did you mean 'freeze'?"),
        (["fault", "ad"], "Did you mean 'add'?"),
        (["snapshot", "remove"], "Expected create, delete or list."),
        (["log", "stat"], "Did you mean 'stats'?"),
        (["spark", "cleam"], "Did you mean 'clean'?"),
        (["xyzzy"], ""),
    ],
    ids=" ".join,
)
def test_a_command_that_does_not_exist_suggests_others(words: list[str], said: str) -> None:
    """Similar names; the same name below another command; else all that could be meant. With --json it is JSON."""
    found = CliRunner().invoke(main, words)
    name = next(word for word in words if word not in ("topic", "clock", "fault", "snapshot", "log", "spark"))
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.splitlines()[-1] == f"Error: No such command '{name}'. {said}".rstrip()
    found = CliRunner().invoke(main, [*words, "--json"])
    assert (found.exit_code, json.loads(found.stderr)["error"]) == (2, f"No such command '{name}'. {said}".rstrip())


def test_every_group_suggests() -> None:
    """A new group of commands does, too."""
    context = click.Context(main)
    groups = [
        one for name in main.list_commands(context) if isinstance(one := main.get_command(context, name), click.Group)
    ]
    assert len(groups) >= 8
    assert [group.name for group in groups if not isinstance(group, LazyGroup)] == []
