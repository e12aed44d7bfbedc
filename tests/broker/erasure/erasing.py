"""Erasures: begun, unfinished, and their files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diamant.broker.broker import Broker
from diamant.broker.erasure.erase.erase_result import Erasure
from tests.broker.erasure.brokers import data_of
from tests.broker.erasure.constants import KEY
from tests.waiting import wait_until


async def erase(broker: Broker, key: bytes = KEY, topics: Sequence[str] = ("users",), **options: Any) -> Erasure:
    """Erase."""
    return await broker.erase(key, list(topics), reason="GDPR Art. 17", **options)


def intents_of(broker: Broker) -> list[Path]:
    """Return the intent files of unfinished jobs."""
    return list(data_of(broker).glob("*.intent"))


def traces_of(broker: Broker) -> list[Path]:
    """Return all files that erasures have in the data directory."""
    return list(data_of(broker).glob("diamant-erasure-*"))


async def wait_idle(broker: Broker) -> None:
    """Wait until the due work is done."""
    await wait_until(lambda: not broker.node.scheduler.is_due and not broker.services.erasures().table.busy)


def unfinished(broker: Broker) -> list[dict[str, Any]]:
    """Return the erasures that have not ended."""
    return broker.services.erasures().queue.unfinished()
