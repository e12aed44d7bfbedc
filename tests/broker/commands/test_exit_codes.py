"""Exit codes and error objects of all commands: one rule, `operation_errors.KINDS`, whichever command meets the error."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.cli import main
from diamant.broker.client.bootstrap import BOOTSTRAP_VARIABLE
from diamant.broker.operation_errors import KINDS, code_of_kafka_error, no_group, no_partition, no_topic
from diamant.protocol.errors import ErrorCode
from tests.broker.commands.running import leaves, run
from tests.ports import ReservedPort

REASON = ("--reason", "r")
MISSING = "no-such"
NEEDED: dict[str, tuple[str, ...]] = {
    "acl add": ("User:a READ topic t",),
    "acl list": (),
    "acl remove": ("User:b READ topic t",),
    "broker down": ("2",),
    "broker fence": ("2",),
    "broker lag": ("2", "1s"),
    "broker list": (),
    "broker move": ("t:0", "2"),
    "broker shuffle": (),
    "broker slow": ("2", "1s"),
    "broker unclean": ("t:0", "2", "0"),
    "broker up": ("2",),
    "cancel": (MISSING, *REASON),
    "audit": (),
    "certificates": (MISSING,),
    "certify": ("--erasure", MISSING),
    "clock advance": ("1h",),
    "clock freeze": (),
    "clock resume": (),
    "clock set": ("2099-01-01",),
    "clock show": (),
    "compact": (MISSING,),
    "consume": (MISSING,),
    "count": (MISSING,),
    "erase": (MISSING, "-k", "a", *REASON),
    "erase-now": (MISSING,),
    "exec": ("-c", MISSING, "--", "true"),
    "explain": (MISSING,),
    "fault add": ("api=NoSuch",),
    "fault list": (),
    "fault release": ("7",),
    "fault remove": ("7",),
    "find": (MISSING, "-k", "a"),
    "ghosts": (MISSING,),
    "group delete": (MISSING,),
    "group describe": (MISSING,),
    "group list": (),
    "group reset": ("g", "-t", MISSING, "--to", "end"),
    "latest": (MISSING,),
    "log clean": (MISSING,),
    "log dump": (MISSING,),
    "log explain": (MISSING,),
    "log fold-brokers": (MISSING,),
    "log find": (MISSING, "-k", "a"),
    "log person check": (MISSING, "--map", "MAP"),
    "log person forget": (MISSING, "customer_id=1", "--map", "MAP", "--yes", *REASON),
    "log person show": (MISSING, "customer_id=1", "--map", "MAP"),
    "log person suggest": (MISSING,),
    "log stats": (MISSING,),
    "log whatif": (MISSING,),
    "person check": ("--map", "MAP"),
    "person show": ("customer_no=1", "--map", "MAP"),
    "person suggest": (MISSING,),
    "person close": (MISSING, *REASON),
    "person extend": (MISSING, *REASON),
    "person forget": ("customer_no=1", "--map", "MAP", "--yes", *REASON),
    "person receive": ("customer_id=1", "--received", "2999-01-01"),
    "person requests": (),
    "produce": (MISSING,),
    "redact": (MISSING, "--where", "key exists", *REASON),
    "reset": (MISSING,),
    "restore": (MISSING,),
    "roll": (MISSING,),
    "snapshot create": (),
    "snapshot delete": (MISSING,),
    "snapshot list": (),
    "spark audit": (MISSING,),
    "spark clean": (MISSING,),
    "spark find": (MISSING, "-k", "a"),
    "spark person show": (MISSING, "customer_id=1", "--map", "MAP"),
    "spark person suggest": (MISSING,),
    "spark stats": (MISSING,),
    "spark whatif": (MISSING,),
    "start": ("-c", MISSING),
    "status": (),
    "topic alter": (MISSING, "-p", "3"),
    "topic create": ("t",),
    "topic delete": (MISSING,),
    "topic describe": (MISSING,),
    "topic list": (),
    "user add": ("u", "--password-file", "PASSWORD"),
    "user list": (),
    "user remove": (MISSING,),
    "verify": ("CERTIFICATE",),
}
"""The arguments of each command that it cannot do without; where possible, they name something that does not exist."""
OF_TOPICS = {"compact", "consume", "count", "erase", "explain", "find", "ghosts", "group reset", "latest", "produce"}
OF_TOPICS |= {"redact", "roll", "topic alter", "topic delete", "topic describe"}
OF_PARTITIONS = {"compact", "consume", "count", "explain", "find", "latest", "produce", "roll"}
CODES = {
    **dict.fromkeys(OF_TOPICS, "not-found"),
    **dict.fromkeys(
        ("cancel", "certificates", "erase-now", "fault release", "fault remove", "reset", "restore"), "not-found"
    ),
    **dict.fromkeys(("group delete", "group describe", "snapshot delete"), "not-found"),
    **{"person show": "bad-argument", "person suggest": "not-found"},
    **dict.fromkeys(("person close", "person extend"), "not-found"),
    **dict.fromkeys(("person forget", "person receive"), "bad-argument"),
    **dict.fromkeys(("acl remove", "user remove", "fault add"), "bad-argument"),
    "verify": "not-genuine",
    **dict.fromkeys(("clock advance", "clock freeze", "clock resume", "clock set"), "not-allowed"),
    **dict.fromkeys((name for name in NEEDED if name.startswith("broker ")), "not-possible"),  # this process has one
    "topic create": "not-possible",
}
"""The code of each command's error on a broker with the topic `t` and the system's clock; others succeed."""
OF_FILES = {"certify", "exec", "start"}
WITHOUT_JSON = {"exec"}


COMMANDS = dict(leaves(main))
ASKING = [name for name in COMMANDS if name not in OF_FILES and not name.startswith(("log ", "spark "))]
"""The commands that ask a broker."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingBroker]:
    """A broker with an authorizer that allows everything, and one topic; no test changes it."""
    with Broker(
        data_dir=tmp_path_factory.mktemp("data"),
        diamant_http_listen="127.0.0.1:0",
        properties={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        },
    ) as running:
        running.create_topic("t")
        yield running


