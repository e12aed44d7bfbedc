"""Decodes all records of `__consumer_offsets`, `__transaction_state` and `__share_group_state` as Kafka's tools print them.

A key is its type as an int16, then its fields; a value is an int16 version and its fields (see `typed_records`). Names and
versions of the fields are Kafka's. Records that the broker itself uses are declared in `group_records`, `transaction_records` and
`share_records`; the others (those of streams groups, and one type that Kafka no longer writes) are declared here.

    decode(GROUP_RECORDS, key, value)      ("GROUP_METADATA", {"key": {"type": "2", "data": {...}}, "value": None})

Source: the schemas and CoordinatorRecordJsonConverters of Kafka 4.4's group, transaction and share coordinators.
"""

# No `from __future__ import annotations` here: the wire types are read from the annotations, which must not be strings.

import base64
import re
from collections.abc import Mapping
from struct import error as StructError
from typing import Annotated, Any, NamedTuple, get_args

from diamant.protocol.errors import ProtocolError
from diamant.protocol.internal_topics.consumer_protocol import HIGHEST_VERSION, PROTOCOL_TYPE, protocol_version
from diamant.protocol.internal_topics.group_records import (
    TYPES,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataValue,
    OffsetCommitKey,
)
from diamant.protocol.internal_topics.share_records import (
    SNAPSHOT,
    UPDATE,
    SharePartitionKey,
    ShareSnapshotValue,
    ShareUpdateValue,
)
from diamant.protocol.internal_topics.transaction_records import TransactionKey, TransactionValue
from diamant.protocol.primitives import INT16
from diamant.protocol.typed_records.frozen_record import Field, FrozenRecord, fields
from diamant.protocol.typed_records.layout import (
    KafkaName,
    Since,
    Tag,
    array_of,
    layout,
    nullable_struct_of,
    read_struct,
)
from diamant.protocol.typed_records.wire_types import (
    INT32,
    UNREADABLE,
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
"""Value of a tagged field that is missing from a record."""


class RecordSchema(NamedTuple):
    """A type of record: its name, the classes of its key and value, and the value's newest and first flexible versions."""

    name: str
    key: type
    value: type
    max_version: int = 0
    first_flexible: int = 0


def decode(types: Mapping[int, RecordSchema], key: bytes | None, value: bytes | None) -> tuple[str, dict[str, object]]:
    """Return the name of a record's type, and its key and value in a form for JSON, except that ids are UUID objects.

    If the record is malformed or has an unknown type or version, the name is CANNOT_BE_DECODED, a reason is added, and the parts
    that were not decoded are in hexadecimal.
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
    form = layout(record_class, version, is_flexible)
    values = form.values.copy()
    for _, key, *_ in form.tagged:
        values[key] = _LEFT_OUT
    record = read_struct(form._replace(values=values), buffer, INT16.size)[0]
    if isinstance(record, GroupMetadataValue) and record.protocol_type == PROTOCOL_TYPE:
        members = (
            member._replace(
                subscription=_of_consumer(_SUBSCRIPTION, member.subscription),
                assignment=_of_consumer(_ASSIGNMENT, member.assignment),
            )
            for member in record.members
        )
        record = record._replace(members=tuple(members))
    return _for_json(record, version, is_flexible)


def _of_consumer(record_class: type, data: bytes) -> Any:
    """Decode a consumer's subscription or assignment for JSON; a version that is too new is read as the newest known one.

    Returns `data` unchanged if it is malformed.
    """
    try:
        version = min(protocol_version(data), HIGHEST_VERSION)
        return _for_json(read_struct(layout(record_class, version, False), data, INT16.size)[0], version, False)
    except UNREADABLE:
        return data


def _for_json(value: Any, version: int, is_flexible: bool) -> object:
    """Return a value as Kafka's tools print it: without the fields that the version lacks, and without unset tagged fields."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if not isinstance(value, FrozenRecord) and not hasattr(value, "_fields"):
        return [_for_json(one, version, is_flexible) for one in value] if isinstance(value, tuple) else value
    record_class: type = type(value)
    form = layout(record_class, version, is_flexible)
    left_out = {name for name, _ in form.absent}
    left_out |= {
        name
        for tag, _, name, _, default in form.tagged
        if (found := getattr(value, name)) is _LEFT_OUT or (found == default and not tag.is_always_written)
    }
    return {
        _kafka_name(field): _for_json(getattr(value, field.name), version, is_flexible)
        for field in fields(record_class)
        if field.name not in left_out
    }


def _kafka_name(field: Field) -> str:
    named = next((part.name for part in get_args(field.annotation) if isinstance(part, KafkaName)), None)
    first, *others = field.name.split("_")
    return named or first + "".join(map(str.capitalize, others))


# ---- fields ----------------------------------------------------------------------------------------------------------


def _struct(**annotations: Any) -> type:
    return type("Struct", (FrozenRecord,), {"__annotations__": annotations})


def _array(element: type, *, is_nullable: bool = False) -> Any:
    return Annotated[Any, array_of(element, is_nullable=is_nullable)]


def _since(version: int, annotation: Any) -> Any:
    return Annotated[Any, get_args(annotation)[1], Since(version, default=None)]


def _tagged(number: int, annotation: Any, default: Any = None) -> Any:
    return Annotated[Any, get_args(annotation)[1], Since(0, default=default), Tag(number)]


_Int16s = Annotated[Any, array_type(get_args(Int16)[1])]
_NullableInt32s = Annotated[Any, array_type(INT32, is_nullable=True)]

_GROUP = _struct(groupId=Text)
_MEMBER = _struct(groupId=Text, memberId=Text)

_TASKS = _array(_struct(subtopologyId=Text, partitions=Int32s))
_TASKS_WITH_EPOCHS = _array(
    _struct(subtopologyId=Text, partitions=Int32s, assignmentEpochs=_tagged(0, _NullableInt32s))
)
_PAIRS = _struct(key=Text, value=Text)
_TOPICS = _array(_struct(name=Text, partitions=Int32, replicationFactor=Int16, topicConfigs=_array(_PAIRS)))

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


def _declared(key: type, value: type, max_version: int = 0, first_flexible: int = 0) -> RecordSchema:
    """Return the schema of a record that the broker uses, deriving Kafka's name for its type from the name of the key's class."""
    words = re.sub("(?=[A-Z])", "_", key.__name__.removesuffix("Key"))
    return RecordSchema(words[1:].upper(), key, value, max_version, first_flexible)


GROUP_RECORDS: Mapping[int, RecordSchema] = {
    0: RecordSchema(
        "LEGACY_OFFSET_COMMIT",
        OffsetCommitKey,
        _struct(offset=Int64, metadata=Text, commitTimestamp=Int64),
        first_flexible=1,
    ),
    **{
        number: _declared(one.key.record_class, one.value_class, one.max_version, one.first_flexible)
        for number, one in TYPES.items()
    },
    17: RecordSchema(
        "STREAMS_GROUP_METADATA",
        _GROUP,
        _struct(
            epoch=Int32,
            metadataHash=Int64,
            validatedTopologyEpoch=_tagged(0, Int32),
            lastAssignmentConfigs=_tagged(1, _array(_PAIRS, is_nullable=True), default=()),
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
    20: RecordSchema("STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA", _GROUP, ConsumerGroupTargetAssignmentMetadataValue),
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
    0: RecordSchema("TRANSACTION_LOG", TransactionKey, TransactionValue, max_version=1, first_flexible=1)
}

SHARE_STATE_RECORDS: Mapping[int, RecordSchema] = {
    SNAPSHOT: RecordSchema("SHARE_SNAPSHOT", SharePartitionKey, ShareSnapshotValue),
    UPDATE: RecordSchema("SHARE_UPDATE", SharePartitionKey, ShareUpdateValue),
}
