"""Names of topics and groups for shell completion. A broker has a second to answer; after any failure there are no names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Thread
from typing import TYPE_CHECKING

import click

from diamant.broker.client.bootstrap import default_bootstrap

if TYPE_CHECKING:
    from diamant.broker.client.kafka_client import KafkaClient

MOST_S = 1.0


def topic_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics with this prefix; internal ones only if it begins with an underscore."""
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
    from diamant.broker.client.kafka_client import KafkaClient

    found: list[str] = []

    def ask() -> None:
        try:
            with KafkaClient(context.params.get("bootstrap") or default_bootstrap(), timeout_s=MOST_S) as client:
                found.extend(sorted(one for one in names(client) if one.startswith(incomplete)))
        except Exception:
            pass  # The user is typing: an error would appear in the middle of the line.

    # The limit covers everything, also the lookup of hosts, which no socket timeout bounds.
    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(MOST_S)
    return list(found)
