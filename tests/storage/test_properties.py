"""Java's properties format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diamant.storage.properties import format_properties, parse_properties


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
        ("  d\t=\t4 ", {"d": "4 "}),
        ("e\\=f=g\\:h", {"e=f": "g:h"}),
        ("long = one, \\\n   two\nuni=\\u00e4\\u20AC", {"long": "one, two", "uni": "ä€"}),
        ("esc=\\t\\n\\\\\r\nlast=wins\r\nlast=does", {"esc": "\t\n\\", "last": "does"}),
        ("", {}),
    ],
)
def test_lines_become_names_and_values(text: str, properties: dict[str, str]) -> None:
    """Separators, comments, continuations and escapes are those of java.util.Properties."""
    assert parse_properties(text) == properties


@given(st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=12), max_size=5))
def test_properties_round_trip(properties: dict[str, str]) -> None:
    """Any keys and values survive formatting, in ISO-8859-1."""
    if any("\ud800" <= character <= "\udfff" for text in (*properties, *properties.values()) for character in text):
        return
    text = format_properties(properties)
    text.encode("latin-1")
    parsed = {
        key.encode("utf-16", "surrogatepass").decode("utf-16"): value.encode("utf-16", "surrogatepass").decode("utf-16")
        for key, value in parse_properties(text).items()
    }
    assert parsed == properties
