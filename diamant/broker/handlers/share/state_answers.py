"""The part that the requests about states of share partitions share: each partition succeeds or fails by itself.

Behaviour: none in a group without an id gets an answer. The requests are those of brokers: they need CLUSTER_ACTION.

Source: ShareCoordinatorService.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, error_of
from diamant.protocol.internal_topics.share_records import SharePartitionKey
from diamant.protocol.wire.schemas import encode_response_fields
from diamant.storage.uuid_text import ZERO_ID

Work = Callable[[SharePartitionKey, Any], Mapping[str, object] | None]
"""Takes a share partition and the request's fields of it; returns the fields of its result."""


def answered(key: int, context: RequestContext, group_id: str, topics: Iterable[Any], work: Work) -> bytes:
    """Do the work for each share partition of a request's topics; return the answer."""
    results: list[dict[str, object]] = []
    for topic in topics if group_id else ():
        topic_id = topic.topic_id or ZERO_ID
        partitions = []
        for one in topic.partitions:
            number = int(one.partition)
            fields: dict[str, object] = {"partition": number}
            try:
                fields |= work(SharePartitionKey(group_id, topic_id, number), one) or {}
            except REQUEST_ERRORS as error:
                code, message = error_of(error)
                fields |= {"error_code": code, "error_message": message}
            partitions.append(fields)
        results.append({"topic_id": topic.topic_id, "partitions": partitions})
    return encode_response_fields(key, context.api_version, {"results": results})
