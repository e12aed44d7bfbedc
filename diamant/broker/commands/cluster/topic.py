"""`diamant topic`: list, create, describe, alter and delete topics."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import click

from diamant.broker.client.kafka_client import KafkaClient, KafkaRefusal
from diamant.broker.client.kafka_connection import Fields
from diamant.broker.commands.cluster.asking_kafka import json_option, on_cluster
from diamant.broker.commands.terminal.completion import topic_names

CREATE_TOPICS, DELETE_TOPICS, DESCRIBE_CONFIGS, CREATE_PARTITIONS, INCREMENTAL_ALTER_CONFIGS = 19, 20, 32, 37, 44
LAST_DELETE_BY_NAME = 5
TOPIC_RESOURCE = 2
SET, DELETE = 0, 1
DYNAMIC_TOPIC_CONFIG = 1
"""The source of a configuration set on the topic itself."""

config_option = click.option(
    "--config", "-c", "configs", multiple=True, metavar="NAME=VALUE", help="A configuration; may be repeated."
)


@click.command("list")
@click.option("--all", "-a", "is_all", is_flag=True, help="Include internal topics.")
@json_option
@on_cluster
def list_topics(client: KafkaClient, is_all: bool, as_json: bool) -> None:
    """List the topics, one name per line. With --json, prints a list of objects with the number of partitions.

    Exit codes: 0 done; 1 failed; 2 usage; 130 Ctrl-C.
    """
    found = [one for one in client.topics() if is_all or not one.is_internal]
    if as_json:
        click.echo(json.dumps([{"topic": one.name, "partitions": len(one.partitions)} for one in found]))
    else:
        click.echo("".join(f"{one.name}\n" for one in found), nl=False)


@click.command()
@click.argument("name")
@click.option("--partitions", "-p", type=click.IntRange(min=1), help="Default: the broker's.")
@click.option("--replicas", "-r", type=click.IntRange(1, 32767), help="Default: the broker's.")
@config_option
@on_cluster
def create(
    client: KafkaClient, name: str, partitions: int | None, replicas: int | None, configs: Sequence[str]
) -> None:
    """Create the topic NAME.

    Exit codes: 0 done; 1 failed; 2 usage, refused, or the topic exists; 130 Ctrl-C.
    """
    topic = {
        "name": name,
        "num_partitions": partitions or -1,
        "replication_factor": replicas or -1,
        "configs": [{"name": one, "value": value} for one, value in _configs(configs).items()],
    }
    answer = client.controller().ask(CREATE_TOPICS, {"topics": [topic], "timeout_ms": _timeout_ms(client)})
    _check(name, answer["topics"][0])


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=topic_names)
@on_cluster
def delete(client: KafkaClient, names: Sequence[str]) -> None:
    """Delete topics. If one cannot be deleted, the others still are.

    Exit codes: 0 done; 1 failed; 2 usage, or no such topic; 130 Ctrl-C.
    """
    fields = {"topic_names": list(dict.fromkeys(names)), "timeout_ms": _timeout_ms(client)}
    answer = client.controller().ask(DELETE_TOPICS, fields, most=LAST_DELETE_BY_NAME)
    for one in answer["responses"]:
        _check(one["name"], one)


@click.command()
@click.argument("name", shell_complete=topic_names)
@json_option
@on_cluster
def describe(client: KafkaClient, name: str, as_json: bool) -> None:
    """Show the partitions of the topic NAME, their leaders, and the configurations set on the topic.

    Exit codes: 0 done; 1 failed; 2 usage, or no such topic; 130 Ctrl-C.
    """
    found = client.topic(name)
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configuration_keys": None}
    answer = client.any_broker().ask(DESCRIBE_CONFIGS, {"resources": [resource]}, timeout_s=client.timeout_s)
    result = answer["results"][0]
    _check(name, result)
    configs = {one["name"]: one["value"] for one in result["configs"] if one["config_source"] == DYNAMIC_TOPIC_CONFIG}
    if as_json:
        partitions = [
            {"partition": one.number, "leader": one.leader, "replicas": one.replicas, "in_sync": one.in_sync}
            for one in found.partitions
        ]
        click.echo(json.dumps({"topic": name, "partitions": partitions, "configs": configs}))
        return
    click.echo(f"{name}: {len(found.partitions)} partition{'s' if len(found.partitions) > 1 else ''}")
    for config, value in sorted(configs.items()):
        click.echo(f"  {config}={value}")
    for one in found.partitions:
        leader = "no leader" if one.leader < 0 else f"leader {one.leader}"
        click.echo(f"  partition {one.number}: {leader}, replicas {_ids(one.replicas)}, in sync {_ids(one.in_sync)}")


@click.command()
@click.argument("name", shell_complete=topic_names)
@click.option("--partitions", "-p", type=click.IntRange(min=1), help="The number of partitions; it can only grow.")
@config_option
@click.option("--unset", "-u", multiple=True, metavar="NAME", help="A configuration to reset to the broker's value.")
@on_cluster
def alter(client: KafkaClient, name: str, partitions: int | None, configs: Sequence[str], unset: Sequence[str]) -> None:
    """Change configurations of the topic NAME, then add partitions.

    Exit codes: 0 done; 1 failed; 2 usage, refused, or no such topic; 130 Ctrl-C.
    """
    changes = [{"name": one, "config_operation": SET, "value": value} for one, value in _configs(configs).items()]
    changes += [{"name": one, "config_operation": DELETE, "value": None} for one in unset]
    if not changes and partitions is None:
        raise ValueError("nothing to change: expected --config, --unset or --partitions")
    if changes:
        resource = {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configs": changes}
        answer = client.controller().ask(INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], "validate_only": False})
        _check(name, answer["responses"][0])
    if partitions is not None:
        grown = {"name": name, "count": partitions, "assignments": None}
        fields = {"topics": [grown], "timeout_ms": _timeout_ms(client), "validate_only": False}
        _check(name, client.controller().ask(CREATE_PARTITIONS, fields)["results"][0])


def _check(name: str, found: Fields) -> None:
    if found["error_code"]:
        raise KafkaRefusal(f"topic {name!r}", found["error_code"], found.get("error_message"))


def _configs(settings: Sequence[str]) -> Mapping[str, str]:
    found = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"--config {setting!r}: expected NAME=VALUE")
        found[name.strip()] = value
    return found


def _timeout_ms(client: KafkaClient) -> int:
    return min(round(client.timeout_s * 1000), 2**31 - 1)


def _ids(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes))
