"""AlterReplicaLogDirs (key 34), versions 1 to 2: there is one log directory, so replicas never move.

Behaviour: the broker's own directory is accepted without effect, any other is LOG_DIR_NOT_FOUND.
Deviations: none known.

Source: ReplicaManager.alterReplicaLogDirs (KIP-113).
"""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING

from diamant.broker.network.api import Answer, RequestContext
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.schemas import encode_response_fields

if TYPE_CHECKING:
    from kio.schema.alter_replica_log_dirs.v2.request import AlterReplicaLogDirsRequest

    from diamant.broker.node.node import Node

KEY = 34


def handle(node: Node, context: RequestContext, request: AlterReplicaLogDirsRequest) -> Answer:
    """Answer for every partition. One that is named for two directories gets the answer for the last."""
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
    return encode_response_fields(KEY, context.api_version, {"results": results})
