"""The limit on the length of texts in the metadata log.

Kafka closes the connection of a request with a longer text. It cannot read such a text in a record either, so a Kafka broker
could not open the directory.
"""

from __future__ import annotations

from diamant.protocol.errors import ErrorCode, KafkaError

MAX_TEXT_BYTES = 32_767
"""The limit in bytes of UTF-8, that of Kafka's generated readers."""


def check_text(what: str, text: str | None) -> None:
    """Check that a text fits into the metadata log. Raises KafkaError(INVALID_REQUEST) if it does not."""
    if text is not None and len(text) * 4 > MAX_TEXT_BYTES and len(text.encode()) > MAX_TEXT_BYTES:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{what} has {len(text.encode())} bytes, at most {MAX_TEXT_BYTES} are allowed"
        )
