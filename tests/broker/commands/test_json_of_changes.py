"""Commands that change something: with --json the answer and each error are JSON, without it a line says what was done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.cli import main
from tests.broker.commands.running import leaves, run

NOT_JSON = {"exec"}
"""Prints what its command prints."""
ACL = {
    "principal": "User:a",
    "permission": "ALLOW",
    "operation": "READ",
    "resource_type": "topic",
    "resource_name": "t",
    "pattern_type": "LITERAL",
    "host": "*",
}
MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512"]


@pytest.fixture
def broker() -> Iterator[BlockingBroker]:
    """A broker with an authorizer that allows everything, one topic and a committed group."""
    with Broker(
        diamant_http_listen="127.0.0.1:0",
        properties={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        },
    ) as running:
        running.create_topic("t", 2)
        running.produce("t", "v", partition=0)
        assert run(running, "group", "reset", "g", "-t", "t", "--to", "start").exit_code == 0
        yield running


def test_every_command_has_json() -> None:
    """Every command has --json, also those that only change something."""
    without = {name for name, command in leaves(main) if not any("--json" in one.opts for one in command.params)}
    assert without == NOT_JSON


@pytest.mark.parametrize(
    ("words", "line", "fields"),
    [
        (
            ("topic", "create", "new", "-p", "3", "-c", "cleanup.policy=compact"),
            "new: created, 3 partitions, 1 replica, cleanup.policy=compact",
            {
                "topic": "new",
                "partitions": 3,
                "replicas": 1,
                "configs": {"cleanup.policy": "compact"},
                "outcome": "created",
            },
        ),
        (
            ("topic", "create", "new"),
            "new: created, 1 partition, 1 replica",
            {"topic": "new", "partitions": 1, "replicas": 1, "configs": {}, "outcome": "created"},
        ),
        (
            ("topic", "alter", "t", "-p", "4", "-c", "retention.ms=5", "-u", "cleanup.policy"),
            "t: retention.ms=5, cleanup.policy was not set, 4 partitions",
            {
                "topic": "t",
                "partitions": 4,
                "configs": {"retention.ms": "5"},
                "unset": [],
                "not_set": ["cleanup.policy"],
                "outcome": "altered",
            },
        ),
        (("topic", "delete", "t"), "t: deleted", [{"topic": "t", "outcome": "deleted"}]),
        (("group", "delete", "g"), "g: deleted", [{"group": "g", "outcome": "deleted"}]),
        (
            ("group", "reset", "g", "-t", "t:0", "--to", "end"),
            "t-0: 0 → 1",
            {
                "group": "g",
                "partitions": [{"topic": "t", "partition": 0, "before": 0, "after": 1}],
                "outcome": "reset",
            },
        ),
        (
            ("group", "reset", "other", "-t", "t:1", "--to", "end", "--dry-run"),
            "t-1: - → 0",
            {
                "group": "other",
                "partitions": [{"topic": "t", "partition": 1, "before": None, "after": 0}],
                "outcome": "none: dry run",
            },
        ),
        (("acl", "add", "User:a READ topic t"), "User:a ALLOW READ topic t: added", [{**ACL, "outcome": "added"}]),
        (
            ("user", "add", "u", "--password-file", "PASSWORD"),
            "u: password set for SCRAM-SHA-256 and SCRAM-SHA-512",
            {"user": "u", "mechanisms": MECHANISMS, "iterations": 4096, "outcome": "password set"},
        ),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_a_change_is_reported(
    broker: BlockingBroker, tmp_path: Path, words: tuple[str, ...], line: str, fields: Any
) -> None:
    """A change is reported in a line, or with --json as an object, in a list where a command takes several names."""
    (tmp_path / "password").write_text("secret")
    words = tuple(word.replace("PASSWORD", str(tmp_path / "password")) for word in words)
    with broker.fork(diamant_http_listen="") as other:
        told = run(other, *words)
        assert (told.exit_code, told.stdout, told.stderr) == (0, f"{line}\n", "")
    told = run(broker, *words, "--json")
    assert (told.exit_code, json.loads(told.stdout), told.stderr) == (0, fields, "")


def test_removed_acls_and_users_are_listed(broker: BlockingBroker, tmp_path: Path) -> None:
    """ACLs and users, both of which exist only once they were added."""
    (tmp_path / "password").write_text("secret")
    for as_json in ((), ("--json",)):
        run(broker, "acl", "add", "User:a READ topic t")
        run(broker, "user", "add", "u", "--password-file", str(tmp_path / "password"))
        acl, user = (
            run(broker, "acl", "remove", "User:a READ topic t", *as_json),
            run(broker, "user", "remove", "u", *as_json),
        )
        if as_json:
            assert json.loads(acl.stdout) == [{**ACL, "outcome": "removed"}]
            assert json.loads(user.stdout) == [{"user": "u", "outcome": "removed"}]
        else:
            assert (acl.stdout, user.stdout) == ("User:a ALLOW READ topic t: removed\n", "u: removed\n")


def test_one_failure_of_several_is_reported_beside_the_rest(broker: BlockingBroker) -> None:
    """The list has what was done; each failure is a line on standard error that names it, and the exit code is its."""
    for words, kind, done in (
        (("topic", "delete", "t"), "topic", "t"),
        (("group", "delete", "g"), "group", "g"),
    ):
        told = run(broker, words[0], words[1], "no-such", done, "--json")
        assert (told.exit_code, json.loads(told.stdout)) == (2, [{kind: done, "outcome": "deleted"}])
        assert json.loads(told.stderr)[kind] == "no-such"
    told = run(broker, "acl", "remove", "User:a READ topic t", "--json")
    assert (told.exit_code, json.loads(told.stdout), json.loads(told.stderr)["acl"]) == (
        2,
        [],
        "User:a ALLOW READ topic t",
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("topic", "create", "t"), 2),
        (("topic", "alter", "t", "-c", "retention.ms=x"), 2),
        (("topic", "alter", "t"), 2),
        (("group", "reset", "g", "-t", "no-such", "--to", "end"), 2),
        (("user", "add", "u", "--password-file", "/no/such"), 2),
        (("acl", "add", "nonsense"), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_error_is_one_json_line(broker: BlockingBroker, words: tuple[str, ...], code: int) -> None:
    """With --json an error is one JSON line on standard error; nothing is on standard output."""
    told = run(broker, *words, "--json")
    assert (told.exit_code, told.stdout, told.stderr.count("\n")) == (code, "", 1), told.stderr
    assert json.loads(told.stderr)["exit_code"] == code


def test_an_alteration_is_whole_or_nothing(broker: BlockingBroker) -> None:
    """If the number of partitions is refused, no configuration has changed either."""
    told = run(broker, "topic", "alter", "t", "-c", "retention.ms=5", "-p", "1")
    assert (told.exit_code, told.stdout, "INVALID_PARTITIONS" in told.stderr) == (2, "", True), told.stderr
    assert json.loads(run(broker, "topic", "describe", "t", "--json").stdout)["configs"] == {}


def test_a_configuration_that_is_not_set_is_left_alone(broker: BlockingBroker) -> None:
    """A known configuration that is not set is left alone, and that is said. An unknown one is refused with a suggestion."""
    told = run(broker, "topic", "alter", "t", "-u", "retention.ms")
    assert (told.exit_code, told.stdout) == (0, "t: retention.ms was not set\n")
    run(broker, "topic", "alter", "t", "-c", "retention.ms=5")
    told = run(broker, "topic", "alter", "t", "-u", "retention.ms", "-u", "segment.ms", "--json")
    assert json.loads(told.stdout) == {
        "topic": "t",
        "configs": {},
        "unset": ["retention.ms"],
        "not_set": ["segment.ms"],
        "outcome": "altered",
    }
    told = run(broker, "topic", "alter", "t", "-u", "segment.ms", "--json")
    assert json.loads(told.stdout)["outcome"] == "none: not set"
    for words in (("alter", "t", "-u", "retention.mss"), ("alter", "t", "-c", "retention.mss=1")):
        told = run(broker, "topic", *words)
        assert (told.exit_code, "Did you mean 'retention.ms'?" in told.stderr) == (2, True), told.stderr
    told = run(broker, "topic", "alter", "t", "-c", "segment.ms=5", "-u", "nonsense")
    assert (told.exit_code, told.stderr) == (2, "diamant: there is no configuration 'nonsense' of topics\n")
    assert json.loads(run(broker, "topic", "describe", "t", "--json").stdout)["configs"] == {}


def test_written_records_are_reported(broker: BlockingBroker) -> None:
    """`produce --json` reads JSON and says where the records are."""
    told = run(
        broker, "produce", "t", "--json", "-p", "0", lines='{"value": {"text": "a"}}\n{"value": {"text": "b"}}\n'
    )
    assert json.loads(told.stdout) == {
        "topic": "t",
        "records": 2,
        "partitions": [{"partition": 0, "records": 2, "first_offset": 1, "last_offset": 2}],
        "outcome": "written",
    }


def test_a_help_names_json() -> None:
    """The help of each changing command names --json."""
    assert "--json" in CliRunner().invoke(main, ["topic", "create", "--help"]).stdout
