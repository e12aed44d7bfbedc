"""Our answers while leaders move and brokers go equal those of three real brokers (tests/golden/brokers)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from tests.broker.brokers.script import STEPS
from tests.broker.brokers.step_run import Ask, run_steps

RECORDING = Path(__file__).parents[2] / "golden" / "brokers" / "answers.json"
KAFKAS: Mapping[str, Any] = json.loads(RECORDING.read_text(encoding="utf-8"))

NAMES = [step.name for step in STEPS if isinstance(step, Ask)]


class OurBrokers:
    """Three brokers of this process."""

    def __init__(self, broker: BlockingBroker) -> None:
        self._broker = broker
        self._addresses = {one.broker + 1: (one.host, one.port) for one in broker.addresses.kafka}

    def address(self, broker: int) -> tuple[str, int]:
        """Return host and port of a broker."""
        return self._addresses[broker]

    def wait_settled(self) -> None:
        """All brokers know at once."""

    def down(self, broker: int) -> None:
        """Take a broker down."""
        self._broker.brokers.down(broker)

    def hard(self, broker: int) -> None:
        """Take a broker down at once, without answering what it has received."""
        self._broker.brokers.down(broker, hard=True)

    def up(self, broker: int) -> None:
        """Bring a broker back."""
        self._broker.brokers.up(broker)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Our answers."""
    found: dict[str, Any] = {}
    settings = {
        "brokers": 3,
        "data_dir": tmp_path_factory.mktemp("brokers"),
        "offsets_topic_num_partitions": 3,
        "transaction_state_log_num_partitions": 3,
        "group_initial_rebalance_delay_ms": 0,
        "replica_selector_class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }
    with Broker(**settings) as broker:
        run_steps(OurBrokers(broker), STEPS, found)
    return found


def test_the_recording_is_of_this_script() -> None:
    """The recorded answers are exactly those of the script's requests."""
    assert sorted(KAFKAS) == sorted(NAMES)


@pytest.mark.parametrize("name", KAFKAS)
def test_answer_is_as_kafkas(answers: dict[str, Any], name: str) -> None:
    """The answers have Kafka's error codes, leaders, epochs, in-sync replicas, endpoints and high watermarks."""
    assert answers[name] == KAFKAS[name]
