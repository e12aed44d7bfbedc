"""Answers about groups equal those of Kafka 4.3.1 and 4.4.0, which are the same, in every value and in their order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.storage.env.env import RealEnv
from diamant.storage.kraft.features import DEFAULT_RELEASE, GROUP_VERSION, RELEASES
from diamant.storage.kraft.format import format_directory
from tests.broker.groups.coordinator import answer_cases

GOLDEN = Path(__file__).parents[1].parent.parent / "golden" / "groups"


def _answers(directory: Path, ask: Callable[[str], Coroutine[Any, Any, Any]], **properties: str) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        config = BrokerConfig(
            listen="127.0.0.1:0",
            data_dir=directory,
            properties={
                "offsets.topic.num.partitions": "3",
                **{name.replace("_", "."): value for name, value in properties.items()},
            },
        )
        async with Broker(config) as broker:
            return await ask(broker.bootstrap_servers)

    return asyncio.run(run())


def _recorded(name: str) -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads((GOLDEN / name).read_text(encoding="utf-8"))
    return recorded


ANSWERS = _recorded("answers_4.3.1.json")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Our answers, all from one broker."""
    return _answers(tmp_path_factory.mktemp("groups"), answer_cases.ask)


@pytest.mark.parametrize("name", ANSWERS)
def test_answer_is_as_kafkas(answers: dict[str, Any], name: str) -> None:
    """Codes, messages, authorized operations and the order of groups, topics and partitions equal the recorded ones."""
    assert answers[name] == ANSWERS[name]


@pytest.mark.parametrize("by_feature", [False, True])
def test_consumer_groups_that_are_switched_off(tmp_path: Path, by_feature: bool) -> None:
    """Without the consumer protocol, or with `group.version` 0, its requests are UNSUPPORTED_VERSION without a message."""
    if by_feature:
        format_directory(RealEnv(), str(tmp_path), features={**RELEASES[DEFAULT_RELEASE], GROUP_VERSION: 0})
    protocols = "classic,consumer" if by_feature else "classic"
    answers = _answers(tmp_path, answer_cases.ask_classic, group_coordinator_rebalance_protocols=protocols)
    assert answers == _recorded("answers_classic_4.3.1.json")
