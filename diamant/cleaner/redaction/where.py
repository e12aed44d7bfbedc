r"""The language `where`, which selects the records of a redaction.

    where       comparison, or several joined with `and`, `or` and parentheses; `and` binds more tightly
    comparison  field == literal      or      field exists
    field       key  value  header.NAME  header["any name"]         bytes, compared whole
                value.customer.email  value["e-mail"]  key.id        a path into a value, which also searches lists
                header.NAME.email                                    a path into a header's value
    literal     "text" (as in JSON) or 'text' (taken literally), hex:"00ff", base64:"AP8="
                after a path: a string, a number, true, false, null; after a header, a key or a value also null

`key == "42"` matches the key that consists of these two bytes. Numbers are compared as numbers, so 42 equals 42.0. Strings are
compared character by character. If an object has a name twice, every value counts. `exists` is also true for `null` and empty
lists. A path cannot contain positions in lists.

`redaction/json_path.py` explains how JSON, values with a schema, and other bytes are searched. Records with other bytes, or with
a missing schema, may be `UNDECIDED`: they are reported, and neither removed nor certified as gone, unless the request says to
remove or keep them (`REMOVE`, `KEEP`).

Most batches are skipped without reading their records, because their bytes do not contain the strings of the condition.

Memory: a condition of `MAX_BYTES` with `MAX_COMPARISONS` comparisons, and the decoded values of one record.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NamedTuple, NoReturn, Protocol, TypeAlias

from diamant.cleaner.redaction.json_path import EXISTS, NO, UNDECIDED, YES, JsonPath, JsonPaths, plain_number
from diamant.cleaner.values.edits import Unchangeable
from diamant.cleaner.values.framing import Frame
from diamant.cleaner.values.schemas import KEY, VALUE, Values
from diamant.protocol.batches.header import Record

HEADER = "header"

DONE: Final = -1
"""A verdict: the record matches, and its fields already have the required values."""

HOLD, REMOVE, KEEP = "hold", "remove", "keep"
"""The fates of undecided records: keep them and certify nothing; remove them; keep them and say so in the certificate."""

MAX_BYTES = 64 * 1024
MAX_COMPARISONS = 100
MAX_DEPTH = 32
"""Maximum depth of nested parentheses, and maximum number of steps in a path."""
MANY = 5
"""Minimum number of comparisons of one path to combine. Fewer are faster one by one: most records do not contain the strings."""
MAX_PLAIN_DIGITS = 40
"""Maximum number of digits in numbers that are written without an exponent."""


class WhereError(ValueError):
    """The text is not a valid `where`. The message gives the position and what was expected, but quotes no names or literals."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One field, and the value to compare it with."""

    field: str
    """`KEY`, `VALUE` or `HEADER`."""
    path: tuple[str, ...]
    """The steps into the value, empty for all its bytes; for a header, its name followed by the steps into its value."""
    literal: object
    """Bytes or None to compare all bytes; str, Decimal, bool or None to compare what a path leads to; or EXISTS."""
    _json: JsonPath | JsonPaths | None = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        steps = steps_of(self.field, self.path)
        object.__setattr__(self, "_json", JsonPath(steps, self.literal) if steps else None)

    @property
    def is_path(self) -> bool:
        """True if the value at the end of a path is compared with a literal."""
        return self._json is not None and self.literal is not EXISTS

    @property
    def shape(self) -> str:
        """The comparison with `?` in place of its literal."""
        name = field_text(self.field, self.path)
        return f"{name} exists" if self.literal is EXISTS else f"{name} == ?"

    @property
    def needle(self) -> bytes | None:
        """The bytes to search for if the literal is a string or bytes, else None."""
        if isinstance(self.literal, str):
            return self.literal.encode()
        return self.literal if isinstance(self.literal, bytes) else None

    def judge(self, record: Record, values: Values) -> int:
        """Return YES, NO or UNDECIDED."""
        field = self.field
        if field == HEADER:
            found = (self._judge(value, record, values) for name, value in record.headers if name == self.path[0])
            return max(found, default=NO)
        return self._judge(record.key if field == KEY else record.value, record, values)

    def _judge(self, data: bytes | None, record: Record, values: Values) -> int:
        field = self.field
        if self._json is None:
            # A header whose value is null exists, too.
            return (
                YES if (data is not None or field == HEADER if self.literal is EXISTS else data == self.literal) else NO
            )
        if data is None:
            return NO
        return self._json.judge(data, values.frame_of(record, field, data), lambda frame: values.decode(frame, field))

    def may_be_in(self, payload: bytes) -> bool:
        """Tell whether the verdict on a record in these bytes may be anything but NO."""
        if self.field == HEADER and self.path[0].encode(errors="surrogateescape") not in payload:
            return False
        return self._json.may_be_in(payload) if isinstance(self._json, JsonPath) else (self.needle or b"") in payload

    def to_fields(self) -> list[Any]:
        """Return a form that is equal for two comparisons if, and only if, they mean the same."""
        literal: list[Any] = ["exists"]
        if isinstance(self.literal, bytes):
            literal = ["bytes", self.literal.hex()]
        elif isinstance(self.literal, Decimal):
            literal = ["number", *plain_number(self.literal)]
        elif self.literal is not EXISTS:
            literal = ["json", self.literal]
        return [self.field, list(self.path), literal]


