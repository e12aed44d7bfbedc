"""The groups of commands: `diamant topic`, `group`, `user` and `acl` for any Kafka cluster, `log` and `spark` for files."""

from __future__ import annotations

import click

from diamant.broker.commands.terminal.lazy import LazyCommand, LazyGroup

_TOPIC = "diamant.broker.commands.cluster.topic"
_GROUP = "diamant.broker.commands.cluster.consumer_group"
_USER = "diamant.broker.commands.cluster.user"
_ACL = "diamant.broker.commands.cluster.acl"
_LOG = "diamant.broker.commands.log"
_SPARK = "diamant.broker.commands.spark"

TOPIC_COMMANDS = {
    "alter": LazyCommand(f"{_TOPIC}:alter", "Change configurations of a topic, or add partitions."),
    "create": LazyCommand(f"{_TOPIC}:create", "Create a topic."),
    "delete": LazyCommand(f"{_TOPIC}:delete", "Delete topics."),
    "describe": LazyCommand(f"{_TOPIC}:describe", "Show partitions, leaders, and configurations set on the topic."),
    "list": LazyCommand(f"{_TOPIC}:list_topics", "List the topics."),
}

GROUP_COMMANDS = {
    "delete": LazyCommand(f"{_GROUP}:delete", "Delete groups and their committed offsets."),
    "describe": LazyCommand(f"{_GROUP}:describe", "Show members, committed offsets, lags and owners."),
    "list": LazyCommand(f"{_GROUP}:list_all", "List the groups."),
    "reset": LazyCommand(f"{_GROUP}:reset", "Commit new offsets for a group without members."),
}

USER_COMMANDS = {
    "add": LazyCommand(f"{_USER}:add", "Add a user, or change a user's password."),
    "list": LazyCommand(f"{_USER}:list_users", "List the users and their mechanisms."),
    "remove": LazyCommand(f"{_USER}:remove", "Remove users."),
}

ACL_COMMANDS = {
    "add": LazyCommand(f"{_ACL}:add", "Add ACLs, which allow or deny operations."),
    "list": LazyCommand(f"{_ACL}:list_acls", "List ACLs."),
    "remove": LazyCommand(f"{_ACL}:remove", "Remove ACLs."),
}

LOG_COMMANDS = {
    "clean": LazyCommand(f"{_LOG}.clean:clean", "Compact a partition, as the cleaner of a broker would."),
    "dump": LazyCommand(f"{_LOG}.dump:dump", "Print the batches and records of a partition or segment."),
    "explain": LazyCommand(f"{_LOG}.explain:explain", "Explain why records are still stored, and until when."),
    "find": LazyCommand(f"{_LOG}.find:find", "Find every record of a key, or every match of a pattern."),
    "fold-brokers": LazyCommand(
        f"{_LOG}.fold_brokers:fold", "Turn the directory of several brokers into one for a single broker."
    ),
    "person": LazyCommand("diamant.broker.commands.person.on_directory:person", "Find a person's data in all topics."),
    "stats": LazyCommand(f"{_LOG}.stats:stats", "Count the records of a log and how many are superseded."),
    "whatif": LazyCommand(f"{_LOG}.whatif:whatif", "Predict what the cleaner would leave under other settings."),
}

SPARK_COMMANDS = {
    "audit": LazyCommand(f"{_SPARK}.audit:audit", "Find topics that keep values past their deadline."),
    "clean": LazyCommand(f"{_SPARK}.clean:clean", "Compact every partition of a copied log directory."),
    "find": LazyCommand(f"{_SPARK}.find:find", "Find every record of a key, or every match of a pattern."),
    "person": LazyCommand(f"{_SPARK}.person:person", "Find a person's data in all topics."),
    "stats": LazyCommand(f"{_SPARK}.stats:stats", "Count the records of logs and how many are superseded."),
    "whatif": LazyCommand(f"{_SPARK}.whatif:whatif", "Predict what the cleaner would leave under other settings."),
}


@click.group(cls=LazyGroup, lazy=SPARK_COMMANDS)
def spark() -> None:
    """Read and clean log directories on Apache Spark, without a broker.

    A PATH is a log directory, a partition directory, a quoted glob of either, or a file: or s3: URI. Spark needs
    `pip install '.[spark]'` in a clone of Diamant, and Java 17 or newer.
    """
