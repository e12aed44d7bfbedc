"""The APIs of the Kafka protocol: their keys, names, version ranges and encodings.

The ranges are those of a broker's listener in Apache Kafka 4.3, and include the versions of `newer_schemas`. A broker must
advertise only those APIs in the table that have a handler: clients try an advertised API again and again, but do without an API
that is not advertised.

Most APIs are *flexible* (KIP-482) from some version on: they have compact lengths, tagged fields, request header v2 and response
header v1. The table lists this version, which follows no pattern.
"""

from __future__ import annotations

from typing import NamedTuple

PRODUCE = 0
FETCH = 1
LIST_OFFSETS = 2
METADATA = 3
API_VERSIONS = 18


NOT_REQUESTED = -(1 << 31)
"""Value of a response's authorized operations if the client did not request them."""


class ApiRange(NamedTuple):
    """An inclusive range of versions."""

    min: int
    max: int

    def holds(self, version: int) -> bool:
        """Return True if the range contains `version`."""
        return self.min <= version <= self.max


class _Api(NamedTuple):
    name: str
    advertised: ApiRange | None
    """None for APIs between brokers and controllers, and for client telemetry, which we do not offer."""
    first_flexible: int | None
    """None if no version is flexible."""


_APIS: dict[int, _Api] = {
    0: _Api("Produce", ApiRange(0, 13), 9),
    1: _Api("Fetch", ApiRange(4, 18), 12),
    2: _Api("ListOffsets", ApiRange(1, 11), 6),
    3: _Api("Metadata", ApiRange(0, 13), 9),
    8: _Api("OffsetCommit", ApiRange(2, 10), 8),
    9: _Api("OffsetFetch", ApiRange(1, 10), 6),
    10: _Api("FindCoordinator", ApiRange(0, 6), 3),
    11: _Api("JoinGroup", ApiRange(0, 9), 6),
    12: _Api("Heartbeat", ApiRange(0, 4), 4),
    13: _Api("LeaveGroup", ApiRange(0, 5), 4),
    14: _Api("SyncGroup", ApiRange(0, 5), 4),
    15: _Api("DescribeGroups", ApiRange(0, 6), 5),
    16: _Api("ListGroups", ApiRange(0, 5), 3),
    17: _Api("SaslHandshake", ApiRange(0, 1), None),
    18: _Api("ApiVersions", ApiRange(0, 5), 3),
    19: _Api("CreateTopics", ApiRange(2, 7), 5),
    20: _Api("DeleteTopics", ApiRange(1, 6), 4),
    21: _Api("DeleteRecords", ApiRange(0, 2), 2),
    22: _Api("InitProducerId", ApiRange(0, 5), 2),
    23: _Api("OffsetForLeaderEpoch", ApiRange(2, 4), 4),
    24: _Api("AddPartitionsToTxn", ApiRange(0, 5), 3),
    25: _Api("AddOffsetsToTxn", ApiRange(0, 4), 3),
    26: _Api("EndTxn", ApiRange(0, 5), 3),
    27: _Api("WriteTxnMarkers", ApiRange(1, 2), 1),
    28: _Api("TxnOffsetCommit", ApiRange(0, 6), 3),
    29: _Api("DescribeAcls", ApiRange(1, 3), 2),
    30: _Api("CreateAcls", ApiRange(1, 3), 2),
    31: _Api("DeleteAcls", ApiRange(1, 3), 2),
    32: _Api("DescribeConfigs", ApiRange(1, 4), 4),
    33: _Api("AlterConfigs", ApiRange(0, 2), 2),
    34: _Api("AlterReplicaLogDirs", ApiRange(1, 2), 2),
    35: _Api("DescribeLogDirs", ApiRange(1, 5), 2),
    36: _Api("SaslAuthenticate", ApiRange(0, 2), 2),
    37: _Api("CreatePartitions", ApiRange(0, 3), 2),
    38: _Api("CreateDelegationToken", ApiRange(1, 3), 2),
    39: _Api("RenewDelegationToken", ApiRange(1, 2), 2),
    40: _Api("ExpireDelegationToken", ApiRange(1, 2), 2),
    41: _Api("DescribeDelegationToken", ApiRange(1, 3), 2),
    42: _Api("DeleteGroups", ApiRange(0, 3), 2),
    43: _Api("ElectLeaders", ApiRange(0, 2), 2),
    44: _Api("IncrementalAlterConfigs", ApiRange(0, 1), 1),
    45: _Api("AlterPartitionReassignments", ApiRange(0, 1), 0),
    46: _Api("ListPartitionReassignments", ApiRange(0, 0), 0),
    47: _Api("OffsetDelete", ApiRange(0, 0), None),
    48: _Api("DescribeClientQuotas", ApiRange(0, 1), 1),
    49: _Api("AlterClientQuotas", ApiRange(0, 1), 1),
    50: _Api("DescribeUserScramCredentials", ApiRange(0, 0), 0),
    51: _Api("AlterUserScramCredentials", ApiRange(0, 0), 0),
    52: _Api("Vote", None, 0),
    53: _Api("BeginQuorumEpoch", None, 1),
    54: _Api("EndQuorumEpoch", None, 1),
    55: _Api("DescribeQuorum", ApiRange(0, 2), 0),
    56: _Api("AlterPartition", None, 2),
    57: _Api("UpdateFeatures", ApiRange(0, 2), 0),
    58: _Api("Envelope", None, 0),
    59: _Api("FetchSnapshot", None, 0),
    60: _Api("DescribeCluster", ApiRange(0, 2), 0),
    61: _Api("DescribeProducers", ApiRange(0, 0), 0),
    62: _Api("BrokerRegistration", None, 0),
    63: _Api("BrokerHeartbeat", None, 0),
    64: _Api("UnregisterBroker", ApiRange(0, 0), 0),
    65: _Api("DescribeTransactions", ApiRange(0, 0), 0),
    66: _Api("ListTransactions", ApiRange(0, 2), 0),
    67: _Api("AllocateProducerIds", None, 0),
    68: _Api("ConsumerGroupHeartbeat", ApiRange(0, 1), 0),
    69: _Api("ConsumerGroupDescribe", ApiRange(0, 1), 0),
    70: _Api("ControllerRegistration", None, 0),
    71: _Api("GetTelemetrySubscriptions", None, 0),
    72: _Api("PushTelemetry", None, 0),
    73: _Api("AssignReplicasToDirs", None, 0),
    74: _Api("ListConfigResources", ApiRange(0, 1), 0),
    75: _Api("DescribeTopicPartitions", ApiRange(0, 0), 0),
    76: _Api("ShareGroupHeartbeat", ApiRange(1, 1), 1),
    77: _Api("ShareGroupDescribe", ApiRange(1, 1), 1),
    78: _Api("ShareFetch", ApiRange(1, 2), 1),
    79: _Api("ShareAcknowledge", ApiRange(1, 2), 1),
    80: _Api("AddRaftVoter", None, 0),
    81: _Api("RemoveRaftVoter", None, 0),
    82: _Api("UpdateRaftVoter", None, 0),
    83: _Api("InitializeShareGroupState", ApiRange(0, 0), 0),
    84: _Api("ReadShareGroupState", ApiRange(0, 0), 0),
    85: _Api("WriteShareGroupState", ApiRange(0, 1), 0),
    86: _Api("DeleteShareGroupState", ApiRange(0, 0), 0),
    87: _Api("ReadShareGroupStateSummary", ApiRange(0, 1), 0),
    88: _Api("StreamsGroupHeartbeat", ApiRange(0, 0), 0),
    89: _Api("StreamsGroupDescribe", ApiRange(0, 0), 0),
    90: _Api("DescribeShareGroupOffsets", ApiRange(0, 1), 0),
    91: _Api("AlterShareGroupOffsets", ApiRange(0, 0), 0),
    92: _Api("DeleteShareGroupOffsets", ApiRange(0, 0), 0),
}

