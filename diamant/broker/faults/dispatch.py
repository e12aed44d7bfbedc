"""The dispatcher that injects faults into matching requests and passes all other requests through.

It replaces the broker's dispatcher while faults are installed. A task answers a matching request, and the connection stays busy
until then, which keeps its responses in order. If the connection closes, the task is cancelled, but a request whose handling has
started is completed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from uuid import UUID

from diamant.broker.faults.fault import MAX_FIRING_PARTS, Fault, Firing
from diamant.broker.faults.spec import INIT_PRODUCER_ID, METADATA, FaultSpec
from diamant.broker.faults.stale_metadata import leave_out, make_stale, put_topic_errors
from diamant.broker.handlers.topics import metadata
from diamant.broker.network.api import Answer, CloseConnection, ConnectionInfo, Dispatch, frame_header
from diamant.broker.network.pending_answer import PendingAnswer
from diamant.broker.network.response_writer import Buffer, Part
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire import apis
from diamant.protocol.wire.error_response import ErrorAnswer, merge, replace_parts, split, topic_partitions
from diamant.protocol.wire.error_shape import ErrorShape, Fields, topic_of
from diamant.protocol.wire.message_fields import decode_response_fields, message_fields
from diamant.protocol.wire.schemas import decode_request, encode_request_fields, encode_response_fields
from diamant.protocol.wire.server_connection import Request
from diamant.protocol.wire.throttle_time import throttle_time_position, with_throttle_time
from diamant.storage.segments.segment import FileSlice

if TYPE_CHECKING:
    from diamant.broker.network.server import Server
    from diamant.broker.node.node import Node

Body: TypeAlias = "Buffer | Sequence[Part] | None"


class FaultDispatch:
    """The server's dispatch function while faults are installed."""

    def __init__(
        self,
        node: Node,
        server: Server,
        shapes: Mapping[int, ErrorShape],
        installed: Mapping[int, Fault],
        count: Callable[[Fault, int], None],
    ) -> None:
        """`shapes`: the shape of each served API's errors, by key. `installed`: all faults, in matching order.

        `count(fault, api_key)` is called for each firing.
        """
        self._node = node
        self._server = server
        self._shapes = shapes
        self._installed = installed
        self._count = count
        self._carry_out: Dispatch | None = None

    def install(self) -> None:
        """Replace the server's dispatcher. Idempotent."""
        if self._carry_out is None:
            self._carry_out = self._server.dispatch
            self._server.dispatch = self

    def uninstall(self) -> None:
        """Restore the server's dispatcher. Idempotent. Faults still apply to requests in progress."""
        if self._carry_out is not None:
            self._server.dispatch = self._carry_out
            self._carry_out = None

    def __call__(self, connection: ConnectionInfo, request: Request) -> Answer:
        """Answer a request, as `Dispatcher` does."""
        assert self._carry_out is not None
        shape = self._shapes.get(request.api_key)
        if shape is not None and apis.is_served(request.api_key, request.api_version):
            asked = AskedRequest(self._node, request, shape, connection.broker_id)
            for fault in self._installed.values():
                if asked.is_hit_by(fault.spec) and fault.draws():
                    hit = HitRequest(self._node, self._server, fault, connection, asked, self._carry_out, self._count)
                    return self._server.keep(hit.answer())
        return self._carry_out(connection, request)


