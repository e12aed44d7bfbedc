r"""Which records a redaction is about: `where`, a small language.

    where       comparison, or several joined with `and`, `or` and parentheses; `and` binds closer
    comparison  field == literal      or      field exists
    field       key  value  header.NAME  header["any name"]         bytes, compared whole
                value.customer.email  value["e-mail"]  key.id        a path into JSON; lists on the way are searched
    literal     "text" (as in JSON) or 'text' (as it stands), hex:"00ff", base64:"AP8="
                after a path: a text, a number, true, false, null; after a header, a key or a value also null

`key == "42"` is the key of the two bytes; numbers are equal as numbers, so 42 is 42.0. Texts are compared character by character.
Of an object that has a name twice, every value counts. `exists` is true of `null` and of empty lists; a path has no positions.

JSON is UTF-8 (RFC 8259), with or without a byte order mark, and also behind the five bytes (0, schema id) that serializers with a
schema registry put before it. Other bytes have no paths in them. If such bytes hold what is looked for nevertheless, nobody can
decide whether they are meant: `UNDECIDED`, to be told and not to be removed.

Most batches are passed over without their records being read: what a comparison looks for must be somewhere in the bytes, unless
JSON writes it with escapes, and then a `\u` is there (or a backslash, for characters that have a short escape).

Memory: `MAX_BYTES` of text, `MAX_COMPARISONS`; of a record one JSON value at a time.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NoReturn, TypeAlias

from diamant.protocol.records import Record

KEY, VALUE, HEADER = "key", "value", "header"

NO: Final = 0
UNDECIDED: Final = 1
YES: Final = 2

MAX_BYTES = 64 * 1024
MAX_COMPARISONS = 100
MAX_DEPTH = 32
"""Parentheses in parentheses, and steps of a path."""

_REGISTRY_PREFIX_BYTES = 5
_SHORT_ESCAPES = frozenset('"\\/\b\f\n\r\t')


class WhereError(ValueError):
    """It is not of the language. The text says where and what was expected, and holds nothing of what was looked for."""


class _Exists:
    """The literal of a comparison with `exists`."""


EXISTS: Final = _Exists()


@dataclass(frozen=True, slots=True)
class Comparison:
    """One field, and what it is to be."""

    field: str
    """`KEY`, `VALUE` or `HEADER`."""
    path: tuple[str, ...]
    """Steps into JSON, none for the whole bytes; of a header its name."""
    literal: object
    """bytes or None for whole bytes; str, Decimal, bool or None for a path; EXISTS for either."""

    @property
    def is_path(self) -> bool:
        """Whether it looks into JSON."""
        return self.field != HEADER and bool(self.path)

    @property
    def shape(self) -> str:
        """The comparison without what is compared with."""
        if self.field == HEADER or not all(_PLAIN_STEP.fullmatch(step) for step in self.path):
            name = self.field + "".join(f"[{json.dumps(step, ensure_ascii=False)}]" for step in self.path)
        else:
            name = ".".join((self.field, *self.path))
        return f"{name} exists" if self.literal is EXISTS else f"{name} == ?"

    @property
    def needle(self) -> bytes | None:
        """The bytes that are looked for, as far as they are a text or bytes."""
        if isinstance(self.literal, str):
            return self.literal.encode()
        return self.literal if isinstance(self.literal, bytes) else None

    def judge(self, record: Record) -> int:
        """Return YES, NO or UNDECIDED."""
        if self.field == HEADER:
            return YES if any(self._is_header(name, value) for name, value in record.headers) else NO
        data = record.key if self.field == KEY else record.value
        if not self.path:
            return YES if (data is not None if self.literal is EXISTS else data == self.literal) else NO
        if data is None or not self._may_be_in(data):
            return NO
        try:
            return YES if _has(_parse(data), self) else NO
        except (ValueError, RecursionError):
            # Bytes with an escape by chance are nothing; bytes with all that is looked for are something.
            return UNDECIDED if self._is_plainly_in(data) else NO

    def may_be_in(self, payload: bytes) -> bool:
        """Tell whether a record in these bytes may be judged other than NO."""
        if self.field == HEADER:
            return self.path[0].encode(errors="surrogateescape") in payload and (self.needle or b"") in payload
        return self._may_be_in(payload) if self.path else (self.needle or b"") in payload

    def _is_header(self, name: str, value: bytes | None) -> bool:
        return name == self.path[0] and (self.literal is EXISTS or value == self.literal)

    def _may_be_in(self, data: bytes) -> bool:
        return self._is_plainly_in(data) or b"\\u" in data or (b"\\" in data and self._has_short_escapes)

    def _is_plainly_in(self, data: bytes) -> bool:
        return (self.needle or b"") in data and all(step.encode() in data for step in self.path)

    @property
    def _has_short_escapes(self) -> bool:
        texts = [*self.path, self.literal] if isinstance(self.literal, str) else self.path
        return any(not _SHORT_ESCAPES.isdisjoint(text) for text in texts)

    def to_fields(self) -> list[Any]:
        """Return what two comparisons have in common if, and only if, they mean the same."""
        literal: list[Any] = ["exists"]
        if isinstance(self.literal, bytes):
            literal = ["bytes", self.literal.hex()]
        elif isinstance(self.literal, Decimal):
            literal = ["number", *_plain_number(self.literal)]
        elif self.literal is not EXISTS:
            literal = ["json", self.literal]
        return [self.field, list(self.path), literal]


@dataclass(frozen=True, slots=True)
class Joined:
    """Several that must all hold, or one of which must."""

    word: str
    """`and` or `or`."""
    parts: tuple[Node, ...]

    def judge(self, record: Record) -> int:
        """Return YES, NO or UNDECIDED."""
        found = (part.judge(record) for part in self.parts)
        return min(found) if self.word == "and" else max(found)

    def may_be_in(self, payload: bytes) -> bool:
        """Tell whether a record in these bytes may be judged other than NO."""
        found = (part.may_be_in(payload) for part in self.parts)
        return all(found) if self.word == "and" else any(found)

    @property
    def shape(self) -> str:
        """All comparisons without what is compared with."""
        shapes = (f"({part.shape})" if isinstance(part, Joined) else part.shape for part in self.parts)
        return f" {self.word} ".join(shapes)

    def to_fields(self) -> list[Any]:
        """Return what two have in common if they mean the same."""
        return [self.word, *(part.to_fields() for part in self.parts)]


Node: TypeAlias = Comparison | Joined


@dataclass(frozen=True, slots=True)
class Where:
    """A whole `where`. Any thread."""

    text: str
    node: Node

    @property
    def shape(self) -> str:
        """It without what is compared with: `value.customer.email == ?`."""
        return self.node.shape

    @property
    def canonical(self) -> bytes:
        """The bytes whose digest tells whether another one means the same."""
        return json.dumps(self.node.to_fields(), separators=(",", ":")).encode()

    @property
    def needles(self) -> list[bytes]:
        """The texts and bytes that are looked for."""
        return [found for one in comparisons(self.node) if (found := one.needle)]

    def judge(self, record: Record) -> int:
        """Return YES if the record is meant, NO, or UNDECIDED. Of a record of users only: markers have other keys."""
        return self.node.judge(record)

    def may_be_in(self, payload: bytes) -> bool:
        """Tell whether the decompressed records of a batch may hold one that is meant, or undecided."""
        return self.node.may_be_in(payload)


def comparisons(node: Node) -> Iterator[Comparison]:
    """Yield the comparisons of a node, from left to right."""
    if isinstance(node, Comparison):
        yield node
        return
    for part in node.parts:
        yield from comparisons(part)


# -- JSON --------------------------------------------------------------------------------------------------------------


class _Object(tuple[tuple[str, Any], ...]):
    """The pairs of a JSON object, names that come twice included."""

    __slots__ = ()


def _number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal("NaN")  # Its exponent is beyond all bounds: equal to nothing that can be written in a `where`.


def _plain_number(number: Decimal) -> tuple[bool, str, int]:
    """Return sign, digits and exponent, the same for 42 and 42.0."""
    sign, digits, exponent = number.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    short = text.rstrip("0")
    return (bool(sign), short, int(exponent) + len(text) - len(short)) if short else (False, "0", 0)


def _refuse(_name: str) -> None:
    raise ValueError("no number of JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_Object, parse_float=_number, parse_int=_number, parse_constant=_refuse, strict=False
)


def _parse(data: bytes) -> Any:
    """Return the JSON in `data`. ValueError, RecursionError."""
    try:
        return _DECODER.decode(data.decode("utf-8-sig"))
    except ValueError:
        if data[:1] != b"\0" or len(data) <= _REGISTRY_PREFIX_BYTES:
            raise
    return _DECODER.decode(data[_REGISTRY_PREFIX_BYTES:].decode("utf-8-sig"))


def _has(root: Any, comparison: Comparison) -> bool:
    path, literal = comparison.path, comparison.literal
    left = [(root, 0)]
    while left:
        node, depth = left.pop()
        if depth == len(path) and (literal is EXISTS or _is_equal(node, literal)):
            return True
        if isinstance(node, list):
            left += [(one, depth) for one in node]
        elif depth < len(path) and isinstance(node, _Object):
            left += [(value, depth + 1) for name, value in node if name == path[depth]]
    return False


def _is_equal(node: Any, literal: object) -> bool:
    # Without the types, true would be 1.
    return type(node) is type(literal) and node == literal


# -- the text ----------------------------------------------------------------------------------------------------------

_PLAIN_STEP = re.compile(r"[\w$@-]+")
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<sign>==|[()\[\].])
      | (?P<form>hex|base64):
      | (?P<json>"(?:[^"\\\x00-\x1f]|\\.)*")
      | (?P<plain>'[^']*')
      | (?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,4})?(?![\w$@-]))
      | (?P<word>[\w$@-]+)
    )""",
    re.VERBOSE,
)
_EXPECTED_LITERAL = '"text", hex:"00ff" or base64:"AP8="'