@dataclass(frozen=True, slots=True)
class _DecodedOnce(Values):
    """The values of one record, each decoded once for all comparisons."""

    found: dict[tuple[str, bytes], Any] = dataclasses.field(default_factory=dict)

    def decode(self, frame: Frame, field: str) -> Any:
        place = field, frame.data
        if place not in self.found:
            self.found[place] = self.schemas.decode(frame, self.topic, field)
        return self.found[place]


@dataclass(frozen=True, slots=True)
class Joined:
    """Several conditions joined by the same word."""

    word: str
    """`and` or `or`."""
    parts: tuple[Node, ...]
    _judged: tuple[Node, ...] = dataclasses.field(init=False, repr=False, compare=False)
    """The parts; if many of them compare the same path, these are combined into one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_judged", _together(self.parts) if self.word == "or" else self.parts)

    def judge(self, record: Record, values: Values) -> int:
        """Return YES, NO or UNDECIDED."""
        once = values if isinstance(values, _DecodedOnce) else _DecodedOnce(values.schemas, values.topic)
        found = NO if self.word == "or" else YES
        for part in self._judged:
            verdict = part.judge(record, once)
            found = max(found, verdict) if self.word == "or" else min(found, verdict)
            if found == (YES if self.word == "or" else NO):
                break
        return found

    def may_be_in(self, payload: bytes) -> bool:
        """Tell whether the verdict on a record in these bytes may be anything but NO."""
        found = (part.may_be_in(payload) for part in self.parts)
        return all(found) if self.word == "and" else any(found)

    @property
    def shape(self) -> str:
        """The condition with `?` in place of its literals."""
        shapes = (f"({part.shape})" if isinstance(part, Joined) else part.shape for part in self.parts)
        return f" {self.word} ".join(shapes)

    def to_fields(self) -> list[Any]:
        """Return a form that does not depend on the order and repetition of the conditions."""
        parts = {json.dumps(fields): fields for fields in (part.to_fields() for part in self.parts)}
        return [self.word, *(parts[text] for text in sorted(parts))] if len(parts) > 1 else next(iter(parts.values()))


def _together(parts: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return the parts of an `or`, with `MANY` or more comparisons of the same path combined into one."""
    found: dict[object, list[Node]] = {}
    for part in parts:
        is_path = isinstance(part, Comparison) and part.is_path
        found.setdefault((part.field, part.path) if is_path else part, []).append(part)  # type: ignore[union-attr]
    return tuple(
        one
        for some in found.values()
        for one in ([_one_of(some)] if len(some) >= MANY else some)  # type: ignore[arg-type]
    )


def _one_of(parts: Sequence[Comparison]) -> Comparison:
    """Return a comparison that is true if one of these is. Only its `judge` may be called."""
    found = dataclasses.replace(parts[0])
    object.__setattr__(found, "_json", JsonPaths([one._json for one in parts if isinstance(one._json, JsonPath)]))
    return found


Node: TypeAlias = Comparison | Joined


class ChangedRecord(NamedTuple):
    """The result of changing a matching record."""

    record: Record
    """The changed record, or the same record if its fields already have the required values."""
    lost: Sequence[bytes]
    """The strings and bytes that the changed fields contained before."""
    seen: Sequence[str] = ()
    """The named fields that the record or its schema has."""
    problem: str = ""
    """Why the record cannot be changed; empty if it can."""


class RecordChange(Protocol):
    """The interface of a change to individual fields (`redaction/blanking.py`)."""

    @property
    def said(self) -> Sequence[bytes]:
        """The non-empty strings in the given values, as UTF-8."""
        ...

    def change(self, record: Record, values: Values) -> ChangedRecord:
        """Return the changed record. Raises Unchangeable."""
        ...

    def to_fields(self, secret: bytes) -> list[dict[str, str]]:
        """Return the changes as rows of a certificate."""
        ...