API_NAMES: dict[int, str] = {key: api.name for key, api in _APIS.items()}
"""Kafka's names of all APIs with a schema, served or not, by key."""

ADVERTISED: dict[int, ApiRange] = {key: api.advertised for key, api in _APIS.items() if api.advertised is not None}
"""The version range of each API that ApiVersions may advertise, by key.

Produce and JoinGroup begin at 0, although Produce 0-2 is refused, because librdkafka before 2.11.1 infers features from certain
low versions. With a Produce minimum of 3, it silently sends gzip, snappy and lz4 batches uncompressed (KAFKA-18659, KAFKA-19444).
"""

SERVED: dict[int, ApiRange] = {**ADVERTISED, PRODUCE: ApiRange(3, 13)}
"""The range of versions that can be decoded and processed, by key."""

_NEVER_FLEXIBLE = 1 << 15
_FIRST_FLEXIBLE: dict[int, int] = {
    key: _NEVER_FLEXIBLE if api.first_flexible is None else api.first_flexible for key, api in _APIS.items()
}
_FIRST_WITH_RESPONSE_TAGS = _FIRST_FLEXIBLE | {API_VERSIONS: _NEVER_FLEXIBLE}


def is_served(api_key: int, version: int) -> bool:
    """Return True if this version of this API can be decoded and processed."""
    served = SERVED.get(api_key)
    return served is not None and served.min <= version <= served.max


def is_flexible(api_key: int, version: int) -> bool:
    """Return True if the version has compact lengths and tagged fields; False for unknown keys.

    Versions above the known ones count as flexible if the highest known one is, so that a future client's ApiVersions request can
    be parsed far enough to send a response (KIP-511).
    """
    return version >= _FIRST_FLEXIBLE.get(api_key, _NEVER_FLEXIBLE)


def request_header_version(api_key: int, version: int) -> int:
    """Return the version of the request's header: 2 has a block of tagged fields after the client id, 1 has none."""
    return 2 if is_flexible(api_key, version) else 1


def response_header_version(api_key: int, version: int) -> int:
    """Return the version of the response's header: 1 has a block of tagged fields after the correlation id, 0 has none.

    ApiVersions responses always have header 0: the client does not know the broker's versions yet (KIP-511).
    """
    return 1 if version >= _FIRST_WITH_RESPONSE_TAGS.get(api_key, _NEVER_FLEXIBLE) else 0
