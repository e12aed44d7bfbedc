"""The greatest length of a text in the metadata log.

Kafka refuses a request with a longer one by closing the connection, and could not read it in a record either: a broker of
that kind would not open the directory any more.
"""

from __future__ import annotations

from diamant.protocol.errors import ErrorCode, KafkaError

MAX_TEXT_BYTES = 32_767
"""Of UTF-8, as Kafka's generated readers have it."""


def check_text(what: str, text: str | None) -> None:
    """Check that a text fits into the metadata log; raises KafkaError(INVALID_REQUEST)."""
    if text is not None and len(text) * 4 > MAX_TEXT_BYTES and len(text.encode()) > MAX_TEXT_BYTES:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{what} has {len(text.encode())} bytes, at most {MAX_TEXT_BYTES} can be kept"
        )
