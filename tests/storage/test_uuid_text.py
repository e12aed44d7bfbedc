"""Text form of UUIDs."""

from __future__ import annotations

from uuid import UUID

import pytest

from diamant.storage.uuid_text import METADATA_TOPIC_ID, random_id, uuid_from_text, uuid_to_text


def test_the_metadata_topic_id() -> None:
    """The reserved id of the metadata topic has the text that Kafka writes."""
    assert uuid_to_text(METADATA_TOPIC_ID) == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert uuid_from_text("AAAAAAAAAAAAAAAAAAAAAQ") == METADATA_TOPIC_ID


def test_round_trip() -> None:
    """Any id comes back from its 22 characters, and ids do not begin with a dash."""
    for _ in range(200):
        value = random_id()
        text = uuid_to_text(value)
        assert len(text) == 22
        assert not text.startswith("-")
        assert uuid_from_text(text) == value


def test_the_alphabet_is_url_safe() -> None:
    """Dash and underscore stand for 62 and 63."""
    value = UUID(bytes=b"\xfb\xff" * 8)
    assert uuid_from_text(uuid_to_text(value)) == value
    assert set("-_") & set(uuid_to_text(value))


A21 = "A" * 21


@pytest.mark.parametrize("text", ["", "abc", A21, A21 + "AA", A21 * 50, A21 + "+", A21 + "ä", A21 + "/", A21 + "A="])
def test_anything_else_is_an_error(text: str) -> None:
    """Text of another length or alphabet is refused."""
    with pytest.raises(ValueError, match="22 characters"):
        uuid_from_text(text)
