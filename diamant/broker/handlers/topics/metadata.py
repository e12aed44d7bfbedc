"""Metadata (key 3), versions 0 to 13: brokers and topics.

Behaviour: the first request for a missing topic creates it if client and configuration allow this; that request is answered
immediately with UNKNOWN_TOPIC_OR_PARTITION, and the client retries. Requests for all topics create none. Responses are cached
by request until a topic changes. Versions: all topics are requested by an empty list in 0, by null in later versions; 4 adds
allow_auto_topic_creation, 8 authorized operations (KIP-430), 10 topic ids and 12 requests by id (KIP-516), 13 a
top-level error (KIP-1102).
Deviations: further requests wait until the topic is created; Kafka answers UNKNOWN_TOPIC_OR_PARTITION until then. With
`diamant.auto.create.topics.answer=ready`, the first request waits, too.

Source: KafkaApis.handleTopicMetadataRequest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from diamant.broker.acl import ResourceType
from diamant.broker.config.broker_table import CREATE_ANSWER, READY
from diamant.broker.network.api import Answer, RequestContext
from diamant.broker.network.turns import MAX_AT_ONCE, in_slices
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import Access, allowed_names
from diamant.broker.topics.internal_names import INTERNAL_TOPICS
from diamant.broker.topics.name_checks import check_name
from diamant.broker.topics.topic import Topic
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.messages.metadata import (
    MetadataBroker,
    MetadataPartition,
    MetadataTopic,
    encode_metadata_response,
    encode_metadata_topic,
)
from diamant.protocol.wire.apis import NOT_REQUESTED
from diamant.protocol.wire.schemas import decode_request

if TYPE_CHECKING:
    from kio.schema.metadata.v13.request import MetadataRequest

    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node
    from diamant.broker.security.authorization.audit_log import AuditLog
    from diamant.broker.security.quotas.mutation_quota import MutationCharge
    from diamant.broker.security.quotas.quotas import Quotas
    from diamant.broker.topics.auto_creation import AutoCreation

KEY = 3
FIRST_WITH_NULL_FOR_ALL = 1
FIRST_WITH_REPLICAS_DOWN = 1
"""Earlier versions omit replicas that are down, and report an error for their partition."""
FIRST_BY_TOPIC_ID = 12
ALL_TOPICS_SIZE = {9: 5, 10: 5, 11: 4, 12: 4, 13: 4}
"""The size in bytes of a request for all topics (null array, flags, no tagged fields), by flexible version."""

MAX_CACHED_BYTES = 8 * 1024 * 1024
"""The size limit of the response cache. A full cache is cleared."""


_Key: TypeAlias = tuple[int, str, int, bytes, tuple[object, ...]]


class MetadataCache:
    """Encoded responses by version, advertised address, request body and the client's access. Valid until a topic changes."""

    def __init__(self) -> None:
        self._answers: dict[_Key, bytes] = {}
        self._generation = -1
        self._size = 0

    def get(self, generation: int, key: _Key) -> bytes | None:
        if generation != self._generation:
            self._answers.clear()
            self._size = 0
            self._generation = generation
        return self._answers.get(key)

    def put(self, generation: int, key: _Key, answer: bytes) -> None:
        size = len(answer) + len(key[3]) + 256
        if generation != self._generation or size > MAX_CACHED_BYTES:
            return
        if self._size + size > MAX_CACHED_BYTES:
            self._answers.clear()
            self._size = 0
        self._answers[key] = answer
        self._size += size


def handle(
    quotas: Lazy[Quotas],
    audit: Lazy[AuditLog],
    creation: AutoCreation,
    node: Node,
    cache: MetadataCache,
    context: RequestContext,
    body: bytes,
) -> Answer:
    """Answer from the cache or from the current topics; begin to create missing topics."""
    connection = context.connection
    key = (context.api_version, connection.advertised_host, connection.advertised_port, body, context.access.key)
    generation = node.topics.generation
    answer = cache.get(generation, key)
    if answer is not None:
        return answer
    request = decode_request(KEY, context.api_version, body)
    names = _names_to_create(node, creation, context, request)
    if not names:
        return _Asked(node, context, request).answer(partial(cache.put, generation, key))
    pending = [name for name in names if creation.is_pending(name)]
    new = frozenset(names).difference(pending)
    if new:
        from diamant.broker.handlers.topics.mutation_charge import charge_of

        charge = charge_of(quotas, context, is_strict=True)
        # A topic beyond the quota stays unknown until the client retries (AutoTopicCreationManager).
        within = [name for name in names if name in new and _is_within_quota(node, charge)]
        creation.begin(within, partial(_audit, audit, context))
    if node.config[CREATE_ANSWER] == READY:
        pending, new = names, frozenset()
    return (
        _answer_settled(node, creation, context, request, pending, new)
        if pending
        else _Asked(node, context, request).answer()
    )


