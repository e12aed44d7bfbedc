r"""Subscriptions by regular expression: RE2 matched against whole topic names, in linear time.

Clients may send any pattern, so a backtracking engine is unsafe: Python's `re` would block the broker for hours on `(a+)+$`.
Kafka uses RE2/J. google-re2 has the same syntax but different error messages, which are translated to those of RE2/J.

Bounds: MAX_PATTERN_LENGTH characters; MAX_MEMORY_BYTES for a compiled pattern. Matching runs in a thread.

Source: KIP-848, com.google.re2j; TopicRegexResolver.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from diamant.protocol.errors import ErrorCode, KafkaError

MAX_PATTERN_LENGTH = 4_096
MAX_MEMORY_BYTES = 1024 * 1024

logger = logging.getLogger(__name__)

_WORDS_OF_RE2J = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid repetition size": "invalid repeat count",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
    "trailing \\": "trailing backslash at end of expression",
}


def check_pattern(text: str) -> None:
    """Raise KafkaError INVALID_REGULAR_EXPRESSION unless `text` is a valid regular expression."""
    TopicPattern(text)


def matching_topics(patterns: Sequence[str], names: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return the names that each pattern matches completely. An invalid pattern matches no name. Called in a thread."""
    matches: dict[str, frozenset[str]] = {}
    for text in patterns:
        try:
            matches[text] = frozenset(filter(TopicPattern(text).matches, names))
        except KafkaError as error:
            logger.warning("%s", error.detail)
            matches[text] = frozenset()
    return matches


class TopicPattern:
    """One compiled pattern. Raises KafkaError INVALID_REGULAR_EXPRESSION if the pattern cannot be compiled."""

    def __init__(self, text: str) -> None:
        try:
            import re2  # the import takes 15 ms and 3 MB
        except ImportError:  # google-re2 has no wheels for musl.
            raise _refused(text, "the broker's installation lacks google-re2: pip install google-re2") from None
        if len(text) > MAX_PATTERN_LENGTH:
            raise _refused(text, f"it has {len(text)} characters, but at most {MAX_PATTERN_LENGTH} are allowed")
        options = re2.Options()
        options.log_errors = False
        options.max_mem = MAX_MEMORY_BYTES
        try:
            self._pattern = re2.compile(text, options=options)
        except re2.error as error:
            reason, _, where = error.args[0].decode(errors="replace").partition(": ")
            told = _WORDS_OF_RE2J.get(reason, reason)
            raise _refused(text, f"{told}: `{where}`" if where else told) from None

    def matches(self, name: str) -> bool:
        """Return whether the whole name matches."""
        return self._pattern.fullmatch(name) is not None


def _refused(text: str, reason: str) -> KafkaError:
    shown = text if len(text) <= 200 else text[:200] + "..."
    return KafkaError(
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        f"SubscribedTopicRegex `{shown}` is not a valid regular expression: {reason}.",
    )
