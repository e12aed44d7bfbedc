"""Reads whole batches from chosen replicas of any Kafka cluster with plain Fetch requests, and finds where segments begin.

A follower answers Fetch requests from version 11 on, up to its high watermark (KIP-392), so a client can read each replica
directly. A fetch never crosses a segment boundary. So if a response had room for the next batch, that batch begins a segment.

All stretches of a broker share one connection with up to `IN_FLIGHT` requests, so the broker prepares a response while another
arrives. Batches are handed over as they arrive, in pieces of about `GATHERED_BYTES`: a piece is still in the processor's cache,
and the broker, which sends only a few 100 KB ahead, need not wait until a whole response has been searched. All responses are
received in the same memory, since allocating memory for each would take a tenth of the time.
Memory: one response of `FETCH_BYTES`, or one larger batch, besides the buffers of the sockets.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from struct import Struct

from diamant.broker.client.kafka_client import RETRIED, RETRY_S, KafkaClient, error_name
from diamant.broker.client.kafka_connection import GATHERED_BYTES, ConnectionFailed, KafkaConnection
from diamant.cleaner.evidence.certificates.cluster_claims import replica_name
from diamant.kernels import ARE_COMPILED, in_large_pages, numbers
from diamant.protocol.batches.header import (
    CURRENT_MAGIC,
    HEADER_SIZE,
    HEADER_SIZE_UP_TO_MAGIC,
    LAST_OFFSET_DELTA,
    LOG_OVERHEAD,
    MAGIC,
)
from diamant.protocol.errors import ErrorCode
from diamant.protocol.primitives import read_string
from diamant.protocol.wire.apis import FETCH

VERSION = 11
"""The first version that followers answer. It identifies topics by name and has no compact encodings."""
FETCH_BYTES = 4 * 1024 * 1024
IN_FLIGHT = 4
WAIT_MS = 250

_AROUND_BYTES = 4096
"""Enough for everything around the batches in a response with one partition, unless very many transactions were aborted."""
_RESPONSE = Struct(">ihii")
_PARTITION = Struct(">ihqqqi")
_PREFIX = Struct(">qi")
_HEADER = Struct(">i8xq")
"""The part of a batch header from the last offset delta to the latest timestamp."""
_INT32 = Struct(">i")
_REFERRED = Struct(">ii")
"""The preferred replica, -1 for none, and the size of the records."""
_ABORTED_BYTES = 16
_TRANSIENT = RETRIED | {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@dataclass(slots=True)
class Stretch:
    """A range of offsets of one replica, and the progress of reading it."""

    topic: str
    partition: int
    broker: int
    next_offset: int
    end_offset: int
    """The end of the range, exclusive. The replica's high watermark must reach it."""
    log_start: int = -1
    """-1: not known yet."""
    high_watermark: int = -1
    segments: list[int] = field(default_factory=list)
    """The offset of the first batch of each segment whose beginning was read."""
    bytes: int = 0
    problem: str = ""
    """Why reading stopped before the end of the range; empty if it did not."""
    fetch_bytes: int = FETCH_BYTES
    patience_s: float | None = None
    """How long the replica may lag or fail before reading stops; None: the client's timeout."""
    is_sample: bool = False
    """True if reading stops after the first batches."""
    latest_ms: int = -1
    """The latest timestamp of the batches read."""
    _asked_offset: int = -1
    _taken: int = 0
    """Bytes of whole batches accepted so far from the current response."""
    _room: int | None = None
    """Bytes left unused in the last response; None before the first response, 0 while one is arriving."""
    _has_answered: bool = False
    _deadline: float | None = None

    @property
    def name(self) -> str:
        """The replica's name in messages, such as `users-0@2`."""
        return replica_name(self.topic, self.partition, self.broker)

    @property
    def is_done(self) -> bool:
        """True if the range has been read, or reading has failed."""
        is_enough = self.next_offset >= self.end_offset or (self.is_sample and self.bytes > 0)
        return bool(self.problem) or (self._has_answered and is_enough)

    def request(self) -> dict[str, object]:
        """Return the next Fetch request."""
        self._asked_offset, self._taken = self.next_offset, 0
        partition = {
            "partition": self.partition,
            "current_leader_epoch": -1,
            "fetch_offset": self.next_offset,
            "log_start_offset": -1,
            "partition_max_bytes": self.fetch_bytes,
        }
        return {
            "replica_id": -1,
            "max_wait_ms": 0 if self._deadline is None else WAIT_MS,
            "min_bytes": 1,
            "max_bytes": self.fetch_bytes,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": self.topic, "partitions": [partition]}],
            "forgotten_topics_data": [],
            "rack_id": "",
        }

    def accept(self, body: memoryview, timeout_s: float, *, is_whole: bool = True) -> memoryview:
        """Accept the part of a response that has arrived; return the newly completed batches.

        A permanent error ends the stretch immediately, a transient one only after `timeout_s`.
        """
        throttle_ms, code, high_watermark, log_start, records = _parse(body)
        if code == ErrorCode.THROTTLING_QUOTA_EXCEEDED:
            # No pause here: the broker itself delays its response to the next request.
            self._deadline = self._deadline and self._deadline + throttle_ms / 1000
            return records[:0]
        if code in _TRANSIENT:
            self._wait(error_name(code), timeout_s)
            return records[:0]
        if code == ErrorCode.OFFSET_OUT_OF_RANGE and self.high_watermark < 0 and self.log_start < 0:
            self._wait("its log neither begins nor ends near the leader's", timeout_s)
            return records[:0]
        if code:
            self.problem = error_name(code)
            return records[:0]
        self._has_answered = True
        self.high_watermark, self.log_start = high_watermark, log_start
        begin = self._taken
        size, first_size, next_offset, first_offset, latest_ms = _whole_batches(records[begin:], self.end_offset)
        self.latest_ms = max(self.latest_ms, latest_ms)
        self.next_offset = max(self.next_offset, next_offset)
        self.bytes += size
        self._taken += size
        if size:
            if self._room is None or first_size <= self._room:
                self.segments.append(first_offset)
            self._room = 0
            self._deadline = None
        if is_whole:
            self._end_response(len(records), first_size, throttle_ms, timeout_s)
        return records[begin : begin + size]

    def _end_response(self, size: int, first_size: int, throttle_ms: int, timeout_s: float) -> None:
        """Check a complete response with `size` bytes of batches. `first_size`: the size of its first batch, 0 if cut off."""
        if self._taken:
            self._room = max(0, self.fetch_bytes - self._taken)
            if self.next_offset <= self._asked_offset:
                self.problem = (
                    f"its batches end before the requested offset {self._asked_offset}, so a header is damaged"
                )
        elif size and not first_size:
            self.problem = "its response has no whole batch"
        elif self.high_watermark >= self.end_offset and not throttle_ms:
            self.next_offset = self.end_offset  # All records of the range have been cleaned away.
        elif self.next_offset < self.end_offset:
            self._wait(
                f"its high watermark is {self.high_watermark}, expected {self.end_offset}",
                timeout_s + throttle_ms / 1000,
            )

    def _wait(self, problem: str, timeout_s: float) -> None:
        now = time.monotonic()
        self._deadline = self._deadline or now + timeout_s
        if now > self._deadline:
            self.problem = problem
        else:
            time.sleep(RETRY_S / 2)


