r"""JSON in keys and values, as a redaction looks into it: what is JSON, what a path finds in it, and what other bytes may say.

JSON is UTF-8 (RFC 8259), with or without a byte order mark, and also behind the five bytes (0, schema id) that serializers with a
schema registry put before it. `NaN`, `Infinity` and control characters in texts are accepted; the former equal nothing.

    YES          the value is JSON, and the path leads to what is looked for; of a name that is there twice every value counts
    UNDECIDED    the value is no JSON (cut off, two documents, another encoding, nested too deep), and all that is looked for
                 stands in it; or the path leads to a text that is JSON itself, and on in there to what is looked for
    NO           neither

What stands in bytes that are no JSON is looked for in UTF-8, UTF-16 and Windows-1252, as it is and with escapes that begin with
a backslash resolved as often as there are some: `\u00fc`, `\u{fc}`, `\U000000fc`, `\xfc`, octal `\374`, each of them also if it
stands for a byte of UTF-8 (`\xc3\xbc`, `\303\274`); `\b`, `\f`, `\n`, `\r`, `\t`; any other escaped character is itself. Behind
`MAX_ROUNDS` of them it is UNDECIDED. Escapes without a backslash (`&#252;`, `%C3%BC`, `=C3=BC`, base64) are
not resolved. Of a number, `true`, `false` or `null` only the names on its path are looked for, since they are written in many
ways.

Most values are passed over without being read: what is looked for must be in the bytes, unless escapes hide it, and then a
backslash is there.

Memory: one value and what is made of it, at most some ten times its size.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final

NO: Final = 0
UNDECIDED: Final = 1
YES: Final = 2


class _Exists:
    """The literal that anything matches."""


EXISTS: Final = _Exists()

_REGISTRY_PREFIX_BYTES = 5
_OPENING = frozenset('{["')
"""First characters of a text that may be JSON with something to find in it."""
MAX_ROUNDS = 32
"""Rounds of resolving escapes. In texts of programs each takes half of the backslashes; others might never end."""
_READINGS = (("utf-8", 0), ("cp1252", 0), ("utf-16-le", 0), ("utf-16-le", 1), ("utf-16-be", 0), ("utf-16-be", 1))
"""Encodings, and where to begin: what is before a text may have an odd number of bytes."""


@dataclass(frozen=True, slots=True)
class JsonPath:
    """Names that lead to something. Any thread."""

    path: tuple[str, ...]
    """One at least; lists on the way are searched."""
    literal: object
    """The value to match: str, Decimal, bool, None, or EXISTS."""
    _forms: tuple[tuple[bytes, ...], ...] = field(init=False, repr=False, compare=False)
    """Of each text that must be somewhere the bytes that it may be written in, without escapes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_forms", tuple(_written(text) for text in self._texts))

    @property
    def _texts(self) -> tuple[str, ...]:
        return (self.literal, *self.path) if isinstance(self.literal, str) else self.path

    def may_be_in(self, data: bytes) -> bool:
        """Tell whether a value in these bytes may be judged other than NO."""
        return b"\\" in data or all(any(form in data for form in forms) for forms in self._forms)

    def judge(self, data: bytes) -> int:
        """Return YES, NO or UNDECIDED for a value."""
        if not self.may_be_in(data):
            return NO
        try:
            root = _parse(data)
        except (ValueError, RecursionError):
            return UNDECIDED if self._stands_in(data) else NO
        return self._found_in(root)

    def _found_in(self, root: Any) -> int:
        """Follow the path, in JSON within texts as well."""
        path, found = self.path, NO
        left = [(root, 0, YES)]
        while left:
            node, depth, verdict = left.pop()
            if depth == len(path) and (self.literal is EXISTS or _is_equal(node, self.literal)):
                if verdict == YES:
                    return YES
                found = verdict
            if isinstance(node, list):
                left += [(one, depth, verdict) for one in node]
            elif depth < len(path) and isinstance(node, _Object):
                left += [(value, depth + 1, verdict) for name, value in node if name == path[depth]]
            elif isinstance(node, str) and node.lstrip()[:1] in _OPENING:
                try:
                    left.append((_DECODER.decode(node), depth, UNDECIDED))  # It is shorter, so this ends.
                except RecursionError:
                    found = UNDECIDED
                except ValueError:
                    continue  # A text like any other.
        return found

    def _stands_in(self, data: bytes) -> bool:
        missing = set(self._texts)
        for text in _readings(data):
            if text is None:
                return True
            missing = {one for one in missing if one not in text}
            if not missing:
                return True
        return False


