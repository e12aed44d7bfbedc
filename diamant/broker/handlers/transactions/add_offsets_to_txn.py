"""AddOffsetsToTxn (key 25), versions 0 to 4: announce commits of a group's offsets in the transaction.

Behaviour: adds the group's partition of `__consumer_offsets` to the transaction. Versions: 2 knows
PRODUCER_FENCED, 4 TRANSACTION_ABORTABLE, which is never answered here.

Source: KafkaApis.handleAddOffsetsToTxnRequest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_of
from diamant.broker.topics.internal_names import GROUP_OFFSETS_TOPIC
from diamant.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.transactions.coordinator import TransactionCoordinator

FIRST_WITH_PRODUCER_FENCED = 2


def answer(
    groups: GroupCoordinator,
    transactions: TransactionCoordinator,
    context: RequestContext,
    request: AddOffsetsToTxnRequest,
) -> ResponseFields:
    """Add the partition of the group."""
    from diamant.broker.transactions.transaction import ProducerIdAndEpoch

    version = context.api_version
    code = int(ErrorCode.NONE)
    try:
        partition = groups.log.partition_of(request.group_id)
        transactions.add_partitions(
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            [(GROUP_OFFSETS_TOPIC, partition)],
            client_version=0,
        )
    except REQUEST_ERRORS as error:
        code = error_of(error)[0]
        if code == ErrorCode.PRODUCER_FENCED and version < FIRST_WITH_PRODUCER_FENCED:
            code = int(ErrorCode.INVALID_PRODUCER_EPOCH)
    return {"error_code": code}
