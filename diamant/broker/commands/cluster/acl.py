"""`diamant acl`: manage the ACLs of any Kafka cluster with an authorizer, in the short form that `broker/acl.py` parses."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence

import click

from diamant.broker.acl import (
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
    parse_all,
    parse_resource,
    type_word,
)
from diamant.broker.client.kafka_client import KafkaClient, KafkaRefusal
from diamant.broker.client.kafka_connection import Fields
from diamant.broker.commands.cluster.answering import Answer, answering
from diamant.broker.commands.cluster.asking_kafka import json_option, on_cluster
from diamant.broker.security.authorization.acl_hosts import is_covered
from diamant.broker.security.authorization.authorizer import ANY_USER
from diamant.protocol.errors import ErrorCode

DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS, DESCRIBE_CONFIGS = 29, 30, 31, 32
BROKER_RESOURCE = 4
SUPER_USERS = "super.users"
_CREATION = (
    "resource_type",
    "resource_name",
    "resource_pattern_type",
    "principal",
    "host",
    "operation",
    "permission_type",
)
_FILTER = (
    "resource_type_filter", "resource_name_filter", "pattern_type_filter", "principal_filter", "host_filter",
    "operation", "permission_type",
)  # fmt: skip
"""The names of an ACL's fields in CreateAcls, and in filters of DescribeAcls and DeleteAcls, in the order of `_values`."""
_ANY: Fields = dict(
    zip(
        _FILTER,
        (int(ResourceType.ANY), None, int(PatternType.ANY), None, None, int(Operation.ANY), int(PermissionType.ANY)),
        strict=True,
    )
)

force_option = click.option(
    "--force",
    is_flag=True,
    help="Proceed even if no principal could change ACLs afterwards and no super user is known.",
)


@click.command("list")
@click.option("--principal", "-p", metavar="TYPE:NAME", help="Only ACLs of this principal.")
@click.option(
    "--on", "resource", metavar="TYPE[:NAME]", help="Only ACLs for this resource, such as topic:users or cluster."
)
@json_option
@on_cluster
def list_acls(client: KafkaClient, principal: str | None, resource: str | None, as_json: bool) -> None:
    """List ACLs, one per line, in the form that `add` and `remove` take.

    Exit codes: 0 done; 1 failed; 2 usage; 130 Ctrl-C.
    """
    fields = {**_ANY, "principal_filter": principal}
    if resource is not None:
        kind, _, name = resource.partition(":")
        resource_type, resource_name, _ = parse_resource(kind, name or WILDCARD) if name else (_type(kind), None, None)
        fields |= {
            "resource_type_filter": int(resource_type),
            "resource_name_filter": resource_name,
            "pattern_type_filter": int(PatternType.MATCH if resource_name else PatternType.ANY),
        }
    acls = _described(client, fields)
    if as_json:
        click.echo(json.dumps([_as_json(acl) for acl in acls]))
    else:
        click.echo("".join(f"{acl}\n" for acl in acls), nl=False)


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="ACL...")
@force_option
@answering(each="acl")
def add(client: KafkaClient, answer: Answer, words: Sequence[str], force: bool) -> None:
    """Add ACLs, for example: diamant acl add User:alice READ topic users. To add several, put each in quotes.

    The form: PRINCIPAL [ALLOW|DENY] OPERATION[,OPERATION] TYPE NAME [from HOST]. TYPE is topic, group, transactional-id or
    cluster (without a name). A NAME that ends with * is a prefix; * alone matches all names.

    Exit codes: 0 done; 1 failed; 2 usage, or refused; 130 Ctrl-C.
    """
    new = parse_all(_texts(words))
    if not force:
        denied = [acl for acl in new if acl.permission == PermissionType.DENY and _changes_acls(acl)]
        if denied:
            before = _of_cluster(client)
            _check_somebody_is_left(client, before, [*before, *denied])
    creations = [dict(zip(_CREATION, _values(acl), strict=True)) for acl in new]
    found = client.controller().ask(CREATE_ACLS, {"creations": creations}, timeout_s=client.timeout_s)
    for acl, result in zip(new, found["results"], strict=True):
        with answer.about(str(acl)):
            if result["error_code"]:
                raise KafkaRefusal(f"ACL {acl}", result["error_code"], result["error_message"])
            answer.tell(_as_json(acl), f"{acl}: added", outcome="added")


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="ACL...")
@force_option
@answering(each="acl")
def remove(client: KafkaClient, answer: Answer, words: Sequence[str], force: bool) -> None:
    """Remove ACLs, in the form that `diamant acl list` prints.

    Exit codes: 0 done; 1 failed; 2 usage, refused, or no such ACL; 130 Ctrl-C.
    """
    gone = parse_all(_texts(words))
    if not force and any(acl.permission == PermissionType.ALLOW and _changes_acls(acl) for acl in gone):
        before = _of_cluster(client)
        _check_somebody_is_left(client, before, [acl for acl in before if acl not in gone])
    filters = [dict(zip(_FILTER, _values(acl), strict=True)) for acl in gone]
    found = client.controller().ask(DELETE_ACLS, {"filters": filters}, timeout_s=client.timeout_s)
    for acl, result in zip(gone, found["filter_results"], strict=True):
        with answer.about(str(acl)):
            if result["error_code"]:
                raise KafkaRefusal(f"ACL {acl}", result["error_code"], result["error_message"])
            if not result["matching_acls"]:
                raise ValueError(f"there is no ACL {acl}; `diamant acl list` lists them")
            answer.tell(_as_json(acl), f"{acl}: removed", outcome="removed")


