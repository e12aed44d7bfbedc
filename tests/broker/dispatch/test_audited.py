"""The audit log of Kafka's requests: the audited APIs and their lines."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.acl import Operation
from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.dispatch.api_table import TABLE
from diamant.broker.security.authorization import audit_log
from diamant.protocol.wire.apis import API_NAMES
from tests.broker.groups.offsets.offset_requests import find_coordinator
from tests.broker.request_fields import SET, alteration
from tests.broker.security.authorization.asking import ADMIN, Asker
from tests.broker.security.authorization.handed import HandedPrincipals
from tests.broker.security.authorization.questions import ALICE, ALL, QUESTIONS, Client, allow
from tests.broker.wire import (
    CREATE_TOPICS,
    DELETE_TOPICS,
    FETCH,
    INCREMENTAL_ALTER_CONFIGS,
    METADATA,
    WireClient,
    fetch_fields,
)

CHANGES = {Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS}
CREATES_BY_ASKING = 3
"""Metadata, which leaves a line when it has created a topic."""
DELETE_GROUPS, OFFSET_DELETE, ALTER_SCRAM, ALTER_QUOTAS = 42, 47, 51, 49
AUDITED = sorted(key for key, row in TABLE.items() if row.audit is not None)


@asynccontextmanager
async def audited_broker(path: Path, **settings: str) -> AsyncIterator[Broker]:
    """A broker with an audit log, and an authorizer unless `settings` say otherwise."""
    secured = {"authorizer_class_name": "StandardAuthorizer", "super_users": f"User:{ADMIN}"}
    config = BrokerConfig(
        listen="127.0.0.1:0",
        data_dir=path / "data",
        diamant_audit_file=str(path / "audit.log"),
        **(settings or secured),
    )
    async with Broker(config) as broker:
        yield broker


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of the log, without times."""
    found = [json.loads(line) for line in (path / "audit.log").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "time"} for line in found]


