"""InitProducerId (key 22), versions 0 to 5: a producer id for an idempotent or transactional producer.

Behaviour: without a transactional id, the answer is a new id with epoch 0. With one, it is the id's producer with an epoch that
fences all earlier ones; an open transaction is aborted first, and the client retries. Versions: in 3 a producer may send its old
id and epoch (KIP-360); as in Kafka, an idempotent one gets a new id all the same. 4 knows PRODUCER_FENCED, 5
TRANSACTION_ABORTABLE, which is never answered here.

Source: KafkaApis.handleInitProducerIdRequest, TransactionCoordinator.handleInitProducerId.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, Response, ResponseFields, error_of
from diamant.broker.security.authorization import permissions
from diamant.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.init_producer_id.v5.request import InitProducerIdRequest

    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.producer_ids import ProducerIds
    from diamant.broker.transactions.coordinator import TransactionCoordinator

FIRST_WITH_PRODUCER_FENCED = 4
NO_PRODUCER = (-1, -1)


def answer(
    transactions: Lazy[TransactionCoordinator],
    producer_ids: ProducerIds,
    context: RequestContext,
    request: InitProducerIdRequest,
) -> Response:
    """Return a producer id. A coroutine only if a new block of ids has to be recorded first."""
    version, access = context.api_version, context.access
    is_transactional = request.transactional_id is not None
    if not is_transactional and not (
        access.allows(permissions.IDEMPOTENT_WRITE, is_asked=False) or access.allows_any(permissions.WRITE_TOPIC)
    ):
        return _fields(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    expected = (getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1))
    if expected != NO_PRODUCER and -1 in expected:
        return _fields(ErrorCode.INVALID_REQUEST)
    if is_transactional:
        return _transactional(transactions(), version, request, None if expected == NO_PRODUCER else expected)
    return producer_ids.give(
        lambda producer_id: _fields(ErrorCode.NONE, producer_id, 0),
        lambda: _fields(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    )


def _transactional(
    transactions: TransactionCoordinator, version: int, request: InitProducerIdRequest, expected: tuple[int, int] | None
) -> Response:
    from diamant.broker.transactions.transaction import ProducerIdAndEpoch

    step = partial(
        transactions.init_producer_id,
        str(request.transactional_id),
        round(request.transaction_timeout.total_seconds() * 1000),
        None if expected is None else ProducerIdAndEpoch(*expected),
    )

    def initialize(new_producer_id: int | None) -> ResponseFields:
        try:
            return _fields(ErrorCode.NONE, *step(new_producer_id))
        except REQUEST_ERRORS as error:
            return _fields(_known_code(version, error_of(error)[0]))

    return transactions.with_producer_id(initialize, lambda: _fields(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))


def _known_code(version: int, code: int) -> int:
    if code == ErrorCode.PRODUCER_FENCED and version < FIRST_WITH_PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def _fields(code: int, producer_id: int = -1, producer_epoch: int = -1) -> ResponseFields:
    return {"error_code": int(code), "producer_id": producer_id, "producer_epoch": producer_epoch}
