"""The arguments of a request class (`diamant/argument.py`): their forms in JSON and in Python, and their checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from types import UnionType
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from diamant.argument import MAX_INTEGER
from diamant.broker.operation_errors import BadArgument
from diamant.broker.record_json import parse_key
from diamant.duration import seconds_of

ParamType: TypeAlias = Literal["string", "integer", "boolean", "duration", "strings", "object", "objects", "key", "any"]
"""`duration`: seconds, or a string such as `10m`; converted to seconds. `strings`: a list of strings; in a query, the parameter
is repeated. `objects`: a list of objects. `key`: see `record_json.py`; converted to bytes. `any`: not validated."""

_TYPES: Mapping[Any, ParamType] = {
    str: "string",
    int: "integer",
    bool: "boolean",
    float: "duration",
    bytes: "key",
    tuple: "strings",
    Mapping: "object",
    list: "objects",
    Any: "any",
}
_EXPECTED = {"strings": "a list of strings", "objects": "a list of objects"}

R = TypeVar("R")

_KNOWN: dict[type[Any], tuple[Param, ...]] = {}


class Param(NamedTuple):
    """One argument: a field of a body, a parameter of a query, or an option of a command."""

    name: str
    type: ParamType
    doc: str
    default: Any = None
    is_required: bool = False
    choices: tuple[str, ...] = ()
    least: int = 0
    most: int = MAX_INTEGER
    short: str = ""
    is_by_name: bool = True
    """True if the argument is keyword-only in Python."""

    def parse(self, found: Any) -> Any:
        """Validate a value from JSON or Python, and return it converted for the request. Raises BadArgument."""
        if self.type == "any":
            return found
        if self.type == "key":
            return bytes(found) if isinstance(found, bytes | bytearray | memoryview) else parse_key(found, self.name)
        if self.type == "duration":
            return self._seconds(found)
        if self.type == "strings":
            found = (found,) if isinstance(found, str) else found
            is_right = isinstance(found, Sequence | set | frozenset) and all(isinstance(one, str) for one in found)
        else:
            is_right = {
                "string": isinstance(found, str),
                "integer": isinstance(found, int) and not isinstance(found, bool),
                "boolean": isinstance(found, bool),
                "object": isinstance(found, Mapping),
                "objects": isinstance(found, list | tuple) and all(isinstance(one, Mapping) for one in found),
            }[self.type]
        if not is_right:
            raise self._wrong(f"got {type(found).__name__}")
        if self.type == "integer" and not self.least <= found <= self.most:
            raise BadArgument(f"{self.name}: expected {self.least} to {self.most}, got {found}")
        if self.choices and found not in self.choices:
            raise BadArgument(f"{self.name}: expected one of {', '.join(self.choices)}, got {found[:40]!r}")
        return tuple(found) if self.type == "strings" else found

    def parse_texts(self, found: list[str]) -> Any:
        """Parse all occurrences of a parameter in a query; only `strings` may occur more than once. Raises BadArgument."""
        if self.type == "strings":
            return self.parse(found)
        if len(found) > 1:
            raise BadArgument(f"{self.name} is given {len(found)} times")
        text = found[0]
        if self.type == "integer":
            digits = text.removeprefix("-")
            if not digits.isascii() or not digits.isdigit() or len(digits) > 19:
                raise self._wrong(f"got {text[:40]!r}")
            return self.parse(int(text))
        if self.type == "duration" and text.replace(".", "", 1).isdecimal():
            return self.parse(float(text))
        if self.type == "boolean":
            if text.lower() not in ("true", "false", "1", "0", ""):
                raise BadArgument(f"{self.name}: expected true or false")
            return text.lower() not in ("false", "0")
        return self.parse(text)

    def _seconds(self, found: Any) -> float:
        try:
            seconds = seconds_of(found)
        except ValueError as error:
            raise BadArgument(f"{self.name}: {error}") from None
        if not self.least <= seconds <= self.most:
            raise BadArgument(f"{self.name}: expected {self.least} to {self.most} seconds, got {seconds:g}")
        return seconds

    def _wrong(self, got: str) -> BadArgument:
        return BadArgument(f"{self.name}: expected {_EXPECTED.get(self.type, self.type)}, {got}")


def params_of(request: type[Any]) -> tuple[Param, ...]:
    """Return the arguments of a request class, in the order of its fields."""
    if request not in _KNOWN:
        _KNOWN[request] = _read(request)
    return _KNOWN[request]


def _read(request: type[Any]) -> tuple[Param, ...]:
    hints = get_type_hints(request, include_extras=True)
    found = []
    for field in sorted(fields(request), key=lambda field: bool(field.kw_only)):
        kind, declared = get_args(hints[field.name])
        if isinstance(kind, UnionType):
            kind = get_args(kind)[0]  # the type of an optional argument is `kind | None`
        is_required = field.default is MISSING
        default = None if is_required else field.default
        type_ = _TYPES[get_origin(kind) or kind]
        found.append(
            Param(
                field.name, type_, declared.help, default, is_required, declared.choices, declared.least, declared.most,
                declared.short, bool(field.kw_only),
            )
        )  # fmt: skip
    return tuple(found)


def request_of(kind: type[R], given: Mapping[str, Any]) -> R:
    """Check the arguments and return the request; None means an argument's default. Raises BadArgument."""
    values = {}
    for param in params_of(kind):
        value = given.get(param.name)
        if value is not None:
            values[param.name] = param.parse(value)
        elif param.is_required:
            raise BadArgument(f"{param.name} is missing: {param.doc}")
    return kind(**values)
