"""The option --mode of the commands for log directories: Kafka's rules or Diamant's.

By default, the rules of the broker that last used the directory apply.
"""

from __future__ import annotations

from typing import NamedTuple

import click

from diamant.cleaner.rules.modes import KAFKA, MODES, PROMPT
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError
from diamant.storage.kraft.incarnation import was_last_broker

mode_option = click.option(
    "--mode",
    type=click.Choice(MODES),
    help="kafka: Kafka's rules, byte for byte; prompt: Diamant's, which remove records as soon as Kafka's guarantees allow. "
    "Default: prompt if a Diamant broker was the last to use the directory, else kafka.",
)


class ChosenMode(NamedTuple):
    """The mode, and a line that tells the user about a default that may be unexpected; empty if there is nothing to tell."""

    mode: str
    line: str = ""


def chosen_mode(env: Env, log_directory: str, given: str | None) -> ChosenMode:
    """Return the mode for a log directory; `given` is the value of `--mode`, None without it."""
    if given is not None:
        return ChosenMode(given)
    try:
        is_own = was_last_broker(env, log_directory)
    except (StorageError, OSError):
        is_own = False  # whichever caller needs the metadata reports the error
    if is_own:
        return ChosenMode(PROMPT)
    return ChosenMode(
        KAFKA,
        f"Using Kafka's rules, because nothing in {log_directory} shows that a Diamant broker used it last. --mode prompt "
        "applies Diamant's rules.",
    )
