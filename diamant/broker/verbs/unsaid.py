"""Tells whether a text for a certificate names what is to be gone: it would stay there, in clear, and a scan would find it.

A key, or what a redaction compares with, is recognised at any length, in upper and lower case: long ones anywhere in the text,
short ones as a whole word, as 42 is in "ticket 4711, customer 42" and not in "ticket 4211". So are its usual encodings:
percent-encoded, hexadecimal, base64, and as a number if it is one of four or eight bytes. Of values only digests are known,
so these are recognised byte by byte, as they are or encoded, from `needles.MIN_BYTES` on.

No thread, and nothing is kept. A text has 1,000 letters at most (`undertakings`).
"""

from __future__ import annotations

import re
import unicodedata
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from urllib.parse import unquote_plus, unquote_to_bytes

from diamant.cleaner.evidence.needles import MIN_BYTES, Needles

MIN_ENCODED = 8
"""Letters of an encoded key that was a text before: fewer are any number or abbreviation."""

_WORD = re.compile(r"[\w+/=-]+")
_NUMBER_BYTES = (4, 8)
"""Sizes of what Kafka's serializers make of an int and a long."""


def names_sought(text: str, sought: Sequence[bytes]) -> bool:
    """Tell whether a text names one of these keys or texts."""
    texts = [_folded(one) for one in (text, unquote_plus(text, errors="surrogateescape"))]
    return any(_stands_in(form, one) for key in sought for form in _forms(key) for one in texts)


def holds_value(text: str, needles: Needles) -> bool:
    """Tell whether a text holds one of the values that are known by their digests."""
    return any(needles.find(one) for one in _decoded(text))


def _forms(key: bytes) -> Iterator[str]:
    """Yield how a key may be written; nothing for one of blanks only, or without any bytes."""
    if not key.strip():
        return
    try:
        raw = key.decode()
        is_text = raw.isprintable()
    except UnicodeDecodeError:
        raw, is_text = key.decode("latin-1"), False
    yield _folded(raw)
    if len(key) in _NUMBER_BYTES and not is_text:
        yield str(int.from_bytes(key, "big", signed=True))
    least = MIN_ENCODED if is_text else 1
    base64 = b64encode(key).decode().rstrip("=")
    for form in (key.hex(), key.hex(" "), key.hex(":"), base64, base64.translate({0x2B: "-", 0x2F: "_"})):
        if len(form) >= least:
            yield _folded(form)


def _stands_in(form: str, text: str) -> bool:
    if len(form.encode(errors="surrogatepass")) >= MIN_BYTES:
        return form in text
    front, back = (r"(?<!\w)" * form[:1].isalnum(), r"(?!\w)" * form[-1:].isalnum())
    return re.search(front + re.escape(form) + back, text) is not None


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _decoded(text: str) -> Iterator[bytes]:
    """Yield a text's bytes, as they are and as what they may be an encoding of."""
    yield text.encode(errors="surrogatepass")
    yield unquote_to_bytes(text.encode(errors="surrogatepass"))
    for word in _WORD.findall(text):
        with suppress(ValueError):
            yield bytes.fromhex(word)
        with suppress(ValueError):
            yield b64decode(word.translate({0x2D: "+", 0x5F: "/"}).rstrip("=").encode(errors="replace") + b"==")