class AskedRequest:
    """A request, which is decoded once a fault needs its fields."""

    def __init__(self, node: Node, request: Request, shape: ErrorShape, broker_id: int) -> None:
        self.request = request
        self.broker_id = broker_id
        self.shape = shape
        self.key = request.api_key
        self.version = request.api_version
        self._node = node
        self._fields: Fields | None = None
        self._parts: list[tuple[str | None, int | None]] | None = None

    @property
    def fields(self) -> Fields:
        """The request's fields. Raises ProtocolError if it cannot be decoded."""
        if self._fields is None:
            # For Metadata, the handler's own decoder may correct the mistakes of a client; then it returns the corrected bytes.
            decoded = metadata.decode(self.version, self.request.body) if self.key == METADATA else None
            body = decoded if isinstance(decoded, bytes) else self.request.body
            self._fields = message_fields(decode_request(self.key, self.version, body))
            if self.key == apis.FETCH and self._fields.get("session_id") and self._fields["session_epoch"] > 0:
                self._fields = self._with_session(self._fields)
        return self._fields

    def _with_session(self, fields: Fields) -> Fields:
        """Convert an incremental fetch to a full fetch, with all partitions of its session (KIP-227)."""
        session = self._node.fetch_sessions().find(fields["session_id"])
        if session is None:
            return fields
        wanted: dict[tuple[Any, int], Fields] = {}
        for (name, topic_id, index), partition in session.partitions.items():
            own = partition.wanted
            wanted[topic_id or name, index] = {
                "partition": index,
                "current_leader_epoch": own.current_leader_epoch,
                "fetch_offset": own.fetch_offset,
                "last_fetched_epoch": own.last_fetched_epoch,
                "log_start_offset": own.log_start_offset,
                "partition_max_bytes": own.max_bytes,
            }
        for topic in fields["topics"]:
            for changed in topic["partitions"]:
                wanted[_fetch_key(topic), changed["partition"]] = changed
        for topic in fields["forgotten_topics_data"]:
            for index in topic["partitions"]:
                wanted.pop((_fetch_key(topic), index), None)
        topics: dict[Any, list[Fields]] = {}
        for (key, _), wanted_partition in wanted.items():
            topics.setdefault(key, []).append(wanted_partition)
        named = [{"topic": key, "topic_id": key, "partitions": partitions} for key, partitions in topics.items()]
        for topic in named:
            del topic["topic" if isinstance(topic["topic"], UUID) else "topic_id"]
        return {**fields, "topics": named}

    @property
    def parts(self) -> list[tuple[str | None, int | None]]:
        """The request's topics and partitions: (topic, partition), or (topic, None) where it names no partitions."""
        if self._parts is None:
            self._parts = list(topic_partitions(self.shape, self.fields, self.name_of))
        return self._parts

    @property
    def is_for_all_topics(self) -> bool:
        """True for a Metadata request for all topics."""
        if self.key != METADATA:
            return False
        topics = self.fields["topics"]
        return topics is None or (self.version == 0 and not topics)

    @property
    def is_without_answer(self) -> bool:
        """True for Produce with acks=0."""
        return self.key == apis.PRODUCE and self.fields["acks"] == 0

    def name_of(self, value: Fields) -> str | None:
        """Return the topic that an element of the request or the response names."""
        name = topic_of(value)
        if name is None and (topic_id := value.get("topic_id")) is not None:
            topic = self._node.topics.by_id.get(topic_id)
            return topic.name if topic is not None else None
        return name

    def is_hit_by(self, spec: FaultSpec) -> bool:
        """Return whether the fault matches this request and the response has a field for the fault's effect."""
        if spec.certificate is not None or (spec.api_keys is not None and self.key not in spec.api_keys):
            return False
        if not spec.matches_client(self.request.client_id) or spec.broker not in (None, self.broker_id):
            return False
        if spec.coordinator_loading and self.key == INIT_PRODUCER_ID and self.fields["transactional_id"] is None:
            return False  # a producer id without transactional id needs no coordinator
        if spec.topic is not None and not self._is_about_topic_of(spec):
            return False
        if spec.throttle_time_ms and (self.is_without_answer or throttle_time_position(self.key, self.version) is None):
            return False
        return spec.error is None or self._has_place_for(spec, spec.error)

    def wants(self, spec: FaultSpec) -> Callable[[str | None, int | None], bool]:
        """Return a function that is true for the parts that the fault matches. If a request names only topics, a fault for a
        partition matches the partition's topic.
        """

        def wants(topic: str | None, partition: int | None) -> bool:
            if spec.topic is None:
                return True
            if topic != spec.topic:
                return False
            if spec.partition is None or partition == spec.partition:
                return True
            return partition is None and self.shape.adds_partitions

        return wants

    def _is_about_topic_of(self, spec: FaultSpec) -> bool:
        if not self.shape.mirrors:
            return False
        if self.is_for_all_topics:
            return spec.topic in self._node.topics.by_name
        wants = self.wants(spec)
        return any(wants(topic, partition) for topic, partition in self.parts)

    def _has_place_for(self, spec: FaultSpec, code: ErrorCode) -> bool:
        if self.is_for_all_topics or self.is_without_answer:
            return True
        wanted = self.fields
        if spec.topic is not None:
            wanted, _ = split(self.shape.mirrors, self.fields, self.wants(spec), self.name_of)
        return self.error_answer(spec, code, "").whole(wanted) is not None

    def error_answer(self, spec: FaultSpec, code: ErrorCode, message: str) -> ErrorAnswer:
        """Return the object that makes error responses for this API version."""
        return ErrorAnswer(self.shape, self.key, self.version, code, message, is_for_parts=spec.topic is not None)


