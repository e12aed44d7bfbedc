"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeDelegationToken (keys 38 to 41).

Versions: 1 to 3 of Create and Describe, 1 and 2 of Renew and Expire.
Behaviour: all requests are refused, since delegation tokens are not supported.

Deviations: none known; Kafka gives the same answer on a listener without security.

Source: KafkaApis.allowTokenRequests and its callers (KIP-48).
"""

from __future__ import annotations

from diamant.broker.network.api import RequestContext, ResponseFields
from diamant.protocol.errors import ErrorCode

_REFUSED = {
    "error_code": int(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED),
    "principal_type": "User",
    "principal_name": "ANONYMOUS",
    "token_requester_principal_type": "User",
    "token_requester_principal_name": "ANONYMOUS",
    "issue_timestamp_ms": -1,
    "expiry_timestamp_ms": -1,
    "max_timestamp_ms": -1,
    "tokens": [],
}
"""The fields of all four responses; each response takes those in its schema."""


def answer(_context: RequestContext, _request: object) -> ResponseFields:
    """Refuse the request."""
    return _REFUSED
