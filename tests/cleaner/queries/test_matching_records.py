"""The search of a partition's records."""

from __future__ import annotations

from diamant.cleaner.queries.matching_records import Wanted
from diamant.protocol.batches.header import Header, Record


def test_a_key_matches_as_a_whole_and_a_text_anywhere() -> None:
    """A key must match as a whole; a text may be anywhere in key, value, or the name and value of a header."""
    record = Record(3, 0, b"key-1", b"value", (Header("name", b"of header"), Header("empty", None)))
    assert Wanted.key(b"key-1").is_wanted(record)
    assert not Wanted.key(b"key").is_wanted(record)
    for text in (b"ey-", b"alu", b"nam", b"header"):
        assert Wanted.text(text).is_wanted(record)
        assert Wanted.text(text).may_be_in(b"... %s ..." % text)
    assert not Wanted.text(b"other").is_wanted(record._replace(key=None, value=None))
    assert not Wanted.key(b"other").may_be_in(b"key-1")
