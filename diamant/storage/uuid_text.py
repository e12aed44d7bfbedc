"""The text form of Kafka's UUIDs: 16 bytes in URL-safe base64 without padding, 22 characters (Kafka's Uuid)."""

from __future__ import annotations

import base64
import re
from uuid import UUID, uuid4

_TEXT = re.compile(r"[A-Za-z0-9_-]{22}(==)?")

ZERO_ID = UUID(int=0)
"""Means "no id"; no topic has it."""

METADATA_TOPIC_ID = UUID(int=1)
"""The topic id of `__cluster_metadata`."""


def uuid_to_text(value: UUID) -> str:
    """Return the 22-character form of a UUID."""
    return base64.urlsafe_b64encode(value.bytes)[:22].decode("ascii")


def uuid_from_text(text: str) -> UUID:
    """Parse the 22-character form of a UUID. Raises ValueError unless it is 16 bytes in URL-safe base64."""
    if _TEXT.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r}: expected 22 characters of URL-safe base64")
    return UUID(bytes=base64.urlsafe_b64decode(text[:22] + "=="))


def random_id() -> UUID:
    """Return a new id that is not reserved. Its text does not begin with a dash, since users type ids on command lines."""
    while True:
        value = uuid4()
        if not uuid_to_text(value).startswith("-"):
            return value