def _texts(words: Sequence[str]) -> Sequence[str]:
    """Return the ACLs as strings. The arguments are either the words of one ACL, or several ACLs, one per argument."""
    return words if any(" " in word for word in words) else [" ".join(words)]


def _type(word: str) -> ResourceType:
    return parse_resource(word, WILDCARD if word.lower() != "cluster" else "")[0]


def _described(client: KafkaClient, fields: Fields) -> list[Acl]:
    answer = client.any_broker().ask(DESCRIBE_ACLS, fields, timeout_s=client.timeout_s)
    if answer["error_code"]:
        raise KafkaRefusal("ACLs", answer["error_code"], answer["error_message"])
    return sorted(
        Acl(
            ResourceType(resource["resource_type"]),
            resource["resource_name"],
            PatternType(resource["pattern_type"]),
            entry["principal"],
            entry["host"],
            Operation(entry["operation"]),
            PermissionType(entry["permission_type"]),
        )
        for resource in answer["resources"]
        for entry in resource["acls"]
    )


def _values(acl: Acl) -> tuple[int, str, int, str, str, int, int]:
    return (
        int(acl.resource_type),
        acl.resource_name,
        int(acl.pattern_type),
        acl.principal,
        acl.host,
        int(acl.operation),
        int(acl.permission),
    )


def _as_json(acl: Acl) -> dict[str, str]:
    return {
        "principal": acl.principal,
        "permission": acl.permission.name,
        "operation": acl.operation.name,
        "resource_type": type_word(acl.resource_type),
        "resource_name": acl.resource_name,
        "pattern_type": acl.pattern_type.name,
        "host": acl.host,
    }


# -- who may change ACLs ---------------------------------------------------------------------------------------------


def _changes_acls(acl: Acl) -> bool:
    return acl.resource_type == ResourceType.CLUSTER and acl.operation in (Operation.ALTER, Operation.ALL)


def _of_cluster(client: KafkaClient) -> list[Acl]:
    return _described(client, {**_ANY, "resource_type_filter": int(ResourceType.CLUSTER)})


def _check_somebody_is_left(client: KafkaClient, before: Collection[Acl], after: Collection[Acl]) -> None:
    """Raise ValueError if a change removes the last principal that may change ACLs, unless a super user still can change them."""
    if not administrators(before) or administrators(after) or _super_users(client):
        return
    raise ValueError(
        "no principal could change ACLs afterwards (ALTER on the cluster), and no super user is known. To undo that, you would "
        "have to set super.users and restart the brokers. Grant ALTER on the cluster to a principal first, or use --force"
    )


def administrators(acls: Iterable[Acl]) -> set[str]:
    """Return the principals that may change ACLs from at least one host."""
    acls = [acl for acl in acls if _changes_acls(acl)]
    denied = [(acl.principal, acl.host) for acl in acls if acl.permission == PermissionType.DENY]
    return {
        acl.principal
        for acl in acls
        if acl.permission == PermissionType.ALLOW
        and not is_covered(acl.host, [host for principal, host in denied if principal in (acl.principal, ANY_USER)])
    }


def _super_users(client: KafkaClient) -> str:
    """Return the broker's `super.users`; "" if there are none, or if they cannot be read."""
    node_id = client.broker_ids()[0]
    resource = {
        "resource_type": BROKER_RESOURCE,
        "resource_name": str(node_id),
        "configuration_keys": [SUPER_USERS],
    }
    answer = client.broker(node_id).ask(DESCRIBE_CONFIGS, {"resources": [resource]}, timeout_s=client.timeout_s)
    result = answer["results"][0]
    if result["error_code"] not in (0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
        raise KafkaRefusal("super.users", result["error_code"], result["error_message"])
    return "".join(config["value"] or "" for config in result["configs"])
