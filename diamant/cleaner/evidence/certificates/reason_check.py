r"""Checks a reason or reference for erased keys and values, plain or in a common encoding, because a certificate would keep them.

A key, or a string that a redaction compares with, is recognised at any length and regardless of case: a long one anywhere in the
text, a short one only as a whole word, like 42 in "ticket 4711, customer 42" but not in "ticket 4211". Invisible characters are
ignored, and all dashes are equal. The usual encodings are recognised as well: percent-encoding, quoted-printable, and the escapes
of HTML and JSON, nested up to three deep; hexadecimal (also as 0x1a2b and \x1a\x2b), base64, base32 and UTF-16; a key of two,
four or eight bytes as a number, and a key of 16 bytes as a UUID. Values are known only by their digests, so they are recognised
only byte by byte, plain or encoded, if they have at least `needles.MIN_BYTES` bytes.

Starts no thread and keeps nothing. Callers limit a reason or reference to 1,000 characters.
"""

from __future__ import annotations

import re
import unicodedata
from base64 import b32decode, b32encode, b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from html import unescape
from quopri import decodestring
from urllib.parse import unquote_plus, unquote_to_bytes
from uuid import UUID

from diamant.cleaner.evidence.search.needles import MIN_BYTES, Needles

MIN_ENCODED = 8
"""Minimum length, in characters, of an encoded textual key. A shorter string could be any number or abbreviation."""

MAX_NESTED = 3
"""Maximum depth to which nested escapes are decoded."""

_WORD = re.compile(r"[\w+/=-]+")
_NUMBER_BYTES = (2, 4, 8)
"""The sizes of a short, an int and a long in the output of Kafka's serializers."""
_UUID_BYTES = 16
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_SHOWN = {"Cf": None, "Pd": "-"}
"""Replacements by Unicode category: invisible characters are removed, and every dash becomes a hyphen."""
_HEX_SIGN = re.compile(r"(?<!\w)(?:0x|\\x)(?=[0-9a-f]{2})")
_HEX_JOINT = re.compile(r"(?<=x[0-9a-f]{2})[,\s]*(?:0x|\\x)(?=[0-9a-f]{2})")


def names_sought(text: str, sought: Sequence[bytes]) -> bool:
    """Tell whether `text` contains one of the sought keys or strings, in any of the recognised forms."""
    texts = {*_readings(text)}
    return any(form and _stands_in(form, one) for key in sought for form in _forms(key) for one in texts)


def holds_value(text: str, needles: Needles) -> bool:
    """Tell whether `text` contains one of the values, which are known only by their digests."""
    return any(needles.find(one) for one in _decoded(text))


def _readings(text: str) -> Iterator[str]:
    """Yield the forms of a text in which to look for keys: plain, unescaped, and without the prefixes of hexadecimal numbers."""
    for one in _plain(text):
        folded = _folded(one)
        yield folded
        yield _HEX_SIGN.sub("", folded)
        yield _HEX_SIGN.sub("", _HEX_JOINT.sub("", folded))


def _plain(text: str) -> set[str]:
    """Return a text, and all forms of it in which escapes are decoded."""
    found = {text}
    for _ in range(MAX_NESTED):
        for one in [*found]:
            found |= {unquote_plus(one, errors="surrogateescape"), unescape(one)}
            found.add(_ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), one))
            found.add(decodestring(one.encode(errors="surrogatepass")).decode(errors="surrogateescape"))
    return found


def _forms(key: bytes) -> Iterator[str]:
    """Yield the forms in which people may write a key; nothing for a blank or empty key."""
    if not key.strip():
        return
    try:
        raw = key.decode()
        is_text = raw.isprintable()
    except UnicodeDecodeError:
        raw, is_text = key.decode("latin-1"), False
    yield _folded(raw)
    # Files and programs often end a key with a line break.
    yield _folded(raw.strip(" \t\r\n"))
    for encoding in ("utf-16-le", "utf-16-be"):
        with suppress(UnicodeDecodeError):
            wide = key.decode(encoding).removeprefix("\ufeff")
            if wide.strip() and wide.isprintable():
                yield _folded(wide)
    if len(key) == _UUID_BYTES:
        yield str(UUID(bytes=key))
    with suppress(ValueError):
        yield UUID(raw).hex
    if not is_text:
        yield _folded(repr(key)[2:-1])
    if len(key) in _NUMBER_BYTES and not is_text:
        yield str(int.from_bytes(key, "big", signed=True))
    least = MIN_ENCODED if is_text else 1
    base32 = b32encode(key).decode().rstrip("=")
    if len(base32) >= MIN_ENCODED:
        yield _folded(base32)
    base64 = b64encode(key).decode().rstrip("=")
    for form in (key.hex(), key.hex(" "), key.hex(":"), base64, base64.translate({0x2B: "-", 0x2F: "_"})):
        if len(form) >= least:
            yield _folded(form)


def _stands_in(form: str, text: str) -> bool:
    if len(form.encode(errors="surrogatepass")) >= MIN_BYTES:
        return form in text
    # Do not use a pattern: `re` caches compiled patterns, and would keep the key in them long after the erasure.
    at = text.find(form)
    while at >= 0:
        end = at + len(form)
        is_within_word = (form[:1].isalnum() and _is_of_word(text[max(0, at - 1) : at])) or (
            form[-1:].isalnum() and _is_of_word(text[end : end + 1])
        )
        if not is_within_word:
            return True
        at = text.find(form, at + 1)
    return False


def _is_of_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"


def _folded(text: str) -> str:
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
        # Look up each distinct character once, because a key may have a million, and this runs on the event loop.
        kinds = {one: unicodedata.category(one) for one in set(text)}
        text = text.translate({ord(one): _SHOWN[kind] for one, kind in kinds.items() if kind in _SHOWN})
    return text.casefold()


def _decoded(text: str) -> Iterator[bytes]:
    """Yield the bytes of a text, and every decoding that is possible for the text or one of its words."""
    yield text.encode(errors="surrogatepass")
    yield unquote_to_bytes(text.encode(errors="surrogatepass"))
    for one in _plain(text):
        with suppress(UnicodeEncodeError):
            yield one.encode(errors="surrogateescape")
    for word in _WORD.findall(text):
        with suppress(ValueError):
            yield bytes.fromhex(word)
        with suppress(ValueError):
            bare = word.rstrip("=")
            yield b32decode(bare + "=" * (-len(bare) % 8), casefold=True)
        with suppress(ValueError):
            yield b64decode(word.translate({0x2D: "+", 0x5F: "/"}).rstrip("=").encode(errors="replace") + b"==")
