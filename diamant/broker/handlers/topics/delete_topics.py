"""DeleteTopics (key 20), versions 1 to 6.

Behaviour: the directories are renamed immediately and removed after `file.delete.delay.ms`; waiting fetches are answered
with an error.
Versions: before 3, the error is INVALID_REQUEST if deletion is disabled; 5 adds messages, and refuses requests beyond a quota
(KIP-599); 6 can name topics by id (KIP-516).

Source: ControllerApis.deleteTopics.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, cast
from uuid import UUID

from diamant.broker.handlers.topics.mutation_charge import charge_of
from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_of
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import Access, check
from diamant.broker.topics.deletion import delete_topics
from diamant.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.delete_topics.v5.request import DeleteTopicsRequest as OldRequest
    from kio.schema.delete_topics.v6.request import DeleteTopicsRequest

    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node
    from diamant.broker.security.quotas.quotas import Quotas

FIRST_WITH_TOPIC_ID = 6
FIRST_WITH_DISABLED = 3
DENIED = "Topic authorization failed."
FIRST_STRICT = 5


class _Wanted(NamedTuple):
    name: str | None
    topic_id: UUID | None


async def answer(
    quotas: Lazy[Quotas], node: Node, context: RequestContext, request: DeleteTopicsRequest
) -> ResponseFields:
    """Delete topics."""
    charge = charge_of(quotas, context, is_strict=context.api_version >= FIRST_STRICT)
    version = context.api_version
    if version >= FIRST_WITH_TOPIC_ID:
        wanted = [_Wanted(None if topic.name is None else str(topic.name), topic.topic_id) for topic in request.topics]
    else:
        wanted = [_Wanted(str(name), None) for name in cast("OldRequest", request).topic_names]
    await node.topics.settled(entry.name for entry in wanted if entry.name is not None)
    counts = Counter(wanted)
    known: dict[_Wanted, _Wanted] = {}
    errors: dict[_Wanted, tuple[int, str | None]] = {}
    doomed: dict[str, _Wanted] = {}
    names = _Names(context.access)
    for entry in counts:
        try:
            if counts[entry] > 1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"Duplicate topic {'name' if entry.topic_id is None else 'id'}."
                )
            name, topic_id = _find(node, names, version, entry)
            if name in doomed:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "The provided topic name maps to an ID that was already supplied."
                )
            charge.take(len(node.topics.image.topics[name].partitions))
            doomed[name] = entry
            known[entry] = _Wanted(name, topic_id)
        except REQUEST_ERRORS as error:
            errors[entry] = error_of(error)
    if doomed:
        try:
            await delete_topics(node.topics, list(doomed))
        except REQUEST_ERRORS as error:
            errors.update(dict.fromkeys(known, error_of(error)))
        node.scheduler.poke()
    responses = []
    for entry in counts:
        shown = known.get(entry) or names.told.get(entry, entry)
        code, message = errors.get(entry, (0, None))
        responses.append({"name": shown.name, "topic_id": shown.topic_id, "error_code": code, "error_message": message})
    return {"throttle_time_ms": charge.throttle_time_ms(), "responses": responses}


def _find(node: Node, names: _Names, version: int, wanted: _Wanted) -> tuple[str, UUID]:
    if not node.config.delete_topic_enable:
        code = ErrorCode.TOPIC_DELETION_DISABLED if version >= FIRST_WITH_DISABLED else ErrorCode.INVALID_REQUEST
        raise KafkaError(code, "Topic deletion is disabled.")
    if wanted.name is not None and wanted.topic_id is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if wanted.topic_id is not None:
        by_id = node.topics.by_id.get(wanted.topic_id)
        if by_id is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        names.check_by_id(wanted, by_id.name)
        return by_id.name, by_id.topic_id
    if wanted.name is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    names.check_describe(wanted.name)
    topic = node.topics.by_name.get(wanted.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    names.check_delete(wanted.name)
    return topic.name, topic.topic_id


class _Names:
    """Checks of a client's permissions on topics. `told`: entries requested by id, with the names that the client may see."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._has_cluster = access.allows(permissions.DELETE_CLUSTER, is_asked=False)
        self.told: dict[_Wanted, _Wanted] = {}

    def check_describe(self, name: str) -> None:
        if not self._has_cluster:
            check(self._access, permissions.DESCRIBE_TOPIC, name, DENIED)

    def check_delete(self, name: str) -> None:
        if not self._has_cluster:
            check(self._access, permissions.DELETE_TOPIC, name, DENIED)

    def check_by_id(self, wanted: _Wanted, name: str) -> None:
        if not self._has_cluster and self._access.allows(permissions.DESCRIBE_TOPIC, name, is_asked=False):
            self.told[wanted] = wanted._replace(name=name)
        self.check_delete(name)
