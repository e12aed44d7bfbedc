"""HTTP with an authorizer: ACLs decide for a token's principal, and the audit log records requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from diamant.broker.acl import Acl, Operation, PatternType, PermissionType, ResourceType
from diamant.broker.broker import Broker
from diamant.broker.dispatch.operation_table import OPERATIONS
from diamant.broker.http.serving.authorization import OF_PAGES, OPEN
from diamant.broker.http.serving.route import Route, permission_of, route_of, row_name
from diamant.broker.http.serving.routes import Routes
from diamant.broker.http.serving.token import TokenCheck
from diamant.broker.security.authorization import permissions
from tests.broker.erasure.records import commit
from tests.broker.http_asking import Answer, ask, connect

ADMIN, ALICE, BOB = "admin-" + "0" * 20, "alice-" + "0" * 20, "bob-" + "0" * 20
KEY = {"key": "customer-42", "topics": ["users"], "reason": "asked for"}


@asynccontextmanager
async def secured(path: Path, tokens: str = f"admin:{ADMIN}\nalice:{ALICE}\nbob:{BOB}\n") -> AsyncIterator[Broker]:
    """A broker with an authorizer: admin may do everything, alice may read users."""
    (path / "tokens").write_text(tokens)
    (path / "tokens").chmod(0o600)
    async with Broker(
        data_dir=path / "data",
        diamant_http_listen="127.0.0.1:0",
        diamant_http_token_file=str(path / "tokens"),
        diamant_audit_file=str(path / "audit.log"),
        authorizer_class_name="StandardAuthorizer",
        super_users="User:admin",
    ) as broker:
        await broker.create_topic("users", **{"cleanup.policy": "compact"})
        await broker.create_topic("others")
        assert broker.node.authorizer is not None
        broker.node.authorizer.add([allow(Operation.READ), allow(Operation.DESCRIBE)])
        yield broker


def allow(operation: Operation, principal: str = "User:alice") -> Acl:
    """Add an ACL on the topic users."""
    return Acl(ResourceType.TOPIC, "users", PatternType.LITERAL, principal, "*", operation, PermissionType.ALLOW)


async def call(broker: Broker, token: str | None, method: str, path: str, fields: Any = None) -> Answer:
    """Send one request with a token."""
    headers: dict[str, str | None] = {} if token is None else {"Authorization": f"Bearer {token}"}
    return await ask(broker, method, path, fields, headers=headers)


def lines(path: Path) -> list[tuple[Any, ...]]:
    """Return principal, operation and outcome of each line of the audit log."""
    found = [json.loads(line) for line in (path / "audit.log").read_text().splitlines()]
    assert all(line["from"] == "127.0.0.1" for line in found)
    return [(line["who"], line["what"], line["outcome"]) for line in found]


async def test_a_principal_may_what_acls_allow(tmp_path: Path) -> None:
    """A reader of a topic may not read other topics or the cluster, nor change anything."""
    async with secured(tmp_path) as broker:
        assert (await call(broker, ALICE, "POST", "/v1/count", {"topic": "users"})).status == 200
        assert (await call(broker, ALICE, "POST", "/v1/latest", {"topic": "users"})).status == 200
        for method, path, fields, permission in (
            ("POST", "/v1/count", {"topic": "others"}, "DESCRIBE on topic 'others'"),
            ("POST", "/v1/erase", KEY, "DELETE on topic 'users'"),
            ("POST", "/v1/compact", {"topic": "users"}, "ALTER on the cluster"),
            ("GET", "/v1/status", None, "DESCRIBE on the cluster"),
            ("GET", "/metrics", None, "DESCRIBE on the cluster"),
            ("GET", "/v1/faults", None, "ALTER on the cluster"),
        ):
            answer = await call(broker, ALICE, method, path, fields)
            assert (answer.status, answer.json["code"]) == (403, "not-allowed")
            assert answer.json["error"].startswith("User:alice may not")
            assert permission in answer.json["error"]
            assert (await call(broker, ADMIN, method, path, fields)).status in (200, 202, 409)


async def test_writing_by_hand_needs_what_a_client_needs(tmp_path: Path) -> None:
    """A record needs WRITE on its topic; a reset READ on group and topic; a form of another site does neither."""
    record, reset = ("/v1/produce", {"topic": "users", "key": "k", "value": "v"}), {"topic": "users", "to": "end"}
    async with secured(tmp_path) as broker:
        assert broker.node.authorizer is not None
        answer = await call(broker, ALICE, "POST", *record)
        assert (answer.status, "WRITE on topic 'users'" in answer.json["error"]) == (403, True)
        broker.node.authorizer.add([allow(Operation.WRITE)])
        assert (await call(broker, ALICE, "POST", *record)).status == 200
        answer = await call(broker, ALICE, "POST", "/v1/groups/g/offsets", reset)
        assert (answer.status, "READ on group 'g'" in answer.json["error"]) == (403, True)
        for path in ("/v1/produce", "/v1/groups/g/offsets"):
            headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": "text/plain"}
            assert (await ask(broker, "POST", path, record[1], headers=headers)).status == 415
    assert ("User:alice", "POST /v1/produce", "done") in lines(tmp_path)


async def test_a_request_for_no_topic_concerns_all(tmp_path: Path) -> None:
    """The request needs ALTER on the cluster, whatever its principal may do with single topics."""
    async with secured(tmp_path) as broker:
        assert broker.node.authorizer is not None
        broker.node.authorizer.add([allow(Operation.DELETE)])
        answer = await call(broker, ALICE, "POST", "/v1/erase", KEY | {"topics": []})
        assert (answer.status, answer.json["error"]) == (403, "User:alice may not: erase needs ALTER on the cluster")


async def test_a_request_without_token_is_anonymous(tmp_path: Path) -> None:
    """An anonymous request is told to log in where that would help; probes and the page's static files are open."""
    async with secured(tmp_path) as broker:
        for path in ("/v1/status", "/metrics", "/v1/faults"):
            assert (await call(broker, None, "GET", path)).status == 401
        for path in ("/health", "/readyz", "/v1/openapi.json"):
            assert (await call(broker, None, "GET", path)).status == 200
        assert (await call(broker, "wrong" * 5, "POST", "/v1/compact", {"topic": "users"})).status == 401
        assert b"Log in" in (await call(broker, None, "GET", "/")).body