class _BrokerReads:
    """The stretches of one broker: those in flight, in the order of their requests, and those still pending."""

    def __init__(self, client: KafkaClient, broker: int, stretches: Iterable[Stretch]) -> None:
        self._client = client
        self._broker = broker
        self._pending = deque(stretches)
        self._sent: deque[Stretch] = deque()
        self._has_failed = False

    @property
    def is_over(self) -> bool:
        return not self._pending and not self._sent

    def step(self, memory: memoryview, take: Callable[[Stretch, memoryview], object]) -> None:
        """Receive one response (in `memory` if it fits), pass its batches to `take`, and send the stretch's next request."""
        try:
            connection = self._client.broker(self._broker)
            while self._pending and len(self._sent) < IN_FLIGHT:
                self._send(connection, self._pending.popleft())
            one = self._sent[0]
            patience_s = self._client.timeout_s if one.patience_s is None else one.patience_s
            for body, is_whole in connection.arriving(FETCH, VERSION, memory, GATHERED_BYTES):
                # Accepted batches count as read, even if the connection is lost afterwards.
                data = one.accept(body, patience_s, is_whole=is_whole)
                if is_whole or len(data):
                    take(one, data)
            self._has_failed = False
            self._sent.popleft()
            if not one.is_done:
                self._send(connection, one)
        except ConnectionFailed as error:
            self._lost(str(error))

    def _send(self, connection: KafkaConnection, one: Stretch) -> None:
        self._sent.append(one)
        connection.send(FETCH, VERSION, one.request())

    def _lost(self, problem: str) -> None:
        """Let the next step reconnect. If the broker has failed twice without a response in between, fail all its stretches."""
        self._client.forget(self._broker)
        self._pending.extendleft(one for one in reversed(self._sent) if not one.is_done)
        self._sent.clear()
        if self._has_failed:
            for one in self._pending:
                one.problem = problem
            self._pending.clear()
        self._has_failed = True


