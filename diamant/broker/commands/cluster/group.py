"""`diamant topic`, `group`, `user` and `acl`: topics, consumer groups, users and ACLs of any Kafka cluster."""

from __future__ import annotations

import click

from diamant.broker.commands.terminal.lazy import LazyCommand, LazyGroup

_TOPIC = "diamant.broker.commands.cluster.topic"
_GROUP = "diamant.broker.commands.cluster.consumer_group"
_USER = "diamant.broker.commands.cluster.user"
_ACL = "diamant.broker.commands.cluster.acl"

TOPIC_COMMANDS = {
    "alter": LazyCommand(f"{_TOPIC}:alter", "Change configurations of a topic, or give it more partitions."),
    "create": LazyCommand(f"{_TOPIC}:create", "Create a topic."),
    "delete": LazyCommand(f"{_TOPIC}:delete", "Delete topics."),
    "describe": LazyCommand(f"{_TOPIC}:describe", "Show partitions, leaders, and configurations that were set."),
    "list": LazyCommand(f"{_TOPIC}:list_topics", "List the topics."),
}

GROUP_COMMANDS = {
    "delete": LazyCommand(f"{_GROUP}:delete", "Delete groups, with all that they have committed."),
    "describe": LazyCommand(f"{_GROUP}:describe", "Show members, committed offsets, lags, and who owns what."),
    "list": LazyCommand(f"{_GROUP}:list_all", "List the groups."),
    "reset": LazyCommand(f"{_GROUP}:reset", "Commit other offsets for a group without members."),
}


USER_COMMANDS = {
    "add": LazyCommand(f"{_USER}:add", "Let a user log in with a password, or change it."),
    "list": LazyCommand(f"{_USER}:list_users", "List the users and their mechanisms."),
    "remove": LazyCommand(f"{_USER}:remove", "Let users log in no longer."),
}


ACL_COMMANDS = {
    "add": LazyCommand(f"{_ACL}:add", "Allow something, or deny it."),
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
    """Add, list and remove users that log in by SCRAM, in any Kafka cluster."""


@click.group(cls=LazyGroup, lazy=ACL_COMMANDS)
def acl() -> None:
    """Add, list and remove ACLs, in any Kafka cluster with an authorizer."""
