"""ListPartitionReassignments (key 46), version 0: always empty, as there is one broker.

Deviations: none known.

Source: ReplicationControlManager.listPartitionReassignments (KIP-455).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.network.api import Answer, RequestContext
from diamant.protocol.wire.schemas import encode_response_fields

if TYPE_CHECKING:
    from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest

KEY = 46


def handle(context: RequestContext, request: ListPartitionReassignmentsRequest) -> Answer:
    """Return an empty list."""
    return encode_response_fields(KEY, context.api_version, {"error_code": 0, "error_message": None, "topics": []})
