"""`diamant roll` and `diamant fault`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.cli import main
from diamant.broker.commands.terminal.operation_command import printing


@pytest.fixture
def broker() -> Iterator[BlockingBroker]:
    """A broker with one record."""
    with Broker(diamant_http_listen="127.0.0.1:0") as running:
        running.create_topic("users")
        running.produce("users", "v")
        yield running


def run(broker: BlockingBroker, *words: str) -> tuple[int, str]:
    """Run a command against the broker; return its exit code and output."""
    found = CliRunner().invoke(main, [*words, "--bootstrap-server", broker.bootstrap_servers])
    return found.exit_code, found.output


def test_roll_prints_the_new_active_segments(broker: BlockingBroker) -> None:
    """The output has the new active segments, or says that there was nothing to close."""
    assert run(broker, "roll", "users") == (0, "partition 0: the active segment begins at offset 1\n")
    assert run(broker, "roll", "users") == (0, "nothing to close: the active segments are empty\n")
    assert run(broker, "roll", "other")[0] == 2


def test_a_fault_is_added_listed_and_removed(broker: BlockingBroker) -> None:
    """A fault is added by its fields, listed and removed; an unknown field is refused."""
    code, text = run(broker, "fault", "add", "api=Produce", "error=NOT_LEADER_OR_FOLLOWER", "times=2")
    assert (code, text) == (0, "1\n")
    [fault] = broker.faults.list()
    assert (fault.spec.times, fault.count) == (2, 0)
    code, text = run(broker, "fault", "list")
    assert (code, "api=Produce" in text, "times=2" in text, "fired 0 times" in text) == (0, True, True, True)
    code, text = run(broker, "fault", "list", "--json")
    found: Any = json.loads(text)
    assert [one["id"] for one in found["faults"]] == [1]
    assert run(broker, "fault", "remove", "1") == (0, "removed 1\n")
    assert run(broker, "fault", "list") == (0, "no fault is armed\n")
    for wrong in ("times", "no_such=1"):
        assert run(broker, "fault", "add", wrong)[0] == 2
    assert run(broker, "fault", "add", "api=Produce", "hold=true")[0] == 0
    assert run(broker, "fault", "release", "2") == (0, "released 2\n")


@pytest.mark.parametrize(("name", "field"), [("roll", "rolled"), ("count", "partitions")])
def test_an_operation_without_a_command_of_its_own_prints_its_answer(
    broker: BlockingBroker, name: str, field: str
) -> None:
    """The answer is printed as JSON, whether the operation is a job or not."""
    words = ["users", "--bootstrap-server", broker.bootstrap_servers]
    found = CliRunner().invoke(printing(name), words)
    assert (found.exit_code, len(json.loads(found.output)[field])) == (0, 1)
