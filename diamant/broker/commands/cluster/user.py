"""`diamant user`: manage the SCRAM users of any Kafka cluster.

Like `kafka-configs` (KIP-554), sends only the salt and the salted password, never the password itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from diamant.broker.client.kafka_client import KafkaClient, KafkaRefusal
from diamant.broker.client.kafka_connection import Fields
from diamant.broker.client.login import read_password
from diamant.broker.commands.cluster.answering import Answer, answering
from diamant.broker.commands.cluster.asking_kafka import json_option, on_cluster
from diamant.broker.security.sasl.scram_keys import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SCRAM_MECHANISMS,
    ScramMechanism,
    new_salt,
    salted_password,
)
from diamant.protocol.errors import ErrorCode

DESCRIBE_USER_SCRAM_CREDENTIALS, ALTER_USER_SCRAM_CREDENTIALS = 50, 51
_NAMES = {mechanism.number: mechanism.name for mechanism in SCRAM_MECHANISMS.values()}


@click.command()
@click.argument("name")
@click.option("--password-file", "path", type=click.Path(), help="A file with the password. Default: ask for it.")
@click.option(
    "--iterations",
    "-i",
    type=click.IntRange(MIN_ITERATIONS, MAX_ITERATIONS),
    default=MIN_ITERATIONS,
    show_default=True,
    help="SCRAM iterations: the cost of each guess at the password.",
)
@answering()
def add(client: KafkaClient, answer: Answer, name: str, path: str | None, iterations: int) -> None:
    """Add the user NAME for SCRAM-SHA-256 and SCRAM-SHA-512, or change the user's password.

    Exit codes: 0 done; 1 failed; 2 usage, or refused; 130 Ctrl-C.
    """
    password = (
        click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        if path is None
        else _password(path)
    )
    # One request per mechanism: a request may name a user only once.
    for mechanism in SCRAM_MECHANISMS.values():
        _alter(client, name, upsertions=[_credential(name, mechanism, password, iterations)])
    mechanisms = [*SCRAM_MECHANISMS]
    answer.tell(
        {"user": name, "mechanisms": mechanisms, "iterations": iterations},
        f"{name}: password set for {' and '.join(mechanisms)}",
        outcome="password set",
    )


@click.command("list")
@json_option
@on_cluster
def list_users(client: KafkaClient, as_json: bool) -> None:
    """List the SCRAM users with their mechanisms.

    Exit codes: 0 done; 1 failed; 2 usage; 130 Ctrl-C.
    """
    users = _users(client)
    if as_json:
        click.echo(json.dumps([{"user": user, "mechanisms": mechanisms} for user, mechanisms in users.items()]))
    else:
        click.echo("".join(f"{user}  {', '.join(mechanisms)}\n" for user, mechanisms in users.items()), nl=False)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@answering(each="user")
def remove(client: KafkaClient, answer: Answer, names: Sequence[str]) -> None:
    """Remove SCRAM users. Their open connections stay open until they are closed or have to authenticate again.

    Exit codes: 0 done; 1 failed; 2 usage, or no such user; 130 Ctrl-C.
    """
    users = _users(client)
    unknown = [name for name in names if name not in users]
    if unknown:
        raise ValueError(f"there is no user {unknown[0]!r}; `diamant user list` lists them")
    for name in dict.fromkeys(names):
        with answer.about(name):
            for mechanism in users[name]:
                _alter(client, name, deletions=[{"name": name, "mechanism": SCRAM_MECHANISMS[mechanism].number}])
            answer.tell({"user": name}, outcome="removed")


def _password(path: str) -> str:
    try:
        return read_password(path)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None


def _credential(name: str, mechanism: ScramMechanism, password: str, iterations: int) -> Fields:
    salt = new_salt()
    return {
        "name": name,
        "mechanism": mechanism.number,
        "iterations": iterations,
        "salt": salt,
        "salted_password": salted_password(mechanism, password, salt, iterations),
    }


def _alter(client: KafkaClient, name: str, **changes: Any) -> None:
    fields = {"deletions": [], "upsertions": [], **changes}
    answer = client.controller().ask(ALTER_USER_SCRAM_CREDENTIALS, fields, timeout_s=client.timeout_s)
    for result in answer["results"]:
        if result["error_code"]:
            raise KafkaRefusal(f"user {name!r}", result["error_code"], result["error_message"])


def _users(client: KafkaClient) -> dict[str, list[str]]:
    """Return the mechanisms of each user, by name."""
    answer = client.any_broker().ask(DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None}, timeout_s=client.timeout_s)
    if answer["error_code"] not in (0, ErrorCode.RESOURCE_NOT_FOUND):
        raise KafkaRefusal("users", answer["error_code"], answer["error_message"])
    return {
        one["user"]: [_NAMES[info["mechanism"]] for info in one["credential_infos"] if info["mechanism"] in _NAMES]
        for one in sorted(answer["results"], key=lambda one: str(one["user"]))
        if not one["error_code"]
    }