def needed(name: str, path: Path) -> list[str]:
    """Return a command with its arguments, and the files that they name."""
    (path / "password").write_text("secret")
    (path / "certificate").write_text("{}")
    (path / "map").write_text('{"version": 1, "topics": {"t": {"identity": {"customer_id": "key"}}}}')
    files = {"MAP": str(path / "map"), "PASSWORD": str(path / "password"), "CERTIFICATE": str(path / "certificate")}
    return [*name.split(), *(files.get(word, word) for word in NEEDED[name])]


def check(result: Result, code: str) -> str:
    """Check the last line of an error, and return its sentence."""
    error = json.loads(result.stderr.splitlines()[-1])
    assert {"error", "code", "exit_code"} <= error.keys()
    assert (error["code"], error["exit_code"]) == (code, KINDS[code].exit_code), error
    assert result.exit_code == error["exit_code"], error
    return str(error["error"])


def test_every_command_has_a_case() -> None:
    """A new command is added here, too."""
    assert NEEDED.keys() == COMMANDS.keys()


@pytest.mark.parametrize("name", NEEDED)
def test_a_wrong_command_line_is_refused(name: str) -> None:
    """An option that does not exist is one line with a next step, and exit code 2; with --json it is an object."""
    plain = CliRunner().invoke(main, [*name.split(), "--no-such-option"])
    assert (plain.exit_code, plain.stdout) == (2, "")
    assert re.fullmatch(r"diamant: No such option '--no-such-option'\. .+\n", plain.stderr), plain.stderr
    found = CliRunner().invoke(main, [*name.split(), "--no-such-option", "--json"])
    assert plain.stderr == f"diamant: {check(found, 'bad-argument')}\n"


