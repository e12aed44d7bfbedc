"""`diamant clock` and `diamant status`, against a broker in this process and one made by `diamant start`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.cli import main
from diamant.broker.commands.admin.clock import time
from diamant.duration import duration_text, parse_duration_ms
from diamant.storage.directory.log_directory import LoadFailure
from tests.broker.commands.running import run
from tests.broker.settling import run_when_settling
from tests.broker.wire import WireClient

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def broker() -> Iterator[BlockingBroker]:
    """A broker in its own thread, with HTTP and a frozen clock."""
    with Broker(diamant_http_listen="127.0.0.1:0", diamant_clock="manual") as running:
        running.call(running.clock.freeze())
        yield running


def test_advance_says_what_happened(broker: BlockingBroker) -> None:
    """The output has the distance and the new time; with --json as an object."""
    before_ms = broker.clock.now_ms()
    result = run(broker, "clock", "advance", "8d")
    assert result.exit_code == 0
    assert "advanced by 8d; the work due at 1 moment" in result.output
    assert "ahead of the system's, frozen" in result.output
    assert broker.clock.now_ms() == before_ms + 8 * DAY_MS
    moved = json.loads(run(broker, "clock", "advance", "1h30m", "--sessions", "--json").output)
    assert moved["to_ms"] == moved["from_ms"] + 5_400_000 == broker.clock.now_ms()


def test_set_takes_times(broker: BlockingBroker) -> None:
    """Times are milliseconds or ISO 8601; a time in the past is a usage error."""
    target_ms = broker.clock.now_ms() + 1
    assert run(broker, "clock", "set", str(target_ms)).exit_code == 0
    assert broker.clock.now_ms() == target_ms
    result = run(broker, "clock", "set", "2020-01-31T12:00:00Z")
    assert result.exit_code == 2
    assert "diamant: the clock shows" in result.stderr
    assert broker.clock.now_ms() == target_ms


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("0", 0),
        ("1767225600123", 1_767_225_600_123),
        ("2026-01-01", 1_767_225_600_000),
        ("2026-01-01T00:00:00.123Z", 1_767_225_600_123),
        ("2026-01-01T01:00:00+01:00", 1_767_225_600_000),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
    ],
)
def test_times_are_read_to_the_millisecond(text: str, expected_ms: int) -> None:
    """All forms keep milliseconds, in UTC unless a zone is given."""
    assert time(text) == expected_ms


@pytest.mark.parametrize(
    "words", [("set", "tomorrow"), ("advance", "8 parsecs"), ("advance",), ("advance", "1d", "--nope"), ()]
)
def test_usage_is_checked_before_anybody_is_asked(words: tuple[str, ...]) -> None:
    """A usage error has exit code 2 and the expected form, before any request."""
    result = CliRunner().invoke(main, ["clock", *words])
    assert result.exit_code == 2


def test_freeze_resume_and_show(broker: BlockingBroker) -> None:
    """Each prints the clock's state, as text or JSON."""
    assert json.loads(run(broker, "clock", "resume", "--json").output)["is_frozen"] is False
    assert "frozen" not in run(broker, "clock", "show").output
    assert run(broker, "clock", "freeze").output.endswith("frozen\n")
    shown = json.loads(run(broker, "clock", "show", "--json").output)
    assert (shown["kind"], shown["now_ms"]) == ("manual", broker.clock.now_ms())


def test_no_broker_is_one_line(tmp_path: Path) -> None:
    """The exit code is 1, and there is no traceback."""
    result = CliRunner().invoke(main, ["clock", "show", "-b", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert result.stderr.startswith("diamant: no broker answers: 127.0.0.1:1:")
    assert "name its address: -b HOST:PORT or $DIAMANT_BOOTSTRAP_SERVERS. If it is down, add the other" in result.stderr
    assert result.stderr.count("\n") == 1
    missing = CliRunner().invoke(main, ["clock", "show", "--token-file", str(tmp_path / "none")])
    assert (missing.exit_code, missing.stderr) == (
        2,
        f"diamant: {tmp_path}/none: No such file or directory\n",
    )


def test_a_broker_with_the_systems_clock_refuses(tmp_path: Path) -> None:
    """The exit code is 2, and the line names the flag to start with; `show` works."""
    with Broker(data_dir=tmp_path, diamant_http_listen="127.0.0.1:0") as broker:
        for words in (("advance", "8d"), ("set", "2099-01-01"), ("freeze",), ("resume",)):
            result = run(broker, "clock", *words)
            assert result.exit_code == 2
            assert "--clock manual" in result.stderr
        assert "the system's clock" in run(broker, "clock", "show").output


def test_a_problem_on_the_way_is_exit_code_1(broker: BlockingBroker) -> None:
    """The clock has moved, and the failed job is named."""

    async def fail() -> None:
        raise OSError("no such disk")

    broker.loop.call_soon_threadsafe(run_when_settling, broker.node.scheduler, "rotation", fail)
    result = run(broker, "clock", "advance", "1d")
    assert result.exit_code == 1
    assert "failed: rotation" in result.output


def test_status_shows_the_broker_and_its_cleaner(broker: BlockingBroker) -> None:
    """Addresses, clock and compacted partitions are printed, also as JSON."""

    async def create() -> None:
        async with WireClient(broker.bootstrap_servers) as wire:
            for name in ("users", "orders"):
                await wire.create(name, 2, cleanup_policy="compact")
        await broker.awaited.clock.settled()

    broker.call(create())
    result = run(broker, "status")
    assert result.exit_code == 0
    assert broker.bootstrap_servers in result.output
    assert "cleaner: mode prompt, 4 compacted partitions" in result.output
    assert "users-1" in result.output
    found = json.loads(run(broker, "status", "--json").output)
    assert [one["topic"] for one in found["cleaner"]["partitions"]] == ["orders", "orders", "users", "users"]


def test_status_of_a_broker_in_trouble(broker: BlockingBroker) -> None:
    """A broker in trouble gives the full answer and exit code 3."""
    broken = LoadFailure("lost[red]", 3, OSError("no such disk"))
    broker.node.directory.failures.append(broken)
    result = run(broker, "status")
    assert result.exit_code == 3
    assert "offline: lost[red]-3" in result.output


def test_start_takes_the_flag() -> None:
    """`--clock` sets `diamant.clock`; an unknown kind is a usage error."""
    help_text = CliRunner().invoke(main, ["start", "--help"]).output
    assert "--clock [system|manual]" in help_text
    assert CliRunner().invoke(main, ["start", "--clock", "sun"]).exit_code == 2


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("8d", 8 * DAY_MS),
        ("1h30m", 5_400_000),
        ("1w 1d", 8 * DAY_MS),
        ("90S", 90_000),
        ("250ms", 250),
        ("1m1ms", 60_001),
    ],
)
def test_durations_are_read(text: str, expected_ms: int) -> None:
    """Numbers with units are added up."""
    assert parse_duration_ms(text) == expected_ms


@pytest.mark.parametrize(
    ("duration_ms", "expected"),
    [
        (0, "0ms"),
        (8 * DAY_MS, "8d"),
        (5_400_000, "1h 30m"),
        (90_061_001, "1d 1h"),
        (-5_000, "-5s"),
        (1_500, "1s 500ms"),
    ],
)
def test_durations_are_written(duration_ms: int, expected: str) -> None:
    """Durations are written in their two largest units."""
    assert duration_text(duration_ms) == expected
