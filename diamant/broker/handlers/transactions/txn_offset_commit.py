"""TxnOffsetCommit (key 28), versions 0 to 6: offsets that take effect when the transaction is committed.

Behaviour: the group's partition of `__consumer_offsets` must belong to the transaction; the group coordinator checks the
member and writes the offsets. Missing partitions get an error, and the others are committed. Versions: 3 names the member
(KIP-447), 4 adds TRANSACTION_ABORTABLE, 5 adds the group's partition to the transaction automatically (TV2, KIP-890), 6 has
topic ids, and the codes GROUP_ID_NOT_FOUND, STALE_MEMBER_EPOCH and UNKNOWN_TOPIC_ID (KIP-1319).

Source: KafkaApis.handleTxnOffsetCommitRequest, GroupCoordinatorService.commitTransactionalOffsets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from diamant.broker.groups.coordinator.offset_selection import CODES, Selection
from diamant.broker.network.api import REQUEST_ERRORS, Answer, RequestContext, error_of
from diamant.protocol.errors import ErrorCode
from diamant.protocol.messages.offset_commit import (
    TXN_FIRST_WITH_TOPIC_ID,
    TxnOffsetCommitRequest,
    decode_txn_offset_commit_request,
    encode_txn_offset_commit_response,
)

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.node import Node
    from diamant.broker.transactions.coordinator import TransactionCoordinator

KEY = 28
FIRST_WITH_ABORTABLE = 4
FIRST_TV2 = 5


def handle(
    groups: GroupCoordinator,
    transactions: TransactionCoordinator,
    node: Node,
    context: RequestContext,
    request: TxnOffsetCommitRequest,
) -> Answer:
    """Commit the valid offsets; every partition of the request gets a code."""
    version = context.api_version
    selection = Selection(
        node.topics, request.topics, has_topic_ids=version >= TXN_FIRST_WITH_TOPIC_ID, access=context.access
    )
    if selection.known:
        try:
            too_long = _commit(groups, transactions, node, version, request, selection)
            selection.refuse(too_long, ErrorCode.OFFSET_METADATA_TOO_LARGE)
        except REQUEST_ERRORS as error:
            code = ErrorCode(error_of(error)[0])
            selection.refuse_all(CODES.get(code, code))
    return encode_txn_offset_commit_response(version, request.topics, selection.codes)


def _commit(
    groups: GroupCoordinator,
    transactions: TransactionCoordinator,
    node: Node,
    version: int,
    request: TxnOffsetCommitRequest,
    selection: Selection,
) -> Iterable[tuple[int, int]]:
    from diamant.broker.transactions.transaction import ProducerIdAndEpoch
    from diamant.broker.transactions.verification import Support, Write

    groups.check_usable(request.group_id)
    log = groups.log.log_of(request.group_id)
    refused = transactions.verification.check(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        [Write(log, -1)],
        Support(version >= FIRST_WITH_ABORTABLE, version >= FIRST_TV2),
        is_enabled=node.config.transaction_partition_verification_enable,
    )
    if refused:
        raise refused[log.topic, log.partition]
    return groups.commits.commit_transactional(
        request.group_id,
        selection.known,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation,
        version=version,
    )


decode = decode_txn_offset_commit_request