class HitRequest:
    """A request on which a fault fires, until it is answered."""

    def __init__(
        self,
        node: Node,
        server: Server,
        fault: Fault,
        connection: ConnectionInfo,
        asked: AskedRequest,
        carry_out: Dispatch,
        count: Callable[[Fault, int], None],
    ) -> None:
        self._node = node
        self._server = server
        self._fault = fault
        self._spec = fault.spec
        self._connection = connection
        self._asked = asked
        self._carry_out = carry_out
        self._count = count
        self._message = f"injected by fault {fault.id}"

    async def answer(self) -> Body:
        """Return the response body, changed by the fault. Raises CloseConnection if the fault suppresses it."""
        spec = self._spec
        begins_now = not spec.after_applying and (spec.error is not None or spec.drop or spec.hold or spec.delay_ms > 0)
        if begins_now:
            self._fire()
            await self._fault.pause()
            if spec.drop:
                raise CloseConnection(f"{self._fault_name}: {self._api} is dropped before it is handled")
        body = await (self._refused() if spec.error is not None else self._carried_out())
        if not begins_now:
            self._fire()
            await self._fault.pause()
            if spec.drop:
                raise CloseConnection(f"{self._fault_name}: {self._api} is dropped after it was handled")
        if body is None:  # acks=0
            return None
        if spec.throttle_time_ms:
            body = await self._throttled(body)
        if spec.is_cut:
            assert body is not None
            raise CloseConnection(f"{self._fault_name}: the response to {self._api} is cut", await self._cut(body))
        return body

    @property
    def _fault_name(self) -> str:
        return f"fault {self._fault.id}"

    @property
    def _api(self) -> str:
        return f"{apis.API_NAMES[self._asked.key]} v{self._asked.version}"

    def _fire(self) -> None:
        asked = self._asked
        named = asked.parts[:MAX_FIRING_PARTS] if asked.shape.mirrors else []
        parts = tuple(str(topic) if index is None else f"{topic}-{index}" for topic, index in named)
        now_ms = self._node.env.clock.now_ms()
        request = asked.request
        self._count(self._fault, asked.key)
        self._count_errors()
        self._fault.fire(
            Firing(now_ms, apis.API_NAMES[asked.key], asked.version, request.client_id, self._connection.peer, parts)
        )

    def _count_errors(self) -> None:
        """Count partition errors of Produce and Fetch, since no handler does. Other errors are counted from the response."""
        asked, code = self._asked, self._spec.error
        if code is None or asked.key not in (apis.PRODUCE, apis.FETCH):
            return
        wants = asked.wants(self._spec)
        for topic, partition in asked.parts:
            if wants(topic, partition):
                self._node.topic_metrics.count_error(asked.key, code)

    # -- handling the request --------------------------------------------------------------------------------------

    async def _carried_out(self) -> Body:
        asked, stale = self._asked, self._spec.stale
        if stale is None:
            return await self._handled(asked.request)
        wants = asked.wants(self._spec)
        if "missing" in stale and not asked.is_for_all_topics:
            return await self._refused_parts(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        response = await self._response(asked.request)
        if "missing" in stale:
            leave_out(response, wants, asked.name_of)
        else:
            make_stale(response, stale, wants, asked.name_of)
        return self._encoded(response)

    async def _handled(self, request: Request) -> Body:
        """Return the handler's response. If the connection closes, a pending fetch ends, but any other request is completed."""
        answer = self._carry_out(self._connection, request)
        if answer is None or isinstance(answer, bytes | bytearray | memoryview | list | tuple):
            return cast(Body, answer)
        if isinstance(answer, asyncio.Future | PendingAnswer):
            return cast(Body, await answer)
        return await asyncio.shield(self._server.keep(_as_coroutine(cast("Awaitable[Body]", answer))))

    async def _response(self, request: Request) -> Fields:
        body = await self._handled(request)
        assert body is not None
        return decode_response_fields(self._asked.key, self._asked.version, await _in_memory(body))

    def _encoded(self, response: Fields) -> bytes:
        return encode_response_fields(self._asked.key, self._asked.version, response)

    # -- errors ----------------------------------------------------------------------------------------------------

    async def _refused(self) -> Body:
        """Handle the parts that the fault does not match, and return a response with the error for the others."""
        spec, asked, code = self._spec, self._asked, self._spec.error
        assert code is not None
        if spec.after_applying and spec.topic is None and not asked.shape.adds_partitions:
            await self._handled(asked.request)
            return self._wholly_refused(code)
        if spec.after_applying:
            return await self._refused_afterwards(code)
        if spec.topic is None and asked.key != METADATA:
            return self._wholly_refused(code)
        return await self._refused_parts(code)

    def _wholly_refused(self, code: ErrorCode) -> bytes:
        if self._asked.is_without_answer:
            raise CloseConnection(f"{self._fault_name}: Produce with acks=0 failed: {code.name}")
        response = self._asked.error_answer(self._spec, code, self._message).whole(self._asked.fields)
        assert response is not None, "is_hit_by has checked for a field for the code"
        return self._encoded(response)

    async def _refused_parts(self, code: ErrorCode) -> Body:
        """Refuse the parts that the fault matches, and handle the rest."""
        spec, asked = self._spec, self._asked
        answer = asked.error_answer(spec, code, self._message)
        is_of_partition = asked.shape.adds_partitions and spec.partition is not None
        if is_of_partition or asked.is_for_all_topics or answer.is_for_whole_answer:
            return await self._refused_afterwards(code)
        wanted, rest = split(asked.shape.mirrors, asked.fields, asked.wants(spec), asked.name_of)
        refused = answer.whole(wanted)
        assert refused is not None, "is_hit_by has checked for a field for the code"
        if rest is None and asked.key == METADATA and asked.version > 0:
            rest = {**asked.fields, "topics": []}  # the response lists brokers even without topics
        if rest is None:
            return self._wholly_refused(code)
        if asked.key == apis.FETCH:
            # A fetch with an error returns immediately and closes its session, so fetch the rest without waiting or a session.
            rest = {**rest, "max_wait_ms": 0, "session_id": 0, "session_epoch": -1, "forgotten_topics_data": []}
        body = encode_request_fields(asked.key, asked.version, rest)
        request = asked.request._replace(body=memoryview(bytearray(body)))
        if asked.is_without_answer:
            await self._handled(request)
            raise CloseConnection(f"{self._fault_name}: Produce with acks=0 failed: {code.name}")
        response = await self._response(request)
        merge(response, refused, asked.shape.mirrors)
        return self._encoded(response)

    async def _refused_afterwards(self, code: ErrorCode) -> Body:
        """Handle the whole request, then put the error into its response."""
        spec, asked = self._spec, self._asked
        if asked.is_without_answer:
            await self._handled(asked.request)
            raise CloseConnection(f"{self._fault_name}: Produce with acks=0 failed: {code.name}")
        response = await self._response(asked.request)
        answer = asked.error_answer(spec, code, self._message)
        wants = asked.wants(spec)
        if answer.is_for_whole_answer:
            response["error_code"] = int(code)
        elif asked.shape.adds_partitions:
            is_for_partition = spec.partition is not None
            put_topic_errors(answer, code, response, wants, asked.name_of, is_for_partition=is_for_partition)
        else:
            replace_parts(answer, response, asked.shape.mirrors, wants, asked.name_of)
        return self._encoded(response)

    # -- the response's bytes --------------------------------------------------------------------------------------

    async def _throttled(self, body: Buffer | Sequence[Part]) -> Buffer | Sequence[Part]:
        key, version = self._asked.key, self._asked.version
        whole = body if throttle_time_position(key, version) == 0 else await _in_memory(body)
        throttled: Buffer | Sequence[Part] = with_throttle_time(key, version, whole, self._spec.throttle_time_ms)
        return throttled

    async def _cut(self, body: Buffer | Sequence[Part]) -> bytes:
        request = self._asked.request
        whole = await _in_memory(body)
        frame = frame_header(request.api_key, request.api_version, request.correlation_id, len(whole)) + whole
        size = len(frame) // 2 if self._spec.cut is True else int(self._spec.cut)
        return frame[: min(size, len(frame) - 1)]


def _fetch_key(topic: Fields) -> Any:
    return topic.get("topic_id") or topic.get("topic")


async def _in_memory(body: Buffer | Sequence[Part]) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    if any(isinstance(part, FileSlice) for part in body):
        return await asyncio.to_thread(_join, body)
    return _join(body)


def _join(parts: Sequence[Part]) -> bytes:
    return b"".join(part.read() if isinstance(part, FileSlice) else part for part in parts)


async def _as_coroutine(answer: Awaitable[Body]) -> Body:
    return await answer
