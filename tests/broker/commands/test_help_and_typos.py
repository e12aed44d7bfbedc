"""The help of all commands, and the answer to a command that does not exist."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from diamant.broker.cli import SYNONYMS, all_commands, main
from diamant.broker.commands.terminal.lazy import LazyGroup


def test_the_help_groups_the_commands_by_purpose() -> None:
    """Each section has a heading, and each command is in one of them, with its line."""
    shown, sections_of = CliRunner().invoke(main, ["--help"]).stdout, all_commands()
    at = [shown.index(f"\n{heading}:\n") for heading in sections_of]
    assert at == sorted(at)
    assert "\nCommands:\n" not in shown
    sections = [shown[begin:end] for begin, end in zip(at, [*at[1:], len(shown)], strict=True)]
    for section, commands in zip(sections, sections_of.values(), strict=True):
        assert [line.split()[0] for line in section.strip().splitlines()[1:]] == [*commands]
    names = [name for commands in sections_of.values() for name in commands]
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
        (["xyzzy"], "`main --help` lists the commands."),
    ],
    ids=" ".join,
)
def test_a_command_that_does_not_exist_suggests_others(words: list[str], said: str) -> None:
    """Similar names; the same name below another command; else all that could be meant. With --json it is JSON."""
    found = CliRunner().invoke(main, words)
    name = next(word for word in words if word not in ("topic", "clock", "fault", "snapshot", "log", "spark"))
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.splitlines()[-1] == f"diamant: No such command '{name}'. {said}".rstrip()
    found = CliRunner().invoke(main, [*words, "--json"])
    assert (found.exit_code, json.loads(found.stderr)["error"]) == (2, f"No such command '{name}'. {said}".rstrip())


def commands_below(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield all commands with the words that run them."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands_below(command, (*path, name))


def test_an_option_of_one_value_is_refused_if_it_is_given_twice() -> None:
    """Every command refuses it and names the option. Otherwise all but the last value would be dropped silently."""
    tried = 0
    for words, command in commands_below(main):
        for option in command.params:
            if isinstance(option, click.Option) and not (option.is_flag or option.multiple or option.count):
                name = max(option.opts, key=len)
                found = CliRunner().invoke(main, [*words, *([name, "1"] * option.nargs), f"{option.opts[-1]}=2"])
                assert (found.exit_code, found.stdout) == (2, ""), (words, name, found.output)
                assert f"{name} is given more than once: expected one value" in found.stderr, (words, found.stderr)
                tried += 1
    assert tried > 100


def test_flags_and_options_of_several_values_may_be_repeated() -> None:
    """The error is about the broker that does not answer, not about the options."""
    words = ["topic", "create", "t", "--config", "a=1", "--config", "b=2", "--json", "--json", "-b", "127.0.0.1:1"]
    assert "more than once" not in CliRunner().invoke(main, words).stderr


def test_every_group_suggests() -> None:
    """A new group of commands does, too."""
    context = click.Context(main)
    groups = [
        one for name in main.list_commands(context) if isinstance(one := main.get_command(context, name), click.Group)
    ]
    assert len(groups) >= 8
    assert [group.name for group in groups if not isinstance(group, LazyGroup)] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["fault", "add", "--api", "Produce"],
            "It may be a field: api=VALUE. Usage: main fault add [OPTIONS] NAME=VALUE...",
        ),
        (
            ["snapshot", "create", "mine"],
            "Usage: main snapshot create [OPTIONS]: Save the current state and print its ID.",
        ),
        (["compact", "--topic", "t"], "TOPIC is an argument, not an option. Usage: main compact [OPTIONS] TOPIC"),
        (["topic", "create", "--topic", "t"], "NAME is an argument, not an option."),
        (["group", "describe", "--group", "g"], "GROUP... is an argument, not an option."),
        (["topic", "create", "t", "--cleanup-policy", "compact"], "configuration: --config cleanup.policy=VALUE"),
        (["topic", "create", "t", "cleanup.policy=compact"], "Did you mean '--config cleanup.policy=compact'?"),
        (["compact", "t", "force"], "Did you mean '--force'?"),
        (["compact", "t", "--forced"], "Did you mean '--force'?"),
        (
            ["produce", "t", "--k", "a"],
            "Did you mean '--key-delimiter', '--key', '--key-hex', '--key-base64', '--key-json' or '--key-file'?",
        ),
        (["start", "--port", "9092"], "Did you mean '--ports' or '--listen'?"),
        (["start", "--no-such"], "`main start --help` lists the options."),
        (["compact"], "Missing argument 'TOPIC'. Usage: main compact [OPTIONS] TOPIC"),
        (["--bootstrap-server", "x:1", "status"], "stand after the command: `main COMMAND --bootstrap-server ...`"),
        (["topic", "--json"], "stand after the command: `main topic COMMAND --json ...`"),
        (["config"], "Did you mean 'topic describe', 'topic alter' or 'start --set'?"),
        (["help"], "Did you mean '--help'?"),
        (["log", "help"], "Did you mean '--help'?"),
        (["version"], "Did you mean '--version'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_in_the_arguments_has_a_suggestion(words: list[str], said: str) -> None:
    """The option, argument or configuration that was meant, else the usage; in one line."""
    found = CliRunner().invoke(main, words)
    assert (found.exit_code, found.stdout, found.stderr.count("\n"), said in found.stderr) == (2, "", 1, True), (
        found.stderr
    )


def test_synonyms_are_of_commands_that_exist() -> None:
    """No synonym hides a command, and each leads to one."""
    context = click.Context(main)
    for word, meant in SYNONYMS.items():
        assert word not in main.list_commands(context)
        for one in meant:
            group: click.Command | None = main
            for step in one.partition(" --")[0].split():
                assert isinstance(group, click.Group)
                group = group.get_command(context, step)
            assert group is not None, one
