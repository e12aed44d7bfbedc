"""`diamant group`, `diamant consume -g` and name completion, against a running broker."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.cli import main
from diamant.broker.client.bootstrap import BOOTSTRAP_VARIABLE
from diamant.broker.client.kafka_client import KafkaClient, KafkaRefusal
from diamant.broker.client.kafka_connection import KafkaConnection
from diamant.broker.client.kafka_group import KafkaGroup
from diamant.protocol.errors import ErrorCode
from diamant.protocol.internal_topics.consumer_protocol import Subscription, encode_assignment
from tests.broker.commands.running import INSTALLED, run
from tests.broker.groups.consumer.consumer_wire import HEARTBEAT
from tests.broker.request_fields import join_group
from tests.protocol.internal_topics.subscriptions import encode_subscription

JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP = 11, 13, 14
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingBroker]:
    """A broker whose topic `users` has five records in each of two partitions."""
    data: Path = tmp_path_factory.mktemp("data")
    with Broker(data_dir=str(data)) as running:
        assert run(running, "topic", "create", "users", "-p", "2").exit_code == 0
        for partition in range(2):
            for number in range(5):
                running.produce("users", f"v{number}", partition=partition, timestamp_ms=1000 + number)
        yield running


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A group for this test."""
    return str(request.node.name)


@pytest.fixture
def connection(broker: BlockingBroker) -> Iterator[KafkaConnection]:
    """A connection that sends a member's requests."""
    host, _, port = broker.bootstrap_servers.rpartition(":")
    with KafkaConnection(host, int(port), timeout_s=TIMEOUT_S) as connected:
        yield connected


def committed(broker: BlockingBroker, group: str) -> dict[int, int]:
    """Return the group's committed offsets for `users`."""
    with KafkaClient(broker.bootstrap_servers, timeout_s=TIMEOUT_S) as client:
        return {number: offset for (_, number), offset in KafkaGroup(client, group).committed().items()}


@contextmanager
def consumer_member(connection: KafkaConnection, group: str) -> Iterator[str]:
    """A member of the consumer protocol (KIP-848) with all of `users` assigned."""
    member = "m" * 22
    fields = {
        "group_id": group,
        "member_id": member,
        "member_epoch": 0,
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": ["users"],
        "topic_partitions": [],
    }
    assert connection.ask(HEARTBEAT, fields)["error_code"] == 0
    yield member
    connection.ask(HEARTBEAT, {**fields, "member_epoch": -1})


@contextmanager
def classic_member(connection: KafkaConnection, group: str) -> Iterator[str]:
    """A member of the classic protocol that owns partition 1."""
    joining = join_group(group, encode_subscription(Subscription(("users",))))
    answer = connection.ask(JOIN_GROUP, joining)
    if answer["error_code"] == ErrorCode.MEMBER_ID_REQUIRED:
        answer = connection.ask(JOIN_GROUP, {**joining, "member_id": answer["member_id"]})
    member = answer["member_id"]
    synced = {
        "group_id": group,
        "generation_id": answer["generation_id"],
        "member_id": member,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": member, "assignment": encode_assignment({"users": [1]})}],
    }
    assert connection.ask(SYNC_GROUP, synced)["error_code"] == 0
    yield member
    connection.ask(LEAVE_GROUP, {"group_id": group, "member_id": member, "members": [{"member_id": member}]})


