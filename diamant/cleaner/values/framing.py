r"""The frames that serializers with a schema registry put around keys and values.

    Confluent            0, schema id (4 bytes), payload
    Confluent, headers   `__key_schema_id` or `__value_schema_id`: 0 and the id, or 1 and a GUID; the payload has no frame
    Apicurio             0, schema id (8 bytes, the upper four are 0: Confluent's ids begin with 1), payload
    Apicurio, headers    `apicurio.value.globalId` or `.contentId` (for keys `apicurio.key...`): 8 bytes; no frame. For Protobuf,
                         `apicurio.protobuf.type` (for keys `.type.key`) names the type that otherwise precedes the message
    AWS Glue             3, compression (0 none, 5 zlib), UUID of the schema's version (16 bytes), payload
    Avro single-object   C3 01, fingerprint (CRC-64-AVRO, little-endian), payload

None of them is valid UTF-8 JSON.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias
from uuid import UUID

from diamant.cleaner.values.nodes import Undecodable

ID, GUID, GLUE, FINGERPRINT = "id", "guid", "glue", "fingerprint"

SchemaName: TypeAlias = tuple[str, int | UUID]
"""The name of a schema: its kind (`ID`, `GUID`, `GLUE` or `FINGERPRINT`), and the id itself."""

MAX_INFLATED_BYTES = 64 * 1024 * 1024
"""Maximum decompressed size of a value that is compressed in its frame."""

COMPRESSED_HEAD = b"\x03\x05"
_COMPRESSED = re.compile(COMPRESSED_HEAD + rb".{16}\x78", re.DOTALL)
"""Matches wherever a frame of AWS Glue has a compressed payload."""

_HEADER_VERSION_ID, _HEADER_VERSION_GUID = 0, 1
_GLUE_PLAIN, _GLUE_ZLIB = 0, 5
_APICURIO_HEADERS = {field: (f"apicurio.{field}.globalId", f"apicurio.{field}.contentId") for field in ("key", "value")}
_APICURIO_BYTES = 8
_APICURIO_TYPE = {"key": "apicurio.protobuf.type.key", "value": "apicurio.protobuf.type"}
_MAX_TYPE_BYTES = 125
"""Maximum length of a type's name, so that each size in `Ref` takes one byte."""


class Frame(NamedTuple):
    """A value in a frame."""

    schema: SchemaName
    data: bytes
    """The whole value, including the frame."""
    start: int
    """Position of the payload in `data`."""
    is_compressed: bool = False
    prefix: bytes = b""
    """The type of a Protobuf message if a header names it, encoded as it would otherwise precede the message (`protobuf.py`)."""

    def payload(self) -> bytes:
        """Return the payload. Raises Undecodable."""
        payload = self.data[self.start :]
        if not self.is_compressed:
            return payload
        inflater = zlib.decompressobj()
        try:
            found = inflater.decompress(payload, MAX_INFLATED_BYTES)
        except zlib.error:
            raise Undecodable("the compressed value is damaged") from None
        if not inflater.eof:
            raise Undecodable(f"the compressed value is cut off, or has more than {MAX_INFLATED_BYTES} bytes")
        return found

    def around(self, payload: bytes) -> bytes:
        """Return a value that has this frame and another payload."""
        return self.data[: self.start] + (zlib.compress(payload) if self.is_compressed else payload)


def frame_of(data: bytes, field: str, headers: Sequence[tuple[str, bytes | None]] = ()) -> Frame | None:
    """Return the frame of the `key` or `value` of a record; None if it has none."""
    for name, value in headers:
        if value and name == f"__{field}_schema_id":
            found = _in_header(value, data)
            if found is not None:
                return found
        elif value and len(value) == _APICURIO_BYTES and name in _APICURIO_HEADERS.get(field, ()):
            return Frame((ID, int.from_bytes(value, "big")), data, 0, prefix=_apicurio_ref(field, headers))
    size = len(data)
    if data[:1] == b"\0" and size >= 5:
        schema_id = int.from_bytes(data[1:5], "big")
        if schema_id:
            return Frame((ID, schema_id), data, 5)
        if size >= 9 and (schema_id := int.from_bytes(data[5:9], "big")):
            return Frame((ID, schema_id), data, 9)
    if data[:1] == b"\3" and size >= 18 and data[1] in (_GLUE_PLAIN, _GLUE_ZLIB):
        return Frame((GLUE, UUID(bytes=data[2:18])), data, 18, data[1] == _GLUE_ZLIB)
    if data[:2] == b"\xc3\1" and size >= 10:
        return Frame((FINGERPRINT, int.from_bytes(data[2:10], "little")), data, 10)
    return None


def _in_header(header: bytes, data: bytes) -> Frame | None:
    if header[0] == _HEADER_VERSION_ID and len(header) >= 5:
        return Frame((ID, int.from_bytes(header[1:5], "big")), data, 0, prefix=header[5:])
    if header[0] == _HEADER_VERSION_GUID and len(header) >= 17:
        return Frame((GUID, UUID(bytes=header[1:17])), data, 0, prefix=header[17:])
    return None


def _apicurio_ref(field: str, headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Return the type of the message as Apicurio's `Ref` if a header names it, else empty bytes."""
    for name, value in headers:
        if value and name == _APICURIO_TYPE[field] and len(value) <= _MAX_TYPE_BYTES:
            return bytes([len(value) + 2, 0x0A, len(value)]) + value
    return b""


def may_be_compressed(data: bytes) -> bool:
    """Tell whether these bytes may hold a frame with a compressed payload. The first of the two tests is much faster."""
    return COMPRESSED_HEAD in data and _COMPRESSED.search(data) is not None
