"""Keys of records in JSON.

A key is bytes. In JSON it is `{"text": "customer-42"}` (UTF-8), `{"hex": "00ff"}` or `{"base64": "AP8="}`; a plain string is
short for text. Responses use text for printable UTF-8, else hex.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from diamant.broker.client.errors import BadArgument

FORMS = ("text", "hex", "base64")


def parse_key(found: object, name: str = "key") -> bytes:
    """Return the bytes of a key from JSON. Raises BadArgument; its text has `name`, and does not contain the key."""
    if isinstance(found, str):
        return _text(found, name)
    if not isinstance(found, Mapping) or len(found) != 1:
        raise BadArgument(f'{name}: expected a text or an object with one of "text", "hex" and "base64"')
    form, value = next(iter(found.items()))
    if form not in FORMS or not isinstance(value, str):
        raise BadArgument(f'{name}: expected {{"text": "..."}}, {{"hex": "..."}} or {{"base64": "..."}}')
    if form == "text":
        return _text(value, name)
    try:
        return bytes.fromhex(value) if form == "hex" else base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error):
        raise BadArgument(f"{name}: the value of {form} is not {form}") from None


def key_fields(key: bytes) -> dict[str, str]:
    """Return a key for JSON."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return {"hex": key.hex()}
    return {"text": text} if text.isprintable() else {"hex": key.hex()}


def _text(value: str, name: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise BadArgument(f"{name}: the text has lone surrogates, which UTF-8 cannot encode; give it as hex") from None
