"""Parses a Protobuf schema, the text of a `.proto` file, into message types.

Only the parts that decoding needs are read: messages, enums, fields, oneofs, maps, groups. Services, extensions, reserved
names and all options except `map_entry` are skipped. Bounds: `MAX_SCHEMA_DEPTH` levels of nested messages, names and numbers
of `MAX_NAME_CHARACTERS`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from diamant.cleaner.values.nodes import SYMBOL, Undecodable

MAX_SCHEMA_DEPTH = 64
MAX_NAME_CHARACTERS = 1_000

_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|(?P<token>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|\.?[A-Za-z_][\w.]*|[-+]?[\w.]+|[{}()\[\]<>=;,:/+-])""",
    re.DOTALL | re.VERBOSE,
)
_NAME = re.compile(r"\.?[A-Za-z_][\w.]*")
_LABELS = ("optional", "required", "repeated")
_IMPLICIT = ("proto3",)
ENTRY = ">"
"""The last character of the type name of a map's entry. Other type names cannot contain it, so no names can clash."""


@dataclass(slots=True)
class ProtoField:
    """A field of a message."""

    name: str
    type: str
    """A scalar type, or the name of a message or an enum as written in the schema; for a map, the type name of its entry."""
    scope: str
    """The full name of the enclosing message, in which `type` is looked up."""
    is_repeated: bool = False
    is_map: bool = False
    is_required: bool = False
    has_default: bool = False
    """True if readers see the default of a missing field (proto3, without `optional`, outside a oneof)."""


@dataclass(slots=True)
class MessageType:
    """A message."""

    name: str
    fields: dict[int, ProtoField] = field(default_factory=dict)
    nested: list[MessageType] = field(default_factory=list)
    """Nested messages in the order of the file, to which message indexes refer."""
    is_entry: bool = False
    """True for the entry type of a map, which some libraries declare as a message with `option map_entry = true`."""


@dataclass(slots=True)
class ProtoFile:
    """The types of one file."""

    messages: list[MessageType] = field(default_factory=list)
    """Messages at the top level, in the order of the file."""
    types: dict[str, MessageType | Mapping[int, str]] = field(default_factory=dict)
    """All messages, and the symbols of all enums, by full name."""


def parse_proto(text: str) -> ProtoFile:
    """Parse the text of a file. Raises Undecodable."""
    try:
        return _Parser(text).parse()
    except (ValueError, IndexError):
        raise Undecodable("the Protobuf schema is not valid") from None


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._is_implicit = False
        self.file = ProtoFile()

    def parse(self) -> ProtoFile:
        package = ""
        while self._at < len(self._tokens):
            word = self._next()
            if word == "syntax":
                self._expect("=")
                self._is_implicit = self._next().strip("\"'") in _IMPLICIT
                self._expect(";")
            elif word == "edition":
                raise Undecodable("the Protobuf schema uses an edition, expected proto2 or proto3")
            elif word == "package":
                package = self._next()
                self._expect(";")
            elif word == "message":
                self.file.messages.append(self._message(package, 0))
            elif word == "enum":
                self._enum(package)
            elif word != ";":
                self._skip()
        return self.file

    def _message(self, scope: str, depth: int, name: str = "") -> MessageType:
        """Parse a message after its keyword, or a group after its number."""
        if depth > MAX_SCHEMA_DEPTH:
            raise Undecodable(f"the Protobuf schema has more than {MAX_SCHEMA_DEPTH} levels")
        name = _joined(scope, name or self._next())
        message = MessageType(name)
        self.file.types[name] = message
        self._expect("{")
        self._body(message, depth, is_oneof=False)
        entries = {one.name: one for one in message.nested if one.is_entry}
        for one in message.fields.values():
            entry = entries.get(f"{message.name}.{one.type.rpartition('.')[2]}")
            one.is_map |= entry is not None
            for part in entry.fields.values() if entry else ():
                part.has_default = True
        return message

    def _body(self, message: MessageType, depth: int, *, is_oneof: bool) -> None:
        while (word := self._next()) != "}":
            following = self._tokens[self._at]
            is_field = _NAME.fullmatch(following) is not None and self._tokens[self._at + 1] == "="
            if word == "message" and self._tokens[self._at + 1] == "{":
                message.nested.append(self._message(message.name, depth + 1))
            elif word == "enum" and self._tokens[self._at + 1] == "{":
                self._enum(message.name)
            elif word == "oneof" and self._tokens[self._at + 1] == "{" and not is_oneof:
                self._at += 2
                self._body(message, depth, is_oneof=True)
            elif word == "option":
                message.is_entry |= self._tokens[self._at : self._at + 3] == ["map_entry", "=", "true"]
                self._skip()
            elif word in ("extensions", "reserved", "extend") and not is_field:
                self._skip()
            elif word == "map" and following == "<":
                self._map(message)
            elif word != ";":
                self._field(message, word, depth, is_oneof=is_oneof)

    def _field(self, message: MessageType, word: str, depth: int, *, is_oneof: bool) -> None:
        label = word if word in _LABELS else ""
        kind = self._next() if label else word
        name = self._next()
        self._expect("=")
        number = int(self._next(), 0)
        found = ProtoField(name, kind, message.name, is_repeated=label == "repeated", is_required=label == "required")
        if kind == "group":
            found.name, found.type = name.lower(), name
            if self._tokens[self._at] == "[":
                self._until("]")
            message.nested.append(self._message(message.name, depth + 1, name))
        else:
            found.has_default = self._is_implicit and not label and not is_oneof
            self._skip()
        message.fields[number] = found

    def _map(self, message: MessageType) -> None:
        self._expect("<")
        key = self._next()
        self._expect(",")
        value = self._next()
        self._expect(">")
        name = self._next()
        self._expect("=")
        number = int(self._next(), 0)
        self._skip()
        entry = MessageType(f"{message.name}.{name}{ENTRY}")
        for at, (part, kind) in enumerate((("key", key), ("value", value)), 1):
            entry.fields[at] = ProtoField(part, kind, message.name, has_default=True)
        self.file.types[entry.name] = entry
        message.fields[number] = ProtoField(name, f"{name}{ENTRY}", message.name, is_repeated=True, is_map=True)

    def _enum(self, scope: str) -> None:
        name = _joined(scope, self._next())
        symbols: dict[int, str] = {}
        self._expect("{")
        while (word := self._next()) != "}":
            if self._tokens[self._at] == "=":
                if not SYMBOL.fullmatch(word):
                    raise ValueError(word)
                self._at += 1
                symbols.setdefault(int(self._next(), 0), word)
            if word != ";":
                self._skip()
        self.file.types[name] = symbols

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, sign: str) -> None:
        if self._next() != sign:
            raise ValueError(sign)

    def _skip(self) -> None:
        """Skip the rest of a statement, including its `;` or its block."""
        while (word := self._next()) != ";":
            if word in ("[", "("):
                self._until("]" if word == "[" else ")")
            elif word == "{":
                self._until("}")
                if self._at < len(self._tokens) and self._tokens[self._at] == ";":
                    self._at += 1
                return

    def _until(self, closing: str) -> None:
        """Skip past the bracket that closes the current pair."""
        opening = {"]": "[", ")": "(", "}": "{"}[closing]
        open_count = 1
        while open_count:
            word = self._next()
            open_count += (word == opening) - (word == closing)


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(text[at])
        token = match["token"]
        if token:
            if len(token) > MAX_NAME_CHARACTERS and token[0] not in "\"'":
                raise ValueError(token)
            found.append(token)
        at = match.end()
    return found


def _joined(scope: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(name)
    return f"{scope}.{name}" if scope else name