async def test_the_page_goes_through_the_same_decisions(tmp_path: Path) -> None:
    """By the login cookie, alice sees the topic that she may read, bob does not, and neither sees the overview."""
    async with secured(tmp_path) as broker:
        for token, statuses in ((ALICE, (200, 200, 403, 403)), (BOB, (403, 403, 403, 403)), (ADMIN, (200,) * 4)):
            answer = await ask(broker, "POST", "/login", {"token": token})
            cookie = answer.headers["set-cookie"].partition(";")[0]
            paths = ("/topics/users", "/topics/users/0", "/topics/others", "/")
            found = [(await ask(broker, "GET", path, headers={"Cookie": cookie})).status for path in paths]
            assert tuple(found) == statuses


async def test_a_live_page_ends_with_the_right_to_see_it(tmp_path: Path) -> None:
    """After a change of ACLs, an open page gets no further updates."""
    async with secured(tmp_path) as broker, asyncio.timeout(30):
        assert broker.addresses.http is not None
        assert broker.node.authorizer is not None
        reader, writer = await connect(broker)
        head = f"Host: {broker.addresses.http.address}\r\nAuthorization: Bearer {ALICE}\r\n\r\n"
        writer.write(f"GET /live/topics/users HTTP/1.1\r\n{head}".encode())
        await reader.readuntil(b"event: ")
        broker.node.authorizer.remove([allow(Operation.READ), allow(Operation.DESCRIBE)])
        assert b"No longer live: User:alice may not" in await reader.read()
        writer.close()


async def test_a_group_names_no_topic_that_its_reader_may_not_know(tmp_path: Path) -> None:
    """A group's offsets on other topics are left out, as in Kafka's OffsetFetch."""
    group_acl = Acl(
        ResourceType.GROUP, "g", PatternType.LITERAL, "User:alice", "*", Operation.READ, PermissionType.ALLOW
    )
    async with secured(tmp_path) as broker:
        assert broker.node.authorizer is not None
        broker.node.authorizer.add([group_acl])
        coordinator = broker.services.groups()
        await coordinator.log.topic.ensure()
        commit(broker, (1, "g"))
        committed = coordinator.groups["g"].offsets.committed
        committed["others"] = committed["users"]
        for token, others in ((ALICE, False), (ADMIN, True)):
            answer = await call(broker, token, "GET", "/groups/g")
            assert (answer.status, b"users" in answer.body, b"others" in answer.body) == (200, True, others)


async def test_allowed_and_denied_requests_are_audited(tmp_path: Path) -> None:
    """A line has principal, operation and outcome; a job has one at its start and its end; none has a key."""
    async with secured(tmp_path) as broker:
        await call(broker, ALICE, "POST", "/v1/erase", KEY)
        await call(broker, None, "POST", "/v1/erase", KEY)
        await call(broker, ADMIN, "POST", "/v1/compact", {"topic": "users"})
        await call(broker, ADMIN, "POST", "/v1/compact", {"topic": "none"})
        await call(broker, ADMIN, "GET", "/v1/status")
    compact = "POST /v1/compact"
    assert lines(tmp_path) == [
        ("User:alice", "POST /v1/erase", "denied"),
        ("User:ANONYMOUS", "POST /v1/erase", "denied"),
        ("User:admin", compact, "begun"),
        ("User:admin", compact, "done"),
        ("User:admin", compact, "begun"),
        ("User:admin", compact, "not-found"),
    ]
    assert "customer-42" not in (tmp_path / "audit.log").read_text()
    first = json.loads((tmp_path / "audit.log").read_text().splitlines()[2])
    assert (first["topics"], first["job"]) == (["users"], "1")


