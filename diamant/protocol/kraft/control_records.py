"""The control records of the KRaft log: the leader, the voters, and the beginning and end of snapshots.

    key     int16  0
            int16  type      2 LeaderChange, 3 SnapshotHeader, 4 SnapshotFooter, 5 KRaftVersion, 6 KRaftVoters
    value   int16  version                0
            2  int32 leader id, array voters {int32 id}, array granting voters {int32 id}
            3  int64 timestamp (ms) of the last record that the snapshot covers
            4  nothing
            5  int16 kraft.version        the voters are in the configuration (0) or in the log (1, KIP-853)
            6  array {int32 id, uuid directory, array {string name, string host, uint16 port},
                      {int16 min, int16 max} kraft.version}
            each struct ends with an empty section of tagged fields

Source: ControlRecordType and the messages LeaderChangeMessage, SnapshotHeaderRecord,
SnapshotFooterRecord, KRaftVersionRecord, VotersRecord.
"""

# No `from __future__ import annotations` here: the wire types are read from the annotations, which must not be strings.

import struct
from typing import Annotated, Any, NamedTuple, TypeAlias
from uuid import UUID

from diamant.protocol.errors import ProtocolError
from diamant.protocol.typed_records import wire_types as wire
from diamant.protocol.typed_records.layout import Since, array_of, layout, read_struct, struct_of, write_struct

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

    last_contained_log_timestamp_ms: wire.Int64


class SnapshotFooter(NamedTuple):
    """The last record of a snapshot; without it a snapshot is incomplete."""


class KRaftVersion(NamedTuple):
    """The location of the voters: 1 the log, 0 the configuration."""

    kraft_version: wire.Int16


class VoterEndpoint(NamedTuple):
    """A listener of a voter, to which other voters connect."""

    name: wire.Text
    host: wire.Text
    port: wire.Uint16


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
    """A voter in LeaderChange."""

    id: wire.Int32
    directory_id: Annotated[wire.Id, Since(1)] = UUID(int=0)


_Members: TypeAlias = Annotated[tuple[_Member, ...], array_of(_Member)]


class _LeaderChange(NamedTuple):
    leader_id: wire.Int32
    voters: _Members
    granting_voters: _Members


class _KRaftRange(NamedTuple):
    min: wire.Int16
    max: wire.Int16


class _Voter(NamedTuple):
    """A voter in the KRaftVoters record, where the version range is a separate struct."""

    id: wire.Int32
    directory_id: wire.Id
    endpoints: Annotated[tuple[VoterEndpoint, ...], array_of(VoterEndpoint)]
    kraft_versions: Annotated[_KRaftRange, struct_of(_KRaftRange)]


class _KRaftVoters(NamedTuple):
    voters: Annotated[tuple[_Voter, ...], array_of(_Voter)]


_CLASSES: dict[int, type] = {
    LEADER_CHANGE: _LeaderChange,
    SNAPSHOT_HEADER: SnapshotHeader,
    SNAPSHOT_FOOTER: SnapshotFooter,
    KRAFT_VERSION: KRaftVersion,
    KRAFT_VOTERS: _KRaftVoters,
}
_TYPES = {record_class: kind for kind, record_class in _CLASSES.items()}


def encode_control_record(record: ControlRecord) -> tuple[bytes, bytes]:
    """Encode a control record; return `(key, value)`."""
    written: Any = record
    if isinstance(record, LeaderChange):
        voters, granting = (tuple(map(_Member, ids)) for ids in (record.voters, record.granting_voters))
        written = _LeaderChange(record.leader_id, voters, granting)
    elif isinstance(record, KRaftVoters):
        written = _KRaftVoters(tuple(_Voter(*voter[:3], _KRaftRange(*voter[3:])) for voter in record.voters))
    kind = _TYPES[type(written)]
    out = bytearray(_VERSION.pack(0))
    write_struct(layout(_CLASSES[kind], 0), out, written)
    return _KEY.pack(0, kind), bytes(out)


def decode_control_record(key: bytes, value: bytes) -> ControlRecord:
    """Parse a control record.

    Raises UnsupportedRecord if its type or version is unknown, and MalformedRecord if its bytes are invalid.
    """
    try:
        _, kind = _KEY.unpack_from(key)
        (version,) = _VERSION.unpack_from(value)
        return _decode(kind, version, value)
    except (IndexError, struct.error, UnicodeDecodeError, ProtocolError) as error:
        raise wire.MalformedRecord(
            f"control record with a key of {len(key)} bytes and a value of {len(value)} bytes: {error}"
        ) from None


def _decode(kind: int, version: int, value: bytes) -> ControlRecord:
    if version != 0 and not (version == 1 and kind == LEADER_CHANGE):
        raise wire.UnsupportedRecord(f"control record of type {kind} has unknown version {version}")
    record_class = _CLASSES.get(kind)
    if record_class is None:
        raise wire.UnsupportedRecord(f"control record of unknown type {kind}, expected 2 to 6")
    record, _ = read_struct(layout(record_class, version), value, 2)
    if isinstance(record, _LeaderChange):
        voters, granting = (tuple(member.id for member in members) for members in record[1:])
        return LeaderChange(record.leader_id, voters, granting)
    if isinstance(record, _KRaftVoters):
        return KRaftVoters(tuple(Voter(*voter[:3], *voter.kraft_versions) for voter in record.voters))
    return record  # type: ignore[no-any-return]
