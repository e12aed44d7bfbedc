"""The subject of a certificate in Java's text form, which Kafka's principals, mapping rules and ACLs use.

    Name = SEQUENCE of SET of SEQUENCE { OID, value }      the most significant part first
    text = the parts from the last to the first, joined by commas; the attributes of one part are joined by plus signs

An attribute that RFC 2253 names is written as `CN=alice`, any other as `1.2.840.113549.1.9.1=#1611…`: its value's DER encoding in
hexadecimal.

Source: X500Principal.getName() of OpenJDK (AVA.toRFC2253String).
"""

from __future__ import annotations

from collections.abc import Iterator

_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_ENCODINGS = {
    0x0C: "utf-8",  # UTF8String
    0x13: "ascii",  # PrintableString
    0x14: "latin-1",  # T61String
    0x16: "ascii",  # IA5String
    0x1B: "ascii",  # GeneralString
    0x1E: "utf-16-be",  # BMPString
}
_ESCAPED = frozenset(',=+<>#;"\\')


def subject_of(certificate: bytes) -> str:
    """Return the subject of a DER certificate as a string. Raises ValueError if the certificate cannot be parsed."""
    from cryptography.x509 import load_der_x509_certificate

    return text_of(load_der_x509_certificate(certificate).subject.public_bytes())


def text_of(name: bytes) -> str:
    """Convert a DER-encoded Name to a string. Raises ValueError if it cannot be parsed."""
    ((_, parts, _),) = _elements(name)
    texts = ["+".join(_attribute(attribute) for _, attribute, _ in _elements(part)) for _, part, _ in _elements(parts)]
    return ",".join(reversed(texts))


def _attribute(attribute: bytes) -> str:
    (_, oid, _), (tag, value, whole) = _elements(attribute)
    dotted = _dotted(oid)
    keyword = _KEYWORDS.get(dotted)
    if keyword is None or tag not in _ENCODINGS:
        return f"{keyword or dotted}=#{whole.hex()}"
    return f"{keyword}={_escaped(value.decode(_ENCODINGS[tag]))}"


def _escaped(text: str) -> str:
    escaped = ["\\" + char if char in _ESCAPED else "\\00" if char == "\0" else char for char in text]
    blanks_before = len(text) - len(text.lstrip(" \r"))
    blanks_after = len(text) - len(text.rstrip(" \r"))
    for index in [*range(blanks_before), *range(len(text) - blanks_after, len(text))]:
        if len(escaped[index]) == 1:
            escaped[index] = "\\" + escaped[index]
    return "".join(escaped)


def _dotted(oid: bytes) -> str:
    numbers, number = [], 0
    for byte in oid:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _elements(der: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the tag, the contents and all bytes of each element in `der`, in order."""
    position = 0
    while position < len(der):
        start, tag, size = position, der[position], der[position + 1]
        position += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(der[position : position + count], "big")
            position += count
        position += size
        if position > len(der):
            raise ValueError("the subject name of the certificate ends early")
        yield tag, der[position - size : position], der[start:position]