@dataclass(frozen=True, slots=True)
class Where:
    """A parsed `where` condition, and what the request says about its records. Usable from any thread."""

    text: str
    node: Node
    undecided: str = HOLD
    """`HOLD`, `REMOVE` or `KEEP`."""
    values: Values = dataclasses.field(default_factory=Values, repr=False, compare=False)
    """Decodes values with a schema."""
    blanking: RecordChange | None = None
    """The change to make to matching records; None to remove them."""

    @property
    def shape(self) -> str:
        """The condition without literals, such as `value.customer.email == ?`."""
        return self.node.shape

    @property
    def canonical(self) -> bytes:
        """A form whose bytes, and thus digest, are the same for all conditions that mean the same."""
        return json.dumps(self.node.to_fields(), separators=(",", ":")).encode()

    @property
    def needles(self) -> list[bytes]:
        """The strings and bytes to search for."""
        return [found for one in comparisons(self.node) if (found := one.needle)]

    @property
    def said(self) -> list[bytes]:
        """All literals except true, false and null, with numbers in their usual notation, and the strings in given values."""
        numbers = (one.literal for one in comparisons(self.node) if isinstance(one.literal, Decimal))
        given = self.blanking.said if self.blanking else ()
        return [*self.needles, *(_plain_text(number).encode() for number in numbers), *given]

    def judge(self, record: Record) -> int:
        """Return YES, NO, UNDECIDED or DONE for a user record. Do not pass transaction markers, whose keys are of another kind.

        YES means that the record has to be removed or, with `blanking`, changed. If it cannot be changed, it is UNDECIDED.
        """
        return self.examine(record)[0]

    def examine(self, record: Record) -> tuple[int, ChangedRecord | None]:
        """Return the verdict of `judge`, and the record's change; with YES, None means that the record is removed.

        UNDECIDED comes with a change if the record matches but cannot be changed. With `blanking` no record is removed.
        """
        verdict, changed = self.node.judge(record, self.values), None
        if verdict == YES and self.blanking is not None:
            try:
                changed = self.blanking.change(record, self.values)
                verdict = DONE if changed.record is record else YES
            except Unchangeable as error:
                return UNDECIDED, ChangedRecord(record, (), problem=str(error))
        is_removed = verdict == UNDECIDED and self.undecided == REMOVE and self.blanking is None
        return YES if is_removed else verdict, changed

    def may_be_in(self, payload: bytes) -> bool:
        """Tell whether the decompressed records of a batch may include a match or an undecided record."""
        return self.node.may_be_in(payload)


def _plain_text(number: Decimal) -> str:
    # Without an exponent, 1e9999 would have 10,000 digits.
    return f"{number.normalize():f}" if abs(number.adjusted()) < MAX_PLAIN_DIGITS else str(number)


def any_of(wheres: Sequence[Where]) -> Where:
    """Return a `where` that judges NO if all of these do, but costs hardly more than one of them. It may have no text."""
    nodes = (one.node for one in wheres)
    parts = tuple(part for node in nodes for part in _alternatives(node))
    return wheres[0] if len(wheres) == 1 else Where("", Joined("or", parts), values=wheres[0].values)


def _alternatives(node: Node) -> tuple[Node, ...]:
    return node.parts if isinstance(node, Joined) and node.word == "or" else (node,)


def comparisons(node: Node) -> Iterator[Comparison]:
    """Yield the comparisons of a node, from left to right."""
    if isinstance(node, Comparison):
        yield node
        return
    for part in node.parts:
        yield from comparisons(part)


def may_hold(node: Node, is_there: Callable[[bytes], bool]) -> bool:
    """Tell whether a record may match, judged only by the strings and bytes that it contains in any field.

    `is_there` tells whether the record contains a string.
    """
    if isinstance(node, Joined):
        found = (may_hold(part, is_there) for part in node.parts)
        return all(found) if node.word == "and" else any(found)
    return node.needle is None or is_there(node.needle)