def plain_number(number: Decimal) -> tuple[bool, str, int]:
    """Return sign, digits and exponent, the same for 42 and 42.0."""
    sign, digits, exponent = number.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    short = text.rstrip("0")
    return (bool(sign), short, int(exponent) + len(text) - len(short)) if short else (False, "0", 0)


# -- parsing -----------------------------------------------------------------------------------------------------------


class _Object(tuple[tuple[str, Any], ...]):
    """The pairs of a JSON object, names that come twice included."""

    __slots__ = ()


def _number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        # Its exponent is beyond all bounds: zero, or equal to nothing that can be written in a `where`.
        return Decimal("NaN" if re.search("[1-9]", re.split("[eE]", text)[0]) else 0)


class _NoNumber:
    """`NaN` and the infinities."""


def _no_number(_name: str) -> _NoNumber:
    return _NoNumber()


_DECODER = json.JSONDecoder(
    object_pairs_hook=_Object, parse_float=_number, parse_int=_number, parse_constant=_no_number, strict=False
)


def _parse(data: bytes) -> Any:
    """Return the JSON in `data`. ValueError, RecursionError."""
    try:
        return _DECODER.decode(data.decode("utf-8-sig"))
    except ValueError:
        if data[:1] != b"\0" or len(data) <= _REGISTRY_PREFIX_BYTES:
            raise
    return _DECODER.decode(data[_REGISTRY_PREFIX_BYTES:].decode("utf-8-sig"))


def _is_equal(node: Any, literal: object) -> bool:
    # Without the types, true would be 1.
    return type(node) is type(literal) and node == literal


# -- bytes that are no JSON --------------------------------------------------------------------------------------------

_ESCAPE = re.compile(
    r"\\(?:u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|([0-3][0-7]{2}|[0-7]{1,2})|(.))",
    re.DOTALL,
)
_BYTE = re.compile("[\x80-\xff]")
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LAST_CODE_POINT = 0x10FFFF


def _written(text: str) -> tuple[bytes, ...]:
    """Return the bytes that a text is written in without escapes, in the encodings of `_READINGS`."""
    forms = [text.encode()]
    for encoding in ("cp1252", "utf-16-le", "utf-16-be"):
        try:
            # Without the zeros around it UTF-16 of either order is the same, as far as it is ASCII.
            forms.append(text.encode(encoding).strip(b"\0"))
        except UnicodeEncodeError:
            continue
    return tuple(dict.fromkeys(forms))


def _readings(data: bytes) -> Iterator[str | None]:
    """Yield what bytes may say: in each encoding as they are, and with escapes resolved once, twice, and so on.

    None instead of more once there are escapes behind `MAX_ROUNDS`.
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
                # Escapes may stand for the bytes of UTF-8 as well.
                yield text.encode("latin-1", "replace").decode("utf-8", "replace")
            # Two escapes may be the halves of one character.
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            yield text


def _resolved(escape: re.Match[str]) -> str:
    unit, braced, long, byte, octal, letter = escape.groups()
    if letter is not None:
        return _SHORT.get(letter, letter)
    code = int(octal, 8) if octal else int(unit or braced or long or byte, 16)
    return chr(code) if code <= _LAST_CODE_POINT else ""
