"""Topic and group names for shell completion. A broker has one second to answer; after any failure, no names are offered."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from threading import Thread
from typing import TYPE_CHECKING, Any

import click

from diamant.broker.client.bootstrap import CA_VARIABLE, SYSTEM_CA, USER_VARIABLE, default_bootstrap

if TYPE_CHECKING:
    from diamant.broker.client.kafka_client import KafkaClient

MOST_S = 1.0


def topic_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics with this prefix, internal topics only if the prefix starts with an underscore."""
    is_all = incomplete.startswith("_")
    return _asked(
        context,
        incomplete,
        lambda client: (one.name for one in client.topics() if is_all or not one.is_internal),
    )


def group_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the groups with this prefix."""
    from diamant.broker.client.kafka_group import list_groups

    return _asked(context, incomplete, lambda client: (one.name for one in list_groups(client)))


def _asked(context: click.Context, incomplete: str, names: Callable[[KafkaClient], Iterable[str]]) -> list[str]:
    found: list[str] = []

    def ask() -> None:
        try:
            with _client(context.params) as client:
                found.extend(sorted(one for one in names(client) if one.startswith(incomplete)))
        except Exception:  # noqa: S110
            pass  # An error would be printed into the line that the user is typing.

    # The limit covers everything, including name resolution, which has no socket timeout.
    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(MOST_S)
    return list(found)


def _client(given: Mapping[str, Any]) -> KafkaClient:
    """Connect as the command would, using the options typed so far and the environment variables."""
    from diamant.broker.client.kafka_client import KafkaClient

    login, tls = None, None
    if user := given.get("user") or os.environ.get(USER_VARIABLE):
        from diamant.broker.client.login import read_login

        login = read_login(user)
    if ca := given.get("ca") or os.environ.get(CA_VARIABLE):
        from diamant.broker.client.client_config import trusting

        tls = trusting(None if ca == SYSTEM_CA else ca)
    return KafkaClient(given.get("bootstrap") or default_bootstrap(), timeout_s=MOST_S, login=login, tls=tls)
