"""The definition of a configuration: its name, type, default, allowed values and documentation, and how it is parsed.

Values are parsed as in Kafka (``ConfigDef.parseType``): surrounding blanks are ignored, booleans are case-insensitive, numbers
are decimal within the range of their Java type, and commas separate list entries. Errors use Kafka's wording, because users
search for it. Tables of ConfigKey are the single source of truth: they are used to parse values, to answer DescribeConfigs and
to generate docs/reference/configuration.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple, TypeVar, cast

Value = bool | int | float | str | list[str] | None
"""The parsed value of a configuration; None if it is not set and has no default."""

T = TypeVar("T")
_ROW = "row"

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1
DOUBLE_MAX = 1.7976931348623157e308


HIDDEN = "[hidden]"
"""Shown instead of a sensitive value, as in Kafka (``Password.HIDDEN``)."""


class ConfigType(IntEnum):
    """The types of configurations, with their codes in DescribeConfigs (``ConfigEntry.ConfigType``, KIP-569)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """The sources of values, with their codes in DescribeConfigs (``DescribeConfigsResponse.ConfigSource``)."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class ConfigSynonym(NamedTuple):
    """One source of a configuration's value. A list of synonyms begins with the one in effect."""

    name: str
    value: str | None
    source: ConfigSource


class DescribedConfig(NamedTuple):
    """One entry of a DescribeConfigs response."""

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    is_read_only: bool = False
    is_sensitive: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()
    documentation: str = ""


class ConfigError(ValueError):
    """An invalid configuration. The message states its name, the value and the allowed values."""


class InvalidValue(ConfigError):
    """A value that the configuration does not allow."""

    def __init__(self, name: str, value: object, reason: str) -> None:
        super().__init__(f"Invalid value {_shown(value)} for configuration {name}: {reason}")
        self.name = name
        self.value = value
        self.reason = reason


class EmptyEntry(ConfigError):
    """A list with an empty entry, such as ``a,,b``."""


def _shown(value: object) -> str:
    """Format a value as in Kafka's messages, which print lists as Java does."""
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)


class Validator(NamedTuple):
    """Allowed values of a configuration: ``allowed`` describes them, ``check(name, value)`` raises InvalidValue for others."""

    allowed: str
    check: Callable[[str, Value], None]
    drops_duplicates: bool = False


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One row of a table of configurations.

    ``synonyms``: the broker configurations that set the default of a topic configuration, in Kafka's order of precedence.
    ``is_dynamic``: can be changed while the broker runs. ``is_internal``: used only in Kafka's tests, or unknown to Kafka;
    DescribeConfigs shows such a configuration only if it is set.
    """

    name: str
    type: ConfigType
    default: Value
    documentation: str
    validator: Validator | None = None
    synonyms: tuple[str, ...] = ()
    is_dynamic: bool = False
    is_internal: bool = False

    @property
    def allowed(self) -> str:
        """The allowed values, for documentation and messages."""
        if self.validator is not None:
            return self.validator.allowed
        return "true, false" if self.type is ConfigType.BOOLEAN else "any"

    @property
    def is_sensitive(self) -> bool:
        """True if the value is never shown, because it is or may contain a password."""
        return self.type is ConfigType.PASSWORD

    def shown(self, value: Value) -> str | None:
        """Format a value for DescribeConfigs; None for a sensitive one."""
        return None if self.is_sensitive else format_value(value)

    def parse(self, text: str) -> Value:
        """Parse and check a value; raises ConfigError with Kafka's wording."""
        value = parse_value(self.name, self.type, text)
        if self.validator is not None:
            if self.validator.drops_duplicates and isinstance(value, list):
                value = list(dict.fromkeys(value))
            self.validator.check(self.name, value)
        return value


def setting(
    type: ConfigType,
    default: T,
    documentation: str,
    validator: Validator | None = None,
    synonyms: tuple[str, ...] = (),
    *,
    is_dynamic: bool = False,
    is_internal: bool = False,
) -> T:
    """Declare a configuration as a field, whose name has underscores instead of dots. `settings_of` returns its row."""
    value = cast(Value, sorted(default) if isinstance(default, frozenset) else default)
    row = ConfigKey("", type, value, documentation, validator, synonyms, is_dynamic, is_internal)
    declared: T = field(default=default, metadata={_ROW: row})
    return declared


def settings_of(declaring: type) -> list[ConfigKey]:
    """Return the rows of the settings declared in a class (a dataclass or not), in order of declaration."""
    declared = getattr(declaring, "__dataclass_fields__", None) or vars(declaring)
    return [
        replace(field.metadata[_ROW], name=name.replace("_", "."))
        for name, field in declared.items()
        if isinstance(field, Field)
    ]


# Java's syntax for numbers and whitespace. Python's own parser would accept 1_000 and reject 0.5f.
_BLANKS = "".join(map(chr, range(0x21)))
_INTEGER = re.compile(r"[+-]?\d+")
_DOUBLE = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[fFdD]?", re.ASCII)
_HEX_DOUBLE = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+)[fFdD]?", re.ASCII)
_DOUBLE_WORD = re.compile(r"([+-]?)(NaN|Infinity)")
_BITS = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}


