"""`diamant.compact=now` by IncrementalAlterConfigs: compact, wait for a bounded time, and answer with a Kafka error code.

The wait ends after `diamant.compact.wait.max.ms` with REQUEST_TIMED_OUT, while the compaction continues. The next request on the
same connection joins that compaction, which covers everything written before the first request; otherwise a client would never
finish with a topic that is written constantly. Any other request begins a new compaction, which covers everything written before
that request.

Bounds: new compactions begin at a rate of `RATE_PER_S`, with bursts of `BURST`; requests beyond that wait for their turn within
their time limit. A compaction counts towards `compactions.MAX_CALLS` even when its caller has stopped waiting.

| error | when |
|---|---|
| INVALID_CONFIG | the topic is not compacted; a value other than `now` |
| UNKNOWN_TOPIC_OR_PARTITION | the topic does not exist, or was deleted during the wait |
| REQUEST_TIMED_OUT | the time limit has passed, or the broker is stopping: try again |
| THROTTLING_QUOTA_EXCEEDED | there are too many such requests: try again later |
| KAFKA_STORAGE_ERROR | a partition could not be cleaned |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diamant.broker.operation_errors import OperationError
from diamant.broker.operations.compactions.compactions import not_compacted_text
from diamant.cleaner.on_demand.report import DELETED, NOT_COMPACTED, STOPPING, CompactionReport
from diamant.cleaner.on_demand.request import CompactRequest
from diamant.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node
    from diamant.broker.operations.compactions.compactions import Compactions

logger = logging.getLogger(__name__)

RATE_PER_S = 10.0
BURST = 20

_CODES = {
    "not-found": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    DELETED: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    "not-possible": ErrorCode.INVALID_CONFIG,
    NOT_COMPACTED: ErrorCode.INVALID_CONFIG,
    STOPPING: ErrorCode.REQUEST_TIMED_OUT,
    "too-many": ErrorCode.THROTTLING_QUOTA_EXCEEDED,
}


class Allowance:
    """A token bucket."""

    def __init__(self, rate_per_s: float, burst: int) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._tokens = float(burst)
        self._at_s = 0.0

    def take(self, now_s: float, longest_s: float) -> float | None:
        """Take a token and return how long to wait for it; return None if that exceeds `longest_s`. `now_s`: the loop's time."""
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._rate_per_s)
        self._at_s = now_s
        wait_s = max(0.0, (1 - self._tokens) / self._rate_per_s)
        if wait_s > longest_s:
            return None
        self._tokens -= 1
        return wait_s


@dataclass(slots=True)
class _Running:
    """A compaction that a request has begun."""

    task: asyncio.Task[CompactionReport]
    timed_out: set[str] = field(default_factory=set)
    """The connections of requests that timed out. Their next request for the topic joins this compaction."""


class CompactByConfig:
    """The compactions begun by `diamant.compact=now`. Belongs to the loop thread."""

    def __init__(self, node: Node, compactions: Lazy[Compactions], allowance: Allowance | None = None) -> None:
        """`allowance` limits the rate of new compactions; the default is `RATE_PER_S` with bursts of `BURST`."""
        self._node = node
        self._compactions = compactions
        self._running: dict[str, list[_Running]] = {}
        self._allowance = Allowance(RATE_PER_S, BURST) if allowance is None else allowance

    def check(self, topic: str, policy: str | None) -> None:
        """Check that a topic can be compacted; `policy` is the request's `cleanup.policy`. Raises KafkaError."""
        if policy is not None:
            if "compact" not in [one.strip() for one in policy.split(",")]:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"{topic} cannot be compacted: the same request sets its cleanup.policy to {policy}",
                )
            return
        for log in self._node.topics.by_name[topic].logs.values():
            if not log.config.is_compacted:
                raise KafkaError(ErrorCode.INVALID_CONFIG, not_compacted_text(topic, log))

    async def compact(self, topics: Sequence[str], peer: str) -> dict[str, KafkaError | None]:
        """Compact topics in parallel; return each topic's error, or None. `peer` names the connection."""
        deadline_s = asyncio.get_running_loop().time() + self._node.config.diamant_compact_wait_max_ms / 1000
        results = await asyncio.gather(*[self._one(topic, peer, deadline_s) for topic in topics])
        return dict(zip(topics, results, strict=True))

    async def _one(self, topic: str, peer: str, deadline_s: float) -> KafkaError | None:
        loop = asyncio.get_running_loop()
        running = next((one for one in self._running.get(topic, ()) if peer in one.timed_out), None)
        if running is None:
            wait_s = self._allowance.take(loop.time(), deadline_s - loop.time())
            if wait_s is None:
                return KafkaError(
                    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                    f"{topic} was not compacted: too many such requests, {RATE_PER_S:g} per second are allowed",
                )
            if wait_s:
                await asyncio.sleep(wait_s)
            running = self._begin(topic)
        await asyncio.wait({running.task}, timeout=max(0.0, deadline_s - loop.time()))
        if not running.task.done():
            running.timed_out.add(peer)
            return KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{topic} was not compacted within {self._node.config.diamant_compact_wait_max_ms} ms "
                "(diamant.compact.wait.max.ms); it continues, and the same request joins it",
            )
        error = running.task.exception()
        if error is None:
            return None
        if not isinstance(error, OperationError):
            logger.error("%s: diamant.compact=now failed", topic, exc_info=error)
            return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{topic} could not be compacted, see the broker's log")
        code = _CODES.get(error.code, ErrorCode.KAFKA_STORAGE_ERROR)
        if code is ErrorCode.KAFKA_STORAGE_ERROR:
            return KafkaError(code, f"{topic} could not be compacted ({error.code}), see the broker's log")
        return KafkaError(code, str(error))

    def _begin(self, topic: str) -> _Running:
        task = asyncio.get_running_loop().create_task(self._compactions().compact(CompactRequest(topic)))
        running = _Running(task)
        self._running.setdefault(topic, []).append(running)
        task.add_done_callback(lambda _done: self._end(topic, running))
        return running

    def _end(self, topic: str, running: _Running) -> None:
        if not running.task.cancelled():
            running.task.exception()  # mark the error as retrieved: the caller may have left
        left = self._running[topic]
        left.remove(running)
        if not left:
            del self._running[topic]
