"""The audit log: its lines, its file, and its bounds."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from diamant.broker.security.authorization import audit_log
from diamant.broker.security.authorization.audit_log import DENIED, AuditedAction, AuditLog

DEED = AuditedAction("User:alice", "10.0.0.7", "POST /v1/erase", ("users",), "3")


def lines(path: Path) -> list[dict[str, object]]:
    """Return the lines of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def tell(log: AuditLog, action: AuditedAction, outcome: str) -> None:
    """Write one line."""
    log.append(lambda: ((action, outcome),))


def test_a_line_says_who_from_where_what_and_how_it_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only its owner can read the audit file. The logger gets the same line."""
    file = tmp_path / "audit.log"
    log = AuditLog(str(file), lambda: 0.5)
    with caplog.at_level(logging.INFO, "diamant.audit"):
        tell(log, DEED, "done")
        log.close()
    assert lines(file) == [
        {
            "time": "1970-01-01T00:00:00.500Z",
            "who": "User:alice",
            "from": "10.0.0.7",
            "what": "POST /v1/erase",
            "topics": ["users"],
            "job": "3",
            "outcome": "done",
        }
    ]
    assert file.stat().st_mode & 0o777 == 0o600
    assert [json.loads(record.message) for record in caplog.records] == lines(file)


def test_reads_are_in_the_file_and_not_in_the_broker_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The logger gets them at DEBUG, unless they are denied; the file has them all."""
    file = tmp_path / "audit.log"
    for level, logged in ((logging.INFO, ["done", DENIED]), (logging.DEBUG, ["done", "done", "not-found", DENIED])):
        caplog.clear()
        log = AuditLog(str(file))
        with caplog.at_level(level, "diamant.audit"):
            tell(log, DEED, "done")
            for outcome in ("done", "not-found", DENIED):
                tell(log, DEED._replace(what="POST /v1/find", is_reading=True), outcome)
            log.close()
        assert [json.loads(record.message)["outcome"] for record in caplog.records] == logged
    assert [line["outcome"] for line in lines(file)] == ["done", "done", "not-found", DENIED] * 2


def test_the_file_is_bounded(tmp_path: Path) -> None:
    """A full file is renamed to `.1`, replacing the previous one."""
    file = tmp_path / "audit.log"
    log = AuditLog(str(file), lambda: 0.0, max_file_bytes=100_000)
    long = DEED._replace(topics=tuple(f"{number}" + "t" * 240 for number in range(audit_log.MAX_NAMES + 5)))
    for _ in range(50):
        tell(log, long, "done")
    log.close()
    assert 100_000 <= (tmp_path / "audit.log.1").stat().st_size < 106_000
    assert file.stat().st_size < 100_000
    assert len(lines(file)[0]["topics"]) == audit_log.MAX_NAMES  # type: ignore[arg-type]
    assert sorted(found.name for found in tmp_path.iterdir()) == ["audit.log", "audit.log.1"]


def test_a_line_is_bounded_whatever_clients_name(tmp_path: Path) -> None:
    """Long names are cut. Of many names, the first are listed, with the number of the rest."""
    file = tmp_path / "audit.log"
    log = AuditLog(str(file), lambda: 0.0)
    many = tuple("\n" * 30_000 for _ in range(1000))
    tell(log, AuditedAction("User:" + "u" * 30_000, "10.0.0.7", "AlterConfigs", many, names=many, configs=many), "done")
    log.close()
    [line] = lines(file)
    assert (line["topics_left_out"], line["names_left_out"], line["configs_left_out"]) == (980, 980, 980)
    assert file.stat().st_size < 3 * audit_log.MAX_NAMES * 3 * audit_log.MAX_NAME_LETTERS
    assert line["who"] == "User:" + "u" * 255


def test_denials_do_not_push_out_what_was_done(tmp_path: Path) -> None:
    """The number of denials per minute is limited. The next line has the number left out."""
    file, now_s = tmp_path / "audit.log", [60.0]
    log = AuditLog(str(file), lambda: now_s[0])
    for _ in range(audit_log.DENIALS_PER_MINUTE + 7):
        tell(log, DEED, DENIED)
    tell(log, DEED, "done")
    now_s[0] = 120.0
    tell(log, DEED, DENIED)
    log.close()
    found = lines(file)
    assert len(found) == audit_log.DENIALS_PER_MINUTE + 2
    assert [line.get("denials_left_out") for line in found[-2:]] == [7, None]


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The broker's log has the missing line, and the request does not fail."""
    log = AuditLog(str(tmp_path / "missing" / "audit.log"))
    tell(log, DEED, "done")
    log.close()
    assert "User:alice" in caplog.text
    assert "cannot be written" in caplog.text
