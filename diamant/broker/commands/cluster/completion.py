"""Names of topics and groups for the completion of a shell. A broker has a second; whatever fails, there are none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Thread

import click

from diamant.broker.client.bootstrap import default_bootstrap
from diamant.broker.client.kafka_client import KafkaClient
from diamant.broker.client.kafka_group import list_groups

MOST_S = 1.0


def topic_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics that begin so; internal ones only if that is an underscore."""
    is_all = incomplete.startswith("_")
    return _asked(
        context,
        incomplete,
        lambda client: (one.name for one in client.topics() if is_all or not one.is_internal),
    )


def group_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the groups that begin so."""
    return _asked(context, incomplete, lambda client: (one.name for one in list_groups(client)))


def _asked(context: click.Context, incomplete: str, names: Callable[[KafkaClient], Iterable[str]]) -> list[str]:
    found: list[str] = []

    def ask() -> None:
        try:
            with KafkaClient(context.params.get("bootstrap") or default_bootstrap(), timeout_s=MOST_S) as client:
                found.extend(sorted(one for one in names(client) if one.startswith(incomplete)))
        except Exception:
            pass  # A user is typing: an error would stand in the middle of the line.

    # The time is for all of it, names of hosts included, which no timeout of a socket bounds.
    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(MOST_S)
    return list(found)
