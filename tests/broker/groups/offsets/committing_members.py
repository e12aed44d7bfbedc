"""Members of groups that commit ever higher offsets, and leave and rejoin; acknowledged offsets are recorded for comparison."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

from diamant.protocol.errors import ErrorCode
from diamant.protocol.internal_topics.consumer_protocol import (
    Subscription,
    encode_assignment,
    encode_subscription,
    parse_assignment,
)
from tests.broker.groups.offsets.offset_requests import (
    JOIN_GROUP,
    LEAVE_GROUP,
    SYNC_GROUP,
    Member,
    commit,
    find_coordinator,
)
from tests.broker.transactions.txn_wire import wait_for_committed_offset
from tests.broker.wire import WireClient

CALL_TIMEOUT_S = 60
PAUSE_S = 0.01
HEARTBEAT = 12
SESSION_TIMEOUT_MS = 1500
"""Who leaves while the broker is down is a member until then: for so long its group waits for it."""


_NOT_NOW = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
_JOIN_AGAIN = (
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
)


class CommittingGroup(ABC):
    """A group whose members share a topic, `topic-NAME`; at least one partition for each.

    A partition's owner fetches the committed offset and commits ever higher ones, without reading records. While `is_churning`,
    members leave after a few commits and rejoin at once, as new members or, if static, as the same.
    """

    def __init__(self, address: str, name: str, rng: random.Random, *, members: int, partitions: int) -> None:
        assert members <= partitions
        self.address = address
        self.name = name
        self.topic = f"topic-{name}"
        self.partition_count = partitions
        self.is_churning = True
        self.is_stopped = False
        self.acknowledged: dict[int, int] = {}
        self.commits = self.joins = 0
        self.errors: Counter[str] = Counter()
        self._owned: list[dict[int, int]] = [{} for _ in range(members)]
        """For each member: how many commits it has made since the last check, by the partitions that it has now."""
        self._seeds = [rng.random() for _ in range(members)]
        self._lock = threading.Lock()

    @abstractmethod
    async def _run_member(self, number: int, rng: random.Random) -> None:
        """Run one member after the other in this place, until `is_stopped`."""

    async def run(self) -> None:
        """Run all members until `is_stopped`."""
        members = [self._run_member(number, random.Random(seed)) for number, seed in enumerate(self._seeds)]
        try:
            await asyncio.gather(*members)
        finally:
            self.is_stopped = True

    def forget_progress(self) -> None:
        """Reset the progress for `has_recovered`."""
        with self._lock:
            for owned in self._owned:
                for partition in owned:
                    owned[partition] = 0

    @property
    def has_recovered(self) -> bool:
        """Whether each member has partitions, each partition one member, and each partition a new commit."""
        with self._lock:
            partitions = sorted(partition for owned in self._owned for partition in owned)
            return (
                all(self._owned)
                and partitions == list(range(self.partition_count))
                and all(min(owned.values()) > 0 for owned in self._owned)
            )

    def describe(self) -> str:
        """The owners of partitions, for messages."""
        with self._lock:
            return f"{self.name}: {self._owned}, {dict(self.errors)}"

    def check_committed(self, partition: int, committed: int, before: int) -> None:
        """Check the answer `committed` of a request made after `before` was acknowledged."""
        assert committed >= before, f"{self.name}-{partition}: {before} was acknowledged, {committed} is committed"

    def _take(self, number: int, committed: dict[int, int]) -> None:
        with self._lock:
            self._owned[number] = dict.fromkeys(committed, 0)
            self.joins += 1

    def _give_up(self, number: int) -> None:
        with self._lock:
            self._owned[number] = {}

    def _succeeded(self, number: int, offsets: dict[int, int]) -> None:
        with self._lock:
            self.commits += 1
            for partition, offset in offsets.items():
                self.acknowledged[partition] = max(offset, self.acknowledged.get(partition, 0))
                if partition in self._owned[number]:
                    self._owned[number][partition] += 1

    def _failed(self, error: str) -> None:
        assert "UNKNOWN_SERVER_ERROR" not in error, f"{self.name}: {error}"
        with self._lock:
            self.errors[error] += 1


class ConfluentGroup(CommittingGroup):
    """Members of librdkafka, each in a thread. The first of a classic group is a static one."""

    def __init__(
        self,
        address: str,
        name: str,
        rng: random.Random,
        *,
        members: int,
        partitions: int,
        protocol: str = "classic",
        strategy: str = "range",
    ) -> None:
        super().__init__(address, name, rng, members=members, partitions=partitions)
        self._config: dict[str, Any] = {
            "bootstrap.servers": address,
            "group.id": name,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "log_level": 0,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
            # A classic member whose connection goes between its request for metadata and the answer waits for the next
            # refresh before it joins.
            "topic.metadata.refresh.interval.ms": 1000,
        }
        if protocol == "classic":
            self._config |= {
                "partition.assignment.strategy": strategy,
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": 100,
            }
        self._has_static = protocol == "classic"
        self._threads = ThreadPoolExecutor(members)

    async def _run_member(self, number: int, rng: random.Random) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, self._run_members, number, rng)

    def _run_members(self, number: int, rng: random.Random) -> None:
        from confluent_kafka import Consumer

        while not self.is_stopped:
            config = dict(self._config)
            if self._has_static and number == 0:
                config["group.instance.id"] = f"{self.name}-{number}"
            failures: list[Any] = []
            consumer = Consumer({**config, "error_cb": failures.append})
            try:
                self._one_member(consumer, number, rng, failures)
            finally:
                self._give_up(number)
                consumer.close()

    def _one_member(self, consumer: Any, number: int, rng: random.Random, failures: list[Any]) -> None:
        from confluent_kafka import KafkaError

        next_offsets: dict[int, int] = {}
        is_changed = False

        def changed(_consumer: Any, _partitions: Any) -> None:
            nonlocal is_changed
            is_changed = True
            self._give_up(number)

        consumer.subscribe([self.topic], on_assign=changed, on_revoke=changed, on_lost=changed)
        commits_left = rng.randint(1, 30)
        while not self.is_stopped and (commits_left > 0 or not self.is_churning):
            message = consumer.poll(PAUSE_S)
            if message is not None and message.error() is not None:
                failures.append(message.error())
            # A static member that joined a rebalance and was given an id that the killed broker had not written down yet:
            # it is fenced, as with Kafka.
            fatal = [each.name() for each in failures if each.fatal() or each.code() == KafkaError._FATAL]
            if fatal:
                self._failed(f"{fatal[0]}, fatal")
                return
            if is_changed:
                is_changed = False
                found = self._committed(consumer)
                if found is None:
                    is_changed = True
                    continue
                if is_changed:
                    continue
                next_offsets = found
                self._take(number, found)
            if next_offsets and self._commit(consumer, number, next_offsets):
                commits_left -= 1

    def _committed(self, consumer: Any) -> dict[int, int] | None:
        """The committed offsets of the assigned partitions; None if unavailable."""
        from confluent_kafka import KafkaException

        assigned = consumer.assignment()
        if not assigned:
            return {}
        before = dict(self.acknowledged)
        try:
            found = consumer.committed(assigned, CALL_TIMEOUT_S)
        except KafkaException as failure:
            self._failed(failure.args[0].name())
            return None
        if any(each.error is not None for each in found):
            return None
        for each in found:
            self.check_committed(each.partition, each.offset, before.get(each.partition, -1001))
        return {each.partition: max(each.offset, 0) for each in found}

    def _commit(self, consumer: Any, number: int, next_offsets: dict[int, int]) -> bool:
        from confluent_kafka import KafkaException, TopicPartition

        wanted = {partition: offset + 1 for partition, offset in next_offsets.items()}
        places = [TopicPartition(self.topic, partition, offset) for partition, offset in wanted.items()]
        try:
            results = consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as failure:
            self._failed(failure.args[0].name())
            return False
        refused = [each.error.name() for each in results if each.error is not None]
        if refused:
            self._failed(refused[0])
            return False
        next_offsets.update(wanted)
        self._succeeded(number, wanted)
        return True


class WireGroup(CommittingGroup):
    """Members of a classic group that send bytes: rebalances in milliseconds. The first is a static one.

    A member ends by leaving or silently; in half of the cases its connection is closed, too.
    """

    async def _run_member(self, number: int, rng: random.Random) -> None:
        member = _WireMember(self, number, rng)
        while not self.is_stopped:
            try:
                async with WireClient(self.address) as wire:
                    await member.run(wire)
            except (ConnectionError, asyncio.IncompleteReadError):
                if rng.random() < 0.5:
                    member.member_id = ""
                await wait_a_moment()
            finally:
                self._give_up(number)


class _WireMember:
    """One place in a `WireGroup`."""

    def __init__(self, group: WireGroup, number: int, rng: random.Random) -> None:
        self.member_id = ""
        self._group = group
        self._number = number
        self._rng = rng
        self._instance_id = f"instance-{number}" if number == 0 else None
        self._generation = -1

    async def run(self, wire: WireClient) -> None:
        """Join, commit, and leave or be told to rejoin; once or repeatedly."""
        group = self._group
        while (await find_coordinator(wire, group.name)) != ErrorCode.NONE:
            await wait_a_moment()
        while not group.is_stopped:
            group._give_up(self._number)
            offsets = await self._offsets(wire, await self._join(wire))
            if offsets is None:
                continue
            group._take(self._number, offsets)
            commits_left = self._rng.randint(1, 20)
            while not group.is_stopped and (commits_left > 0 or not group.is_churning):
                if self._rng.random() < 0.3 and not await self._heartbeat(wire):
                    break
                wanted = {partition: offset + 1 for partition, offset in offsets.items()}
                if wanted:
                    if not await self._commit(wire, wanted):
                        break
                    offsets = wanted
                    commits_left -= 1
                await asyncio.sleep(0)
            else:
                await self._end(wire)
                return

    async def _call(self, wire: WireClient, key: int, version: int, fields: dict[str, Any]) -> tuple[ErrorCode, Any]:
        identity = {"member_id": self.member_id, "group_instance_id": self._instance_id}
        while True:
            response = await wire.call(key, version, {"group_id": self._group.name, **identity, **fields})
            code = ErrorCode(response.error_code)
            if code not in _NOT_NOW:
                return code, response
            await wait_a_moment()

    async def _join(self, wire: WireClient) -> list[int]:
        """Join until there is an assignment; return its partitions."""
        group = self._group
        while True:
            subscription = encode_subscription(Subscription(topics=(group.topic,)))
            request = {
                "session_timeout_ms": SESSION_TIMEOUT_MS,
                "rebalance_timeout_ms": 60_000,
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": subscription}],
                "reason": "",
            }
            code, joined = await self._call(wire, JOIN_GROUP, 9, {**request, "member_id": self.member_id})
            if code is ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = joined.member_id
                continue
            if self._is_over(code):
                continue
            self.member_id, self._generation = joined.member_id, joined.generation_id
            shares: dict[str, list[int]] = {each.member_id: [] for each in joined.members}
            for partition in range(group.partition_count if shares else 0):
                list(shares.values())[partition % len(shares)].append(partition)
            request = {
                "generation_id": self._generation,
                "protocol_type": "consumer",
                "protocol_name": joined.protocol_name,
                "assignments": [
                    {"member_id": member_id, "assignment": encode_assignment({group.topic: share})}
                    for member_id, share in shares.items()
                ],
            }
            code, synced = await self._call(wire, SYNC_GROUP, 5, request)
            if not self._is_over(code):
                return list(parse_assignment(synced.assignment).partitions.get(group.topic, ()))

    def _is_over(self, code: ErrorCode) -> bool:
        """Whether the member must rejoin, perhaps as another one."""
        if code is ErrorCode.NONE:
            return False
        assert code in _JOIN_AGAIN, code.name
        self._group._failed(code.name)
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id = ""
        return True

    async def _offsets(self, wire: WireClient, partitions: list[int]) -> dict[int, int] | None:
        group = self._group
        before = dict(group.acknowledged)
        found = {}
        for partition in partitions:
            code, offset = await wait_for_committed_offset(wire, group.name, group.topic, partition)
            assert code == "NONE", code
            group.check_committed(partition, offset, before.get(partition, -1))
            found[partition] = max(offset, 0)
        return found

    async def _heartbeat(self, wire: WireClient) -> bool:
        code, _ = await self._call(wire, HEARTBEAT, 4, {"generation_id": self._generation})
        return not self._is_over(code)

    async def _commit(self, wire: WireClient, wanted: dict[int, int]) -> bool:
        group = self._group
        member = Member(group.name, self.member_id, self._generation)
        offsets: dict[tuple[str | UUID, int], int] = {
            (group.topic, partition): offset for partition, offset in wanted.items()
        }
        while True:
            codes = set(await commit(wire, group.name, offsets, member=member, group_instance_id=self._instance_id))
            assert len(codes) == 1, codes
            code = codes.pop()
            if code not in _NOT_NOW:
                break
            await wait_a_moment()
        if self._is_over(code):
            return False
        group._succeeded(self._number, wanted)
        return True

    async def _end(self, wire: WireClient) -> None:
        """Leave, or vanish like a restarting static member."""
        if self._instance_id is None and self._rng.random() < 0.7:
            member = {"member_id": self.member_id, "group_instance_id": None, "reason": ""}
            code, _ = await self._call(wire, LEAVE_GROUP, 5, {"members": [member]})
            assert code is ErrorCode.NONE, code.name
        self.member_id = ""


async def wait_a_moment() -> None:
    """Wait before a client retries."""
    await asyncio.sleep(PAUSE_S)


async def wait_until_recovered(
    groups: list[CommittingGroup], tasks: list[asyncio.Task[None]], timeout_s: float
) -> dict[str, float]:
    """Return when all groups have recovered, with the seconds for each."""
    started_s = time.monotonic()
    taken_s: dict[str, float] = {}
    while len(taken_s) < len(groups):
        for task in tasks:
            if task.done():
                task.result()
        passed_s = time.monotonic() - started_s
        for group in groups:
            if group.name not in taken_s and group.has_recovered:
                taken_s[group.name] = passed_s
        assert passed_s < timeout_s, [group.describe() for group in groups if group.name not in taken_s]
        await wait_a_moment()
    return taken_s