async def _answer_settled(
    node: Node,
    creation: AutoCreation,
    context: RequestContext,
    request: MetadataRequest,
    pending: list[str],
    new: Collection[str],
) -> bytes:
    await creation.settled(pending)
    return await _Asked(node, context, request, new).answer_in_slices()


async def _audit(audit: Lazy[AuditLog], context: RequestContext, created: tuple[str, ...]) -> None:
    from diamant.broker.security.authorization.audit_log import DONE, AuditedAction

    connection = context.connection
    await audit().write(AuditedAction(str(connection.principal), connection.host, "Metadata", created), DONE)


def _is_within_quota(node: Node, charge: MutationCharge) -> bool:
    try:
        charge.take(node.config.num_partitions)
    except KafkaError:
        return False
    return True


def _is_for_all(version: int, request: MetadataRequest) -> bool:
    return request.topics is None or (version < FIRST_WITH_NULL_FOR_ALL and not request.topics)


def _names_to_create(
    node: Node, creation: AutoCreation, context: RequestContext, request: MetadataRequest
) -> list[str]:
    """Return the missing topics that are being created, or that this request should create."""
    if _is_for_all(context.api_version, request):
        return []
    may_create = node.config.auto_create_topics_enable and getattr(request, "allow_auto_topic_creation", True)
    missing = dict.fromkeys(
        str(topic.name)
        for topic in request.topics or ()
        if topic.name is not None and getattr(topic, "topic_id", None) is None and topic.name not in node.topics.by_name
    )
    visible = allowed_names(context.access, permissions.DESCRIBE_TOPIC, missing, is_asked=False)
    creatable = _creatable(context.access, missing) if may_create else set()
    return [
        name
        for name in missing
        if name in visible and ((name in creatable and _error_of_name(name) is None) or creation.is_pending(name))
    ]


def _creatable(access: Access, names: Iterable[str], *, is_asked: bool = False) -> set[str]:
    if access.allows(permissions.CREATE_CLUSTER, is_asked=False):
        return set(names)
    return allowed_names(access, permissions.CREATE_TOPIC, names, is_asked=is_asked)


def _error_of_name(name: str) -> ErrorCode | None:
    try:
        check_name(name)
    except KafkaError as error:
        return error.code
    return None


class _Asked:
    """The topics of a request, and its response.

    `new`: topics that this request was the first to name; the response reports them as unknown even if they exist by now.
    """

    def __init__(
        self, node: Node, context: RequestContext, request: MetadataRequest, new: Collection[str] = ()
    ) -> None:
        self._node = node
        self._context = context
        self._request = request
        self._view = _View(node, context, request, new)
        self.topics: Sequence[Topic | tuple[str | None, UUID | None]]
        if _is_for_all(context.api_version, request):
            visible = allowed_names(context.access, permissions.DESCRIBE_TOPIC, node.topics.by_name, is_asked=False)
            self.topics = [topic for topic in node.topics.by_name.values() if topic.name in visible]
        else:
            asked = (
                (topic.name if topic.name is None else str(topic.name), getattr(topic, "topic_id", None))
                for topic in request.topics or ()
            )
            self.topics = [*dict.fromkeys(asked)]

    def answer(self, take: Callable[[bytes], None] = lambda _: None) -> bytes | Coroutine[Any, Any, bytes]:
        """Return the response and pass it to `take`; if there are many topics, return a coroutine that does so."""
        if len(self.topics) > MAX_AT_ONCE:
            return self.answer_in_slices(take)
        answer = self._encode([self._topic(topic) for topic in self.topics])
        take(answer)
        return answer

    async def answer_in_slices(self, take: Callable[[bytes], None] = lambda _: None) -> bytes:
        """Return the response, letting other tasks run in between. Topics that they delete are left out."""
        by_name = self._node.topics.by_name
        encoded = [
            self._topic(topic)
            async for topic in in_slices(self.topics)
            if isinstance(topic, tuple) or by_name.get(topic.name) is topic
        ]
        answer = self._encode(encoded)
        take(answer)
        return answer

    def _topic(self, topic: Topic | tuple[str | None, UUID | None]) -> bytes:
        found = self._view.wanted(*topic) if isinstance(topic, tuple) else self._view.describe(topic)
        return encode_metadata_topic(self._context.api_version, found)

    def _encode(self, topics: list[bytes]) -> bytes:
        node, access = self._node, self._context.access
        return encode_metadata_response(
            self._context.api_version,
            brokers=[MetadataBroker(*broker) for broker in node.brokers_for(self._context.connection)],
            cluster_id=node.cluster_id,
            controller_id=node.controller_id,
            topics=topics,
            cluster_authorized_operations=(
                _cluster_operations(access)
                if getattr(self._request, "include_cluster_authorized_operations", False)
                else NOT_REQUESTED
            ),
        )


