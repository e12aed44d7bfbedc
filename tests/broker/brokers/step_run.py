"""A script of requests and changes of a cluster of three brokers, with comparable answers: real brokers and ours run the same.

`run_steps` runs `STEPS` from top to bottom on a new cluster of brokers 1, 2 and 3, so that a step may build on earlier ones.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from diamant.broker.client.kafka_connection import ConnectionFailed, Fields, KafkaConnection
from tests.broker.brokers.answers import Topics, brief
from tests.broker.wire import METADATA

BROKERS = (1, 2, 3)
SETTLED_S = 60.0
SILENCE_S = 3.0
"""After this time a broker that does not answer counts as silent."""


class Cluster(Protocol):
    """Three brokers that the script stops and starts."""

    def wait_settled(self) -> None:
        """Wait until all brokers know of a change that no condition shows."""

    def address(self, broker: int) -> tuple[str, int]:
        """Return host and port of a broker, up or down."""

    def down(self, broker: int) -> None:
        """Stop a broker in order: its leaders move, its port closes."""

    def hard(self, broker: int) -> None:
        """Let a broker answer no more, with its port open."""

    def up(self, broker: int) -> None:
        """Start a broker, or let it answer again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ask:
    """A request to one broker, whose answer is recorded.

    `{"topic_id": "t"}` stands for the id of topic `t`, a value that is a function for its result with what earlier steps kept.
    """

    name: str
    broker: int
    api_key: int
    version: int
    fields: Mapping[str, Any]
    is_pending: bool = False
    """It is answered later: `Answered` takes the answer."""
    keeps: tuple[str, ...] = ()
    """Fields of the response that later steps use: of its first element, where it is a list of them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Answered:
    """The end of a pending request."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A command: `down`, `hard` or `up` of a broker."""

    verb: str
    broker: int


@dataclasses.dataclass(frozen=True, slots=True)
class Until:
    """Wait until all these brokers name this leader and these in-sync replicas of a partition."""

    topic: str
    partition: int
    leader: int
    in_sync: tuple[int, ...]
    seen_by: tuple[int, ...] = BROKERS


@dataclasses.dataclass(frozen=True, slots=True)
class UntilAnswered:
    """Repeat a request until its codes are these: for changes that metadata does not show."""

    ask: Ask
    accept: Callable[[Any], bool]


Step: TypeAlias = Ask | Answered | Change | Until | UntilAnswered


