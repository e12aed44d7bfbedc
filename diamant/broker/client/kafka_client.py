"""A small synchronous client of any Kafka cluster: metadata, requests to the right broker, retries.

The client keeps one connection per broker, and one for requests that any broker can answer. It raises `KafkaRefusal` if a broker
returns an error code, and `ConnectionFailed` if a connection fails.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from diamant.broker.client.kafka_connection import ConnectionFailed, Fields, KafkaConnection
from diamant.broker.operation_errors import no_topic
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.apis import LIST_OFFSETS, METADATA

if TYPE_CHECKING:
    import ssl

    from diamant.broker.client.login import Login

Place: TypeAlias = tuple[str, int]
"""A partition: (topic, partition number)."""

NO_LEADER = -1
EARLIEST, LATEST = -2, -1
"""The timestamps with which ListOffsets returns a partition's first offset and its end offset."""
RETRY_S = 0.1
RETRIED = {
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.OFFSET_NOT_AVAILABLE,
}
"""Transient errors. Usually, a retry with refreshed metadata succeeds."""


class KafkaRefusal(Exception):
    """A broker returned an error code. The message has the code's name, what was refused, and the broker's own message, if any.

    `sentence` replaces the whole message, for errors that are worded alike everywhere in Diamant.
    """

    def __init__(self, what: str, code: int, message: str | None = None, sentence: str | None = None) -> None:
        self.code = code
        name, message = error_name(code), (message or _MEANINGS.get(code, "")).rstrip(".")
        super().__init__(sentence or (f"{what}: {message} ({name})" if message else f"{what}: {name}"))

    def with_hint(self, hint: str) -> KafkaRefusal:
        """Return the same error with a sentence added to its message."""
        return KafkaRefusal("", self.code, sentence=f"{self}. {hint}")


def topic_refusal(name: str, code: int, message: str | None = None) -> KafkaRefusal:
    """Return the error for a code in a response about a topic."""
    is_missing = code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return KafkaRefusal(f"topic {name!r}", code, message, no_topic(name) if is_missing else None)


class LedPartition(NamedTuple):
    """A partition and its brokers. `leader` is -1 if the partition has none."""

    number: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    error_code: int


class LedTopic(NamedTuple):
    """A topic of the cluster, with its partitions in ascending order."""

    name: str
    is_internal: bool
    partitions: tuple[LedPartition, ...]


