"""`diamant topic`: list, create, describe, alter and delete topics."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

import click

from diamant.broker.client.kafka_client import KafkaClient, topic_refusal
from diamant.broker.client.kafka_connection import Fields
from diamant.broker.commands.cluster.answering import Answer, answering
from diamant.broker.commands.cluster.asking_kafka import json_option, on_cluster
from diamant.broker.commands.terminal.completion import topic_names
from diamant.protocol.errors import ErrorCode
from diamant.words import counted

CREATE_TOPICS, DELETE_TOPICS, DESCRIBE_CONFIGS, CREATE_PARTITIONS, INCREMENTAL_ALTER_CONFIGS = 19, 20, 32, 37, 44
LAST_DELETE_BY_NAME = 5
TOPIC_RESOURCE = 2
SET, DELETE = 0, 1
DYNAMIC_TOPIC_CONFIG = 1
"""The `config_source` of a configuration that is set on the topic itself."""

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
    topics = [topic for topic in client.topics() if is_all or not topic.is_internal]
    if as_json:
        click.echo(json.dumps([{"topic": topic.name, "partitions": len(topic.partitions)} for topic in topics]))
    else:
        click.echo("".join(f"{topic.name}\n" for topic in topics), nl=False)


@click.command()
@click.argument("name")
@click.option("--partitions", "-p", type=click.IntRange(min=1), help="Default: the broker's setting.")
@click.option("--replicas", "-r", type=click.IntRange(1, 32767), help="Default: the broker's setting.")
@config_option
@answering()
def create(
    client: KafkaClient,
    answer: Answer,
    name: str,
    partitions: int | None,
    replicas: int | None,
    configs: Sequence[str],
) -> None:
    """Create the topic NAME.

    Exit codes: 0 done; 1 failed; 2 usage, refused, or the topic exists; 130 Ctrl-C.
    """
    set_to = _configs(configs)
    topic = {
        "name": name,
        "num_partitions": partitions or -1,
        "replication_factor": replicas or -1,
        "configs": [{"name": one, "value": value} for one, value in set_to.items()],
    }
    fields = {"topics": [topic], "timeout_ms": _timeout_ms(client)}
    (found,) = client.controller().ask(CREATE_TOPICS, fields)["topics"]
    _check(name, found, set_to)
    # An old broker does not return the properties of the new topic. No broker does if the user may not describe the topic.
    told = {
        "partitions": (found.get("num_partitions", -1), partitions),
        "replicas": (found.get("replication_factor", -1), replicas),
    }
    made = {what: count if count > 0 else asked for what, (count, asked) in told.items()}
    words = [counted(count, what.removesuffix("s")) for what, count in made.items() if count is not None]
    words += [f"{one}={value}" for one, value in set_to.items()]
    text = f"{name}: created{', ' * bool(words)}{', '.join(words)}"
    answer.tell({"topic": name, **made, "configs": set_to}, text, outcome="created")


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=topic_names)
@answering(each="topic")
def delete(client: KafkaClient, answer: Answer, names: Sequence[str]) -> None:
    """Delete topics. A topic that cannot be deleted does not stop the others from being deleted.

    Exit codes: 0 done; 1 failed; 2 usage, or no such topic; 130 Ctrl-C.
    """
    fields = {"topic_names": list(dict.fromkeys(names)), "timeout_ms": _timeout_ms(client)}
    for response in client.controller().ask(DELETE_TOPICS, fields, most=LAST_DELETE_BY_NAME)["responses"]:
        with answer.about(response["name"]):
            _check(response["name"], response)
            answer.tell({"topic": response["name"]}, outcome="deleted")


@click.command()
@click.argument("name", shell_complete=topic_names)
@json_option
@on_cluster
def describe(client: KafkaClient, name: str, as_json: bool) -> None:
    """Show the partitions of the topic NAME, their leaders, and the configurations set on the topic.

    Exit codes: 0 done; 1 failed; 2 usage, or no such topic; 130 Ctrl-C.
    """
    topic = client.topic(name)
    described = _described(client, name, None)
    configs = {one["name"]: one["value"] for one in described if one["config_source"] == DYNAMIC_TOPIC_CONFIG}
    if as_json:
        partitions = [
            {
                "partition": partition.number,
                "leader": partition.leader,
                "replicas": partition.replicas,
                "in_sync": partition.in_sync,
            }
            for partition in topic.partitions
        ]
        click.echo(json.dumps({"topic": name, "partitions": partitions, "configs": configs}))
        return
    click.echo(f"{name}: {counted(len(topic.partitions), 'partition')}")
    for config, value in sorted(configs.items()):
        click.echo(f"  {config}={value}")
    for one in topic.partitions:
        leader = "no leader" if one.leader < 0 else f"leader {one.leader}"
        click.echo(f"  partition {one.number}: {leader}, replicas {_ids(one.replicas)}, in sync {_ids(one.in_sync)}")


@click.command()
@click.argument("name", shell_complete=topic_names)
@click.option("--partitions", "-p", type=click.IntRange(min=1), help="The number of partitions; it can only grow.")
@config_option
@click.option("--unset", "-u", multiple=True, metavar="NAME", help="A configuration to reset to the broker's value.")
@answering()
def alter(
    client: KafkaClient,
    answer: Answer,
    name: str,
    partitions: int | None,
    configs: Sequence[str],
    unset: Sequence[str],
) -> None:
    """Change configurations of the topic NAME, and add partitions. If either change is refused, neither is made.

    --unset reports a configuration that is not set, and refuses one that does not exist.

    Exit codes: 0 done; 1 failed; 2 usage, refused, or no such topic; 130 Ctrl-C.
    """
    set_to = _configs(configs)
    operations: list[Fields] = [{"name": one, "config_operation": SET, "value": value} for one, value in set_to.items()]
    if not operations and not unset and partitions is None:
        raise ValueError("nothing to change: expected --config, --unset or --partitions")
    unset, not_set = _parted_by_set(client, name, unset)
    operations += [{"name": one, "config_operation": DELETE, "value": None} for one in unset]
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configs": operations}
    growth = {"topics": [{"name": name, "count": partitions, "assignments": None}], "timeout_ms": _timeout_ms(client)}
    for is_trial in (True, False):
        fields = {"validate_only": is_trial}
        if operations:
            found = client.controller().ask(INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], **fields})
            _check(name, found["responses"][0], set_to)
        if partitions is not None:
            _check(name, client.controller().ask(CREATE_PARTITIONS, {**growth, **fields})["results"][0])
    words = [f"{one}={value}" for one, value in set_to.items()]
    words += [f"{one} unset" for one in unset] + [f"{one} was not set" for one in not_set]
    words += [] if partitions is None else [counted(partitions, "partition")]
    grown = {} if partitions is None else {"partitions": partitions}
    answer.tell(
        {"topic": name, **grown, "configs": set_to, "unset": unset, "not_set": not_set},
        f"{name}: {', '.join(words)}",
        outcome="altered" if operations or grown else "none: not set",
    )


def _described(client: KafkaClient, name: str, keys: Sequence[str] | None) -> Sequence[Fields]:
    """Return a topic's configurations, or only those named in `keys` that exist. Raises KafkaRefusal on an error."""
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configuration_keys": keys}
    answer = client.any_broker().ask(DESCRIBE_CONFIGS, {"resources": [resource]}, timeout_s=client.timeout_s)
    result = answer["results"][0]
    _check(name, result)
    found: Sequence[Fields] = result["configs"]
    return found


