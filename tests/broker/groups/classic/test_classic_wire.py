"""Classic groups over the wire: the stories of `classic_cases`, which Apache Kafka 4.3.1 also passes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.config.broker_config import BrokerConfig
from tests.broker.groups.classic.classic_cases import BROKER_CONFIGS, CASES, CaseRun, wait_for_coordinator


@pytest.fixture(scope="module")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingBroker]:
    """Short sessions and small groups are allowed; the group coordinator has its topic."""
    data_dir = tmp_path_factory.mktemp("groups")
    with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=data_dir, properties=dict(BROKER_CONFIGS))) as broker:
        asyncio.run(wait_for_coordinator(broker.bootstrap_servers))
        yield broker


@pytest.mark.parametrize("name", CASES)
async def test_every_request_of_a_story_gets_kafkas_answer(group_broker: Broker, name: str) -> None:
    """Every request of the story gets Kafka's answer."""
    await CaseRun(group_broker.bootstrap_servers, is_kafka=False).run(CASES[name])


@pytest.mark.slow
async def test_many_groups_run_their_stories_concurrently(group_broker: Broker) -> None:
    """Groups are independent: many stories run concurrently on one broker."""
    names = [name for name in CASES if "megabyte" not in name]
    runs = [CaseRun(group_broker.bootstrap_servers, is_kafka=False) for _ in names]
    await asyncio.gather(*(run.run(CASES[name]) for run, name in zip(runs, names, strict=True)))