def read_stretches(
    client: KafkaClient,
    stretches: Iterable[Stretch],
    take: Callable[[Stretch, memoryview], object],
    check: Callable[[], object] = lambda: None,
) -> None:
    """Read stretches of any replicas concurrently, each up to its end or a problem.

    `take` receives whole batches as they arrive, in order within a stretch; the first and the last may reach beyond the stretch.
    Their memory is reused afterwards. `check` is called between responses. If either function raises, reading ends and the
    connections are closed.
    """
    by_broker: dict[int, list[Stretch]] = {}
    for one in stretches:
        by_broker.setdefault(one.broker, []).append(one)
    largest = max((one.fetch_bytes for own in by_broker.values() for one in own), default=0)
    memory = in_large_pages(numbers("B", largest + _AROUND_BYTES))
    reads = [_BrokerReads(client, broker, own) for broker, own in by_broker.items()]
    try:
        while reads := [one for one in reads if not one.is_over]:
            for broker_reads in reads:
                check()
                broker_reads.step(memory, take)
    except BaseException:
        # Responses are still outstanding on these connections.
        for broker in by_broker:
            client.forget(broker)
        raise


def _parse(body: memoryview) -> tuple[int, int, int, int, memoryview]:
    """Return throttle time (ms), error code, high watermark, log start and records of a response with one partition.

    If a leader sends no records but refers the client to another replica (`replica.selector.class`), the code is
    REPLICA_NOT_AVAILABLE. If the response has no partition because it throttles the client, it is THROTTLING_QUOTA_EXCEEDED.
    """
    throttle_ms, code, _, topics = _RESPONSE.unpack_from(body)
    if code or topics < 1:
        code = code or (ErrorCode.THROTTLING_QUOTA_EXCEEDED if throttle_ms else 0)
        return throttle_ms, code or ErrorCode.UNKNOWN_SERVER_ERROR, -1, -1, body[:0]
    _, at = read_string(body, _RESPONSE.size, len(body))
    _, code, high_watermark, _, log_start, aborted = _PARTITION.unpack_from(body, at + 4)
    at += 4 + _PARTITION.size + _ABORTED_BYTES * max(0, aborted)
    preferred, size = _REFERRED.unpack_from(body, at)
    at += _REFERRED.size - _INT32.size
    if preferred >= 0 and size <= 0:
        code = code or ErrorCode.REPLICA_NOT_AVAILABLE
    return throttle_ms, code, high_watermark, log_start, body[at + 4 : at + 4 + max(0, size)]


def _whole_batches(records: memoryview, end_offset: int) -> tuple[int, int, int, int, int]:
    if ARE_COMPILED:
        from diamant.kernels.batches import whole_batches

        return whole_batches(records, end_offset)
    return plain_whole_batches(records, end_offset)


def plain_whole_batches(records: memoryview, end_offset: int) -> tuple[int, int, int, int, int]:
    """Compute the result of `kernels.batches.whole_batches` in plain Python."""
    at, first_size, first_offset, next_offset, latest_ms = 0, 0, -1, -1, -1
    while at + HEADER_SIZE_UP_TO_MAGIC <= len(records):
        base, length = _PREFIX.unpack_from(records, at)
        size, is_current = length + LOG_OVERHEAD, records[at + MAGIC] == CURRENT_MAGIC
        if size < (HEADER_SIZE if is_current else HEADER_SIZE_UP_TO_MAGIC) or at + size > len(records) or base >> 62:
            break
        if not at:
            first_size, first_offset = size, base
        if base >= end_offset:
            next_offset = max(next_offset, end_offset)
            break
        if is_current:
            delta, time_ms = _HEADER.unpack_from(records, at + LAST_OFFSET_DELTA)
            base, latest_ms = base + delta, max(latest_ms, time_ms)
        next_offset = base + 1
        at += size
    return at, first_size, next_offset, first_offset, latest_ms