class KafkaClient:
    """A client of one cluster. `bootstrap`: comma-separated addresses, tried in order. `timeout_s` bounds each request, including
    its retries. `login` is for clusters with SASL, `tls` for clusters with TLS.
    """

    def __init__(
        self, bootstrap: str, *, timeout_s: float, login: Login | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.bootstrap = bootstrap
        self.timeout_s = timeout_s
        self._login = login
        self._tls = tls
        self._addresses: dict[int, tuple[str, int]] = {}
        self._connections: dict[int, KafkaConnection] = {}
        self._any: KafkaConnection | None = None
        self.controller_id = -1

    def close(self) -> None:
        """Close all connections."""
        for connection in (*self._connections.values(), *((self._any,) if self._any else ())):
            connection.close()
        self._connections.clear()
        self._any = None

    def __enter__(self) -> KafkaClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def any_broker(self) -> KafkaConnection:
        """Return the connection for requests to any broker. Opens it if needed: bootstrap addresses first, then known brokers."""
        if self._any is None or self._any.is_closed:
            failures: list[ConnectionFailed] = []
            for host, port in dict.fromkeys((*self._bootstrap(), *self._addresses.values())):
                try:
                    self._any = self._connect(host, port)
                    break
                except ConnectionFailed as error:
                    failures.append(error)
            else:
                told = "; ".join(map(str, failures))
                is_refused = failures[-1].code in ("unauthorized", "bad-argument")
                raise ConnectionFailed(told if is_refused else f"no broker answers: {told}", failures[-1].code)
        return self._any

    def ask_any(self, api_key: int, fields: Fields) -> Fields:
        """Send a request to any broker, and return the response. If the connection fails, try once more on a new one."""
        try:
            return self.any_broker().ask(api_key, fields, timeout_s=self.timeout_s)
        except ConnectionFailed:
            if self._any is None:
                raise
            self._any.close()
            self._any = None
        return self.any_broker().ask(api_key, fields, timeout_s=self.timeout_s)

    def _bootstrap(self) -> Iterator[tuple[str, int]]:
        for address in self.bootstrap.split(","):
            host, _, port = address.strip().rpartition(":")
            if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
                raise ValueError(f"{address.strip()!r} is not an address: expected HOST:PORT")
            yield host.removeprefix("[").removesuffix("]"), int(port)

    def broker(self, node_id: int) -> KafkaConnection:
        """Return the connection to the broker with this ID."""
        if node_id not in self._addresses:
            self.topics([])
        if node_id not in self._connections or self._connections[node_id].is_closed:
            if node_id not in self._addresses:
                raise ConnectionFailed(f"the cluster has no address for broker {node_id}")
            host, port = self._addresses[node_id]
            self._connections[node_id] = self._connect(host, port)
        return self._connections[node_id]

    def _connect(self, host: str, port: int) -> KafkaConnection:
        return KafkaConnection(host, port, timeout_s=self.timeout_s, login=self._login, tls=self._tls)

    def controller(self) -> KafkaConnection:
        """Return a connection to the controller, which handles changes of topics."""
        self.topics([])
        return self.any_broker() if self.controller_id < 0 else self.broker(self.controller_id)

    def broker_ids(self) -> list[int]:
        """Return the ids of the live brokers."""
        self.topics([])
        return sorted(self._addresses)

    def forget(self, node_id: int) -> None:
        """Close the connection to a broker after an error. The next call opens a new one."""
        if connection := self._connections.pop(node_id, None):
            connection.close()

    def topics(self, names: Sequence[str] | None = None) -> list[LedTopic]:
        """Return all topics, or those with the given names, sorted by name. Raises KafkaRefusal if one is missing."""
        asked = None if names is None else [{"name": name} for name in names]
        answer = self.ask_any(METADATA, {"topics": asked, "allow_auto_topic_creation": False})
        self.note_brokers(answer)
        found = [_topic(topic) for topic in answer["topics"]]
        return sorted(found, key=lambda one: one.name)

    def note_brokers(self, metadata: Fields) -> None:
        """Remember the brokers and the controller in a response to Metadata."""
        self._addresses = {broker["node_id"]: (broker["host"], broker["port"]) for broker in metadata["brokers"]}
        self.controller_id = metadata["controller_id"]

    def topic(self, name: str) -> LedTopic:
        """Return one topic. Raises KafkaRefusal if it does not exist."""
        return self.topics([name])[0]

    def led(self, topic: str, numbers: Iterable[int]) -> dict[int, list[int]]:
        """Like `leaders_of`, but for the given partitions of one topic: {leader ID: partition numbers}."""
        found = self.leaders_of((topic, number) for number in numbers)
        return {leader: [number for _, number in led] for leader, led in found.items()}

    def leaders_of(self, places: Iterable[Place]) -> dict[int, list[Place]]:
        """Return the partitions, grouped by leader ID. Waits until all have leaders; raises KafkaRefusal after the timeout."""
        wanted = set(places)
        deadline = time.monotonic() + self.timeout_s
        while wanted:
            found: dict[int, list[Place]] = {}
            for topic in self.topics(sorted({name for name, _ in wanted})):
                for one in topic.partitions:
                    if (topic.name, one.number) in wanted:
                        found.setdefault(one.leader, []).append((topic.name, one.number))
            leaderless = found.pop(NO_LEADER, [])
            missing = sorted(wanted.difference(leaderless, *found.values()))
            if not leaderless and not missing:
                return found
            (name, number), *_ = leaderless or missing
            if not leaderless and time.monotonic() > deadline:
                raise KafkaRefusal(f"{name}-{number}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            self.pause(deadline, f"{name}-{number}", ErrorCode.LEADER_NOT_AVAILABLE)
        return {}

    def pause(self, deadline: float, what: str, code: int) -> None:
        """Wait before a retry. Raises KafkaRefusal if the error is permanent, or if the deadline has passed."""
        if code not in RETRIED or time.monotonic() > deadline:
            raise KafkaRefusal(what, code)
        time.sleep(RETRY_S)

    def offsets(self, topic: str, numbers: Iterable[int], timestamp: int, *, committed: bool = False) -> dict[int, int]:
        """Like `offsets_of`, but for the given partitions of one topic: {partition number: offset}."""
        found = self.offsets_of(((topic, number) for number in numbers), timestamp, committed=committed)
        return {number: offset for (_, number), offset in found.items()}

    def offsets_of(self, places: Iterable[Place], timestamp: int, *, committed: bool = False) -> dict[Place, int]:
        """Return one offset for each partition: for EARLIEST the first, for LATEST the end, for a time in ms the offset of the
        first record with that timestamp or a later one, or -1 if there is no such record.

        `committed`: LATEST returns the last stable offset, as for read_committed.
        """
        left, found = set(places), {}
        deadline = time.monotonic() + self.timeout_s
        while left:
            failed: dict[Place, int] = {}
            for leader, led in self.leaders_of(left).items():
                topics: dict[str, list[Fields]] = {}
                for name, number in led:
                    topics.setdefault(name, []).append({"partition_index": number, "timestamp": timestamp})
                fields = {
                    "replica_id": -1,
                    "isolation_level": int(committed),
                    "topics": [{"name": name, "partitions": own} for name, own in topics.items()],
                }
                try:
                    answer = self.broker(leader).ask(LIST_OFFSETS, fields, most=7, timeout_s=self.timeout_s)
                except ConnectionFailed:
                    # Another broker may become the leader.
                    self.forget(leader)
                    if time.monotonic() > deadline:
                        raise
                    failed.update(dict.fromkeys(led, ErrorCode.LEADER_NOT_AVAILABLE))
                    continue
                for topic in answer["topics"]:
                    for one in topic["partitions"]:
                        place = topic["name"], one["partition_index"]
                        if one["error_code"]:
                            failed[place] = one["error_code"]
                        else:
                            found[place] = one["offset"]
                            left.discard(place)
            if failed:
                (name, number), code = next(
                    (one for one in failed.items() if one[1] not in RETRIED), next(iter(failed.items()))
                )
                self.pause(deadline, f"{name}-{number}", code)
        return found


_MEANINGS: Mapping[int, str] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "no ACL allows this user to do that",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such topic or partition",
    ErrorCode.UNKNOWN_MEMBER_ID: "it has active members, expected none: stop them first",
    ErrorCode.NON_EMPTY_GROUP: "it has active members, expected none: stop them first",
}


def error_name(code: int) -> str:
    """Return Kafka's name for an error code."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def _topic(found: Fields) -> LedTopic:
    if found["error_code"] not in (0, ErrorCode.LEADER_NOT_AVAILABLE):
        raise topic_refusal(found["name"], found["error_code"])
    return LedTopic(found["name"], found["is_internal"], partitions_of(found))


def partitions_of(topic: Fields) -> tuple[LedPartition, ...]:
    """Return the partitions of a topic in a response to Metadata, in order."""
    return tuple(
        sorted(
            LedPartition(
                partition["partition_index"],
                partition["leader_id"],
                tuple(partition["replica_nodes"]),
                tuple(partition["isr_nodes"]),
                partition["error_code"],
            )
            for partition in topic["partitions"]
        )
    )
