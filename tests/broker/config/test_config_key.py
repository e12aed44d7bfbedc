"""The parsing of values: Kafka's rules for every type."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diamant.storage.config_key import (
    ConfigError,
    ConfigKey,
    ConfigType,
    Value,
    any_of,
    at_least,
    between,
    format_value,
    parse_value,
)


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (ConfigType.BOOLEAN, " TRUE ", True),
        (ConfigType.BOOLEAN, "false", False),
        (ConfigType.INT, "+7", 7),
        (ConfigType.INT, "-2147483648", -(1 << 31)),
        (ConfigType.SHORT, "32767", 32767),
        (ConfigType.LONG, "\t9223372036854775807\n", (1 << 63) - 1),
        (ConfigType.DOUBLE, "1e-2", 0.01),
        (ConfigType.DOUBLE, ".5f", 0.5),
        (ConfigType.DOUBLE, "0x1p-1", 0.5),
        (ConfigType.STRING, "  a b ", "a b"),
        (ConfigType.LIST, "", []),
        (ConfigType.LIST, " a , b,c ", ["a", "b", "c"]),
        (ConfigType.LIST, "a,a", ["a", "a"]),
    ],
)
def test_texts_that_kafka_reads_are_read(type_: ConfigType, text: str, value: Value) -> None:
    """Blanks around a value are ignored, booleans are case-insensitive, numbers may have a sign, commas split lists."""
    assert parse_value("x", type_, text) == value


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (ConfigType.BOOLEAN, "yes"),
        (ConfigType.BOOLEAN, ""),
        (ConfigType.INT, "2147483648"),
        (ConfigType.SHORT, "32768"),
        (ConfigType.LONG, "9223372036854775808"),
        (ConfigType.LONG, "1_000"),
        (ConfigType.LONG, "1e3"),
        (ConfigType.LONG, "0x10"),
        (ConfigType.LONG, "- 5"),
        (ConfigType.LONG, ""),
        (ConfigType.LONG, "9" * 100_000),
        (ConfigType.DOUBLE, "inf"),
        (ConfigType.DOUBLE, "0_1"),
        (ConfigType.DOUBLE, ""),
        (ConfigType.LIST, "a,,b"),
        (ConfigType.LIST, ","),
    ],
)
def test_texts_that_kafka_refuses_are_refused(type_: ConfigType, text: str) -> None:
    """Texts that only Python would accept, or that exceed the Java type, are refused. The message names the key."""
    with pytest.raises(ConfigError, match=r"\bx\b"):
        parse_value("x", type_, text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (True, "true"),
        (5, "5"),
        (0.5, "0.5"),
        (0.0, "0.0"),
        (1e-5, "1.0E-5"),
        (1234567.0, "1234567.0"),
        (12345678.0, "1.2345678E7"),
        (-1e100, "-1.0E100"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (["a", "b"], "a,b"),
        ([], ""),
    ],
)
def test_values_are_shown_as_java_shows_them(value: Value, text: str | None) -> None:
    """DescribeConfigs returns numbers in Java's notation, and lists joined with commas."""
    assert format_value(value) == text


@given(st.floats(allow_nan=False))
def test_a_shown_double_reads_as_itself(value: float) -> None:
    """Formatting and parsing a double returns the same value."""
    assert parse_value("x", ConfigType.DOUBLE, format_value(value) or "") == value


@given(st.text())
def test_any_text_is_a_value_or_a_refusal(text: str) -> None:
    """Parsing a text raises only ConfigError."""
    for type_ in ConfigType:
        try:
            value = parse_value("x", type_, text)
        except ConfigError:
            continue
        assert value is not None


@pytest.mark.parametrize(
    ("key", "text", "reason"),
    [
        (ConfigKey("x", ConfigType.INT, 0, "", at_least(1)), "0", "Value must be at least 1"),
        (ConfigKey("x", ConfigType.DOUBLE, 0, "", between(0, 1)), "1.5", "Value must be no more than 1"),
        (ConfigKey("x", ConfigType.STRING, "a", "", any_of("a", "b")), "c", "String must be one of: a, b"),
    ],
)
def test_validators_refuse_in_kafkas_words(key: ConfigKey, text: str, reason: str) -> None:
    """The message says "Invalid value", the configuration, and the allowed values."""
    with pytest.raises(ConfigError) as caught:
        key.parse(text)
    assert str(caught.value) == f"Invalid value {text} for configuration x: {reason}"
