"""DescribeLogDirs (key 35), versions 1 to 5: sizes of partitions and of the disk (KIP-113, KIP-827).

Deviations: none known; there is one log directory. Of several brokers, each lists its replicas.

Source: ReplicaManager.describeLogDirs.
"""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING

from diamant.broker.network.api import Answer, RequestContext
from diamant.protocol.wire.schemas import encode_response_fields

if TYPE_CHECKING:
    from kio.schema.describe_log_dirs.v5.request import DescribeLogDirsRequest

    from diamant.broker.node.node import Node

KEY = 35


def handle(node: Node, context: RequestContext, request: DescribeLogDirsRequest) -> Answer:
    """List the requested partitions; all for null."""
    topics: dict[str, list[dict[str, object]]] = {}
    wanted = None if request.topics is None else {str(topic.topic): set(topic.partitions) for topic in request.topics}
    brokers, broker_id = node.topics.brokers, context.connection.broker_id
    for name, topic in node.topics.by_name.items():
        if wanted is not None and name not in wanted:
            continue
        for partition, log in topic.logs.items():
            is_here = brokers is None or broker_id in brokers.partition(name, partition).replicas
            if is_here and (wanted is None or partition in wanted[name]):
                topics.setdefault(name, []).append(
                    {
                        "partition_index": partition,
                        "partition_size": log.size,
                        "offset_lag": 0,
                        "is_future_key": False,
                    }
                )
    total_bytes, usable_bytes = node.env.disk_usage(node.directory.path)
    result = {
        "error_code": 0,
        "log_dir": os.path.abspath(node.directory.path),
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
        "total_bytes": total_bytes,
        "usable_bytes": usable_bytes,
        "is_cordoned": False,
    }
    return encode_response_fields(KEY, context.api_version, {"error_code": 0, "results": [result]})
