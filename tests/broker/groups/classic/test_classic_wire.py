"""Classic groups over the wire: the stories of `classic_cases`, which Apache Kafka 4.3.1 also passes."""

from __future__ import annotations

import asyncio

import pytest

from diamant.broker.broker import Broker
from tests.broker.groups.classic.classic_broker import group_broker
from tests.broker.groups.classic.classic_cases import CASES, CaseRun

__all__ = ["group_broker"]


@pytest.mark.parametrize("name", CASES)
async def test_story(group_broker: Broker, name: str) -> None:
    """Every request of the story gets Kafka's answer."""
    await CaseRun(group_broker.bootstrap_servers, is_kafka=False).run(CASES[name])


@pytest.mark.slow
async def test_stories_at_once(group_broker: Broker) -> None:
    """Groups are independent: many stories run concurrently on one broker."""
    names = [name for name in CASES if "megabyte" not in name]
    runs = [CaseRun(group_broker.bootstrap_servers, is_kafka=False) for _ in names]
    await asyncio.gather(*(run.run(CASES[name]) for run, name in zip(runs, names, strict=True)))