@pytest.mark.parametrize(
    ("joined", "group_type", "owned"), [(consumer_member, "consumer", [0, 1]), (classic_member, "classic", [1])]
)
def test_a_group_with_a_member(
    broker: BlockingBroker,
    connection: KafkaConnection,
    group: str,
    joined: Callable[..., AbstractContextManager[str]],
    group_type: str,
    owned: list[int],
) -> None:
    """A group with a member is listed with its type, and described with ends, lags and owners. A reset waits for the member to
    leave.
    """
    assert run(broker, "group", "reset", group, "-t", "users:1", "--to", "2").output == "users-1: - → 2\n"
    with joined(connection, group) as member:
        listed = json.loads(run(broker, "group", "list", "--json").output)
        assert {"group": group, "type": group_type, "protocol": "consumer", "state": "Stable"} in listed
        [found] = json.loads(run(broker, "group", "describe", group, "--json").output)
        assert (found["type"], found["state"], len(found["members"])) == (group_type, "Stable", 1)
        assert found["members"][0]["partitions"] == {"users": owned}
        place = {"topic": "users", "partition": 1, "committed": 2, "end": 5, "lag": 3, "member": member}
        assert found["partitions"][-1] == place
        assert f"users  1          2          5    3    {member}" in run(broker, "group", "describe", group).output
        for words in (
            ("group", "reset", group, "-t", "users", "--to", "start"),
            ("group", "delete", group),
            ("consume", "users", "-e", "-g", group),
        ):
            refused = run(broker, *words)
            assert (refused.exit_code, refused.stdout, "active member" in refused.stderr) == (2, "", True), words
        with KafkaClient(broker.bootstrap_servers, timeout_s=TIMEOUT_S) as client:
            with pytest.raises(KafkaRefusal, match=r"active members.*UNKNOWN_MEMBER_ID"):
                KafkaGroup(client, group).commit({("users", 1): 0})
    assert committed(broker, group) == {1: 2}
    assert run(broker, "group", "reset", group, "-t", "users", "--to", "start").exit_code == 0


def test_a_member_without_partitions_and_a_topic_that_is_gone(
    broker: BlockingBroker, connection: KafkaConnection, group: str
) -> None:
    """A member without partitions has a row of its own; offsets of a deleted topic are gone, as in Kafka."""
    run(broker, "topic", "create", "dropped", "-p", "1")
    run(broker, "group", "reset", group, "-t", "dropped", "--to", "start")
    run(broker, "topic", "delete", "dropped")
    with consumer_member(connection, group):
        fields = {"group_id": group, "member_id": "n" * 22, "member_epoch": 0, "rebalance_timeout_ms": 60_000}
        connection.ask(HEARTBEAT, {**fields, "subscribed_topic_names": ["users"], "topic_partitions": []})
        shown = run(broker, "group", "describe", group)
        assert (shown.exit_code, "dropped" in shown.output, "n" * 22 in shown.output) == (0, False, True), shown.output


@pytest.mark.parametrize(
    ("where", "after"),
    [
        ("start", [0, 0]), ("end", [5, 5]), ("3", [3, 3]), ("99", [5, 5]), ("-1", [4, 4]), ("+1", [3, 5]),
        ("@1003", [3, 3]), ("@2030-01-01", [5, 5]),
    ],
)  # fmt: skip
def test_reset_prints_old_and_new_offsets(broker: BlockingBroker, group: str, where: str, after: list[int]) -> None:
    """Old and new offsets are printed, and committed unless it is a dry run."""
    run(broker, "group", "reset", group, "-t", "users:0", "--to", "2")
    run(broker, "group", "reset", group, "-t", "users:1", "--to", "4")
    words = ("group", "reset", group, "-t", "users", "--to", where)
    shown = f"users-0: 2 → {after[0]}\nusers-1: 4 → {after[1]}\n"
    assert run(broker, *words, "--dry-run").output == shown
    assert committed(broker, group) == {0: 2, 1: 4}
    assert run(broker, *words).output == shown
    assert committed(broker, group) == dict(enumerate(after))


@pytest.mark.parametrize(
    ("topic", "where", "text"),
    [
        ("nope", "start", "nope"),
        ("users:7", "start", "no partition 7"),
        ("users:", "start", "TOPIC:PARTITION"),
        ("users", "soon", "expected start"),
        ("users", "+x", "expected start, end, an offset, -N, +N or @TIME"),
        ("users", "+1", "nothing is committed"),
    ],
)
def test_an_impossible_reset_commits_nothing(
    broker: BlockingBroker, group: str, topic: str, where: str, text: str
) -> None:
    """One line with the reason, and nothing is committed, even for valid topics."""
    result = run(broker, "group", "reset", group, "-t", "users:0", "-t", topic, "--to", where)
    assert (result.exit_code, result.stdout, text in result.stderr) == (2, "", True), result.output
    assert committed(broker, group) == {}


