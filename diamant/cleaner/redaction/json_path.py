r"""Paths into keys and values for a redaction: what counts as JSON, what a path finds, and what other bytes may contain.

A value in a serializer's frame (`values/framing.py`) is decoded with its schema, and the path is followed through the result. If
the schema is unavailable, or the bytes do not fit it, the verdict is UNDECIDED; but it is NO if no schema could make the value
match, because the literal is a string that the bytes do not contain as UTF-8, and that cannot be an enum symbol, a UUID, a date
or a time. A payload that is JSON needs no schema.

JSON is UTF-8 (RFC 8259), with or without a byte order mark. Control characters in strings are accepted, as are `NaN` and
`Infinity`, which equal nothing.

    YES          the value is JSON, and the path leads to the literal; if a name occurs twice, every value counts
    UNDECIDED    the value is not JSON (cut off, two documents, another encoding, nested too deep), but contains every name
                 of the path and the literal; or the path leads to the literal through a string that itself contains JSON
    NO           otherwise

Bytes that are not JSON are searched for these strings in UTF-8, UTF-16 and Windows-1252, as they are and with backslash escapes
resolved until none is left: `\u00fc`, `\u{fc}`, `\U000000fc`, `\xfc`, octal `\374`, each of them also as a byte of UTF-8
(`\xc3\xbc`, `\303\274`); `\b`, `\f`, `\n`, `\r`, `\t`; any other escaped character represents itself. If escapes are left after
`MAX_ROUNDS` rounds, the verdict is UNDECIDED. Escapes without a backslash (`&#252;`, `%C3%BC`, `=C3=BC`, base64) are not
resolved. If the literal is a number, `true`, `false` or `null`, only the names of the path are searched for, because there are
many ways to write the literal.

Most values are skipped without parsing, because they contain neither these strings nor a backslash that may hide them.

Memory: one value and its decoded forms, at most about ten times its size.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from diamant.cleaner.values.framing import COMPRESSED_HEAD, Frame, may_be_compressed
from diamant.cleaner.values.nodes import SYMBOL, Object, Undecodable, Unknown, equals_of, is_equal
from diamant.kernels import ARE_COMPILED

NO: Final = 0
UNDECIDED: Final = 1
YES: Final = 2


class _Exists:
    """The type of `EXISTS`, the literal that every value matches."""


EXISTS: Final = _Exists()

SHORT_FRAME_BYTES = 5
"""Size of a frame with schema id 0. No registry assigns this id, but JSON may follow such a frame."""
_OPENING = frozenset('{["')
"""The first characters of strings that may contain a JSON object, list or string."""
MAX_ROUNDS = 32
"""Maximum number of rounds of resolving escapes. Each round halves the backslashes in a text that programs have escaped."""
_MAY_BE_CODED = re.compile(
    SYMBOL.pattern + r"||[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}|\d{4}-\d\d-\d\d(T.*)?|\d\d:\d\d:\d\d.*"
)
"""Matches strings that Avro or Protobuf may encode as other bytes: the empty string, enum symbols, UUIDs, dates and times."""
_READINGS = (("utf-8", 0), ("cp1252", 0), ("utf-16-le", 0), ("utf-16-le", 1), ("utf-16-be", 0), ("utf-16-be", 1))
"""Encodings, each with a start position, because an odd number of bytes may precede UTF-16."""


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A path of names and a literal to find at its end. Usable from any thread."""

    path: tuple[str, ...]
    """At least one name. Lists along the path are searched, too."""
    literal: object
    """The value to match: str, Decimal, bool, None, or EXISTS."""
    _forms: tuple[tuple[bytes, ...], ...] = field(init=False, repr=False, compare=False)
    """The encoded forms, without escapes, of each string that must occur."""
    _escape: re.Pattern[bytes] = field(init=False, repr=False, compare=False)
    _signs: tuple[bytes, ...] = field(init=False, repr=False, compare=False)
    """Data that contains none of these and no escape cannot hold the literal. The first is its UTF-8. Empty if any data may."""
    _flags: bytes = field(init=False, repr=False, compare=False)
    """One byte for each byte value: 1 if it forms an escape after a backslash, else 0."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_forms", tuple(_written(text) for text in self._texts))
        object.__setattr__(self, "_escape", _escape_in(self._texts))
        has_signs = isinstance(self.literal, str) and not _MAY_BE_CODED.fullmatch(self.literal)
        object.__setattr__(self, "_signs", (*self._forms[0], COMPRESSED_HEAD) if has_signs else ())
        after = (self._escape.search(bytes((ord("\\"), byte))) for byte in range(256))
        object.__setattr__(self, "_flags", bytes(map(bool, after)))

    @property
    def _texts(self) -> tuple[str, ...]:
        return (self.literal, *self.path) if isinstance(self.literal, str) else self.path

    def may_be_in(self, data: bytes) -> bool:
        """Tell whether the verdict on a record in these bytes may be anything but NO."""
        if self._signs and ARE_COMPILED:
            from diamant.kernels.search import has_text

            if not has_text(data, self._signs, self._flags):
                return False
        return self._may_be_coded(data) or all(any(form in data for form in forms) for forms in self._forms)

    def judge(self, data: bytes, frame: Frame | None, decode: Callable[[Frame], Any]) -> int:
        """Return YES, NO or UNDECIDED for a value. `decode` decodes its `frame`, or raises Undecodable."""
        may_be_coded = frame is not None and self._may_be_coded(data)
        if not may_be_coded and not self._may_be_json(data):
            return NO
        try:
            root = decoded_value(data, frame, decode)
        except Undecodable:
            return UNDECIDED if may_be_coded or self._stands_in(data) else NO
        except (ValueError, RecursionError):
            return UNDECIDED if self._stands_in(data) else NO
        return self.found_in(root)

    def _may_be_json(self, data: bytes) -> bool:
        return all(any(form in data for form in forms) for forms in self._forms) or self._is_escaped(data)

    def _may_be_coded(self, data: bytes) -> bool:
        """Tell whether these bytes may hold the literal under some schema; the names of the path would be in the schema."""
        if not self._signs:
            return True
        return self._signs[0] in data or self._is_escaped(data) or may_be_compressed(data)

    def _is_escaped(self, data: bytes) -> bool:
        """Tell whether escapes may hide a string. A backslash alone proves little, because most batches contain one by chance."""
        return self._escape.search(data) is not None

    def found_in(self, root: Any) -> int:
        """Follow the path, even through JSON within strings; return NO, UNDECIDED or YES."""
        return found_at(self.path, root, self._is_literal, self.may_be_unknown)

    def _is_literal(self, node: Any) -> bool:
        return self.literal is EXISTS or is_equal(node, self.literal)

    def may_be_unknown(self, node: Any) -> bool:
        """Tell whether a node consists of bytes that its schema does not explain, and may hold the literal."""
        return isinstance(node, Unknown) and isinstance(self.literal, str) and node.find(self.literal.encode()) >= 0

    def _stands_in(self, data: bytes) -> bool:
        missing = set(self._texts)
        for text in _readings(data):
            if text is None:
                return True
            missing = {one for one in missing if one not in text}
            if not missing:
                return True
        return False


def found_at(
    path: Sequence[str], root: Any, is_literal: Callable[[Any], bool], may_be_unknown: Callable[[Any], bool]
) -> int:
    """Follow a path, even through JSON within strings; return NO, UNDECIDED or YES."""
    found = NO
    left = [(root, 0, YES)]
    while left:
        node, depth, verdict = left.pop()
        if depth == len(path) and is_literal(node):
            if verdict == YES:
                return YES
            found = verdict
        if isinstance(node, list):
            left += [(one, depth, verdict) for one in node]
        elif depth < len(path) and isinstance(node, Object):
            left += [(value, depth + 1, verdict) for name, value in node if name == path[depth]]
            found = max(found, UNDECIDED if any(may_be_unknown(value) for _, value in node) else NO)
        elif isinstance(node, str | bytes) and (text := _text(node)).lstrip()[:1] in _OPENING:
            try:
                left.append((DECODER.decode(text), depth, UNDECIDED))  # The loop ends, because nested JSON is shorter.
            except RecursionError:
                found = UNDECIDED
            except ValueError:
                continue  # not JSON
    return found


class JsonPaths:
    """One path and many literals, any of which may match; the path is followed once. Usable from any thread."""

    def __init__(self, paths: Sequence[JsonPath]) -> None:
        """`paths`: at least one; all have the same `path`, and none has the literal EXISTS."""
        self._paths = paths
        self._literals = {(type(one.literal), one.literal) for one in paths}

    def judge(self, data: bytes, frame: Frame | None, decode: Callable[[Frame], Any]) -> int:
        """Return the highest verdict of all the paths: YES, else UNDECIDED, else NO."""
        try:
            root = decoded_value(data, frame, decode)
        except (Undecodable, ValueError, RecursionError):
            return max(one.judge(data, frame, decode) for one in self._paths)
        return found_at(self._paths[0].path, root, self._is_literal, self._may_be_unknown)

    def _is_literal(self, node: Any) -> bool:
        return any((type(one), one) in self._literals for one in equals_of(node))

    def _may_be_unknown(self, node: Any) -> bool:
        return isinstance(node, Unknown) and any(one.may_be_unknown(node) for one in self._paths)


def leads_into_text(root: Any, path: Sequence[str]) -> bool:
    """Tell whether a path leads through a string that itself contains JSON, in which the path may continue to its end."""
    left = [(root, 0)]
    while left:
        node, depth = left.pop()
        if depth == len(path):
            continue
        if isinstance(node, list):
            left += [(one, depth) for one in node]
        elif isinstance(node, Object):
            left += [(value, depth + 1) for name, value in node if name == path[depth]]
        elif isinstance(node, str | bytes) and JsonPath(tuple(path[depth:]), EXISTS).found_in(node) != NO:
            return True
    return False


def plain_number(number: Decimal) -> tuple[bool, str, int]:
    """Return the sign, digits and exponent of a number, normalized so that they are the same for 42 and 42.0."""
    sign, digits, exponent = number.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    short = text.rstrip("0")
    return (bool(sign), short, int(exponent) + len(text) - len(short)) if short else (False, "0", 0)


# -- parsing -----------------------------------------------------------------------------------------------------------


def _number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        # The exponent is out of range: the number is zero, or unequal to any number in a `where`.
        return Decimal("NaN" if re.search("[1-9]", re.split("[eE]", text)[0]) else 0)


class _NoNumber:
    """The decoded form of `NaN` and the infinities, which equals nothing."""


def _no_number(_name: str) -> _NoNumber:
    return _NoNumber()


DECODER = json.JSONDecoder(
    object_pairs_hook=Object, parse_float=_number, parse_int=_number, parse_constant=_no_number, strict=False
)


def _escape_in(texts: Sequence[str]) -> re.Pattern[bytes]:
    """Return a pattern that matches every escape that can hide a character of these strings, or the backslash of another escape.

    An escape has the number of a character, the character or another backslash; in UTF-16, a zero follows each of its bytes.
    """
    said = "".join(texts)
    if not said.isascii() or any(one < " " for one in said):
        return re.compile(rb"\\")  # includes `\n` and similar, short octal numbers, other bytes of UTF-16
    own = b"".join(re.escape(one.encode()) for one in sorted({*said}))
    return re.compile(rb"\\\x00?(?:[uUxX\\" + own + rb"]|[0-7]\x00?[0-7])")


def _text(node: str | bytes) -> str:
    return node if isinstance(node, str) else node.decode(errors="replace")


def decoded_value(data: bytes, frame: Frame | None, decode: Callable[[Frame], Any]) -> Any:
    """Decode JSON, or the value in a frame, to a tree (`nodes`). Raises Undecodable, ValueError, RecursionError."""
    return _parse(data) if frame is None else _decoded(frame, decode)


def is_json(data: bytes) -> bool:
    """Tell whether bytes are JSON."""
    try:
        _parse(data)
    except (ValueError, RecursionError):
        return False
    return True


def _parse(data: bytes) -> Any:
    """Decode `data` as JSON. Raises ValueError, RecursionError."""
    return DECODER.decode(data.decode("utf-8-sig"))


def _decoded(frame: Frame, decode: Callable[[Frame], Any]) -> Any:
    """Decode the value in a frame, by its schema or as JSON. Raises Undecodable."""
    try:
        return decode(frame)
    except Undecodable:
        for payload in (frame.payload(), frame.data[SHORT_FRAME_BYTES:]):
            try:
                return _parse(payload)
            except (ValueError, RecursionError):
                continue
        raise


# -- bytes that are not JSON -------------------------------------------------------------------------------------------

_ESCAPE = re.compile(
    r"\\(?:u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|([0-3][0-7]{2}|[0-7]{1,2})|(.))",
    re.DOTALL,
)
_BYTE = re.compile("[\x80-\xff]")
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LAST_CODE_POINT = 0x10FFFF


def _written(text: str) -> tuple[bytes, ...]:
    """Return a string in the encodings of `_READINGS`, without escapes."""
    forms = [text.encode()]
    for encoding in ("cp1252", "utf-16-le", "utf-16-be"):
        try:
            # Without the zeros at its ends, ASCII in UTF-16 is the same in both byte orders.
            forms.append(text.encode(encoding).strip(b"\0"))
        except UnicodeEncodeError:
            continue
    return tuple(dict.fromkeys(forms))


def _readings(data: bytes) -> Iterator[str | None]:
    """Decode bytes in each encoding; yield the text as it is, then with escapes resolved once, twice, and so on.

    Yields None and stops if there are still escapes after `MAX_ROUNDS`.
    """
    for encoding, start in _READINGS:
        text = data[start:].decode(encoding, "replace")
        yield text
        rounds = 0
        while _ESCAPE.search(text):
            if rounds == MAX_ROUNDS:
                yield None
                return
            rounds += 1
            text = _ESCAPE.sub(_resolved, text)
            if _BYTE.search(text):
                # Escapes may also represent bytes of UTF-8.
                yield text.encode("latin-1", "replace").decode("utf-8", "replace")
            # Two escapes may form a surrogate pair.
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            yield text


def _resolved(escape: re.Match[str]) -> str:
    unit, braced, long, byte, octal, letter = escape.groups()
    if letter is not None:
        return _SHORT.get(letter, letter)
    code = int(octal, 8) if octal else int(unit or braced or long or byte, 16)
    return chr(code) if code <= _LAST_CODE_POINT else ""
