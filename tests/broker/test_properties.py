"""Java's properties format."""

from __future__ import annotations

import pytest

from diamant.broker.properties import parse_properties


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a=1", {"a": "1"}),
        ("a = 1 \r\nb:2\rc 3\n", {"a": "1 ", "b": "2", "c": "3"}),
        ("# no\n  ! no\n\n a=#yes", {"a": "#yes"}),
        ("a=1,\\\n   2", {"a": "1,2"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\na=2", {"a": "2"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a\\ b\\=c=d", {"a b=c": "d"}),
        ("a=\\u00e9\\t\\q", {"a": "é\tq"}),
        ("a=b=c:d", {"a": "b=c:d"}),
        ("a=1\\", {"a": "1"}),
        ("", {}),
    ],
)
def test_lines_become_names_and_values(text: str, properties: dict[str, str]) -> None:
    """Separators, comments, continuations and escapes are those of java.util.Properties."""
    assert parse_properties(text) == properties