@pytest.mark.parametrize("name", NEEDED)
def test_an_error_has_the_exit_code_of_its_code(name: str, broker: BlockingBroker, tmp_path: Path) -> None:
    """The same refusal ends every command with the same exit code, and the text is one line."""
    words = needed(name, tmp_path)
    code = CODES.get(name, None if name in ASKING else "bad-argument")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        plain = run(broker, *words)
        if code is None:
            assert plain.exit_code == 0, plain.output
            return
        assert (plain.exit_code, plain.stderr.count("\n")) == (KINDS[code].exit_code, 1), plain.output
        if name not in WITHOUT_JSON:
            assert plain.stderr == f"diamant: {check(run(broker, *words, '--json'), code)}\n"


@pytest.mark.parametrize("name", [name for name in ASKING if name != "verify"])
def test_no_answer_is_a_failure(name: str, tmp_path: Path) -> None:
    """Exit code 1, and the line says how to name another address."""
    words = [*needed(name, tmp_path), "--json", "--timeout", "1s"]
    with ReservedPort() as port:
        found = CliRunner().invoke(main, words, env={BOOTSTRAP_VARIABLE: port.address})
    said = check(found, "no-answer")
    assert "-b HOST:PORT" in said


@pytest.mark.parametrize("name", sorted(OF_TOPICS))
def test_a_missing_topic_has_one_wording(name: str, broker: BlockingBroker, tmp_path: Path) -> None:
    """Every command has one text for a topic that does not exist, with the next step."""
    found = run(broker, *needed(name, tmp_path))
    assert found.stderr == f"diamant: {no_topic(MISSING)}\n"


@pytest.mark.parametrize("name", sorted(OF_PARTITIONS))
def test_a_missing_partition_has_one_wording(name: str, broker: BlockingBroker) -> None:
    """Every command has one text for a partition that does not exist, with those that exist."""
    found = run(broker, name, "t", *NEEDED[name][1:], "-p", "7")
    assert (found.exit_code, found.stderr) == (2, f"diamant: {no_partition('t', 7, 1)}\n")


@pytest.mark.parametrize("name", ["group describe", "group delete"])
def test_a_missing_group_has_one_wording(name: str, broker: BlockingBroker) -> None:
    """Every command has one text for a group that does not exist, with the next step."""
    assert run(broker, *name.split(), MISSING).stderr == f"diamant: {no_group(MISSING)}\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("compact", "t"), "not-possible"),
        (("compact", "t", "--no-wait"), "bad-argument"),
        (("topic", "create", "__cluster_metadata"), "bad-argument"),
        (("topic", "create", "a/b"), "bad-argument"),
        (("topic", "create", "new", "-r", "3"), "bad-argument"),
        (("topic", "create", "new", "-c", "retention.ms=x"), "bad-argument"),
        (("topic", "alter", "t", "-p", "1"), "bad-argument"),
        (("redact", "__consumer_offsets", "--where", "key exists", *REASON), "not-possible"),
        (("produce", "__consumer_offsets"), "bad-argument"),
        (("status", "--token-file", "/no/such"), "bad-argument"),
        (("status", "--user", "u:/no/such"), "bad-argument"),
        (("topic", "list", "--ca", "/no/such"), "bad-argument"),
        (("status", "-b", "nonsense"), "bad-argument"),
        (("topic", "list", "-b", "nonsense"), "bad-argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_refusal_is_exit_code_2(words: tuple[str, ...], code: str, broker: BlockingBroker) -> None:
    """What would be refused again is 2, whichever side refuses it."""
    run(broker, "group", "reset", "g", "-t", "t", "--to", "start")
    check(run(broker, *words, "--json", lines="v\n"), code)


def test_errors_of_kafka_that_pass_by_themselves_are_failures() -> None:
    """Kafka's retriable codes and those of a broken server end with 1, all others with 2."""
    failures = {code for code in ErrorCode if KINDS[code_of_kafka_error(code)].exit_code == 1}
    assert {ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NOT_CONTROLLER, ErrorCode.KAFKA_STORAGE_ERROR} <= failures
    refusals = {ErrorCode.INVALID_REQUEST, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.POLICY_VIOLATION}
    assert not failures & refusals
