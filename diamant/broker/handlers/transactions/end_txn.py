"""EndTxn (key 26), versions 0 to 5: commit or abort.

Behaviour: answered when the decision and, unless a disk fails, all markers are written, so that the next transaction may
begin at once. Versions: 2 knows PRODUCER_FENCED, 4 TRANSACTION_ABORTABLE, which is never answered here. 5 raises the
producer's epoch and returns it (TV2, KIP-890); a producer whose epochs are exhausted gets another id.

Source: KafkaApis.handleEndTxnRequest, TransactionCoordinator.handleEndTransaction.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, Response, ResponseFields, error_of
from diamant.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.end_txn.v5.request import EndTxnRequest

    from diamant.broker.transactions.coordinator import TransactionCoordinator

FIRST_WITH_PRODUCER_FENCED = 2
FIRST_TV2 = 5


def answer(transactions: TransactionCoordinator, context: RequestContext, request: EndTxnRequest) -> Response:
    """End the transaction. A coroutine only if a new block of producer ids has to be recorded first."""
    from diamant.broker.transactions.transaction import ProducerIdAndEpoch

    version = context.api_version
    step = partial(
        transactions.end,
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        is_commit=request.committed,
        client_version=2 if version >= FIRST_TV2 else 0,
    )

    def end(new_producer_id: int | None) -> ResponseFields:
        try:
            return _fields(ErrorCode.NONE, *step(new_producer_id=new_producer_id))
        except REQUEST_ERRORS as error:
            code = error_of(error)[0]
            if code == ErrorCode.PRODUCER_FENCED and version < FIRST_WITH_PRODUCER_FENCED:
                code = ErrorCode.INVALID_PRODUCER_EPOCH
            return _fields(code)

    return transactions.with_producer_id(end, lambda: _fields(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))


def _fields(code: int, producer_id: int = -1, producer_epoch: int = -1) -> ResponseFields:
    return {"error_code": int(code), "producer_id": producer_id, "producer_epoch": producer_epoch}
