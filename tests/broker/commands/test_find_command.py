"""`diamant find`: searches a topic of a running broker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.cli import main


@pytest.fixture
def broker() -> Iterator[BlockingBroker]:
    """A broker with some records."""
    with Broker(diamant_http_listen="127.0.0.1:0") as running:
        running.create_topic("users", 2)
        for number in range(6):
            running.produce("users", f'{{"city": "c{number % 2}"}}', key=f"k{number}", partition=number % 2)
        yield running


def run(broker: BlockingBroker, *words: str) -> tuple[int, list[tuple[int, int]], str]:
    """Run the command; return its exit code, the positions printed, and standard error."""
    found = CliRunner().invoke(main, ["find", "users", *words, "--bootstrap-server", broker.bootstrap_servers])
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    return found.exit_code, [(one["partition"], one["offset"]) for one in lines], found.stderr


def test_records_are_found(broker: BlockingBroker) -> None:
    """Searches by key, text or condition set the exit code by whether anything matches."""
    assert run(broker, "--key", "k3") == (0, [(1, 1)], "")
    assert run(broker, "--text", "c0") == (0, [(0, 2), (0, 1), (0, 0)], "")
    assert run(broker, "--where", 'value.city == "c1"', "-p", "1") == (0, [(1, 2), (1, 1), (1, 0)], "")
    assert run(broker, "--text", "nowhere") == (3, [], "")


def test_invalid_criteria_are_refused(broker: BlockingBroker) -> None:
    """No or two criteria, an invalid one, and more matches than --limit, of which the first are printed."""
    for words in ((), ("--key", "k3", "--text", "c0")):
        code, found, text = run(broker, *words)
        assert (code, found, "expected one of: a key, --text, --where" in text) == (2, [], True)
    code, found, text = run(broker, "--text", "c", "--limit", "2")
    assert (code, len(found), "more than 2 records match" in text) == (1, 2, True)
    code, found, text = run(broker, "--where", "value =")
    assert (code, found) == (2, [])


def test_unreadable_parts_are_an_error_after_the_matches(broker: BlockingBroker) -> None:
    """Unreadable parts are an error at the end, after the matches elsewhere."""
    segment = Path(broker.node.topics.by_name["users"].logs[0].segments[0].path)
    data = bytearray(segment.read_bytes())
    data[70] ^= 0xFF
    segment.write_bytes(data)
    code, found, text = run(broker, "--text", "c")
    assert (code, sorted(found)[-3:], "not everything could be read: " in text) == (1, [(1, 0), (1, 1), (1, 2)], True)


def test_segments_are_counted_and_drawn(broker: BlockingBroker) -> None:
    """`diamant count --segments` draws each partition, or prints the counts as JSON."""
    words = ["count", "users", "--segments", "--bootstrap-server", broker.bootstrap_servers]
    found = CliRunner().invoke(main, words)
    assert found.exit_code == 0
    assert re.search(r"^ *1 +0 +[\d.]+ \w+ +3 +3 +0 +0 *$", found.stdout, re.MULTILINE)
    found = CliRunner().invoke(main, [*words, "--json"])
    [first, second] = json.loads(found.stdout)["partitions"]
    assert [one["segments"][0]["counts"]["live"] for one in (first, second)] == [3, 3]
