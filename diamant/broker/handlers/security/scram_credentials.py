"""Requests that describe, set and remove the SCRAM credentials of users (KIP-554)."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from typing import TYPE_CHECKING, Any

from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_of
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.kraft.records import MetadataRecord, RemoveUserScramCredentialRecord, UserScramCredentialRecord
from diamant.storage.kraft.metadata_text import check_text

if TYPE_CHECKING:
    from kio.schema.alter_user_scram_credentials.v0.request import (
        AlterUserScramCredentialsRequest,
        ScramCredentialDeletion,
        ScramCredentialUpsertion,
    )
    from kio.schema.describe_user_scram_credentials.v0.request import DescribeUserScramCredentialsRequest

    from diamant.broker.node.node import Node
    from diamant.storage.kraft.metadata_log import MetadataLog


def describe(
    metadata: MetadataLog, context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> ResponseFields:
    """DescribeUserScramCredentials (key 50), version 0: the users with SCRAM credentials, and their iteration counts.

    Behaviour: an empty list of users means all. Responses contain neither salts nor keys.

    Source: ScramImage.describe (KIP-554).
    """
    known: dict[str, list[dict[str, int]]] = {}
    for (mechanism, user), credential in sorted(metadata.image.scram_credentials.items()):
        known.setdefault(user, []).append({"mechanism": mechanism, "iterations": credential.iterations})
    counts = Counter(str(user.name) for user in request.users or ())
    results = [_result(user, counts[user] > 1, known.get(user)) for user in counts or known]
    return {"error_code": 0, "error_message": "", "results": results}


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


HASHES = {1: "sha256", 2: "sha512"}
"""The hash functions of SCRAM-SHA-256 and SCRAM-SHA-512, by the mechanism's number (`ScramMechanism`)."""

MIN_ITERATIONS = 4096
MAX_ITERATIONS = 16_384


async def alter(node: Node, context: RequestContext, request: AlterUserScramCredentialsRequest) -> ResponseFields:
    """AlterUserScramCredentials (key 51), version 0: set and remove the SCRAM credentials of users.

    Behaviour: clients never send a password, but a salt and the salted password. From these, the broker computes the keys that it
    needs to verify logins, and stores them in the metadata log (RFC 5802). Each user is handled separately; a request may name a
    user only once.
    Deviations: an empty password is answered with UNACCEPTABLE_CREDENTIAL; Kafka fails on it with UNKNOWN_SERVER_ERROR.

    Source: ScramControlManager (KIP-554).
    """
    changes: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [*request.deletions, *request.upsertions]
    counts = Counter(str(change.name) for change in changes)
    results: dict[str, tuple[int, str | None]] = {}
    records: list[MetadataRecord] = []
    changed: list[str] = []
    for change in changes:
        user = str(change.name)
        try:
            if counts[user] > 1:
                raise KafkaError(
                    ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
                )
            _check_user(user, change.mechanism)
            records.append(_credential(change) if hasattr(change, "salt") else _removal(node, change))
            changed.append(user)
            results[user] = (0, None)
        except KafkaError as error:
            results[user] = error_of(error)
    if records:
        try:
            node.metadata.append(records)
            await node.topics.sync()
        except REQUEST_ERRORS as error:
            results.update(dict.fromkeys(changed, error_of(error)))
    return {
        "results": [
            {"user": user, "error_code": code, "error_message": message} for user, (code, message) in results.items()
        ]
    }


def _check_user(user: str, mechanism: int) -> None:
    if not user:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    check_text("the name of the user", user)
    if mechanism not in HASHES:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")


def _removal(node: Node, change: Any) -> RemoveUserScramCredentialRecord:
    user, mechanism = str(change.name), int(change.mechanism)
    if (mechanism, user) not in node.metadata.image.scram_credentials:
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    return RemoveUserScramCredentialRecord(name=user, mechanism=mechanism)


def _credential(change: Any) -> UserScramCredentialRecord:
    if change.iterations < MIN_ITERATIONS:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if change.iterations > MAX_ITERATIONS:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not change.salted_password:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Password must not be empty")
    hash_name = HASHES[change.mechanism]
    client_key = hmac.digest(change.salted_password, b"Client Key", hash_name)
    return UserScramCredentialRecord(
        name=str(change.name),
        mechanism=int(change.mechanism),
        salt=bytes(change.salt),
        stored_key=hashlib.new(hash_name, client_key).digest(),
        server_key=hmac.digest(change.salted_password, b"Server Key", hash_name),
        iterations=int(change.iterations),
    )
