"""`diamant broker`: what it prints, and how it finds the process while brokers are down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.cli import main
from tests.broker.commands.running import run


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BlockingBroker]:
    """Two brokers with a topic of four records in one batch."""
    with Broker(data_dir=tmp_path, diamant_brokers=2, diamant_http_listen="127.0.0.1:0") as broker:
        broker.create_topic("t")
        assert run(broker, "produce", "t", lines="a\nb\nc\nd\n").exit_code == 0
        yield broker


def at(address: str, *words: str) -> Result:
    """Run a command with this address."""
    return CliRunner().invoke(main, [*words, "-b", address])


def test_brokers_that_are_down_come_back_by_the_others_or_by_http(broker: BlockingBroker) -> None:
    """With the address of a broker that is down, the error names both ways to bring it up."""
    first, second = broker.bootstrap_servers.split(",")
    assert at(first, "broker", "down", "1").exit_code == 0
    alone = at(first, "broker", "up", "1")
    assert alone.exit_code == 1
    assert (
        "add the other brokers, -b HOST:PORT,HOST:PORT, or name the HTTP address, -b http://HOST:PORT" in alone.stderr
    )
    assert at(f"{first},{second}", "broker", "down", "2").exit_code == 0
    assert broker.http_url is not None
    for one in ("1", "2"):
        assert at(broker.http_url, "broker", "up", one).exit_code == 0
    assert at(first, "broker", "list").exit_code == 0
    assert "'http://x' is not" not in at("http://x", "broker", "list").stderr
    assert at("http://x", "broker", "list").exit_code == 2


def test_an_unclean_leader_reports_the_loss(broker: BlockingBroker) -> None:
    """The command prints the end of the log and the number of lost records, which are those of the whole batch."""
    leader = next(str(one.id) for one in broker.brokers.list().brokers if one.leader_count)
    output = run(broker, "broker", "unclean", "t:0", leader, "2").output
    assert f"t:0 is led by broker {leader}, as before; leader epoch 1\n" in output
    assert "the log ends at offset 0; lost records: 4\n" in output


def test_the_state_of_the_broker_is_printed(broker: BlockingBroker) -> None:
    """After each verb that changes it."""
    for words, state in (
        (("down", "2"), "broker 2 is down"),
        (("up", "2", "--lag", "1h"), "broker 2 is up, and in sync in 1h"),
        (("fence", "2"), "broker 2 is fenced"),
        (("up", "2"), "broker 2 is up, in sync"),
        (("down", "2", "--hard"), "broker 2 answers nothing"),
    ):
        assert run(broker, "broker", *words).output.splitlines()[0] == state


def test_0_ends_delay_and_lag(broker: BlockingBroker) -> None:
    """0 ends a delay and a lag; other numbers without a unit are refused."""
    for words, unit in (("slow", "30ms"), ("lag", "500ms")):
        assert unit.removesuffix("ms") in run(broker, "broker", words, "2", unit).output
        assert run(broker, "broker", words, "2", "0").exit_code == 0
        assert run(broker, "broker", words, "2", "30").exit_code == 2
    (_, second) = broker.brokers.list().brokers
    assert (second.lag, second.delay_ms) == (None, 0)
