"""`diamant log`: commands for the files of a log directory that no broker is using."""

from __future__ import annotations

import click

from diamant.broker.commands.terminal.lazy import LazyCommand, LazyGroup

_HERE = "diamant.broker.commands.log"

COMMANDS = {
    "clean": LazyCommand(f"{_HERE}.clean:clean", "Compact a partition, as the cleaner of a broker would."),
    "dump": LazyCommand(f"{_HERE}.dump:dump", "Print the batches and records of a partition or segment."),
    "explain": LazyCommand(f"{_HERE}.explain:explain", "Explain why records are still stored, and until when."),
    "find": LazyCommand(f"{_HERE}.find:find", "Find every record of a key, or every match of a pattern."),
    "fold-brokers": LazyCommand(
        f"{_HERE}.fold_brokers:fold", "Make the directory of several brokers one of a single broker."
    ),
    "person": LazyCommand("diamant.broker.commands.person.on_directory:person", "Find a person's data in all topics."),
    "stats": LazyCommand(f"{_HERE}.stats:stats", "Count the records of a log and the superseded ones among them."),
    "whatif": LazyCommand(f"{_HERE}.whatif:whatif", "Predict what the cleaner would leave under other settings."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def log() -> None:
    """Read and clean log files without a broker."""