def parse_where(text: str) -> Where:
    """Return what a text says. WhereError for what is not of the language, or too large."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise WhereError("where: the text has lone surrogates, which UTF-8 cannot hold") from None
    if size > MAX_BYTES:
        raise WhereError(f"where: the text has {size} bytes, at most {MAX_BYTES} are possible")
    return Where(text, _Parser(text).parse())


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._count = 0

    def parse(self) -> Node:
        if not self._text.strip():
            raise WhereError('where: it is empty; expected something like key == "customer-42"')
        node = self._joined("or", 0)
        if self._text[self._at :].strip():
            self._fail("and, or, or the end")
        return node

    def _joined(self, word: str, depth: int) -> Node:
        parts = [self._part(word, depth)]
        while self._take("word", word):
            parts.append(self._part(word, depth))
        if len(parts) == 1:
            return parts[0]
        # (a and b) and c means what a and b and c means.
        flat: list[Node] = []
        for part in parts:
            flat += part.parts if isinstance(part, Joined) and part.word == word else (part,)
        return Joined(word, tuple(flat))

    def _part(self, word: str, depth: int) -> Node:
        if word == "or":
            return self._joined("and", depth)
        if not self._take("sign", "("):
            return self._comparison()
        if depth >= MAX_DEPTH:
            raise WhereError(f"where: more than {MAX_DEPTH} parentheses in one another")
        node = self._joined("or", depth + 1)
        if not self._take("sign", ")"):
            self._fail("and, or, or )")
        return node

    def _comparison(self) -> Comparison:
        self._count += 1
        if self._count > MAX_COMPARISONS:
            raise WhereError(f"where: more than {MAX_COMPARISONS} comparisons")
        field = next((one for one in (KEY, VALUE, HEADER) if self._take("word", one)), None)
        if field is None:
            self._fail("key, value, header or (")
        path = self._path()
        if field == HEADER and len(path) != 1:
            self._fail('the name of one header, as in header.user or header["any name"]')
        if self._take("word", "exists"):
            return Comparison(field, path, EXISTS)
        if not self._take("sign", "=="):
            self._fail("== or exists")
        return Comparison(field, path, self._json_literal() if path and field != HEADER else self._bytes_literal())

    def _path(self) -> tuple[str, ...]:
        path: list[str] = []
        while len(path) <= MAX_DEPTH:
            if self._take("sign", "."):
                found = _PLAIN_STEP.match(self._text, self._at)
                if found is None:
                    self._fail('a name; other ones in brackets, as in value["e mail"]')
                self._at = found.end()
                path.append(found.group())
            elif self._take("sign", "["):
                name = self._string()
                if name is None or not self._take("sign", "]"):
                    self._fail('a name in quotes and ], as in value["e-mail"]')
                path.append(name)
            else:
                return tuple(path)
        raise WhereError(f"where: a path has more than {MAX_DEPTH} steps")

    def _bytes_literal(self) -> bytes | None:
        form = self._take("form")
        text = self._string()
        if form is not None:
            if text is None:
                self._fail("a text in quotes")
            try:
                return bytes.fromhex(text) if form == "hex" else base64.b64decode(text, validate=True)
            except (ValueError, binascii.Error):
                raise WhereError(f"where: what is given as {form} is not {form}") from None
        if text is not None:
            return text.encode()
        if self._take("word", "null"):
            return None
        self._fail(f"{_EXPECTED_LITERAL}: keys, headers and whole values are bytes")

    def _json_literal(self) -> object:
        text = self._string()
        if text is not None:
            return text
        number = self._take("number")
        if number is not None:
            return Decimal(number)
        for word, literal in (("true", True), ("false", False), ("null", None)):
            if self._take("word", word):
                return literal
        self._fail('"text", a number, true, false or null')

    def _string(self) -> str | None:
        text = self._take("plain")
        if text is not None:
            return text[1:-1]
        text = self._take("json")
        if text is None:
            return None
        try:
            found: str = json.loads(text)
            found.encode()
        except ValueError:
            raise WhereError("where: a text in double quotes is not as in JSON; '...' stands for itself") from None
        return found

    def _take(self, kind: str, text: str | None = None) -> str | None:
        found = _TOKEN.match(self._text, self._at)
        if found is None or found.lastgroup != kind or (text is not None and found.group(kind) != text):
            return None
        self._at = found.end()
        return found.group(kind)

    def _fail(self, expected: str) -> NoReturn:
        rest = self._text[self._at :]
        at = self._at + len(rest) - len(rest.lstrip())
        raise WhereError(f"where: at character {at + 1}: expected {expected}")