async def test_telling_about_a_key_leaves_a_line(tmp_path: Path) -> None:
    """Explanations and verifications with a key are audited, without the key."""
    async with secured(tmp_path) as broker:
        for token in (ALICE, BOB):
            await call(broker, token, "POST", "/v1/explain", {"topic": "users"})
            await call(broker, token, "POST", "/v1/explain", {"topic": "users", "key": "customer-42"})
    explain = "POST /v1/explain"
    assert lines(tmp_path) == [
        ("User:alice", explain, "begun"),
        ("User:alice", explain, "done"),
        ("User:bob", explain, "denied"),
    ]
    assert "customer-42" not in (tmp_path / "audit.log").read_text()


async def test_a_job_is_its_callers(tmp_path: Path) -> None:
    """Only its caller may see a job, and principals that may do everything."""
    async with secured(tmp_path) as broker:
        answer = await call(broker, ALICE, "POST", "/v1/count?wait_ms=0", {"topic": "users"})
        job = answer.headers.get("location", "/v1/jobs/1")
        found = [(await call(broker, token, "GET", job)).status for token in (ALICE, BOB, ADMIN)]
        assert found == [200, 403, 200]


async def test_a_token_without_a_name_may_everything(tmp_path: Path) -> None:
    """A token without a name allows everything, as without an authorizer."""
    async with secured(tmp_path, f"{ADMIN}\n") as broker:
        assert (await call(broker, ADMIN, "GET", "/v1/status")).status == 200
        assert (await call(broker, ADMIN, "POST", "/v1/compact", {"topic": "users"})).status == 200
        assert (await call(broker, None, "GET", "/v1/status")).status == 401


async def test_without_an_authorizer_tokens_are_all_alike(tmp_path: Path) -> None:
    """Any token, one with a name, too, may change data."""
    (tmp_path / "tokens").write_text(f"alice:{ALICE}\n")
    async with Broker(
        data_dir=tmp_path / "data", diamant_http_listen="127.0.0.1:0", diamant_http_token_file=str(tmp_path / "tokens")
    ) as broker:
        await broker.create_topic("users", **{"cleanup.policy": "compact"})
        assert (await call(broker, ALICE, "POST", "/v1/compact", {"topic": "users"})).status == 200


async def test_every_path_states_its_permission(broker: Broker) -> None:
    """No route of the page has forgotten it."""
    rows = await Routes(broker.services, 0.0, TokenCheck(is_needed=False)).table.load_all()
    assert [row_name(row) for row in rows if row.operation is None and row.permission not in (OPEN, *OF_PAGES)] == []


def test_fields_of_a_request_change_its_permissions() -> None:
    """Erasing with `now` needs more permissions than erasing; explaining a key counts as reading."""
    erase, verify = route_of(OPERATIONS["erase"]), route_of(OPERATIONS["verify"])
    assert permission_of(erase, {"now": False}).permissions == (permissions.DELETE_TOPIC,)
    assert permission_of(erase, {"now": True}).permissions == (permissions.DELETE_TOPIC, permissions.ALTER_CLUSTER)
    explain = route_of(OPERATIONS["explain"])
    assert permission_of(explain, {"topic": "t", "key": None}).permissions == (permissions.DESCRIBE_TOPIC,)
    for fields in ({"topic": "t", "key": b""}, {"topic": "t", "partition": 0, "offset": 0}):
        found = permission_of(explain, fields)
        assert (found.permissions, found.is_reading) == ((permissions.DESCRIBE_TOPIC, permissions.READ_TOPIC), True)
    guessed = permission_of(verify, {"certificate": {}, "key": b"guess", "where": None})
    assert (guessed.permissions, guessed.is_reading) == (
        (permissions.DESCRIBE_CLUSTER, permissions.ALTER_CLUSTER),
        True,
    )
    unstated = Route("GET", "/new", explain.handle, "A row that states no permission needs ALTER on the cluster.")
    assert permission_of(unstated, {}).permissions == (permissions.ALTER_CLUSTER,)


async def test_authorization_comes_before_validation(tmp_path: Path) -> None:
    """On each route, a caller without permission is refused before the query and the body are checked."""
    async with secured(tmp_path) as broker:
        routes = Routes(broker.services, 0.0, TokenCheck(is_needed=False))
        rows = [row for row in await routes.table.load_all() if permission_of(row, {}) is not OPEN]
        assert len(rows) > 40
        odd = {}
        for row in rows:
            path = row.path.format(
                **dict.fromkeys(("topic", "partition", "offset", "id", "group", "digest", "name", "broker"), "0")
            )
            for query, body in (
                ("", None),
                ("?x=1", {}),
                ("", {"x": "y"}),
                ("", {"topic": 7, "topics": "users", "key": 1}),
            ):
                given = body if row.method in ("POST", "PUT") else None
                answer = await call(broker, BOB, row.method, path + query, given)
                if answer.status != 403:
                    odd[row_name(row)] = answer.status, query, body
        assert odd == {}


async def test_a_partly_authorized_principal_gets_validation_errors(tmp_path: Path) -> None:
    """A reader of one topic gets 400 for a request without a topic, and 403 for that of another topic."""
    async with secured(tmp_path) as broker:
        for fields, status in (({}, 400), ({"topic": "others"}, 403), ({"topic": "users"}, 200)):
            assert (await call(broker, ALICE, "POST", "/v1/latest", fields)).status == status