class Run:
    """One run of the steps. Use with `with`."""

    def __init__(self, cluster: Cluster, answers: dict[str, Any]) -> None:
        self.cluster = cluster
        self.answers = answers
        self._kept: dict[str, Any] = {}
        self._pending: dict[str, tuple[Ask, Future[Any]]] = {}
        self._connections: dict[int, KafkaConnection] = {}
        self._stack = ExitStack()
        self._threads = self._stack.enter_context(ThreadPoolExecutor(4))

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.close()
        self._stack.close()

    def take(self, step: Step) -> None:
        """Take one step, and keep its answer."""
        if isinstance(step, Ask) and step.is_pending:
            self._pending[step.name] = step, self._threads.submit(self._ask_once, step, self._connect(step.broker))
            self.cluster.wait_settled()
        elif isinstance(step, Ask):
            self._record(step, self._asked(step))
        elif isinstance(step, Answered):
            ask, future = self._pending.pop(step.name)
            self._record(ask, future.result())
        elif isinstance(step, Change):
            self._forget(step.broker)
            getattr(self.cluster, step.verb)(step.broker)
        elif isinstance(step, Until):
            self._wait(step)
        else:
            self._wait_until(lambda: step.accept(self._asked(step.ask)), step.ask.name)

    def _record(self, ask: Ask, answer: Any) -> None:
        assert ask.name not in self.answers, ask.name
        for name in ask.keeps:
            self._kept[name] = _first(answer, name)
        topics = Topics(self._ids(), {number: self.cluster.address(number) for number in BROKERS})
        self.answers[ask.name] = answer if isinstance(answer, str) else brief(answer, topics)
        if ask.api_key in CHANGING:
            self.cluster.wait_settled()

    def _ids(self) -> dict[UUID, str]:
        return self._kept.setdefault("ids", {})

    def _asked(self, ask: Ask) -> Any:
        """Return the response's fields; `closed` or `silent` if there is none."""
        if ask.broker not in self._connections:
            try:
                self._connections[ask.broker] = self._connect(ask.broker)
            except ConnectionFailed as error:
                return _failure(error)
        answer = self._ask(ask, self._connections[ask.broker])
        if isinstance(answer, str):
            self._forget(ask.broker)
        return answer

    def _ask(self, ask: Ask, connection: KafkaConnection) -> Any:
        fields = self._resolved(ask.fields)
        assert connection.version(ask.api_key, ask.version) == ask.version, ask.name
        try:
            timeout_s = SETTLED_S if ask.is_pending else None
            return connection.ask(ask.api_key, fields, most=ask.version, timeout_s=timeout_s)
        except ConnectionFailed as error:
            return _failure(error)

    def _ask_once(self, ask: Ask, connection: KafkaConnection) -> Any:
        with connection:
            return self._ask(ask, connection)

    def _connect(self, broker: int) -> KafkaConnection:
        return KafkaConnection(*self.cluster.address(broker), timeout_s=SILENCE_S)

    def _forget(self, broker: int) -> None:
        if connection := self._connections.pop(broker, None):
            connection.close()

    def _resolved(self, fields: Any) -> Any:
        if callable(fields):
            return fields(self._kept)
        if isinstance(fields, Mapping):
            return {
                name: self._id(value) if name == "topic_id" else self._resolved(value) for name, value in fields.items()
            }
        return [self._resolved(value) for value in fields] if isinstance(fields, list | tuple) else fields

    def _id(self, name: Any) -> UUID:
        if isinstance(name, UUID) or name is None:
            return name or UUID(int=0)
        ids = self._ids()
        if name not in ids.values():
            answer = next(found for broker in BROKERS if isinstance(found := self._metadata(broker, name), dict))
            ids[answer["topics"][0]["topic_id"]] = name
        return next(topic_id for topic_id, known in ids.items() if known == name)

    def _metadata(self, broker: int, *topics: str) -> Any:
        return self._asked(
            Ask("", broker, METADATA, 12, {"topics": [{"topic_id": None, "name": name} for name in topics]})
        )

    def _wait(self, until: Until) -> None:
        def is_seen() -> bool:
            return all(self._sees(broker, until) for broker in until.seen_by)

        self._wait_until(is_seen, str(until))

    def _sees(self, broker: int, until: Until) -> bool:
        answer = self._metadata(broker, until.topic)
        if isinstance(answer, str):
            return False
        found = {one["partition_index"]: one for one in answer["topics"][0]["partitions"]}.get(until.partition)
        return found is not None and (found["leader_id"], set(found["isr_nodes"])) == (until.leader, set(until.in_sync))

    def _wait_until(self, is_done: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + SETTLED_S
        while not is_done():
            assert time.monotonic() < deadline_s, f"waited in vain for {what}; so far: {list(self.answers)[-3:]}"
            time.sleep(0.02)
        self.cluster.wait_settled()


CHANGING = frozenset({19, 20, 33, 37, 43, 44, 45})
"""APIs of the controller, whose changes the brokers learn a moment later."""


def run_steps(cluster: Cluster, steps: Iterable[Step], answers: dict[str, Any]) -> None:
    """Take all steps; put the answers into `answers`, by name."""
    with Run(cluster, answers) as run:
        for step in steps:
            run.take(step)


def _failure(error: ConnectionFailed) -> str:
    if error.code == "timed-out":
        return "silent"
    return "refused" if "refused" in str(error) else "closed"


def _first(answer: Fields, path: str) -> Any:
    """Return the value at a path of names; of a list its first element."""
    value: Any = answer
    for name in path.split("."):
        value = value[name]
        value = value[0] if isinstance(value, list) else value
    return value
