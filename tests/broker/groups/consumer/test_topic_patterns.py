"""Regular expressions of subscriptions: RE2's syntax over whole topic names, and no pattern that takes for ever."""

from __future__ import annotations

import pytest

from diamant.broker.groups.decisions.topic_patterns import MAX_PATTERN_LENGTH, TopicPattern, matching_topics
from diamant.protocol.errors import ErrorCode, KafkaError

NAMES = ["a", "aa", "ab", "AB", "a.b", "a-b", "a_b", "x1", "12", "orders", "orders-dlq", "k", "{"]


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("", []),
        ("a", ["a"]),
        ("a*", ["a", "aa"]),
        ("a+?", ["a", "aa"]),
        ("a.b", ["a.b", "a-b", "a_b"]),
        (r"a\.b", ["a.b"]),
        (r"\Qa.b\E", ["a.b"]),
        ("orders|x1", ["x1", "orders"]),
        ("orders(-dlq)?", ["orders", "orders-dlq"]),
        ("^orders$", ["orders"]),
        (r"\Aorders\z", ["orders"]),
        ("orders^", []),
        (r"orders\b.*", ["orders", "orders-dlq"]),
        (r"a\B.*", ["aa", "ab", "a_b"]),
        ("(?i)ab", ["ab", "AB"]),
        ("(?i:A)b", ["ab"]),
        ("a(?i)B", ["ab"]),
        ("[a-c]+", ["a", "aa", "ab"]),
        ("[^a-z]+", ["AB", "12", "{"]),
        ("[[:upper:]]+", ["AB"]),
        ("[]a]", ["a"]),
        ("[a-]b", ["ab"]),
        (r"[\w.]+", ["a", "aa", "ab", "AB", "a.b", "a_b", "x1", "12", "orders", "k"]),
        (r"\d{2}", ["12"]),
        (r"\D\d", ["x1"]),
        ("a{2}", ["aa"]),
        ("a{1,}", ["a", "aa"]),
        ("a{0,1}b", ["ab"]),
        ("a{,2}", []),
        (r"\{", ["{"]),
        ("{", ["{"]),
        (r"\x61", ["a"]),
        (r"\x{61}\142", ["ab"]),
        (r"\pL", ["a", "k"]),
        (r"\p{Lu}+", ["AB"]),
        (r"\PL+", ["12", "{"]),
        (r"\p{Greek}", []),
        ("(?P<name>a)(?<other>b)", ["ab"]),
        ("(?:a|b)+", ["a", "aa", "ab"]),
        ("(a*)*", ["a", "aa"]),
        ("(?i)\u212a", ["k"]),
        ("\u00e9", []),
        (".*", NAMES),
    ],
)
def test_matches(pattern: str, matched: list[str]) -> None:
    """The names that RE2/J 1.8 matches as a whole with this pattern."""
    assert [name for name in NAMES if TopicPattern(pattern).matches(name)] == [
        name for name in NAMES if name in matched
    ]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(a", "missing closing )"),
        ("a)", "unexpected )"),
        ("[a", "missing closing ]"),
        ("[b-a]", "invalid character class range"),
        ("[[:nope:]]", "invalid character class range"),
        (r"\pX", "invalid character class range"),
        ("*a", "missing argument to repetition operator"),
        ("{2}", "missing argument to repetition operator"),
        ("a**", "invalid nested repetition operator"),
        ("a*+", "invalid nested repetition operator"),
        ("a{1001}", "invalid repeat count"),
        ("a{3,2}", "invalid repeat count"),
        ("(?=a)", "invalid or unsupported Perl syntax"),
        ("(?<!a)", "invalid or unsupported Perl syntax"),
        ("(?>a)", "invalid or unsupported Perl syntax"),
        (r"(a)\1", "invalid escape sequence"),
        (r"\q", "invalid escape sequence"),
        (r"\Z", "invalid escape sequence"),
        ("\\", "trailing backslash at end of expression"),
        ("(?P<>a)", "invalid named capture"),
        ("a" * (MAX_PATTERN_LENGTH + 1), f"it has {MAX_PATTERN_LENGTH + 1} characters"),
        ("(((a{100}){100}){100})", "invalid repeat count"),
    ],
)
def test_refused(pattern: str, reason: str) -> None:
    """What RE2/J does not understand, with its words, and what would cost too much."""
    with pytest.raises(KafkaError) as refused:
        TopicPattern(pattern)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert reason in refused.value.detail


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("(a+)+$", [True, False, False]),
        ("(a|a)*b", [False, False, False]),
        ("(.*a){30}", [True, False, False]),
        ("(a?){50}a{50}", [False, False, False]),
        ("(a|b)*a(a|b){200}", [True, False, False]),
    ],
)
def test_time_is_linear(pattern: str, matched: list[bool]) -> None:
    """Patterns that keep a backtracking engine busy for hours are done at once."""
    names = ["a" * 249, "a" * 248 + "-", "ab" * 124]
    assert [TopicPattern(pattern).matches(name) for name in names] == matched


def test_matching_topics() -> None:
    """Each pattern by itself; one that is broken matches nothing."""
    found = matching_topics(["orders.*", "(", "nothing"], NAMES)
    assert found == {"orders.*": {"orders", "orders-dlq"}, "(": frozenset(), "nothing": frozenset()}
