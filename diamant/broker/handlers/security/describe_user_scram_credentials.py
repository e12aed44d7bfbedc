"""DescribeUserScramCredentials (key 50), version 0: the users with SCRAM credentials, and their iteration counts.

Behaviour: an empty list of users means all. Answers contain neither salts nor keys.
Deviations: none known.

Source: ScramImage.describe (KIP-554).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from diamant.broker.network.api import Answer, RequestContext
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.schemas import encode_response_fields

if TYPE_CHECKING:
    from kio.schema.describe_user_scram_credentials.v0.request import DescribeUserScramCredentialsRequest

    from diamant.storage.kraft.metadata_log import MetadataLog

KEY = 50


def handle(metadata: MetadataLog, context: RequestContext, request: DescribeUserScramCredentialsRequest) -> Answer:
    """Describe the requested users."""
    known: dict[str, list[dict[str, int]]] = {}
    for (mechanism, user), credential in sorted(metadata.image.scram_credentials.items()):
        known.setdefault(user, []).append({"mechanism": mechanism, "iterations": credential.iterations})
    counts = Counter(str(user.name) for user in request.users or ())
    results = [_result(user, counts[user] > 1, known.get(user)) for user in counts or known]
    fields = {"error_code": 0, "error_message": "", "results": results}
    return encode_response_fields(KEY, context.api_version, fields)


def _result(user: str, is_duplicate: bool, infos: list[dict[str, int]] | None) -> dict[str, object]:
    code, message = ErrorCode.NONE, ""
    if is_duplicate:
        code = ErrorCode.DUPLICATE_RESOURCE
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
    elif infos is None:
        code = ErrorCode.RESOURCE_NOT_FOUND
        message = f"Attempt to describe a user credential that does not exist: {user}"
    return {
        "user": user,
        "error_code": int(code),
        "error_message": message,
        "credential_infos": infos if code is ErrorCode.NONE else [],
    }
