"""The control records of the KRaft log: who leads, who votes, where a snapshot begins and ends.

    key     int16  0
            int16  type      2 LeaderChange, 3 SnapshotHeader, 4 SnapshotFooter, 5 KRaftVersion, 6 KRaftVoters
    value   int16  version                0
            2  int32 leader id, array voters {int32 id}, array granting voters {int32 id}
            3  int64 timestamp (ms) of the last record that the snapshot covers
            4  nothing
            5  int16 kraft.version        0 voters come from the configuration, 1 from the log (KIP-853)
            6  array {int32 id, uuid directory, array {string name, string host, uint16 port},
                      {int16 min, int16 max} kraft.version}
            and in each struct a section of tagged fields, empty

Types as in field_types.py. Source: ControlRecordType and the messages LeaderChangeMessage, SnapshotHeaderRecord,
SnapshotFooterRecord, KRaftVersionRecord, VotersRecord.
"""

# No postponed annotations: the wire types stand in the annotations' aliases and are used as values here.

import struct
from typing import Annotated, Any, NamedTuple, TypeAlias
from uuid import UUID

from diamant.protocol.kraft.field_types import (
    Id,
    Int16,
    Int32,
    Int64,
    MalformedRecord,
    Text,
    Uint16,
    UnsupportedRecord,
    WireType,
    array_type,
    struct_type,
)

LEADER_CHANGE = 2
SNAPSHOT_HEADER = 3
SNAPSHOT_FOOTER = 4
KRAFT_VERSION = 5
KRAFT_VOTERS = 6

_KEY = struct.Struct(">hh")
_VERSION = struct.Struct(">h")


class LeaderChange(NamedTuple):
    """The first record of an epoch."""

    leader_id: int
    voters: tuple[int, ...]
    granting_voters: tuple[int, ...]


class SnapshotHeader(NamedTuple):
    """The first record of a snapshot."""

    last_contained_log_timestamp_ms: int


class SnapshotFooter(NamedTuple):
    """The last record of a snapshot; one without it is not whole."""


class KRaftVersion(NamedTuple):
    """1 if the voters stand in the log, 0 if they stand in the configuration."""

    kraft_version: int


class VoterEndpoint(NamedTuple):
    """A voter's listener for the other voters."""

    name: str
    host: str
    port: int


class Voter(NamedTuple):
    """A member of the quorum: a node together with the directory that holds its metadata log."""

    id: int
    directory_id: UUID
    endpoints: tuple[VoterEndpoint, ...]
    min_kraft_version: int = 0
    max_kraft_version: int = 1


class KRaftVoters(NamedTuple):
    """All members of the quorum."""

    voters: tuple[Voter, ...]


ControlRecord: TypeAlias = LeaderChange | SnapshotHeader | SnapshotFooter | KRaftVersion | KRaftVoters


class _Member(NamedTuple):
    """A struct of one number, as LeaderChange lists voters."""

    id: int


class _KRaftRange(NamedTuple):
    min: int
    max: int


class _WireVoter(NamedTuple):
    """A voter as it stands in the record: the version range is a struct of its own."""

    id: int
    directory_id: UUID
    endpoints: tuple[VoterEndpoint, ...]
    kraft_versions: _KRaftRange


def _of(wire_type: WireType) -> Any:
    """Return what `struct_type` takes as a member: an annotation that names a wire type."""
    return Annotated[Any, wire_type]


_MEMBERS = _of(array_type(struct_type(_Member, Int32)))
_MEMBERS_WITH_DIRECTORY = _of(array_type(struct_type(lambda id_, _directory_id: _Member(id_), Int32, Id)))
_ENDPOINTS = _of(array_type(struct_type(VoterEndpoint, Text, Text, Uint16)))
_VOTERS = _of(array_type(struct_type(_WireVoter, Int32, Id, _ENDPOINTS, _of(struct_type(_KRaftRange, Int16, Int16)))))