def steps_of(field: str, path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the steps of a path within a value; that is, without the name if the field is a header."""
    return path[1:] if field == HEADER else path


def field_text(field: str, path: Sequence[str]) -> str:
    """Return a field in the syntax of `where`, such as `value.customer.email`."""
    if not all(_PLAIN_STEP.fullmatch(step) for step in path):
        return field + "".join(f"[{json.dumps(step, ensure_ascii=False)}]" for step in path)
    return ".".join((field, *path))


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
_POSITION = re.compile(r"\s*(?:-?\d+|\*)?\s*\]")
_OTHER_SIGN = re.compile(r"\s*(!=|<>|<=|>=|=~|~=|=|<|>|~)")
_EXPECTED_LITERAL = '"text", hex:"00ff" or base64:"AP8="'


def parse_where(
    text: str, undecided: str = HOLD, values: Values | None = None, blanking: RecordChange | None = None
) -> Where:
    """Parse a condition. Raises WhereError if it is invalid or too long. If `values` is None, no schema is known."""
    if undecided not in (HOLD, REMOVE, KEEP):
        raise WhereError(f"undecided: expected {HOLD}, {REMOVE} or {KEEP}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise WhereError("where: the text has lone surrogates, which UTF-8 cannot encode") from None
    if size > MAX_BYTES:
        raise WhereError(f"where: the text has {size} bytes, but at most {MAX_BYTES} are allowed")
    return Where(text, _Parser(text).parse(), undecided, values or Values(), blanking)


def parse_field(text: str, what: str) -> tuple[str, tuple[str, ...], str]:
    """Split a text into `key`, `value` or `header`, a path, and the rest. Raises WhereError; `what` begins the message."""
    return _Parser(text, what).field()


class _Parser:
    def __init__(self, text: str, what: str = "where") -> None:
        self._text = text
        self._what = what
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
        # (a and b) and c is the same as a and b and c.
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
            raise WhereError(f"where: more than {MAX_DEPTH} nested parentheses")
        node = self._joined("or", depth + 1)
        if not self._take("sign", ")"):
            self._fail("and, or, or )")
        return node

    def _comparison(self) -> Comparison:
        self._count += 1
        if self._count > MAX_COMPARISONS:
            raise WhereError(f"where: more than {MAX_COMPARISONS} comparisons")
        field, path, _ = self.field("key, value, header or (")
        if self._take("word", "exists"):
            return Comparison(field, path, EXISTS)
        if not self._take("sign", "=="):
            self._fail("== or exists" + self._hint())
        return Comparison(field, path, self._json_literal() if steps_of(field, path) else self._bytes_literal())

    def field(self, expected: str = "value or header") -> tuple[str, tuple[str, ...], str]:
        """Consume a field; return its word, its path, and the rest of the text."""
        field = next((one for one in (KEY, VALUE, HEADER) if self._take("word", one)), None)
        if field is None:
            self._fail(expected)
        path = self._path()
        if field == HEADER and not path:
            self._fail('the name of a header, as in header.user or header["any name"]')
        return field, path, self._text[self._at :]

    def _path(self) -> tuple[str, ...]:
        path: list[str] = []
        while len(path) <= MAX_DEPTH:
            if self._take("sign", "."):
                found = _PLAIN_STEP.match(self._text, self._at)
                if found is None:
                    self._fail('a name; write any other name in brackets, as in value["e mail"]')
                self._at = found.end()
                path.append(found.group())
            elif self._take("sign", "["):
                name = self._string()
                if name is None and _POSITION.match(self._text, self._at):
                    self._fail("a name in quotes; lists have no positions: leave out [ ] to search the whole list")
                if name is None or not self._take("sign", "]"):
                    self._fail('a name in quotes and ], as in value["e-mail"]')
                path.append(name)
            else:
                return tuple(path)
        raise WhereError(f"{self._what}: a path has more than {MAX_DEPTH} steps")

    def _bytes_literal(self) -> bytes | None:
        form = self._take("form")
        text = self._string()
        if form is not None:
            if text is None:
                self._fail("a string in quotes")
            try:
                return bytes.fromhex(text) if form == "hex" else base64.b64decode(text, validate=True)
            except (ValueError, binascii.Error):
                raise WhereError(f"where: the {form} text is not valid {form}") from None
        if text is not None:
            return text.encode()
        if self._take("word", "null"):
            return None
        self._fail(f"{_EXPECTED_LITERAL}, because keys, headers and whole values are bytes")

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
            raise WhereError(
                "where: a string in double quotes is not valid JSON; use '...' for a literal string"
            ) from None
        return found

    def _take(self, kind: str, text: str | None = None) -> str | None:
        found = _TOKEN.match(self._text, self._at)
        if found is None or found.lastgroup != kind or (text is not None and found.group(kind) != text):
            return None
        self._at = found.end()
        return found.group(kind)

    def _hint(self) -> str:
        """Return a hint about an operator that the language does not have."""
        found = _OTHER_SIGN.match(self._text, self._at)
        if found is None:
            return ""
        return f"; there is no {found[1]}: describe what to remove, and write == for equality"

    def _fail(self, expected: str) -> NoReturn:
        rest = self._text[self._at :]
        at = self._at + len(rest) - len(rest.lstrip())
        raise WhereError(f"{self._what}: at character {at + 1}: expected {expected}")
