"""`diamant user`, and the login of the commands for clusters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.cli import main
from diamant.broker.client.bootstrap import BOOTSTRAP_VARIABLE
from diamant.broker.launch.launch_settings import ArgumentError, make_config
from tests.broker.security.sasl.sasl_wire import NAME, PLAIN_MODULE


@pytest.fixture(scope="module")
def broker() -> Iterator[BlockingBroker]:
    """A broker with a listener for each kind of login, and the user admin."""
    with Broker(
        listen=["SASL_PLAINTEXT://127.0.0.1:0", "OLD://127.0.0.1:0", "PLAINTEXT://127.0.0.1:0"],
        users={"admin": "hush"},
        properties={
            "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,OLD:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "listener.name.old.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.old.plain.sasl.jaas.config": f'{PLAIN_MODULE} user_alice="old";',
            "connection.failed.authentication.delay.ms": "1",
            "diamant.http.listen": "127.0.0.1:0",
        },
    ) as running:
        yield running


@pytest.fixture
def passwords(tmp_path: Path) -> Path:
    """A directory with password files."""
    for name, password in (
        ("admin", "hush\n"),
        ("new", "geheim"),
        ("old", "old"),
        ("wrong", "no"),
        ("empty", ""),
        ("two", "a\nb"),
    ):
        (tmp_path / name).write_text(password)
    return tmp_path


def run(
    broker: BlockingBroker, passwords: Path, user: str | None, *words: str, listener: int = 0, text: str = ""
) -> Result:
    """Run a command that finds the broker and the login through the environment."""
    environment = {BOOTSTRAP_VARIABLE: broker.bootstrap_servers.split(",")[listener]}
    if user is not None:
        environment["DIAMANT_USER"] = f"{user.partition(':')[0]}:{passwords / user.partition(':')[2]}"
    return CliRunner().invoke(main, words, env=environment, input=text)


def test_a_user_from_the_first_login_to_the_last(broker: BlockingBroker, passwords: Path) -> None:
    """A user is added, listed, logged in, given another password, and removed."""
    added = run(broker, passwords, "admin:admin", "user", "add", "al=i,ce", "--password-file", str(passwords / "new"))
    assert (added.exit_code, added.output) == (0, "al=i,ce: password set for SCRAM-SHA-256 and SCRAM-SHA-512\n")
    listed = run(broker, passwords, "admin:admin", "user", "list")
    assert listed.output == "admin  SCRAM-SHA-256, SCRAM-SHA-512\nal=i,ce  SCRAM-SHA-256, SCRAM-SHA-512\n"
    assert run(broker, passwords, "al=i,ce:new", "topic", "create", "t").exit_code == 0
    assert run(broker, passwords, "al=i,ce:new", "topic", "list").output == "t\n"
    refused = run(broker, passwords, "al=i,ce:wrong", "topic", "list")
    assert refused.exit_code == 2
    assert "user 'al=i,ce': Authentication failed during authentication" in refused.output
    changed = run(broker, passwords, "admin:admin", "user", "add", "al=i,ce", "-i", "8192", text="other\nother\n")
    assert (changed.exit_code, changed.stdout) == (0, added.output)
    assert run(broker, passwords, "al=i,ce:new", "topic", "list").exit_code == 2
    assert run(broker, passwords, "admin:admin", "user", "remove", "al=i,ce").exit_code == 0
    found = json.loads(run(broker, passwords, "admin:admin", "user", "list", "--json").output)
    assert found == [{"user": "admin", "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"]}]
    unknown = run(broker, passwords, "admin:admin", "user", "remove", "al=i,ce")
    assert (unknown.exit_code, "there is no user 'al=i,ce'" in unknown.output) == (2, True)


def test_plain_is_used_where_there_is_nothing_else(broker: BlockingBroker, passwords: Path) -> None:
    """The client falls back to PLAIN: the broker lists its mechanisms when it refuses the first."""
    assert run(broker, passwords, "alice:old", "topic", "list", listener=1).exit_code == 0
    refused = run(broker, passwords, "alice:wrong", "topic", "list", listener=1)
    assert "Authentication failed: Invalid username or password" in refused.output


def test_a_login_that_does_not_suit_the_listener_is_reported(broker: BlockingBroker, passwords: Path) -> None:
    """Errors name a missing login, and a login for a listener without SASL."""
    closed = run(broker, passwords, None, "topic", "list")
    assert (closed.exit_code, "it may require a login, or TLS" in closed.output) == (1, True)
    plain = run(broker, passwords, "admin:admin", "topic", "list", listener=2)
    assert (plain.exit_code, "the broker requires no login here" in plain.output) == (2, True)


def test_commands_on_a_broker_find_http_with_a_login(broker: BlockingBroker, passwords: Path) -> None:
    """The HTTP address is queried with the login; a missing or wrong login is one line."""
    found = run(broker, passwords, "admin:admin", "status", "--json")
    assert found.exit_code == 0, found.output
    refused = run(broker, passwords, "admin:wrong", "status")
    assert (refused.exit_code, "user 'admin': Authentication failed" in refused.output) == (2, True)
    assert run(broker, passwords, None, "status").exit_code == 1
    nothing = run(broker, passwords, "admin:none", "status")
    assert (nothing.exit_code, "--user" in nothing.output) == (2, True)


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        ("admin:none", "No such file"),
        ("admin:empty", "expected a password on one line"),
        ("admin:two", "expected a password on one line"),
        (":admin", "expected NAME:PASSWORD-FILE"),
    ],
)
def test_a_login_that_is_none_is_refused(passwords: Path, user: str, reason: str) -> None:
    """Cluster commands and `start` refuse an invalid login before any request."""
    name, _, file = user.partition(":")
    text = f"{name}:{passwords / file}"
    result = CliRunner().invoke(main, ["topic", "list", "-b", "127.0.0.1:1", "--user", text])
    assert (result.exit_code, reason in result.output) == (2, True)
    with pytest.raises(ArgumentError, match=reason):
        make_config(None, [], [], None, [text])


def test_start_makes_the_first_users(passwords: Path) -> None:
    """With users, addresses without a listener name require a login."""
    config = make_config(
        None, [], ["127.0.0.1:0"], str(passwords), [f"a:{passwords / 'new'}", f"b:{passwords / 'old'}"]
    )
    assert [str(listener) for listener in config.listeners] == ["SASL_PLAINTEXT://127.0.0.1:0"]
    assert config["diamant.users"] == '{"a": "geheim", "b": "old"}'
    assert NAME not in str(config)
    assert "geheim" not in str(config)


async def test_users_of_the_start_are_kept(tmp_path: Path) -> None:
    """A restart without --user keeps the users; one with another password changes it."""
    listen, passwords = "SASL_PLAINTEXT://127.0.0.1:0", ("one", "two")
    mechanisms = {"sasl.enabled.mechanisms": "SCRAM-SHA-256"}
    seen = []
    for users in ({"a": passwords[0]}, None, {"a": passwords[0]}, {"a": passwords[1]}):
        async with Broker(listen=listen, data_dir=tmp_path, properties=mechanisms, users=users) as running:
            image = running.node.metadata.image
            seen.append(image.scram_credentials[1, "a"].salt)
    assert seen[0] == seen[1] == seen[2] != seen[3]
