"""`diamant spark`: commands for log directories of any size, run on Apache Spark."""

from __future__ import annotations

import click

from diamant.broker.commands.terminal.lazy import LazyCommand, LazyGroup

_HERE = "diamant.broker.commands.spark"

COMMANDS = {
    "audit": LazyCommand(f"{_HERE}.audit:audit", "Find topics that keep values past their deadline."),
    "clean": LazyCommand(f"{_HERE}.clean:clean", "Compact every partition of a copied log directory."),
    "find": LazyCommand(f"{_HERE}.find:find", "Find every record of a key, or every match of a pattern."),
    "person": LazyCommand(f"{_HERE}.person:person", "Find a person's data in all topics."),
    "stats": LazyCommand(f"{_HERE}.stats:stats", "Count the records of logs and the superseded ones among them."),
    "whatif": LazyCommand(f"{_HERE}.whatif:whatif", "Predict what the cleaner would leave under other settings."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def spark() -> None:
    """Read and clean log directories on Apache Spark, without a broker.

    A PATH is a log directory, a partition directory, a quoted glob of either, or a file: or s3: URI. Needs
    `pip install '.[spark]'` in a clone of Diamant, and Java 17 or newer.
    """
