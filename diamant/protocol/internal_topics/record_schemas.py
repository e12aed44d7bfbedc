"""Every record of `__consumer_offsets`, `__transaction_state` and `__share_group_state`, decoded as Kafka's tools print it.

A key is its type as an int16, then its fields; a value is an int16 version and its fields (see `typed_records`). Names, order
and versions of the fields are Kafka's. The broker itself uses `group_records` and `transaction_records`.

    decode(GROUP_RECORDS, key, value)      ("GROUP_METADATA", {"key": {"type": "2", "data": {...}}, "value": None})

Source: the schemas and CoordinatorRecordJsonConverters of Kafka 4.4's group, transaction and share coordinators.
"""

# No postponed annotations here: the wire types are read from the annotations as they stand.

import base64
from collections.abc import Mapping
from struct import error as StructError
from typing import Annotated, Any, NamedTuple, get_args

from diamant.protocol.errors import ProtocolError
from diamant.protocol.internal_topics.consumer_protocol import HIGHEST_VERSION, PROTOCOL_TYPE, protocol_version
from diamant.protocol.primitives import INT16
from diamant.protocol.typed_records.frozen_record import FrozenRecord, fields
from diamant.protocol.typed_records.layout import Since, Tag, array_of, layout, nullable_struct_of, read_struct
from diamant.protocol.typed_records.wire_types import (
    INT32,
    UNREADABLE,
    Binary,
    Id,
    Int8,
    Int16,
    Int32,
    Int32s,
    Int64,
    MalformedRecord,
    NullableBinary,
    NullableText,
    Text,
    Texts,
    Uint16,
    array_type,
)

CANNOT_BE_DECODED = "cannot be decoded"

_LEFT_OUT = object()
"""Value of a field that its version lacks, or whose tag is missing. Kafka's tools leave such a field out."""


class RecordSchema(NamedTuple):
    """A type of record: name, fields of key and value, and the value's newest and first flexible versions."""

    name: str
    key: type
    value: type
    max_version: int = 0
    first_flexible: int = 0


def decode(types: Mapping[int, RecordSchema], key: bytes | None, value: bytes | None) -> tuple[str, dict[str, object]]:
    """Return the name of a record's type, and its key and value for JSON (ids are UUIDs).

    The name is CANNOT_BE_DECODED for a record that is malformed or of an unknown type or version: a reason is added, and what
    cannot be decoded is in hexadecimal.
    """
    decoded: dict[str, object] = {
        "key": None if key is None else key.hex(),
        "value": None if value is None else value.hex(),
    }
    part = "key"
    try:
        if key is None:
            raise MalformedRecord("it is missing")
        (number,) = INT16.unpack_from(key)
        if number not in types:
            raise MalformedRecord(f"its type {number} is unknown")
        record_type = types[number]
        decoded["key"] = {"type": str(number), "data": _data(record_type.key, 0, False, key)}
        if value is not None:
            part = "value"
            (version,) = INT16.unpack_from(value)
            if not 0 <= version <= record_type.max_version:
                raise MalformedRecord(f"its version is {version}, expected 0 to {record_type.max_version}")
            data = _data(record_type.value, version, version >= record_type.first_flexible, value)
            decoded["value"] = {"version": str(version), "data": data}
    except (IndexError, StructError):
        return CANNOT_BE_DECODED, {"reason": f"{part}: it ends too early", **decoded}
    except (UnicodeDecodeError, MalformedRecord, ProtocolError) as error:
        return CANNOT_BE_DECODED, {"reason": f"{part}: {error}", **decoded}
    return record_type.name, decoded


def _data(record_class: type, version: int, is_flexible: bool, buffer: bytes) -> object:
    record = read_struct(layout(record_class, version, is_flexible), buffer, INT16.size)[0]
    if record_class is _CLASSIC_GROUP and record.protocolType == PROTOCOL_TYPE:
        members = (
            member.changed(
                subscription=_of_consumer(_SUBSCRIPTION, member.subscription),
                assignment=_of_consumer(_ASSIGNMENT, member.assignment),
            )
            for member in record.members
        )
        record = record.changed(members=tuple(members))
    return _for_json(record)


