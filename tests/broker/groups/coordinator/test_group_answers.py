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


def test_consumer_groups_that_are_switched_off(tmp_path: Path) -> None:
    """Without the consumer protocol, its requests are UNSUPPORTED_VERSION without a message."""
    answers = _answers(tmp_path, answer_cases.ask_classic, group_coordinator_rebalance_protocols="classic")
    assert answers == _recorded("answers_classic_4.3.1.json")
