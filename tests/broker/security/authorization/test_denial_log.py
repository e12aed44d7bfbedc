"""The log of denials."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.security.authorization import denial_log
from diamant.broker.security.authorization.denial_log import DenialLog
from diamant.broker.security.authorization.permissions import READ_TOPIC, WRITE_TOPIC
from diamant.broker.security.identity.principal import ANONYMOUS, Principal

ALICE = Principal("User", "alice"), "10.0.0.7"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines in the log."""
    return [one.getMessage() for one in caplog.records if one.name == denial_log.__name__]


def test_an_address_has_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """The line has the client, its address and the need. The next line has the number of denials left out."""
    caplog.set_level(logging.INFO)
    now_s = [100.0]
    log = DenialLog(lambda: now_s[0])
    log(ALICE, READ_TOPIC, "users")
    log(ALICE, WRITE_TOPIC, "users")
    log((ALICE[0], "10.0.0.8"), WRITE_TOPIC, "others")
    now_s[0] += denial_log.PAUSE_S
    log(ALICE, WRITE_TOPIC, "users")
    assert lines(caplog) == [
        "10.0.0.7: denied: 'User:alice' needs READ on TOPIC 'users'",
        "10.0.0.8: denied: 'User:alice' needs WRITE on TOPIC 'others'",
        "10.0.0.7: denied: 'User:alice' needs WRITE on TOPIC 'users'; 1 more were denied since the previous line",
    ]


def test_names_write_no_lines_and_addresses_fill_no_memory(caplog: pytest.LogCaptureFixture) -> None:
    """Names from clients are escaped and cut. Addresses beyond the bound share a line."""
    caplog.set_level(logging.INFO)
    log = DenialLog(lambda: 100.0)
    log((Principal("User", "a\nERROR b"), "::1"), READ_TOPIC, "t\n" * 10_000)
    assert "\n" not in lines(caplog)[0]
    assert len(lines(caplog)[0]) < 700
    for number in range(denial_log.MAX_ADDRESSES + 10):
        log((ALICE[0], f"10.0.{number // 256}.{number % 256}"), READ_TOPIC, "users")
    assert len(lines(caplog)) == denial_log.MAX_ADDRESSES + 1
    assert lines(caplog)[-1].startswith(denial_log.OTHERS)


async def test_a_broker_tells_of_denials(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The broker's authorizer uses the log."""
    caplog.set_level(logging.INFO)
    async with Broker(data_dir=tmp_path, authorizer_class_name="StandardAuthorizer") as broker:
        assert broker.node.authorizer is not None
        assert not broker.node.authorizer.allows((ANONYMOUS, "10.0.0.7"), READ_TOPIC, "users")
    assert lines(caplog) == ["10.0.0.7: denied: 'User:ANONYMOUS' needs READ on TOPIC 'users'"]
