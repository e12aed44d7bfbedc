"""CreatePartitions (key 37), versions 0 to 3: grow topics (KIP-195).

Versions: 3 is refused if a quota is exceeded (KIP-599).

Source: ReplicationControlManager.createPartitions.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from diamant.broker.handlers.topics.mutation_charge import charge_of
from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_of
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import check
from diamant.broker.topics.growth import add_partitions, check_partition_count
from diamant.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.create_partitions.v3.request import CreatePartitionsRequest

    from diamant.broker.node.lazy import Lazy
    from diamant.broker.security.quotas.quotas import Quotas
    from diamant.broker.topics.topics import Topics

FIRST_STRICT = 3


async def answer(
    quotas: Lazy[Quotas], topics: Topics, context: RequestContext, request: CreatePartitionsRequest
) -> ResponseFields:
    """Grow topics."""
    charge = charge_of(quotas, context, is_strict=context.api_version >= FIRST_STRICT)
    counts = Counter(str(topic.name) for topic in request.topics)
    await topics.settled(counts)
    results: dict[str, tuple[int, str | None]] = {}
    for topic in request.topics:
        name = str(topic.name)
        try:
            if counts[name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            check(context.access, permissions.ALTER_TOPIC, name)
            assignments = (
                None
                if topic.assignments is None
                else [[int(broker_id) for broker_id in assignment.broker_ids] for assignment in topic.assignments]
            )
            check_partition_count(topics, name, int(topic.count), assignments)
            charge.take(int(topic.count) - len(topics.image.topics[name].partitions))
            if not request.validate_only:
                await add_partitions(topics, name, int(topic.count), assignments)
            results[name] = (0, None)
        except REQUEST_ERRORS as error:
            results[name] = error_of(error)
    return {
        "throttle_time_ms": charge.throttle_time_ms(),
        "results": [
            {"name": name, "error_code": code, "error_message": message} for name, (code, message) in results.items()
        ],
    }
