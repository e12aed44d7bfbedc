"""ShareFetch (key 78), versions 1 to 2: a member of a share group acquires records, and acknowledges earlier ones (KIP-932).

Versions: 2 has the acquire mode (KIP-1206) and renewed locks (KIP-1222).
Behaviour: the session's partitions are read one after the other until max_records are acquired; a partition that had records
comes last the next time. The response waits until there are records, an error occurs or max_wait has passed. Records are sent as
whole batches, as with Fetch.

Source: KafkaApis.handleShareFetchRequest, DelayedShareFetch.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from diamant.broker.groups.delivery.share_delivery import (
    LOCK_DURATION_MS,
    MORE_TO_SKIP,
    NOTHING,
    Given,
    LivePartition,
    ShareDelivery,
    WantedRecords,
)
from diamant.broker.groups.delivery.share_sessions import INITIAL_EPOCH, RequestedSession, ShareSession
from diamant.broker.groups.delivery.share_starts import StartSearched
from diamant.broker.groups.share.simple_assignor import Place
from diamant.broker.handlers.share.acknowledgements import (
    acknowledged,
    check_readable,
    endpoints,
    failed,
    is_renewing,
    places_of,
    requested_session,
)
from diamant.broker.network.api import REQUEST_ERRORS, Answer, RequestContext
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.share_records import SharePartitionKey
from diamant.protocol.messages.share_fetch import DONE, SharedPartition, ShareOutcome, encode_share_fetch_response
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from kio.schema.share_fetch.v2.request import ShareFetchRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.node import Node

KEY = 78
BATCH_OPTIMIZED, RECORD_LIMIT = 0, 1
_MILLISECOND = timedelta(milliseconds=1)


def handle(groups: GroupCoordinator, node: Node, context: RequestContext, request: ShareFetchRequest) -> Answer:
    """Acknowledge earlier records, then respond with new ones, immediately or as soon as there are some."""
    delivery = groups.share.delivery
    asked = requested_session(context, request)
    try:
        groups.share.check_enabled()
        has_records = bool(request.max_records or request.min_bytes or request.max_bytes or request.max_wait)
        if is_renewing(request) and has_records:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        has_acknowledgements = any(partition.acknowledgement_batches for _, partition in places_of(request.topics))
        session = delivery.sessions.for_fetch(
            asked,
            (place for place, _ in places_of(request.topics)),
            (place for place, _ in places_of(request.forgotten_topics_data)),
            has_acknowledgements=has_acknowledgements,
            limit=node.config.group_share_max_share_sessions,
        )
        if getattr(request, "share_acquire_mode", 0) not in (BATCH_OPTIMIZED, RECORD_LIMIT):
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
    except REQUEST_ERRORS as error:
        return encode_share_fetch_response((), error=failed(error))
    outcome: dict[Place, ShareOutcome] = {}
    if has_acknowledgements:
        outcome = acknowledged(delivery, node.topics, context, asked, request)
    fetch = PendingShareFetch(delivery, node, context, asked, request, session, outcome)
    if session is None:
        delivery.end_session(asked.key)
        return fetch.encode()
    if fetch.try_all() or request.max_wait <= timedelta(0) or request.min_bytes <= 0:
        return fetch.encode()
    answer = node.purgatory.wait(fetch, fetch.logs(), request.max_wait // _MILLISECOND)
    fetch.look_further()
    return answer


class PendingShareFetch:
    """A fetch of a share session's partitions, which may wait for records."""

    __slots__ = (
        "_asked",
        "_context",
        "_found",
        "_further",
        "_node",
        "_delivery",
        "_request",
        "_session",
        "acknowledged",
    )

    def __init__(
        self,
        delivery: ShareDelivery,
        node: Node,
        context: RequestContext,
        asked: RequestedSession,
        request: ShareFetchRequest,
        session: ShareSession | None,
        outcome: dict[Place, ShareOutcome],
    ) -> None:
        self._delivery = delivery
        self._node = node
        self._context = context
        self._asked = asked
        self._request = request
        self._session = session
        self.acknowledged = outcome
        self._found: dict[Place, Given | ShareOutcome] = {}
        self._further: list[Log] = []
        """Logs to read again in the next turn of the loop, since this turn could not skip all aborted or removed records."""

    def logs(self) -> list[Log]:
        """Return the logs of the session's partitions that exist."""
        return [one.log for one in self._live() if isinstance(one, LivePartition | StartSearched)]

    def refresh(self, logs: Iterable[Log]) -> bool:
        """Look for records again; return whether the wait is over."""
        is_over = self.try_all()
        self.look_further()
        return is_over

    def look_further(self) -> None:
        """If some logs have more records to skip, schedule another read of them in the next turn of the loop."""
        for log in self._further:
            self._node.purgatory.wake(log)
        self._further = []

    def try_all(self) -> bool:
        """Acquire records of one partition after the other; return whether the fetch can be answered now."""
        session, request = self._session, self._request
        if session is None or self._delivery.sessions.by_key.get(self._asked.key) is not session:
            return True
        if not session.places or request.max_bytes == 0:
            return True
        if request.max_bytes < 0:
            self._found = dict.fromkeys(session.places, ShareOutcome(ErrorCode.UNKNOWN_SERVER_ERROR))
            return True
        room = int(request.max_records)
        live = self._live()
        max_bytes = max(int(request.max_bytes) // max(len(live), 1), 1)
        mode = getattr(request, "share_acquire_mode", 0)
        for place, partition in zip(list(session.places), live, strict=True):
            if isinstance(partition, StartSearched):
                continue
            if not isinstance(partition, LivePartition):
                self._found[place] = partition
                continue
            if room <= 0:
                break
            wanted = WantedRecords(
                self._asked.member_id, room, max_bytes, int(request.batch_size), mode == RECORD_LIMIT
            )
            try:
                given = self._delivery.give(partition, wanted)
            except REQUEST_ERRORS as error:
                self._found[place] = failed(error)
                continue
            if given is MORE_TO_SKIP:
                self._further.append(partition.log)
            elif given is not NOTHING:
                self._found[place] = given
                room -= given.record_count
                session.places[place] = session.places.pop(place)  # the other partitions come first next time
        return bool(self._found) or int(request.max_records) <= 0

    def _live(self) -> list[LivePartition | StartSearched | ShareOutcome]:
        found: list[LivePartition | StartSearched | ShareOutcome] = []
        for place in self._session.places if self._session is not None else ():
            try:
                check_readable(self._node.topics, self._context, place)
                found.append(self._delivery.find(SharePartitionKey(self._asked.group_id, *place)))
            except StartSearched as search:
                found.append(search)
            except REQUEST_ERRORS as error:
                found.append(failed(error))
        return found

    def encode(self) -> list[Any]:
        """Return the response body."""
        answered = []
        whole = self._session.places if self._session is not None and self._asked.epoch == INITIAL_EPOCH else ()
        for place in {**self._found, **dict.fromkeys(whole), **self.acknowledged}:
            found = self._found.get(place, DONE)
            given = found if isinstance(found, Given) else NOTHING
            answered.append(
                SharedPartition(
                    *place,
                    error=DONE if isinstance(found, Given) else found,
                    acknowledge_error=self.acknowledged.get(place, DONE),
                    slices=given.slices,
                    acquired=given.acquired,
                )
            )
        return encode_share_fetch_response(
            answered,
            self._delivery.value_of(self._asked.group_id, LOCK_DURATION_MS),
            node_endpoints=endpoints(self._node.topics, self._context, (one.error for one in answered)),
        )
