"""`diamant produce` on a running broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from diamant.protocol.batches.compression import CODEC_NAMES
from diamant.protocol.murmur2 import murmur2
from tests.broker.commands.running import run


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingBroker]:
    """A broker without topics."""
    data: Path = tmp_path_factory.mktemp("data")
    with Broker(data_dir=str(data)) as running:
        yield running


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_lines_with_keys_nulls_and_headers(broker: BlockingBroker, codec: str) -> None:
    """Each line is a record, partitioned by key as in Kafka's producer, in every codec; with -Z, empty is null."""
    run(broker, "topic", "create", codec, "-p", "4")
    written = run(broker, "produce", codec, "-K", ":", "-Z", "-H", "h=1", "-z", codec, lines="a:1\nb:\nno key")
    assert (written.exit_code, written.output) == (0, "")
    shown = run(broker, "consume", codec, "-e", "-f", r"%p %k %s %K %S %h\n").output.splitlines()
    assert f"{murmur2(b'a') % 4} a 1 1 1 h=1" in shown
    assert f"{murmur2(b'b') % 4} b  1 -1 h=1" in shown
    assert [one.split(" ", 1)[1] for one in shown if "no key" in one] == [" no key -1 6 h=1"]


def test_consumed_json_can_be_produced_again(broker: BlockingBroker) -> None:
    """Consumed JSON keeps key, value, headers and time when produced to another topic."""
    for name in ("one", "two"):
        run(broker, "topic", "create", name, "-p", "1")
    run(broker, "produce", "one", "-k", "k", "-H", "h=1", lines="v\n\n")
    lines = run(broker, "consume", "one", "-e", "--json").output
    assert run(broker, "produce", "two", "--json", lines=lines).exit_code == 0
    assert run(broker, "consume", "two", "-e", "--json").output == lines.replace('"one"', '"two"')


@pytest.mark.parametrize(
    ("words", "lines", "exit_code", "text"),
    [
        (("errors", "--json"), '{"value": "v"}\n{"value": 3}\n', 2, "line 2: "),
        (("errors", "-p", "1"), "v\n", 2, "no partition 1"),
        (("nope",), "v\n", 2, "nope"),
        (("errors", "-k", "a", "-K", ":"), "v\n", 2, "--key-delimiter"),
        (("compacted",), "v\nw\n", 2, "lines 1 to 2, for compacted-0: INVALID_RECORD"),
    ],
)
def test_invalid_input_is_refused_with_its_line_number(
    broker: BlockingBroker, words: tuple[str, ...], lines: str, exit_code: int, text: str
) -> None:
    """The error is one line with the line numbers of the input; the exit code is that of a usage error or a refusal."""
    run(broker, "topic", "create", "errors", "-p", "1")
    run(broker, "topic", "create", "compacted", "-p", "1", "-c", "cleanup.policy=compact")
    result = run(broker, "produce", *words, lines=lines)
    assert (result.exit_code, text in result.output, result.output.count("\n")) == (exit_code, True, 1), result.output