def _parted_by_set(client: KafkaClient, name: str, unset: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide `unset` into the configurations that are set on the topic and the others. Raises ValueError for an unknown name.

    Brokers do not refuse unknown names, so the command would report a misspelt name as not set.
    """
    if not unset:
        return [], []
    found = {one["name"]: one["config_source"] for one in _described(client, name, unset)}
    for one in unset:
        if one not in found:
            raise ValueError(f"there is no configuration {one!r} of topics. {_similar([one])}".rstrip(". "))
    own = [one for one in dict.fromkeys(unset) if found[one] == DYNAMIC_TOPIC_CONFIG]
    return own, [one for one in dict.fromkeys(unset) if one not in own]


def _check(name: str, found: Fields, configs: Iterable[str] = ()) -> None:
    """Raise KafkaRefusal if a response has an error code. `configs`: the names of configurations in the request, for a hint."""
    if found["error_code"]:
        refusal = topic_refusal(name, found["error_code"], found.get("error_message"))
        hint = _similar(configs) if found["error_code"] == ErrorCode.INVALID_CONFIG else ""
        raise refusal.with_hint(hint) if hint else refusal


def _similar(names: Iterable[str]) -> str:
    """Return a question that suggests known configurations for the unknown ones; "" if none is similar."""
    from diamant.broker.commands.terminal.advice import did_you_mean
    from diamant.broker.config.topic_table import TOPIC_CONFIGS

    unknown = [name for name in names if name not in TOPIC_CONFIGS]
    return did_you_mean([match for name in unknown for match in get_close_matches(name, TOPIC_CONFIGS, n=1)])


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
