"""Suggestions for a command line that cannot be parsed: the option, argument or command that was probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

import click
from click.exceptions import NoSuchOption

_EXTRA = "Got unexpected extra argument"
_FIELD = "NAME=VALUE"
_WORD = re.compile("[a-z]+")


def advice(error: click.ClickException) -> str:
    """Return an error's message in one line, with a suggestion or the usage of the command."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, NoSuchOption) and context is not None:
        return f"{error.message} {_for_option(context, error.option_name)}"
    text = error.format_message()
    kind = error.param.type if isinstance(error, click.BadParameter) and error.param is not None else None
    if isinstance(kind, click.IntRange):
        given = error.message.partition(" is not ")[0]
        return text.replace(error.message, f"expected {_number_within(kind)}, got {given}")
    if context is not None and text.startswith(_EXTRA):
        return f"{text}. {_for_extra(context, text.partition('(')[2].rstrip(').').split())}"
    if isinstance(error, click.MissingParameter) and context is not None:
        return f"{text} {_usage(context)}"
    return text


def option_of(context: click.Context, word: str) -> str | None:
    """Return the option with the name `word`, such as --help for `help`; None if there is none."""
    return _options(context).get(_plain(word))


def either(words: Sequence[str]) -> str:
    """Return words as a choice: `a, b or c`."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def did_you_mean(words: Sequence[str]) -> str:
    """Return the question `Did you mean ...?`; "" without words."""
    return f"Did you mean {either([*map(repr, words)])}?" if words else ""


def _number_within(bounds: click.IntRange) -> str:
    if bounds.max is None:
        return f"a whole number of at least {bounds.min}"
    return f"a whole number from {bounds.min} to {bounds.max}"


def _for_option(context: click.Context, given: str) -> str:
    """Suggest what was meant by an option that does not exist."""
    name = _plain(given)
    argument = next((one for one in _arguments(context) if name in _names(context, one)), None)
    if argument is not None:
        return f"{argument.human_readable_name} is an argument, not an option. {_usage(context)}"
    setting = _setting(name)
    if setting is not None and (option := _taking_settings(context)) is not None:
        return f"{setting} is a configuration: {option} {setting}=VALUE"
    if any(_FIELD in one.human_readable_name for one in _arguments(context)):
        return f"It may be a field: {name}=VALUE. {_usage(context)}"
    options = _options(context)
    by_name = [one for one in options if name and one.startswith(name)] or get_close_matches(name, options)
    by_value = [
        _plain(one)
        for param in context.command.params
        for one in param.opts
        if _plain(one) in options and name in _WORD.findall((param.metavar or "").lower())
    ]
    found = list(dict.fromkeys([*by_name, *by_value]))
    if not found and isinstance(context.command, click.Group):
        return f"Options stand after the command: `{context.command_path} COMMAND {given} ...`"
    return did_you_mean([options[one] for one in found]) or f"`{context.command_path} --help` lists the options."


def _for_extra(context: click.Context, given: Sequence[str]) -> str:
    """Suggest what was meant by arguments that the command does not take."""
    first = given[0]
    option = _taking_settings(context)
    if "=" in first and option is not None:
        return did_you_mean([f"{option} {first}"])
    meant = option_of(context, first)
    if meant is not None:
        return did_you_mean([meant])
    return f"{_usage(context)}: {context.command.get_short_help_str(200)}"


def _usage(context: click.Context) -> str:
    return f"Usage: {context.command_path} {' '.join(context.command.collect_usage_pieces(context))}"


def _options(context: click.Context) -> dict[str, str]:
    """Return the long options of the command by their names without dashes."""
    return {
        _plain(one): one for param in context.command.get_params(context) for one in param.opts if one.startswith("--")
    }


def _arguments(context: click.Context) -> Iterator[click.Argument]:
    return (one for one in context.command.params if isinstance(one, click.Argument))


def _names(context: click.Context, argument: click.Argument) -> set[str]:
    """Return names under which other programs may have this argument as an option; for NAME, include the command group's name."""
    metavar = _plain(argument.human_readable_name.removesuffix("..."))
    names = {_plain(argument.name or ""), metavar}
    if metavar == "name" and context.parent is not None:
        names.add(str(context.parent.info_name))
    return names | {name.removesuffix("s") for name in names}


def _taking_settings(context: click.Context) -> str | None:
    """Return the command's option that sets configurations."""
    options = (one for one in context.command.params if isinstance(one, click.Option) and one.metavar == _FIELD)
    return next((one.opts[0] for one in options if {"--config", "--set"} & {*one.opts}), None)


def _setting(name: str) -> str | None:
    """Return the configuration that a word probably means, such as cleanup.policy for `cleanup-policy`."""
    from diamant.broker.config.broker_table import BROKER_CONFIGS
    from diamant.broker.config.topic_table import TOPIC_CONFIGS

    dotted = name.replace("-", ".")
    return dotted if dotted in TOPIC_CONFIGS or dotted in BROKER_CONFIGS else None


def _plain(word: str) -> str:
    return word.lower().lstrip("-").partition("=")[0].replace("_", "-")