def test_apis_that_change_something_are_audited() -> None:
    """All APIs that need CREATE, DELETE, ALTER or ALTER_CONFIGS, so a new one cannot be forgotten."""
    changing = {
        key
        for key, row in TABLE.items()
        if key != CREATES_BY_ASKING and {permission.operation for permission in row.permissions} & CHANGES
    }
    assert set(AUDITED) == changing


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The lines of every question to an audited API, sent by alice, who has no ACL, and by a super user."""
    import asyncio

    async def run(path: Path) -> None:
        async with audited_broker(path) as broker:
            asker = Asker(HandedPrincipals(broker).connect)
            await asker.prepare()
            for user in (ALICE, ADMIN):
                for name in ALL:
                    if QUESTIONS[name].api_key in AUDITED:
                        await asker.ask(Client(user), name)
            await asker.close()

    path = tmp_path_factory.mktemp("audited")
    asyncio.run(run(path))
    return lines(path)


@pytest.mark.parametrize("key", AUDITED)
def test_every_audited_api_leaves_a_line(asked: list[dict[str, Any]], key: int) -> None:
    """Changes that were done, attempted or denied leave a line with the names of their subjects."""
    found = [line for line in asked if line["what"] == API_NAMES[key]]
    assert "denied" in {line["outcome"] for line in found if line["who"] == f"User:{ALICE}"}
    assert {line["outcome"] for line in found if line["who"] == f"User:{ADMIN}"} - {"denied"}
    assert {line["from"] for line in found} == {"127.0.0.1"}
    assert all({"topics", "names"} & line.keys() for line in found if line["outcome"] == "denied")


def test_all_denials_are_reported(asked: list[dict[str, Any]]) -> None:
    """The questions have fewer denials than the limit per minute, so no line can be missing above."""
    assert sum(line["outcome"] == "denied" for line in asked) < audit_log.DENIALS_PER_MINUTE


async def test_a_line_for_each_outcome_of_a_request(tmp_path: Path) -> None:
    """A request gives a line for the topics that it created, one for a denied topic, and one for an existing one."""
    async with audited_broker(tmp_path) as broker:
        handed = HandedPrincipals(broker)
        asker = Asker(handed.connect)
        await asker.set_acls([allow(Operation.CREATE, name="new", is_prefix=True)])
        alice = await handed.connect(Client(ALICE))
        await alice.create("new.1")
        topics = [
            {"name": name, "num_partitions": 1, "replication_factor": 1} for name in ("new.1", "new.2", "new.3", "old")
        ]
        await alice.call(CREATE_TOPICS, 7, {"topics": topics, "timeout_ms": 1000})
        tried = {"topics": topics[1:2], "timeout_ms": 1000, "validate_only": True}
        await alice.call(DELETE_TOPICS, 3, {"topic_names": ["new.2"], "timeout_ms": 1000})
        await alice.call(CREATE_TOPICS, 7, tried)
        alice.writer.close()
        await asker.close()
    about = {"who": f"User:{ALICE}", "from": "127.0.0.1", "what": "CreateTopics"}
    assert [line for line in lines(tmp_path) if line["who"] == f"User:{ALICE}"] == [
        about | {"topics": ["new.1"], "outcome": "done"},
        about | {"topics": ["new.1"], "outcome": "TOPIC_ALREADY_EXISTS"},
        about | {"topics": ["new.2", "new.3"], "outcome": "done"},
        about | {"topics": ["old"], "outcome": "denied"},
        about | {"what": "DeleteTopics", "topics": ["new.2"], "outcome": "denied"},
        about | {"topics": ["new.2"], "outcome": "TOPIC_ALREADY_EXISTS"},
    ]


async def changes(wire: WireClient) -> None:
    """Requests whose lines name subjects other than topics."""
    await wire.create("users", cleanup_policy="compact")
    changed = alteration(2, "users", ("min.cleanable.dirty.ratio", SET, "0.123"), ("diamant.compact", SET, "now"))
    changed["resources"] += alteration(4, "", ("log.cleaner.threads", SET, "2"))["resources"]
    await wire.call(INCREMENTAL_ALTER_CONFIGS, 1, changed)
    upsertion = {
        "name": "carol",
        "mechanism": 1,
        "iterations": 4096,
        "salt": b"a-salt",
        "salted_password": b"a-password",
    }
    await wire.call(ALTER_SCRAM, 0, {"deletions": [{"name": "dave", "mechanism": 1}], "upsertions": [upsertion]})
    entity = [{"entity_type": "user", "entity_name": "carol"}, {"entity_type": "client-id", "entity_name": None}]
    ops = [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}]
    await wire.call(ALTER_QUOTAS, 1, {"entries": [{"entity": entity, "ops": ops}], "validate_only": True})
    await find_coordinator(wire, "gone")
    await wire.call(DELETE_GROUPS, 2, {"groups_names": ["gone"]})
    await wire.call(
        OFFSET_DELETE, 0, {"group_id": "gone", "topics": [{"name": "users", "partitions": [{"partition_index": 0}]}]}
    )


async def test_lines_name_what_was_changed_and_no_value(tmp_path: Path) -> None:
    """Lines hold neither passwords nor values of configurations, with and without an authorizer."""
    async with audited_broker(tmp_path, authorizer_class_name="") as broker:
        async with WireClient(broker.bootstrap_servers) as wire:
            await changes(wire)
    found = [
        (line["what"], line.get("topics"), line.get("names"), line.get("configs"), line["outcome"])
        for line in lines(tmp_path)
    ]
    assert found == [
        ("CreateTopics", ["users"], None, None, "done"),
        (
            "IncrementalAlterConfigs",
            ["users"],
            ["broker"],
            ["min.cleanable.dirty.ratio", "diamant.compact", "log.cleaner.threads"],
            "done",
        ),
        ("AlterUserScramCredentials", None, ["user dave"], None, "RESOURCE_NOT_FOUND"),
        ("AlterUserScramCredentials", None, ["user carol"], None, "done"),
        ("AlterClientQuotas", None, ["client-id <default>, user carol"], None, "validated"),
        ("DeleteGroups", None, ["group gone"], None, "GROUP_ID_NOT_FOUND"),
        ("OffsetDelete", ["users"], ["group gone"], None, "GROUP_ID_NOT_FOUND"),
    ]
    text = (tmp_path / "audit.log").read_text()
    assert not [word for word in ("a-password", "a-salt", "YS1", "0.123", '"2"') if word in text]


async def test_acls_in_their_short_form(tmp_path: Path) -> None:
    """A line has the granted permission and principal, or the filter of the removal."""
    async with audited_broker(tmp_path) as broker:
        handed = HandedPrincipals(broker)
        asker = Asker(handed.connect)
        await asker.set_acls([allow(Operation.READ, name="orders", is_prefix=True), allow(Operation.WRITE)])
        await asker.close()
    found = [(line["what"], line["names"], line["outcome"]) for line in lines(tmp_path)]
    assert found[0] == ("DeleteAcls", ["any ANY ANY any any"], "done")
    assert found[1][0] == "CreateAcls"
    assert "User:alice ALLOW READ topic orders*" in found[1][1]


async def test_reading_and_writing_records_leaves_no_line(tmp_path: Path) -> None:
    """Of produces and fetches, only the automatic creation of a topic leaves a line, once."""
    async with audited_broker(tmp_path, authorizer_class_name="") as broker:
        async with WireClient(broker.bootstrap_servers) as wire:
            for _ in range(2):
                await wire.call(METADATA, 9, {"topics": [{"name": "made"}], "allow_auto_topic_creation": True})
            await wire.produce("made", [b"value"])
            await wire.call(FETCH, 12, fetch_fields("made", 0))
    expected = {"who": "User:ANONYMOUS", "from": "127.0.0.1", "what": "Metadata", "topics": ["made"], "outcome": "done"}
    assert lines(tmp_path) == [expected]
