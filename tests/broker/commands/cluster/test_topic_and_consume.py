"""`diamant topic` and `diamant consume` on a running broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.cli import main
from tests.broker.commands.running import run


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingBroker]:
    """A broker whose topic `users` has ten records in one partition."""
    data: Path = tmp_path_factory.mktemp("data")
    with Broker(data_dir=str(data)) as running:
        assert run(running, "topic", "create", "users", "-p", "1").exit_code == 0
        for number in range(9):
            running.produce("users", f"v{number}", key=f"k{number % 3}", timestamp_ms=1000 + number)
        running.produce("users", None, key="k0", timestamp_ms=2000)
        yield running


def test_a_topic_from_its_creation_to_its_deletion(broker: BlockingBroker) -> None:
    """A topic is created, listed, described with its settings, altered and deleted; a duplicate is refused."""
    created = run(broker, "topic", "create", "orders", "-p", "2", "-c", "cleanup.policy=compact")
    assert (created.exit_code, created.output) == (
        0,
        "orders: created, 2 partitions, 1 replica, cleanup.policy=compact\n",
    )
    again = run(broker, "topic", "create", "orders")
    assert (again.exit_code, "TOPIC_ALREADY_EXISTS" in again.output) == (2, True)
    assert run(broker, "topic", "list").output.split() == ["orders", "users"]
    assert (
        run(broker, "topic", "alter", "orders", "-p", "3", "-c", "retention.ms=5", "-u", "cleanup.policy").exit_code
        == 0
    )
    found = json.loads(run(broker, "topic", "describe", "orders", "--json").output)
    assert (len(found["partitions"]), found["configs"]) == (3, {"retention.ms": "5"})
    deleted = run(broker, "topic", "delete", "nope", "orders")
    assert (deleted.exit_code, "nope" in deleted.output) == (2, True)
    assert run(broker, "topic", "list").output.split() == ["users"]


@pytest.mark.parametrize(
    ("words", "offsets"),
    [
        ((), range(10)),
        (("-o", "7"), [7, 8, 9]),
        (("-o", "-2"), [8, 9]),
        (("-o", "@1008"), [8, 9]),
        (("-o", "@1970-01-01T00:00:01.008Z"), [8, 9]),
        (("-o", "end"), []),
        (("-o", "99"), []),
        (("-n", "2"), [0, 1]),
        (("-k", "k0"), [0, 3, 6, 9]),
        (("--key-hex", "6b31", "-p", "0"), [1, 4, 7]),
    ],
)
def test_consume_reads_from_the_given_place_to_the_current_end(
    broker: BlockingBroker, words: tuple[str, ...], offsets: list[int]
) -> None:
    """Records are read from the given place to the current end, bounded by number, and filtered by key."""
    result = run(broker, "consume", "users", "-e", "-f", r"%o\n", *words)
    assert (result.exit_code, [int(one) for one in result.output.split()]) == (0, [*offsets]), result.output


def test_the_forms_of_a_record(broker: BlockingBroker) -> None:
    """Plain output has a value per line; a tombstone is null in JSON, and has length -1 in a template."""
    assert run(broker, "consume", "users", "-n", "1").output == "v0\n"
    assert json.loads(run(broker, "consume", "users", "-n", "1", "-o", "-1", "--json").output) == {
        "topic": "users",
        "partition": 0,
        "offset": 9,
        "timestamp": 2000,
        "key": {"text": "k0"},
        "value": None,
        "headers": [],
    }
    shown = run(broker, "consume", "users", "-n", "1", "-o", "-1", "-f", r"%t\t%p %k=%s %S %T%%\x0a").output
    assert shown == "users\t0 k0= -1 2000%\n"


@pytest.mark.parametrize(
    "words",
    [("nope",), ("users", "-p", "7"), ("users", "-o", "soon"), ("users", "-o", "@soon"), ("users", "-f", "%y")],
)
def test_invalid_places_are_usage_errors(broker: BlockingBroker, words: tuple[str, ...]) -> None:
    """The error is one line, and the exit code that of a usage error."""
    result = run(broker, "consume", "-e", *words)
    assert (result.exit_code, result.output.count("\n"), result.output[:9]) == (2, 1, "diamant: "), result.output


def test_no_broker_answers() -> None:
    """The error is one line with the address."""
    result = CliRunner().invoke(main, ["topic", "list", "-b", "127.0.0.1:1"])
    assert (result.exit_code, "127.0.0.1:1" in result.output, result.output.count("\n")) == (1, True, 1)
