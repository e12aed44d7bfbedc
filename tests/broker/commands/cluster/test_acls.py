"""`diamant acl`: adds, lists and removes ACLs, and protects the last principal that may change them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from diamant.broker.acl import parse_all
from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.cli import main
from diamant.broker.client.bootstrap import BOOTSTRAP_VARIABLE
from diamant.broker.commands.cluster.acl import administrators
from diamant.broker.launch.launch_settings import make_config

OPS = "User:ANONYMOUS ALL cluster"


@pytest.fixture
def broker() -> Iterator[BlockingBroker]:
    """A broker without super users, on which an ACL allows everyone everything on the cluster."""
    with Broker(acls=[OPS]) as running:
        yield running


def run(broker: BlockingBroker, *words: str) -> Result:
    """Run `diamant acl` against the broker."""
    return CliRunner().invoke(main, ["acl", *words], env={BOOTSTRAP_VARIABLE: broker.bootstrap_servers})


def test_acls_are_added_listed_and_removed(broker: BlockingBroker) -> None:
    """ACLs are given word by word, or several in quotes; listed ACLs can be given back."""
    added = run(broker, "add", "User:alice", "READ,WRITE", "topic", "users").output
    assert added == "User:alice ALLOW READ topic users: added\nUser:alice ALLOW WRITE topic users: added\n"
    assert run(broker, "add", "User:bob DENY ALL group g* from 10.0.0.7", "User:bob READ topic *").exit_code == 0
    listed = run(broker, "list").output.splitlines()
    assert listed == [
        "User:bob ALLOW READ topic *",
        "User:alice ALLOW READ topic users",
        "User:alice ALLOW WRITE topic users",
        "User:bob DENY ALL group g* from 10.0.0.7",
        "User:ANONYMOUS ALLOW ALL cluster",
    ]
    assert run(broker, "list", "--on", "topic:users", "-p", "User:bob").output == "User:bob ALLOW READ topic *\n"
    (shown,) = json.loads(run(broker, "list", "--on", "group:gg", "--json").output)
    assert shown == {
        "principal": "User:bob",
        "permission": "DENY",
        "operation": "ALL",
        "resource_type": "group",
        "resource_name": "g",
        "pattern_type": "PREFIXED",
        "host": "10.0.0.7",
    }
    assert run(broker, "remove", *listed[:-1]).exit_code == 0
    assert run(broker, "list").output == "User:ANONYMOUS ALLOW ALL cluster\n"
    gone = run(broker, "remove", listed[0])
    assert (gone.exit_code, "there is no ACL User:bob ALLOW READ topic *" in gone.output) == (2, True)


def test_an_invalid_acl_is_refused_before_any_request(broker: BlockingBroker) -> None:
    """The error shows the expected form, before any request."""
    wrong = run(broker, "add", "alice", "READ", "topic", "users")
    assert (wrong.exit_code, "'alice' is not a principal: expected TYPE:NAME" in wrong.output) == (2, True)


@pytest.mark.parametrize("words", [["remove", OPS], ["add", "User:* DENY ALTER cluster"]])
def test_the_last_who_may_change_acls_is_not_locked_out(broker: BlockingBroker, words: list[str]) -> None:
    """Refused without --force: only a restart with super.users would help."""
    refused = run(broker, *words)
    assert (refused.exit_code, "no principal could change ACLs afterwards" in refused.output) == (2, True)
    assert run(broker, *words, "--force").exit_code == 0
    assert "CLUSTER_AUTHORIZATION_FAILED" in run(broker, "add", "User:alice", "READ", "topic", "users").output


def test_another_administrator_or_a_super_user_is_enough(tmp_path_factory: pytest.TempPathFactory) -> None:
    """With another administrator or a super user the ACL is removed."""
    for settings in ({"super_users": "User:root"}, {"acls": [OPS, "User:ops ALTER cluster"]}):
        with Broker(data_dir=tmp_path_factory.mktemp("data"), **{"acls": [OPS]} | settings) as broker:
            assert run(broker, "remove", OPS).exit_code == 0


def test_administrators_are_those_whom_nothing_denies_it() -> None:
    """An administrator has ALTER or ALL on the cluster, from at least one host, and no matching DENY."""
    assert administrators(parse_all(["User:a ALTER cluster", "User:b ALL cluster", "User:c READ topic *"])) == {
        "User:a",
        "User:b",
    }
    assert administrators(parse_all(["User:a ALTER cluster", "User:a DENY ALL cluster"])) == set()
    assert administrators(parse_all(["User:a ALTER cluster", "User:a DENY ALL cluster from 10.0.0.1"])) == {"User:a"}
    assert administrators(parse_all(["User:a ALTER cluster", "User:* DENY ALTER cluster"])) == set()


@pytest.mark.parametrize(
    ("allowed", "denied", "is_left"),
    [
        ("*", ["0.0.0.0/0", "::/0"], False),
        ("*", ["0.0.0.0/1", "128.0.0.0/2", "192.0.0.0/2", "8000::/1", "::/1"], False),
        ("*", ["0.0.0.0/0"], True),
        ("*", ["0.0.0.0/1", "192.0.0.0/2", "::/0"], True),
        ("10.0.0.7", ["10.0.0.0/8"], False),
        ("10.0.0.0/8", ["10.0.0.0/9", "10.128.0.0/9"], False),
        ("10.0.0.0/8", ["10.0.0.0/9"], True),
        ("10.0.0.7", ["10.0.0.7"], False),
        ("2001:db8::1", ["2001:0db8:0:0:0:0:0:1"], False),
        ("::/0", ["0.0.0.0/0"], True),
        ("10.0.0.0/8", ["10.0.0.0/88"], True),
        ("10.0.0.0/88", [], False),
    ],
)
def test_denied_addresses_count_together(allowed: str, denied: list[str], is_left: bool) -> None:
    """A principal can change ACLs only if an address of its ALLOW is left; what is denied to all counts, too."""
    texts = [f"User:a ALTER cluster from {allowed}"]
    texts += [f"User:{'*' if n else 'a'} DENY ALL cluster from {host}" for n, host in enumerate(denied)]
    assert bool(administrators(parse_all(texts))) == is_left


def test_without_an_authorizer_it_is_stated(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Without an authorizer, the broker's own message is printed."""
    with Broker(data_dir=tmp_path_factory.mktemp("data")) as broker:
        listed = run(broker, "list")
    assert (listed.exit_code, "No Authorizer is configured" in listed.output) == (2, True)


def test_start_takes_acls() -> None:
    """ACLs given to `start` enable the authorizer."""
    config = make_config(None, ["diamant.http.listen="], ["127.0.0.1:0"], None, (), [OPS, "User:a READ topic t"])
    assert str(config["authorizer.class.name"]).endswith("StandardAuthorizer")
    assert config["diamant.acls"] == '["User:ANONYMOUS ALLOW ALL cluster", "User:a ALLOW READ topic t"]'