def _of_consumer(record_class: type, data: bytes) -> object:
    """Return a consumer's subscription or assignment, read as the newest version that there is; `data` if it is malformed."""
    try:
        version = min(protocol_version(data), HIGHEST_VERSION)
        return read_struct(layout(record_class, version, False), data, INT16.size)[0]
    except UNREADABLE:
        return data


def _for_json(value: object) -> object:
    if isinstance(value, FrozenRecord):
        named = ((field.name, getattr(value, field.name)) for field in fields(type(value)))
        return {name: _for_json(field) for name, field in named if field is not _LEFT_OUT}
    if isinstance(value, tuple):
        return [_for_json(element) for element in value]
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value


# ---- fields ----------------------------------------------------------------------------------------------------------


def _struct(**annotations: Any) -> type:
    return type("Struct", (FrozenRecord,), {"__annotations__": annotations})


def _array(element: type, *, is_nullable: bool = False) -> Any:
    return Annotated[Any, array_of(element, is_nullable=is_nullable)]


def _since(version: int, annotation: Any, last: int = 0x7FFF) -> Any:
    return Annotated[Any, get_args(annotation)[1], Since(version, last, _LEFT_OUT)]


def _tagged(number: int, annotation: Any, since: int = 0) -> Any:
    return Annotated[Any, get_args(annotation)[1], Since(since, default=_LEFT_OUT), Tag(number)]


_Int16s = Annotated[Any, array_type(get_args(Int16)[1])]
_NullableInt32s = Annotated[Any, array_type(INT32, is_nullable=True)]

_GROUP = _struct(groupId=Text)
_MEMBER = _struct(groupId=Text, memberId=Text)
_OFFSET = _struct(group=Text, topic=Text, partition=Int32)
_SHARE_PARTITION = _struct(groupId=Text, topicId=Id, partition=Int32)

_PARTITIONS = _struct(topicId=Id, partitions=Int32s)
_PARTITIONS_WITH_EPOCHS = _struct(topicId=Id, partitions=Int32s, assignmentEpochs=_tagged(0, _NullableInt32s))
_NAMED_PARTITIONS = _struct(topicId=Id, topicName=Text, partitions=Int32s)
_TASKS = _array(_struct(subtopologyId=Text, partitions=Int32s))
_TASKS_WITH_EPOCHS = _array(
    _struct(subtopologyId=Text, partitions=Int32s, assignmentEpochs=_tagged(0, _NullableInt32s))
)
_PAIRS = _struct(key=Text, value=Text)
_TOPICS = _array(_struct(name=Text, partitions=Int32, replicationFactor=Int16, topicConfigs=_array(_PAIRS)))
_STATE_BATCHES = _array(_struct(firstOffset=Int64, lastOffset=Int64, deliveryState=Int8, deliveryCount=Int16))
_TARGET_EPOCH = _struct(assignmentEpoch=Int32, assignmentTimestamp=_tagged(0, Int64))
_TARGET = _struct(topicPartitions=_array(_PARTITIONS))

_CLASSIC_GROUP = _struct(
    protocolType=Text,
    generation=Int32,
    protocol=NullableText,
    leader=NullableText,
    currentStateTimestamp=_since(2, Int64),
    members=_array(
        _struct(
            memberId=Text,
            groupInstanceId=_since(3, NullableText),
            clientId=Text,
            clientHost=Text,
            rebalanceTimeout=_since(1, Int32),
            sessionTimeout=Int32,
            subscription=Binary,
            assignment=Binary,
        )
    ),
)
_OF_TOPICS = _array(_struct(topic=Text, partitions=Int32s))
_SUBSCRIPTION = _struct(
    topics=Texts,
    userData=NullableBinary,
    ownedPartitions=_since(1, _OF_TOPICS),
    generationId=_since(2, Int32),
    rackId=_since(3, NullableText),
)
_ASSIGNMENT = _struct(assignedPartitions=_OF_TOPICS, userData=NullableBinary)

# ---- types -----------------------------------------------------------------------------------------------------------

