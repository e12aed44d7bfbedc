"""TxnOffsetCommit (key 28), versions 0 to 5: offsets that count when the transaction is committed.

Behaviour: the group's partition of `__consumer_offsets` must be part of the transaction; the group coordinator checks the
member and writes. Partitions that do not exist get their error, the others go on. Versions: 3 names the member
(KIP-447), 4 knows TRANSACTION_ABORTABLE, 5 adds the group's partition to the transaction (TV2, KIP-890).
Deviations: none known.

Source: KafkaApis.handleTxnOffsetCommitRequest, GroupCoordinatorService.commitTransactionalOffsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diamant.broker.dispatch import REQUEST_ERRORS, Api, RequestContext, error_of
from diamant.broker.handlers.offset_commit import CODES
from diamant.broker.server import Answer
from diamant.broker.topics import GROUP_OFFSETS_TOPIC
from diamant.protocol.errors import ErrorCode
from diamant.protocol.schemas import decode_request, encode_response_fields

if TYPE_CHECKING:
    from diamant.broker.broker import Broker

KEY = 28
FIRST_WITH_ABORTABLE = 4
FIRST_TV2 = 5


def handle(broker: Broker, context: RequestContext, request: Any) -> Answer:
    """Commit what can be committed; every partition of the request gets a code."""
    from diamant.broker.groups.offsets import OffsetCommit

    known = broker.topics.image.topics
    codes: dict[tuple[str, int], int] = {}
    commits = []
    for topic in request.topics:
        for partition in topic.partitions:
            index = partition.partition_index
            if topic.name in known and index in known[topic.name].partitions:
                commits.append(
                    OffsetCommit(
                        topic.name,
                        index,
                        partition.committed_offset,
                        getattr(partition, "committed_leader_epoch", -1),
                        partition.committed_metadata or "",
                    )
                )
            else:
                codes[topic.name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if commits:
        try:
            results = _commit(broker, context.api_version, request, commits)
            codes.update(((each.topic, each.partition), code) for each, code in zip(commits, results, strict=True))
        except REQUEST_ERRORS as error:
            code = ErrorCode(error_of(error)[0])
            codes.update(dict.fromkeys(((each.topic, each.partition) for each in commits), CODES.get(code, code)))
    return encode_response_fields(
        KEY,
        context.api_version,
        {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {
                            "partition_index": partition.partition_index,
                            "error_code": int(codes[topic.name, partition.partition_index]),
                        }
                        for partition in topic.partitions
                    ],
                }
                for topic in request.topics
            ]
        },
    )


def _commit(broker: Broker, version: int, request: Any, commits: list[Any]) -> list[ErrorCode]:
    from diamant.broker.transactions.transaction import ProducerIdAndEpoch
    from diamant.broker.transactions.verification import Support, Write

    groups = broker.groups
    groups.check_usable(request.group_id)
    partition = groups.topic.partition_of(request.group_id)
    log = groups.topic.log(partition)
    refused = broker.transactions.verification.check(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        [Write(log, -1)],
        Support(version >= FIRST_WITH_ABORTABLE, version >= FIRST_TV2),
        is_enabled=broker.config.transaction_partition_verification_enable,
    )
    if refused:
        raise refused[GROUP_OFFSETS_TOPIC, partition]
    return groups.commit_transactional(
        request.group_id,
        commits,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        member_id=getattr(request, "member_id", ""),
        instance_id=getattr(request, "group_instance_id", None),
        generation=getattr(request, "generation_id", -1),
        version=version,
    )


API = Api(KEY, lambda version, body: decode_request(KEY, version, body), handle)
