"""`diamant topic`: the topics of any Kafka cluster."""

from __future__ import annotations

import click

from diamant.broker.commands.terminal.lazy import LazyCommand, LazyGroup

_HERE = "diamant.broker.commands.cluster.topic"

COMMANDS = {
    "alter": LazyCommand(f"{_HERE}:alter", "Change configurations of a topic, or give it more partitions."),
    "create": LazyCommand(f"{_HERE}:create", "Create a topic."),
    "delete": LazyCommand(f"{_HERE}:delete", "Delete topics."),
    "describe": LazyCommand(f"{_HERE}:describe", "Show partitions, leaders, and configurations that were set."),
    "list": LazyCommand(f"{_HERE}:list_topics", "List the topics."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def topic() -> None:
    """List, create, describe, alter and delete topics of any Kafka cluster."""
