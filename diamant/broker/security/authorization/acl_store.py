"""The store of ACLs: finds, creates and deletes them in the metadata log, and notifies the authorizer.

Source: AclControlManager and AclApis.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

from diamant.broker.acl import (
    CLUSTER_NAME,
    Acl,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from diamant.broker.security.authorization.acl_filter import AclFilter
from diamant.broker.security.authorization.acl_hosts import parse_range
from diamant.broker.security.authorization.authorizer import Authorizer
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.kraft.records import AccessControlEntryRecord, MetadataRecord, RemoveAccessControlEntryRecord
from diamant.storage.kraft.features import FIRST_WITH_HOST_RANGES
from diamant.storage.kraft.image import MetadataImage
from diamant.storage.kraft.metadata_log import MAX_RECORDS_PER_BATCH, MetadataLog


def acls_of(image: MetadataImage) -> dict[Acl, uuid.UUID]:
    """Return the ACLs of the metadata log with their ids. ACLs with values that only later versions of Kafka know are omitted."""
    found = {}
    for acl_id, record in image.acls.items():
        try:
            found[_acl_of(record)] = acl_id
        except ValueError:
            continue
    return found


class AclStore:
    """All ACLs. When a method returns, its change is in effect and in the metadata log, which the caller then has to flush."""

    def __init__(self, metadata: MetadataLog, authorizer: Authorizer) -> None:
        self._metadata = metadata
        self._authorizer = authorizer
        self._ids = acls_of(metadata.image)
        authorizer.add(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def find(self, wanted: AclFilter) -> list[Acl]:
        """Return the ACLs that match a filter."""
        return [acl for acl in self._ids if wanted.matches(acl)]

    def create(self, acls: Sequence[Acl]) -> list[KafkaError | None]:
        """Create the missing ACLs; return each ACL's error, or None if valid. Raises what the metadata log's `append` raises."""
        results: list[KafkaError | None] = []
        made: dict[Acl, uuid.UUID] = {}
        for acl in acls:
            error = error_of(acl, self._metadata.image.metadata_version)
            results.append(error)
            if error is None and acl not in self._ids and acl not in made:
                made[acl] = uuid.uuid4()
        records: list[MetadataRecord] = [_record_of(acl, acl_id) for acl, acl_id in made.items()]
        # Not atomic, as in Kafka: records that do not fit into one batch are written in several batches.
        for start in range(0, len(records), MAX_RECORDS_PER_BATCH):
            self._metadata.append(records[start : start + MAX_RECORDS_PER_BATCH])
        self._ids |= made
        if made:
            self._authorizer.add(made)
        return results

    def delete(self, filters: Iterable[AclFilter]) -> list[list[Acl]]:
        """Delete the ACLs that match any filter, atomically. Return each filter's matches; an ACL can match several filters.

        Raises KafkaError POLICY_VIOLATION if the change does not fit into one batch of the metadata log; then nothing is deleted.
        """
        found = [self.find(wanted) for wanted in filters]
        gone = dict.fromkeys(acl for acls in found for acl in acls)
        if gone:
            self._metadata.append([RemoveAccessControlEntryRecord(id=self._ids[acl]) for acl in gone])
            for acl in gone:
                del self._ids[acl]
            self._authorizer.remove(gone)
        return found


def _acl_of(record: AccessControlEntryRecord) -> Acl:
    return Acl(
        ResourceType(record.resource_type),
        record.resource_name,
        PatternType(record.pattern_type),
        record.principal,
        record.host,
        Operation(record.operation),
        PermissionType(record.permission_type),
    )


def _record_of(acl: Acl, acl_id: uuid.UUID) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=acl_id,
        resource_type=int(acl.resource_type),
        resource_name=acl.resource_name,
        pattern_type=int(acl.pattern_type),
        principal=acl.principal,
        host=acl.host,
        operation=int(acl.operation),
        permission_type=int(acl.permission),
    )


def error_of(acl: Acl, metadata_version: int) -> KafkaError | None:
    """Return why an ACL is invalid, or None if it is valid (AclApis.handleCreateAcls, AclControlManager.validateNewAcl)."""
    reason = ""
    if acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        reason = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not acl.resource_name:
        reason = "Invalid empty resource name"
    elif acl.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        reason = f"Invalid resourceType {acl.resource_type.name}"
    elif acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        reason = f"Invalid patternType {acl.pattern_type.name}"
    elif acl.operation in (Operation.UNKNOWN, Operation.ANY):
        reason = f"Invalid operation {acl.operation.name}"
    elif acl.permission not in (PermissionType.DENY, PermissionType.ALLOW):
        reason = f"Invalid permissionType {acl.permission.name}"
    elif ":" not in acl.principal:
        reason = f"Invalid principal {acl.principal}: expected TYPE:NAME, for instance User:alice"
    if reason:
        return KafkaError(ErrorCode.INVALID_REQUEST, reason)
    return _error_of_host(acl.host, metadata_version)


def _error_of_host(host: str, metadata_version: int) -> KafkaError | None:
    """Return why an ACL's host is invalid, or None if it is valid (AclControlManager.validateHostPattern)."""
    if not host:
        return KafkaError(ErrorCode.INVALID_REQUEST, "Host pattern cannot be null or empty")
    if "/" not in host:
        return None
    if metadata_version < FIRST_WITH_HOST_RANGES:
        return KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "CIDR-based ACL host patterns require metadata version 4.4-IV1 or higher.",
        )
    try:
        parse_range(host)
    except ValueError as error:
        return KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid CIDR notation '{host}': {error}")
    return None
