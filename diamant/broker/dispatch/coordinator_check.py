"""The check, before the handler, that this broker is the coordinator of the request's group or transactional id.

With several brokers, the coordinator is the broker that leads the internal topic's partition with the state of the group or id.
Requests that name several groups or ids are checked by their handlers.

Source: GroupCoordinatorService, TransactionStateManager (NOT_COORDINATOR).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from diamant.broker.coordinators.internal_topic import coordinator_of
from diamant.broker.dispatch.api_row import Row
from diamant.broker.dispatch.dispatcher import Handler
from diamant.broker.network.api import Answer, CloseConnection, Decode, RequestContext
from diamant.broker.topics.internal_names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from diamant.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from diamant.broker.brokers.table import BrokerTable
    from diamant.broker.dispatch.services import Services

_FIELDS = {
    GROUP_OFFSETS_TOPIC: ("group_id",),
    TRANSACTION_STATE_TOPIC: ("transactional_id", "v3_and_below_transactional_id"),
}
"""The request fields with the group or id, by the coordinator's topic. AddOffsetsToTxn and TxnOffsetCommit have both."""


class _Checked(NamedTuple):
    request: object
    body: memoryview


def checked(
    key: int, row: Row, brokers: BrokerTable, services: Services, decode: Decode, handle: Handler
) -> tuple[Decode, Handler]:
    """Return an API's decoder, and its handler preceded by the check. If the broker is down, the connection is closed instead."""
    topic = row.coordinator

    def check_open(context: RequestContext, request: object) -> Answer:
        broker_id = context.connection.broker_id
        if not services.ports.is_open(broker_id):
            raise CloseConnection(f"broker {broker_id} is down")
        return handle(context, request)

    bare = row.errors._replace(repeated=())  # Kafka's coordinator runtime repeats no request fields in the error

    def check(context: RequestContext, decoded: _Checked) -> Answer:
        request, body = decoded
        asked = next((value for field in _FIELDS[topic] if (value := getattr(request, field, None)) is not None), None)
        if asked is not None and coordinator_of(brokers, topic, str(asked)) not in (
            None,
            context.connection.broker_id,
        ):
            from diamant.protocol.wire.error_response import refusal

            return refusal(bare, key, context.api_version, body, ErrorCode.NOT_COORDINATOR, "")
        return check_open(context, request)

    if not topic:
        return decode, check_open
    return lambda version, body: _Checked(decode(version, body), body), check
