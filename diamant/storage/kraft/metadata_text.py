"""The maximum length of strings in the metadata log.

If a request contains a longer string, Kafka closes the connection. It cannot read such a string in a record either, so a Kafka
broker could not open the directory.
"""

from __future__ import annotations

from diamant.protocol.errors import ErrorCode, KafkaError

MAX_TEXT_BYTES = 32_767
"""Maximum number of bytes in UTF-8, as in Kafka's generated readers."""


def check_text(what: str, text: str | None) -> None:
    """Raise KafkaError(INVALID_REQUEST) if a string is too long for the metadata log. `what` names it in the message."""
    if text is not None and len(text) * 4 > MAX_TEXT_BYTES and len(text.encode()) > MAX_TEXT_BYTES:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{what} has {len(text.encode())} bytes, at most {MAX_TEXT_BYTES} are allowed"
        )