def test_each_group_to_be_described_or_deleted_has_its_answer(broker: BlockingBroker, group: str) -> None:
    """A missing group sets the exit code, and the others are still handled."""
    run(broker, "group", "reset", group, "-t", "users", "--to", "1")
    described = run(broker, "group", "describe", "nope", group)
    assert (described.exit_code, described.stdout.startswith(f"{group}: classic, Empty, 0 members")) == (2, True)
    deleted = run(broker, "group", "delete", "nope", group)
    assert (deleted.exit_code, deleted.stdout) == (2, f"{group}: deleted\n")
    assert deleted.stderr.startswith("diamant: there is no group 'nope': ")
    assert group not in run(broker, "group", "list").output


def test_a_group_continues_after_what_was_printed(broker: BlockingBroker, group: str) -> None:
    """Records left by -n are printed by the next command, once; other partitions are not committed."""
    words = ("consume", "users", "-e", "-g", group, "-f", r"%p:%o\n")
    first = run(broker, *words, "-n", "3").output.split()
    assert sum(committed(broker, group).values()) == 3
    second = run(broker, *words).output.split()
    assert sorted(first + second) == [f"{partition}:{offset}" for partition in range(2) for offset in range(5)]
    assert (run(broker, *words).output, committed(broker, group)) == ("", {0: 5, 1: 5})
    run(broker, "group", "reset", group, "-t", "users", "--to", "1")
    assert run(broker, *words, "-p", "0", "-k", "no such key").output == ""
    assert committed(broker, group) == {0: 5, 1: 1}


def test_a_group_without_commits_starts_at_the_given_offset(broker: BlockingBroker, group: str) -> None:
    """A group without commits starts at --offset, as for a committed offset out of range, and commits it."""
    with KafkaClient(broker.bootstrap_servers, timeout_s=TIMEOUT_S) as client:
        KafkaGroup(client, group).commit({("users", 1): 99})
    assert run(broker, "consume", "users", "-e", "-g", group, "-o", "end").output == ""
    assert committed(broker, group) == {0: 5, 1: 5}


def test_ctrl_c_commits_what_was_printed(broker: BlockingBroker, group: str) -> None:
    """Ctrl-C commits the offsets after the printed records, and has its own exit code."""
    command = [*INSTALLED, "consume", "users", "-g", group, "-b", broker.bootstrap_servers]
    # Without a buffer it could be interrupted between a record and its offset, and would print that record again.
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        for _ in range(10):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (130, "", "diamant: interrupted\n")
    assert committed(broker, group) == {0: 5, 1: 5}


def test_a_group_without_a_name_is_refused(broker: BlockingBroker) -> None:
    """An empty name is refused: a shell passes it for an unset variable."""
    result = run(broker, "consume", "users", "-e", "-g", "")
    assert (result.exit_code, result.stdout, "empty" in result.stderr) == (2, "", True)


def completed(incomplete: str, *words: str) -> list[str]:
    """Return the completions that a shell would offer."""
    return [one.value for one in ShellComplete(main, {}, "diamant", "").get_completions([*words], incomplete)]


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "describe"), ("topic", "alter"), ("topic", "delete"), ("consume",), ("produce",),
        ("group", "reset", "g", "--topic"), ("compact",), ("erase",), ("ghosts",),
    ],
)  # fmt: skip
def test_topics_are_completed(broker: BlockingBroker, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    """Names come from the environment's broker; internal topics only after an underscore."""
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, broker.bootstrap_servers)
    run(broker, "group", "reset", "g", "-t", "users", "--to", "1")
    assert completed("", *words) == ["users"]
    assert completed("x", *words) == []
    assert completed("__c", *words) == ["__consumer_offsets"]


@pytest.mark.parametrize(
    "words", [("group", "describe"), ("group", "reset"), ("group", "delete"), ("consume", "users", "-g")]
)
def test_groups_are_completed(broker: BlockingBroker, group: str, words: tuple[str, ...]) -> None:
    """Names come from the broker given on the command line."""
    run(broker, "group", "reset", group, "-t", "users", "--to", "1")
    words = (*words[:2], "-b", broker.bootstrap_servers, *words[2:])
    assert group in completed(group[:-1], *words)


def test_a_broker_that_does_not_answer_completes_nothing() -> None:
    """A broker that refuses, or is silent for a second, gives no names and no error."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (1, silent.getsockname()[1]):
            assert completed("", "topic", "describe", "-b", f"127.0.0.1:{port}") == []