def _cluster_operations(access: Access) -> int:
    """Return a bit field of the cluster operations that the client may perform; 0 if it may not describe the cluster."""
    return access.operations(ResourceType.CLUSTER) if access.allows(permissions.DESCRIBE_CLUSTER) else 0


class _View:
    """Describes topics for one request, as far as the client may see them."""

    def __init__(self, node: Node, context: RequestContext, request: MetadataRequest, new: Collection[str]) -> None:
        self._node = node
        self._access = context.access
        self._version = context.api_version
        self._new = new
        self._may_create = node.config.auto_create_topics_enable and getattr(request, "allow_auto_topic_creation", True)
        self._shows_operations = getattr(request, "include_topic_authorized_operations", False)

    def wanted(self, name: str | None, topic_id: UUID | None) -> MetadataTopic:
        """Return the metadata of a topic requested by name or id, or the error for it."""
        topics = self._node.topics
        if name is None or topic_id is not None:
            if self._version < FIRST_BY_TOPIC_ID:
                return MetadataTopic(name or "", topic_id, (), error_code=ErrorCode.INVALID_REQUEST)
            known = topics.by_id.get(topic_id) if topic_id is not None else None
            if known is None:
                return MetadataTopic(None, topic_id, (), error_code=ErrorCode.UNKNOWN_TOPIC_ID)
            if not self._access.allows(permissions.DESCRIBE_TOPIC, known.name):
                return MetadataTopic(None, topic_id, (), error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            return self.describe(known)
        if not self._access.allows(permissions.DESCRIBE_TOPIC, name):
            # The answer is the same whether or not the topic exists.
            return MetadataTopic(name, None, (), error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        topic = topics.by_name.get(name)
        if topic is not None and name not in self._new:
            return self.describe(topic)
        is_internal = name in INTERNAL_TOPICS
        if self._may_create and not _creatable(self._access, (name,), is_asked=True):
            return MetadataTopic(name, None, (), is_internal, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        is_invalid = _error_of_name(name) is ErrorCode.INVALID_TOPIC_EXCEPTION
        reason = ErrorCode.INVALID_TOPIC_EXCEPTION if is_invalid else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return MetadataTopic(name, None, (), is_internal, reason, self._operations(name))

    def _operations(self, name: str) -> int:
        return self._access.operations(ResourceType.TOPIC, name) if self._shows_operations else NOT_REQUESTED

    def describe(self, topic: Topic) -> MetadataTopic:
        """Return the metadata of an existing topic."""
        brokers = self._node.topics.brokers
        partitions = []
        for index, partition in sorted(self._node.topics.image.topics[topic.name].partitions.items()):
            nodes, isr, log = partition.replicas, partition.isr, topic.logs.get(index)
            if log is None:
                # The files could not be opened: there is a replica, but no leader.
                partitions.append(MetadataPartition(index, -1, -1, nodes, (), nodes, ErrorCode.LEADER_NOT_AVAILABLE))
                continue
            offline = () if brokers is None else brokers.offline(partition)
            code = ErrorCode.NONE if partition.leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE
            if offline and self._version < FIRST_WITH_REPLICAS_DOWN:
                nodes, isr = (tuple(one for one in some if one not in offline) for some in (nodes, isr))
                code = code or ErrorCode.REPLICA_NOT_AVAILABLE
            partitions.append(
                MetadataPartition(index, partition.leader, log.leader_epoch, nodes, isr, offline, int(code))
            )
        return MetadataTopic(
            topic.name,
            topic.topic_id,
            partitions,
            is_internal=topic.name in INTERNAL_TOPICS,
            authorized_operations=self._operations(topic.name),
        )


def decode(version: int, body: memoryview) -> bytes:
    """Return the body itself. It is the key of the cache, and is decoded only if the cache has no response for it.

    When librdkafka (2.16) requests all topics, it leaves three stray zero bytes, reserved for a count, after the compact null
    array. Drop them here; Kafka takes them for the flags, and ignores the bytes after the request.
    """
    size = ALL_TOPICS_SIZE.get(version)
    if size is not None and len(body) == size + 3 and bytes(body[:4]) == b"\x00\x00\x00\x00":
        body = body[3:]
    return bytes(body)
