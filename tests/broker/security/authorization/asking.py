"""Sends the questions of `questions.py` to a broker and returns its responses as comparable values.

What differs from run to run is masked: ids, addresses, times, sizes. Lists are sorted, as Kafka's order is that of hash maps in
many of these answers. Messages are left out: Kafka's name Java objects in places.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

from diamant.broker.acl import Acl
from tests.broker.request_fields import acl_filter
from tests.broker.security.authorization.questions import ALL, QUESTIONS, Client, Question, Scenario
from tests.broker.security.sasl.sasl_wire import scram_final
from tests.broker.wire import WireClient

DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS, METADATA, FIND_COORDINATOR = 29, 30, 31, 3, 10
ADMIN = "admin"
"""The super user of both brokers."""

Connect: TypeAlias = Callable[[Client], Awaitable[WireClient]]
"""A connection of a user from an address."""

_MASKED = frozenset({
    "throttle_time", "error_message", "cluster_id", "host", "port", "node_id", "topic_id", "member_id", "log_dir", "rack",
    "is_fenced", "log_append_time", "producer_id", "records", "partition_size", "total_bytes", "usable_bytes", "brokers",
    "controller_id", "broker_id", "api_keys", "finalized_features", "supported_features", "finalized_features_epoch",
    "base_offset", "high_watermark", "last_stable_offset", "end_offset", "log_start_offset", "current_leader",
    "node_endpoints", "nodes", "leader_epoch", "is_cordoned", "configs", "config_resources", "last_timestamp",
    "active_producers", "low_watermark", "coordinator_epoch", "eligible_leader_replicas", "last_known_elr", "controllers",
    "voters", "observers",
})  # fmt: skip
ANY_FILTER = acl_filter()


def plain(value: Any) -> Any:
    """Return a response as plain values, without the masked fields."""
    if isinstance(value, enum.Enum):
        return value.name
    if dataclasses.is_dataclass(value):
        names = (field.name for field in dataclasses.fields(value))
        return {name: plain(getattr(value, name)) for name in names if name not in _MASKED}
    if isinstance(value, tuple | list):
        return sorted((plain(one) for one in value), key=lambda one: json.dumps(one, sort_keys=True))
    if isinstance(value, UUID | bytes | timedelta | datetime):
        return str(type(value).__name__)
    return value


class Asker:
    """Sends questions to one broker. Its clients stay connected."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._clients: dict[Client, WireClient] = {}
        self._ids: dict[str, UUID] = {}

    async def prepare(self) -> None:
        """Create the resources of the questions, as the super user."""
        admin = await self._client(Client(ADMIN))
        for name in ("users", "orders"):
            await admin.create(name)
        for key, key_type in (("g", 0), ("tx", 1)):
            await self._wait_until_found(admin, key, key_type)
        response = await admin.call(METADATA, 12, {"topics": None})
        self._ids = {topic.name: topic.topic_id for topic in response.topics}
        await self._wait_until_committed(admin)

    async def _wait_until_found(self, admin: WireClient, key: str, key_type: int) -> None:
        async with asyncio.timeout(60):
            while (await admin.call(FIND_COORDINATOR, 3, {"key": key, "key_type": key_type})).error_code:
                await asyncio.sleep(0.1)  # a real Kafka makes the topic in the background

    async def _wait_until_committed(self, admin: WireClient) -> None:
        question = QUESTIONS["offset commit: version 8"]
        async with asyncio.timeout(60):
            while True:
                response = await admin.call(question.api_key, question.version, question.fields(self._ids))
                codes = {topic.name: topic.partitions[0].error_code for topic in response.topics}
                if not codes["users"]:
                    return
                await asyncio.sleep(0.1)

    async def answers(self, scenarios: Sequence[Scenario], *, sets_acls: bool = True) -> dict[str, Any]:
        """Return the responses by "scenario / user from host / question". `sets_acls` False: with the existing ACLs."""
        found = {}
        for scenario in scenarios:
            if sets_acls:
                await self.set_acls(scenario.acls)
            for client in scenario.clients:
                for name in scenario.questions or ALL:
                    found[f"{scenario.name} / {client.user} from {client.host} / {name}"] = await self.ask(client, name)
        return found

    async def ask(self, client: Client, name: str) -> Any:
        """Return the response to one question; "closed" if the connection was closed instead."""
        question = QUESTIONS[name]
        wire = await self._client(client)
        try:
            return await self._wait_for_answer(wire, question)
        except (asyncio.IncompleteReadError, ConnectionError):
            del self._clients[client]
            return "closed"

    async def _wait_for_answer(self, wire: WireClient, question: Question) -> Any:
        async with asyncio.timeout(60):
            while True:
                answer = plain(await wire.call(question.api_key, question.version, question.fields(self._ids)))
                if answer.get("error_code") != "coordinator_load_in_progress":
                    return answer
                await asyncio.sleep(0.1)  # a real Kafka fetches a block of producer ids in the background

    async def set_acls(self, acls: Sequence[Acl]) -> None:
        """Replace all ACLs, and wait until the new ones are in force."""
        admin = await self._client(Client(ADMIN))
        await admin.call(DELETE_ACLS, 3, {"filters": [ANY_FILTER]})
        response = await admin.call(CREATE_ACLS, 3, {"creations": [creation(acl) for acl in acls]})
        assert not any(result.error_code for result in response.results), response
        await self._wait_for_acls(admin, len(acls))

    async def _wait_for_acls(self, admin: WireClient, count: int) -> None:
        async with asyncio.timeout(30):
            while True:
                response = await admin.call(DESCRIBE_ACLS, 3, ANY_FILTER)
                if sum(len(resource.acls) for resource in response.resources) == count:
                    return
                await asyncio.sleep(0.05)

    async def _client(self, client: Client) -> WireClient:
        if client not in self._clients:
            self._clients[client] = await self._connect(client)
        return self._clients[client]

    async def close(self) -> None:
        """Close the connections."""
        for wire in self._clients.values():
            wire.writer.close()
            await wire.writer.wait_closed()


