"""Requests that describe the only log directory, or move replicas to it."""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING

from diamant.broker.network.api import RequestContext, ResponseFields
from diamant.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.alter_replica_log_dirs.v2.request import AlterReplicaLogDirsRequest
    from kio.schema.describe_log_dirs.v5.request import DescribeLogDirsRequest

    from diamant.broker.node.node import Node


def describe(node: Node, context: RequestContext, request: DescribeLogDirsRequest) -> ResponseFields:
    """DescribeLogDirs (key 35), versions 1 to 5: sizes of partitions and of the disk (KIP-113, KIP-827).

    Deviations: none known; there is one log directory. With several brokers, each lists its own replicas.

    Source: ReplicaManager.describeLogDirs.
    """
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
    return {"error_code": 0, "results": [result]}


def alter(node: Node, context: RequestContext, request: AlterReplicaLogDirsRequest) -> ResponseFields:
    """AlterReplicaLogDirs (key 34), versions 1 to 2: there is one log directory, so replicas never move.

    Behaviour: a move to the broker's own directory is accepted without effect; any other is refused (LOG_DIR_NOT_FOUND).

    Source: ReplicaManager.alterReplicaLogDirs (KIP-113).
    """
    ours = os.path.abspath(node.directory.path)
    topics: dict[str, dict[int, ErrorCode]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            name = str(topic.name)
            known = node.topics.by_name.get(name)
            for index in topic.partitions:
                if not os.path.isabs(directory.path) or os.path.normpath(directory.path) != ours:
                    code = ErrorCode.LOG_DIR_NOT_FOUND
                elif known is None or index not in known.logs:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    code = ErrorCode.NONE
                topics.setdefault(name, {})[int(index)] = code
    results = [
        {
            "topic_name": name,
            "partitions": [{"partition_index": index, "error_code": int(code)} for index, code in partitions.items()],
        }
        for name, partitions in topics.items()
    ]
    return {"results": results}