GROUP_RECORDS: Mapping[int, RecordSchema] = {
    0: RecordSchema(
        "LEGACY_OFFSET_COMMIT", _OFFSET, _struct(offset=Int64, metadata=Text, commitTimestamp=Int64), first_flexible=1
    ),
    1: RecordSchema(
        "OFFSET_COMMIT",
        _OFFSET,
        _struct(
            offset=Int64,
            leaderEpoch=_since(3, Int32),
            metadata=Text,
            commitTimestamp=Int64,
            expireTimestamp=_since(1, Int64, last=1),
            topicId=_tagged(0, Id, since=4),
        ),
        max_version=4,
        first_flexible=4,
    ),
    2: RecordSchema(
        "GROUP_METADATA",
        _struct(group=Text),
        _CLASSIC_GROUP,
        max_version=4,
        first_flexible=4,
    ),
    3: RecordSchema("CONSUMER_GROUP_METADATA", _GROUP, _struct(epoch=Int32, metadataHash=_tagged(0, Int64))),
    4: RecordSchema(
        "CONSUMER_GROUP_PARTITION_METADATA",
        _GROUP,
        _struct(
            topics=_array(
                _struct(
                    topicId=Id,
                    topicName=Text,
                    numPartitions=Int32,
                    partitionMetadata=_array(_struct(partition=Int32, racks=Texts)),
                )
            )
        ),
    ),
    5: RecordSchema(
        "CONSUMER_GROUP_MEMBER_METADATA",
        _MEMBER,
        _struct(
            instanceId=NullableText,
            rackId=NullableText,
            clientId=Text,
            clientHost=Text,
            subscribedTopicNames=Texts,
            subscribedTopicRegex=NullableText,
            rebalanceTimeoutMs=Int32,
            serverAssignor=NullableText,
            classicMemberMetadata=_tagged(
                0,
                Annotated[
                    Any,
                    nullable_struct_of(
                        _struct(sessionTimeoutMs=Int32, supportedProtocols=_array(_struct(name=Text, metadata=Binary)))
                    ),
                ],
            ),
        ),
    ),
    6: RecordSchema("CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA", _GROUP, _TARGET_EPOCH),
    7: RecordSchema("CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER", _MEMBER, _TARGET),
    8: RecordSchema(
        "CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT",
        _MEMBER,
        _struct(
            memberEpoch=Int32,
            previousMemberEpoch=Int32,
            state=Int8,
            assignedPartitions=_array(_PARTITIONS_WITH_EPOCHS),
            partitionsPendingRevocation=_array(_PARTITIONS_WITH_EPOCHS),
        ),
    ),
    10: RecordSchema(
        "SHARE_GROUP_MEMBER_METADATA",
        _MEMBER,
        _struct(rackId=NullableText, clientId=Text, clientHost=Text, subscribedTopicNames=Texts),
    ),
    11: RecordSchema("SHARE_GROUP_METADATA", _GROUP, _struct(epoch=Int32, metadataHash=Int64)),
    12: RecordSchema("SHARE_GROUP_TARGET_ASSIGNMENT_METADATA", _GROUP, _TARGET_EPOCH),
    13: RecordSchema("SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER", _MEMBER, _TARGET),
    14: RecordSchema(
        "SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT",
        _MEMBER,
        _struct(memberEpoch=Int32, previousMemberEpoch=Int32, state=Int8, assignedPartitions=_array(_PARTITIONS)),
    ),
    15: RecordSchema(
        "SHARE_GROUP_STATE_PARTITION_METADATA",
        _GROUP,
        _struct(
            initializingTopics=_array(_NAMED_PARTITIONS),
            initializedTopics=_array(_NAMED_PARTITIONS),
            deletingTopics=_array(_struct(topicId=Id, topicName=Text)),
        ),
    ),
    16: RecordSchema(
        "CONSUMER_GROUP_REGULAR_EXPRESSION",
        _struct(groupId=Text, regularExpression=Text),
        _struct(topics=Texts, version=Int64, timestamp=Int64),
    ),
    17: RecordSchema(
        "STREAMS_GROUP_METADATA",
        _GROUP,
        _struct(
            epoch=Int32,
            metadataHash=Int64,
            validatedTopologyEpoch=_tagged(0, Int32),
            lastAssignmentConfigs=_tagged(1, _array(_PAIRS, is_nullable=True)),
            storedDescriptionTopologyEpoch=_tagged(2, Int32),
            failedDescriptionTopologyEpoch=_tagged(3, Int32),
        ),
    ),
    19: RecordSchema(
        "STREAMS_GROUP_MEMBER_METADATA",
        _MEMBER,
        _struct(
            instanceId=NullableText,
            rackId=NullableText,
            clientId=Text,
            clientHost=Text,
            rebalanceTimeoutMs=Int32,
            topologyEpoch=Int32,
            processId=Text,
            userEndpoint=Annotated[Any, nullable_struct_of(_struct(host=Text, port=Uint16))],
            clientTags=_array(_PAIRS),
        ),
    ),
    20: RecordSchema("STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA", _GROUP, _TARGET_EPOCH),
    21: RecordSchema(
        "STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER",
        _MEMBER,
        _struct(activeTasks=_TASKS, standbyTasks=_TASKS, warmupTasks=_TASKS),
    ),
    22: RecordSchema(
        "STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT",
        _MEMBER,
        _struct(
            memberEpoch=Int32,
            previousMemberEpoch=Int32,
            state=Int8,
            activeTasks=_TASKS_WITH_EPOCHS,
            standbyTasks=_TASKS_WITH_EPOCHS,
            warmupTasks=_TASKS_WITH_EPOCHS,
            activeTasksPendingRevocation=_TASKS_WITH_EPOCHS,
            standbyTasksPendingRevocation=_TASKS_WITH_EPOCHS,
            warmupTasksPendingRevocation=_TASKS_WITH_EPOCHS,
        ),
    ),
    23: RecordSchema(
        "STREAMS_GROUP_TOPOLOGY",
        _GROUP,
        _struct(
            epoch=Int32,
            subtopologies=_array(
                _struct(
                    subtopologyId=Text,
                    sourceTopics=Texts,
                    sourceTopicRegex=Texts,
                    stateChangelogTopics=_TOPICS,
                    repartitionSinkTopics=Texts,
                    repartitionSourceTopics=_TOPICS,
                    copartitionGroups=_array(
                        _struct(sourceTopics=_Int16s, sourceTopicRegex=_Int16s, repartitionSourceTopics=_Int16s)
                    ),
                )
            ),
        ),
    ),
}

