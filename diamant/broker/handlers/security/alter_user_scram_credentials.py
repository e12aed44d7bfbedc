"""AlterUserScramCredentials (key 51), version 0: set and remove the SCRAM credentials of users.

Behaviour: passwords are never sent: clients send salt and salted password. From them the broker computes the data to check a
login, and stores it in the metadata log (RFC 5802). Each user is handled separately, and may appear once in a request.
Deviations: an empty password is UNACCEPTABLE_CREDENTIAL; Kafka fails
on it with UNKNOWN_SERVER_ERROR.

Source: ScramControlManager (KIP-554).
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from typing import TYPE_CHECKING, Any

from diamant.broker.network.api import REQUEST_ERRORS, Answer, RequestContext, error_of
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.kraft.records import MetadataRecord, RemoveUserScramCredentialRecord, UserScramCredentialRecord
from diamant.protocol.wire.schemas import encode_response_fields
from diamant.storage.kraft.metadata_text import check_text

if TYPE_CHECKING:
    from kio.schema.alter_user_scram_credentials.v0.request import (
        AlterUserScramCredentialsRequest,
        ScramCredentialDeletion,
        ScramCredentialUpsertion,
    )

    from diamant.broker.node.node import Node

KEY = 51
HASHES = {1: "sha256", 2: "sha512"}
"""Hashes of SCRAM-SHA-256 and SCRAM-SHA-512, by number (`ScramMechanism`)."""

MIN_ITERATIONS = 4096
MAX_ITERATIONS = 16_384


def handle(node: Node, context: RequestContext, request: AlterUserScramCredentialsRequest) -> Answer:
    """Change credentials. Always a coroutine, as the metadata log has to be synced."""
    return _alter(node, context.api_version, request)


async def _alter(node: Node, version: int, request: AlterUserScramCredentialsRequest) -> bytes:
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
    fields = {
        "results": [
            {"user": user, "error_code": code, "error_message": message} for user, (code, message) in results.items()
        ]
    }
    return encode_response_fields(KEY, version, fields)


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
