"""Templates that format records as text, with kcat's names: `%k=%s`."""

from __future__ import annotations

import re
from collections.abc import Callable

from diamant.broker.client.consuming import ReadRecord

_PARTS = re.compile(rb"%(.)|\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}
_FIELDS: dict[bytes, Callable[[ReadRecord], bytes]] = {
    b"p": lambda read: b"%d" % read.partition,
    b"o": lambda read: b"%d" % read.record.offset,
    b"k": lambda read: read.record.key or b"",
    b"s": lambda read: read.record.value or b"",
    b"v": lambda read: read.record.value or b"",
    b"K": lambda read: b"%d" % _length(read.record.key),
    b"S": lambda read: b"%d" % _length(read.record.value),
    b"T": lambda read: b"%d" % read.record.timestamp,
    b"h": lambda read: b",".join(
        one.key.encode(errors="surrogateescape") + b"=" + (b"NULL" if one.value is None else one.value)
        for one in read.record.headers
    ),
}


def record_format(topic: str, template: str) -> Callable[[ReadRecord], bytes]:
    """Return a function from a record to its text. ValueError for an unknown name."""
    text = template.encode(errors="surrogateescape")
    parts: list[bytes | Callable[[ReadRecord], bytes]] = []
    position = 0
    for match in _PARTS.finditer(text):
        parts.append(text[position : match.start()])
        position = match.end()
        name, escape = match.groups()
        if escape is not None:
            parts.append(bytes.fromhex(escape[1:].decode()) if len(escape) == 3 else _ESCAPES.get(escape, match[0]))
        elif name in (b"%", b"t"):
            parts.append(b"%" if name == b"%" else topic.encode())
        elif name in _FIELDS:
            parts.append(_FIELDS[name])
        else:
            raise ValueError(f"--format: unknown name {match[0].decode(errors='replace')}")
    parts.append(text[position:])
    return lambda read: b"".join(part if isinstance(part, bytes) else part(read) for part in parts)


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)