TRANSACTION_RECORDS: Mapping[int, RecordSchema] = {
    0: RecordSchema(
        "TRANSACTION_LOG",
        _struct(transactionalId=Text),
        _struct(
            producerId=Int64,
            previousProducerId=_tagged(0, Int64, since=1),
            nextProducerId=_tagged(1, Int64, since=1),
            producerEpoch=Int16,
            nextProducerEpoch=_tagged(3, Int16, since=1),
            transactionTimeoutMs=Int32,
            transactionStatus=Int8,
            transactionPartitions=_array(_struct(topic=Text, partitionIds=Int32s), is_nullable=True),
            transactionLastUpdateTimestampMs=Int64,
            transactionStartTimestampMs=Int64,
            clientTransactionVersion=_tagged(2, Int16, since=1),
        ),
        max_version=1,
        first_flexible=1,
    ),
}

SHARE_STATE_RECORDS: Mapping[int, RecordSchema] = {
    0: RecordSchema(
        "SHARE_SNAPSHOT",
        _SHARE_PARTITION,
        _struct(
            snapshotEpoch=Int32,
            stateEpoch=Int32,
            leaderEpoch=Int32,
            startOffset=Int64,
            deliveryCompleteCount=_tagged(0, Int32),
            createTimestamp=Int64,
            writeTimestamp=Int64,
            stateBatches=_STATE_BATCHES,
        ),
    ),
    1: RecordSchema(
        "SHARE_UPDATE",
        _SHARE_PARTITION,
        _struct(
            snapshotEpoch=Int32,
            leaderEpoch=Int32,
            startOffset=Int64,
            deliveryCompleteCount=_tagged(0, Int32),
            stateBatches=_STATE_BATCHES,
        ),
    ),
}