_LEADER_CHANGE_BODY = struct_type(lambda *values: values, Int32, _MEMBERS, _MEMBERS)
_LEADER_CHANGE_BODY_V1 = struct_type(lambda *values: values, Int32, _MEMBERS_WITH_DIRECTORY, _MEMBERS_WITH_DIRECTORY)
_SNAPSHOT_HEADER_BODY = struct_type(lambda *values: values, Int64)
_EMPTY_BODY = struct_type(lambda *values: values)
_KRAFT_VERSION_BODY = struct_type(lambda *values: values, Int16)
_VOTERS_BODY = struct_type(lambda *values: values, _VOTERS)


def encode_control_record(record: ControlRecord) -> tuple[bytes, bytes]:
    """Return `(key, value)` of a control record."""
    out = bytearray(_VERSION.pack(0))
    if isinstance(record, LeaderChange):
        kind = LEADER_CHANGE
        voters, granting = (tuple(map(_Member, ids)) for ids in (record.voters, record.granting_voters))
        _LEADER_CHANGE_BODY.write(out, (record.leader_id, voters, granting))
    elif isinstance(record, SnapshotHeader):
        kind = SNAPSHOT_HEADER
        _SNAPSHOT_HEADER_BODY.write(out, record)
    elif isinstance(record, SnapshotFooter):
        kind = SNAPSHOT_FOOTER
        _EMPTY_BODY.write(out, record)
    elif isinstance(record, KRaftVersion):
        kind = KRAFT_VERSION
        _KRAFT_VERSION_BODY.write(out, record)
    else:
        kind = KRAFT_VOTERS
        wire_voters = tuple(
            _WireVoter(
                voter.id,
                voter.directory_id,
                voter.endpoints,
                _KRaftRange(voter.min_kraft_version, voter.max_kraft_version),
            )
            for voter in record.voters
        )
        _VOTERS_BODY.write(out, (wire_voters,))
    return _KEY.pack(0, kind), bytes(out)


def decode_control_record(key: bytes, value: bytes) -> ControlRecord:
    """Return the control record of a key and a value.

    UnsupportedRecord for another type or a newer version, MalformedRecord for bytes that are not a control record.
    """
    try:
        _, kind = _KEY.unpack_from(key)
        (version,) = _VERSION.unpack_from(value)
        return _decode(kind, version, value)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise MalformedRecord(
            f"control record with a key of {len(key)} and a value of {len(value)} bytes: {error}"
        ) from None


def _decode(kind: int, version: int, value: bytes) -> ControlRecord:
    if version == 1 and kind == LEADER_CHANGE:
        leader_id, voters, granting = _LEADER_CHANGE_BODY_V1.read(value, 2)[0]
        return LeaderChange(leader_id, tuple(voter.id for voter in voters), tuple(voter.id for voter in granting))
    if version != 0:
        raise UnsupportedRecord(f"control record of type {kind}: version {version}, only 0 is known")
    if kind == LEADER_CHANGE:
        leader_id, voters, granting = _LEADER_CHANGE_BODY.read(value, 2)[0]
        return LeaderChange(leader_id, tuple(voter.id for voter in voters), tuple(voter.id for voter in granting))
    if kind == SNAPSHOT_HEADER:
        return SnapshotHeader(*_SNAPSHOT_HEADER_BODY.read(value, 2)[0])
    if kind == SNAPSHOT_FOOTER:
        return SnapshotFooter(*_EMPTY_BODY.read(value, 2)[0])
    if kind == KRAFT_VERSION:
        return KRaftVersion(*_KRAFT_VERSION_BODY.read(value, 2)[0])
    if kind == KRAFT_VOTERS:
        (wire_voters,) = _VOTERS_BODY.read(value, 2)[0]
        return KRaftVoters(
            tuple(
                Voter(id_, directory_id, endpoints, *versions) for id_, directory_id, endpoints, versions in wire_voters
            )
        )
    raise UnsupportedRecord(f"control record of type {kind}: 2 to 6 are known")