def parse_value(name: str, type_: ConfigType, text: str) -> Value:
    """Parse ``text`` as a value of type ``type_`` (``ConfigDef.parseType``); a list becomes ``list[str]``."""
    text = text.strip(_BLANKS)
    if type_ is ConfigType.BOOLEAN:
        if text.lower() not in ("true", "false"):
            raise InvalidValue(name, text, "Expected value to be either true or false")
        return text.lower() == "true"
    if type_ in _BITS:
        limit = 1 << (_BITS[type_] - 1)
        # A longer string is out of range anyway, and int() would be slow for a huge one.
        if len(text) <= 64 and _INTEGER.fullmatch(text) and -limit <= (number := int(text)) < limit:
            return number
        raise InvalidValue(name, text, f"Not a number of type {type_.name}")
    if type_ is ConfigType.DOUBLE:
        return _parse_double(name, text)
    if type_ is ConfigType.LIST:
        if not text:
            return []
        entries = [entry.strip(_BLANKS) for entry in text.split(",")]
        if "" in entries:
            raise EmptyEntry(f"Configuration '{name}' values must not be empty.")
        return entries
    return text


def _parse_double(name: str, text: str) -> float:
    if match := _DOUBLE.fullmatch(text):
        return float(match[1])
    if match := _HEX_DOUBLE.fullmatch(text):
        return float.fromhex(match[1])
    if match := _DOUBLE_WORD.fullmatch(text):
        return float(match[1] + match[2])
    raise InvalidValue(name, text, "Not a number of type DOUBLE")


def format_value(value: Value) -> str | None:
    """Format a value for DescribeConfigs (``ConfigDef.convertToString``)."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _format_double(value)
    if isinstance(value, list):
        return ",".join(value)
    return str(value)


def _format_double(value: float) -> str:
    """Format a number like Java's ``Double.toString``: 0.5, 1.0E-5, 1.7976931348623157E308."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = f"{abs(value)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    leading_zeros = len(whole + fraction) - len(digits)
    power = int(exponent or 0) + len(whole) - 1 - leading_zeros
    return f"{sign}{digits[0]}.{digits[1:].rstrip('0') or '0'}E{power}"


def at_least(low: int) -> Validator:
    """Allow numbers from ``low`` upwards (``ConfigDef.Range.atLeast``)."""
    return Validator(f"at least {low}", lambda name, value: _check_range(name, value, low, None))


def between(low: float, high: float) -> Validator:
    """Allow numbers from ``low`` to ``high``, both included (``ConfigDef.Range.between``)."""
    return Validator(f"{low} to {high}", lambda name, value: _check_range(name, value, low, high))


def between_or(low: int, high: int, other: int) -> Validator:
    """Allow numbers from ``low`` to ``high``, and ``other`` (Kafka's ``GzipCompression.LevelValidator``)."""

    def check(name: str, value: Value) -> None:
        if isinstance(value, int) and not low <= value <= high and value != other:
            raise InvalidValue(name, value, f"Value must be between {low} and {high} or equal to {other}")

    return Validator(f"{low} to {high}, or {other}", check)


def any_of(*words: str) -> Validator:
    """Allow one of these words (``ConfigDef.ValidString``)."""

    def check(name: str, value: Value) -> None:
        if value not in words:
            raise InvalidValue(name, value, f"String must be one of: {', '.join(words)}")

    return Validator(", ".join(words), check)


def list_of(*words: str) -> Validator:
    """Allow a list of these words, which may be empty; duplicates are dropped (``ConfigDef.ValidList``)."""

    def check(name: str, value: Value) -> None:
        for entry in _entries(value):
            if entry not in words:
                raise InvalidValue(name, entry, f"String must be one of: {', '.join(words)}")

    return Validator(f"list of {', '.join(words)}; may be empty", check, drops_duplicates=True)


def _entries(value: Value) -> Sequence[str]:
    return value if isinstance(value, list) else ()


def _check_range(name: str, value: Value, low: float, high: float | None) -> None:
    # NaN passes both comparisons, in Kafka as here: a dirty ratio of NaN means "never clean".
    if not isinstance(value, int | float):
        return
    if value < low:
        raise InvalidValue(name, format_value(value), f"Value must be at least {low}")
    if high is not None and value > high:
        raise InvalidValue(name, format_value(value), f"Value must be no more than {high}")


_THROTTLED_REPLICA = re.compile(r"[0-9]+:[0-9]+", re.ASCII)


def _check_throttled_replicas(name: str, value: Value) -> None:
    entries = list(_entries(value))
    if entries != ["*"] and not all(_THROTTLED_REPLICA.fullmatch(entry) for entry in entries):
        form = "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
        must = f"{name} must be the literal '*' or a list of replicas in the following format: {form}"
        raise InvalidValue(name, entries, must)


THROTTLED_REPLICAS = Validator("* or a list of partition:broker", _check_throttled_replicas)
"""Kafka's ``ThrottledReplicaListValidator``: allows ``*`` or a list of ``partition:broker``."""
