"""What an administrator does: topics, configurations, compactions, erasures, redactions, snapshots, resets, the clock.

Each is repeated after a disturbance until it is answered, as an administrator would; until then the history allows both.
"""

from __future__ import annotations

import asyncio
import json
import random
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine
from typing import Any

from diamant.protocol.errors import ErrorCode
from tests.broker.wire import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS, INCREMENTAL_ALTER_CONFIGS, WireClient
from tests.torture.history import History, Topic
from tests.torture.producing import Clock, Refused, expect

TIMEOUT_S = 60
DAY_MS = 86_400_000
KEEP = {"retention.ms": "-1", "file.delete.delay.ms": "0", "index.interval.bytes": "512", "segment.index.bytes": "8192"}
Operation = Callable[[WireClient], Coroutine[Any, Any, None]]


def http(address: str, method: str, path: str, fields: dict[str, Any] | None = None) -> Any:
    """Send a request over HTTP. ConnectionError if the broker is gone; Refused, as it may be in order to refuse."""
    body = None if fields is None else json.dumps(fields).encode()
    request = urllib.request.Request(
        f"{address}{path}", method=method, data=body, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        raise Refused(f"{method} {path}: {error.read().decode()}") from error
    except (urllib.error.URLError, OSError, json.JSONDecodeError) as error:
        raise ConnectionError(f"{method} {path}: {error}") from error


def _is_gone(topic: Topic, code: int) -> bool:
    """Tell whether a request that is repeated comes after the deletion of its topic, which had come through unanswered."""
    return topic.is_deleted is not False and code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class Administrator:
    """One administrator, and what was asked for and not answered."""

    def __init__(self, history: History, clock: Clock) -> None:
        self.history = history
        self.clock = clock
        self.http = ""
        self.unfinished: list[Operation] = []
        self._serial = 0

    async def run(self, wire: WireClient, operation: Operation) -> None:
        """Run an operation over Kafka's port; it is unfinished until it is answered."""
        self.unfinished.append(operation)
        await operation(wire)
        self.unfinished.remove(operation)

    async def finish(self, wire: WireClient) -> None:
        """Repeat what was not answered."""
        for operation in list(self.unfinished):
            await operation(wire)
            self.unfinished.remove(operation)

    async def ask(self, method: str, path: str, fields: dict[str, Any] | None = None) -> Any:
        """Send a request over HTTP from a thread."""
        return await asyncio.to_thread(http, self.http, method, path, fields)

    def create(self, name: str, partitions: int, configs: dict[str, str]) -> Operation:
        """Create a topic."""
        topic = self.history.topics[name] = Topic("compact" in configs.get("cleanup.policy", ""), partitions)
        topic.configs = {key: {value} for key, value in configs.items()}
        entries = [{"name": key, "value": value} for key, value in (KEEP | configs).items()]
        asked = {"name": name, "num_partitions": partitions, "replication_factor": -1, "configs": entries}

        async def operation(wire: WireClient) -> None:
            answer = await wire.call(CREATE_TOPICS, 7, {"topics": [asked], "timeout_ms": 1000})
            if answer.topics[0].error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
                expect(answer.topics[0].error_code, f"CreateTopics {name}")
            topic.is_created = True

        return operation

    def delete(self, name: str) -> Operation:
        """Delete a topic."""
        topic = self.history.topics[name]
        topic.is_deleted = None

        async def operation(wire: WireClient) -> None:
            fields = {"topics": [{"name": name, "topic_id": None}], "timeout_ms": 1000}
            answer = await wire.call(DELETE_TOPICS, 6, fields)
            if answer.responses[0].error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                expect(answer.responses[0].error_code, f"DeleteTopics {name}")
            topic.is_deleted = True

        return operation

    def grow(self, name: str) -> Operation:
        """Add a partition."""
        topic = self.history.topics[name]
        topic.partitions += 1
        count = topic.partitions

        async def operation(wire: WireClient) -> None:
            asked = {"name": name, "count": count, "assignments": None}
            fields = {"topics": [asked], "timeout_ms": 1000, "validate_only": False}
            answer = await wire.call(CREATE_PARTITIONS, 3, fields)
            code = answer.results[0].error_code
            if code != ErrorCode.INVALID_PARTITIONS and not _is_gone(topic, code):
                expect(code, f"CreatePartitions {name}")

        return operation

    def alter(self, name: str, key: str, value: str) -> Operation:
        """Change a configuration of a topic."""
        topic = self.history.topics[name]
        possible = topic.configs.setdefault(key, set())
        possible.add(value)

        async def operation(wire: WireClient) -> None:
            config = {"name": key, "config_operation": 0, "value": value}
            asked = {"resource_type": 2, "resource_name": name, "configs": [config]}
            fields = {"resources": [asked], "validate_only": False}
            answer = await wire.call(INCREMENTAL_ALTER_CONFIGS, 1, fields)
            if not _is_gone(topic, answer.responses[0].error_code):
                expect(answer.responses[0].error_code, f"IncrementalAlterConfigs {name}")
            possible.clear()
            possible.add(value)

        return operation

    # Over HTTP: nobody repeats these, the broker finishes what it has begun.

    async def compact(self, name: str, engine: str | None = None) -> None:
        """Compact a topic now. The engine "process" is a process of its own, however small the topic is."""
        named = {} if engine is None else {"engine": engine}
        await self.ask("POST", "/v1/compact?wait_ms=30000", {"topic": name} | named)

    async def forget(self, name: str, key: bytes, *, by: str) -> None:
        """Erase a key from a compacted topic, or redact it."""
        self._serial += 1
        reference = f"case {self._serial}"
        self.history.forgotten[reference] = key
        fields: dict[str, Any] = {"reason": "a request", "reference": reference}
        if by == "erase":
            fields |= {"key": key.decode(), "topics": [name]}
        else:
            fields |= {"topic": name, "where": f'key == "{key.decode()}"'}
        await self.drop_snapshots()
        answer = await self.ask("POST", f"/v1/{by}?wait_ms=20000", fields)
        if answer.get("certificate"):
            self.history.certified[reference] = answer["certificate"]["state"]

    async def advance(self, rng: random.Random) -> None:
        """Move the clock forward."""
        by_ms = rng.choice((1000, 3_600_000, DAY_MS, 2 * DAY_MS))
        await self.ask("POST", "/v1/clock/advance?wait_ms=30000", {"by": f"{by_ms}ms"})
        await self.look_at_clock()

    async def look_at_clock(self) -> None:
        """Stamp records by the broker's clock from now on."""
        self.clock.ahead_ms = (await self.ask("GET", "/v1/clock"))["ahead_ms"]

    async def snapshot(self) -> str:
        """Take a snapshot; its id."""
        return str((await self.ask("POST", "/v1/snapshots", {}))["id"])

    async def drop_snapshots(self) -> None:
        """Delete all snapshots."""
        for one in (await self.ask("GET", "/v1/snapshots"))["snapshots"]:
            await self.ask("DELETE", f"/v1/snapshots/{one['id']}")

    async def reset(self, snapshot: str) -> None:
        """Go back to a snapshot."""
        await self.ask("POST", "/v1/reset", {"snapshot": snapshot})
