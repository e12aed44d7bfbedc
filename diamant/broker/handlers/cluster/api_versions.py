"""ApiVersions (key 18), versions 0 to 5: the served APIs and versions, computed from the handler table.

Behaviour: answered on any connection at any time, from a cache. The dispatcher answers requests with an unknown version
(KIP-511). Versions: 3 adds features (KIP-584); before 4, features whose lowest level is 0 are omitted, as older Java
clients fail on them (KAFKA-17011). From 3 on, the client sends its software's name and version (KIP-511); if either is invalid,
the answer is INVALID_REQUEST with empty lists. 5 lets the client name the cluster and the node that it wants to reach (KIP-1242):
if it names only one of the two, the answer is INVALID_REQUEST; if either is wrong, REBOOTSTRAP_REQUIRED.

Source: KafkaApis.handleApiVersionsRequest, ApiVersionsRequest.isValid, ApiVersionsResponse.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from diamant.broker.network.api import Answer, RequestContext
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire import apis
from diamant.protocol.wire.schemas import encode_response_fields
from diamant.storage.kraft.features import (
    GROUP_VERSION,
    METADATA_VERSION,
    SHARE_VERSION,
    SUPPORTED_FEATURES,
    TRANSACTION_VERSION,
)

if TYPE_CHECKING:
    from kio.schema.api_versions.v4.request import ApiVersionsRequest

    from diamant.storage.kraft.metadata_log import MetadataLog

logger = logging.getLogger(__name__)

KEY = 18
FIRST_WITH_ZERO_MINIMUM = 4
NO_NODE = -1
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""The pattern for the name and the version of a client's software. Source: ApiVersionsRequest.SOFTWARE_NAME_VERSION_PATTERN."""

_IMPLEMENTED_FEATURES = (METADATA_VERSION, GROUP_VERSION, SHARE_VERSION, TRANSACTION_VERSION)
"""The features that responses list."""


def handle(
    metadata: MetadataLog,
    answers: dict[int, bytes],
    served_keys: Collection[int],
    context: RequestContext,
    request: ApiVersionsRequest,
) -> Answer:
    """Answer from the cache. `answers`: the cached responses, by version; UpdateFeatures clears them."""
    version = context.api_version
    name = getattr(request, "client_software_name", None)
    if name is not None:
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(request.client_software_version)):
            return encode_response_fields(KEY, version, {"error_code": int(ErrorCode.INVALID_REQUEST)})
        logger.debug("%s: client %s %s", context.connection.peer, name, request.client_software_version)
    broker_id = context.connection.broker_id if len(metadata.broker_ids) > 1 else metadata.node_id
    meant = (getattr(request, "cluster_id", None), getattr(request, "node_id", NO_NODE))
    if code := _misrouted((metadata.cluster_id, broker_id), *meant):
        return encode_response_fields(KEY, version, {"error_code": int(code)})
    body = answers.get(version)
    if body is None:
        body = answers[version] = _encode(metadata, served_keys, version)
    return body


def _misrouted(here: tuple[str, int], cluster_id: str | None, node_id: int) -> ErrorCode:
    """Return the error for a client that names another cluster or node, or only one of the two ids; otherwise NONE."""
    if (cluster_id is None) != (node_id == NO_NODE):
        return ErrorCode.INVALID_REQUEST
    is_here = cluster_id is None or (cluster_id, node_id) == here
    return ErrorCode.NONE if is_here else ErrorCode.REBOOTSTRAP_REQUIRED


def _encode(metadata: MetadataLog, served_keys: Collection[int], version: int) -> bytes:
    finalized = metadata.image.features
    return encode_response_fields(
        KEY,
        version,
        {
            "error_code": 0,
            "api_keys": [
                {"api_key": key, "min_version": apis.ADVERTISED[key].min, "max_version": apis.ADVERTISED[key].max}
                for key in sorted(served_keys)
            ],
            "supported_features": [
                {"name": name, "min_version": low, "max_version": high}
                for name, (low, high) in ((name, SUPPORTED_FEATURES[name]) for name in _IMPLEMENTED_FEATURES)
                if low > 0 or version >= FIRST_WITH_ZERO_MINIMUM
            ],
            # Clients adopt features only if the epoch is higher than the one they know. Like Kafka, send the log's last offset.
            "finalized_features_epoch": metadata.end_offset - 1,
            "finalized_features": [
                {"name": name, "max_version_level": finalized[name], "min_version_level": finalized[name]}
                for name in _IMPLEMENTED_FEATURES
                if finalized.get(name, 0) > 0
            ],
        },
    )