def creation(acl: Acl) -> dict[str, Any]:
    """Return an ACL as the fields of CreateAcls."""
    return {
        "resource_type": int(acl.resource_type),
        "resource_name": acl.resource_name,
        "resource_pattern_type": int(acl.pattern_type),
        "principal": acl.principal,
        "host": acl.host,
        "operation": int(acl.operation),
        "permission_type": int(acl.permission),
    }


async def connected(address: str, local_host: str) -> WireClient:
    """Return a connection from an address of this machine."""
    wire = WireClient(address)
    host, _, port = address.rpartition(":")
    wire.reader, wire.writer = await asyncio.open_connection(host, int(port), local_addr=(local_host, 0))
    return wire


async def logged_in_by_scram(address: str, client: Client, passwords: Mapping[str, str]) -> WireClient:
    """Return a connection that has authenticated with SCRAM-SHA-256."""
    wire = await connected(address, client.host)
    handshake = await wire.call(17, 1, {"mechanism": "SCRAM-SHA-256"})
    first = f"n={client.user},r=nonce"
    challenge = await wire.call(36, 2, {"auth_bytes": f"n,,{first}".encode()})
    final = scram_final(first, bytes(challenge.auth_bytes).decode(), passwords[client.user])
    answer = await wire.call(36, 2, {"auth_bytes": final})
    assert (handshake.error_code, challenge.error_code, answer.error_code) == (0, 0, 0), answer
    return wire


async def logged_in(address: str, client: Client, passwords: Mapping[str, str]) -> WireClient:
    """Return a connection that has authenticated with SASL PLAIN."""
    wire = await connected(address, client.host)
    handshake = await wire.call(17, 1, {"mechanism": "PLAIN"})
    token = f"\0{client.user}\0{passwords[client.user]}".encode()
    answer = await wire.call(36, 2, {"auth_bytes": token})
    assert (handshake.error_code, answer.error_code) == (0, 0), answer
    return wire
