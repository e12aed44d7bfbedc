"""`diamant topic`, `group`, `user` and `acl`: command groups for any Kafka cluster."""

from __future__ import annotations

import click

from diamant.broker.commands.terminal.lazy import LazyCommand, LazyGroup

_TOPIC = "diamant.broker.commands.cluster.topic"
_GROUP = "diamant.broker.commands.cluster.consumer_group"
_USER = "diamant.broker.commands.cluster.user"
_ACL = "diamant.broker.commands.cluster.acl"

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


@click.group(cls=LazyGroup, lazy=TOPIC_COMMANDS)
def topic() -> None:
    """List, create, describe, alter and delete topics of any Kafka cluster."""


@click.group(cls=LazyGroup, lazy=GROUP_COMMANDS)
def group() -> None:
    """List, describe, reset and delete consumer groups of any Kafka cluster."""


@click.group(cls=LazyGroup, lazy=USER_COMMANDS)
def user() -> None:
    """Add, list and remove SCRAM users of any Kafka cluster."""


@click.group(cls=LazyGroup, lazy=ACL_COMMANDS)
def acl() -> None:
    """Add, list and remove ACLs of any Kafka cluster with an authorizer."""
