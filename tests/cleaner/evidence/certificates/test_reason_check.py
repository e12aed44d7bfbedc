"""Texts for certificates: those that name a key or hold a value, in any spelling, and those that do not."""

from __future__ import annotations

import gc
import re
import unicodedata
from types import SimpleNamespace
from uuid import UUID

import pytest

from diamant.cleaner.evidence.certificates import reason_check
from diamant.cleaner.evidence.certificates.reason_check import holds_value, names_sought
from diamant.cleaner.evidence.search.needles import VALUE, Needles

MAIL = b"ada@example.com"
PERSON_ID = UUID("12345678-9abc-def0-1234-56789abcdef0")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"customer-42", "data of customer-42"),
        (b"customer-42", "CUSTOMER-42's request"),
        (b"42", "customer 42"),
        (b"42", "42"),
        (b"#4", "ticket#4"),
        ("Müller".encode(), "Mu\u0308ller has asked for it"),
        ("Straße".encode(), "STRASSE"),
        (b"customer-42", "see /customers/customer%2D42"),
        (b"customer 42", "see ?q=customer+42"),
        (b"customer-42", "see /customers/customer%252D42"),
        (b"customer-42", "customer%2526%252345%253B42"),
        (b"customer-42", "customer=2D42"),
        (b"customer-42", "key mn2xg5dpnvsxeljugi======"),
        (b"customer-42", f"0x{b'customer-42'.hex().upper()}"),
        (b"customer-42", "63:75:73:74:6f:6d:65:72:2d:34:32"),
        (b"customer-42", "Y3VzdG9tZXItNDI="),
        (b"\xff\xfe\xfd", "key ff fe fd"),
        (b"\xfb\xef\xff", "key --__ in base64"),
        (b"\x1a", "key 1A"),
        ((42).to_bytes(8, "big"), "customer 42"),
        ((-7).to_bytes(4, "big", signed=True), "number -7"),
        ((42).to_bytes(2, "big"), "customer 42"),
        (b"\x1a\x2b", "key 0x1A2B"),
        (b"\x1a\x2b", "add 0x1a, 0x2b"),
        (b"\x1a\x2b", r"key \x1a\x2b"),
        (b"\0\0\x12g", r"key \x00\x00\x12g"),
        (PERSON_ID.bytes, f"customer {PERSON_ID}"),
        (str(PERSON_ID).encode(), f"customer {PERSON_ID.hex.upper()}"),
        (b"customer-42\n", "customer-42"),
        (b"customer-42", "custo\u200bmer\u201142"),
        (b"customer-42", "customer&#45;42"),
        (b"customer-42", r"customer\u002d42"),
        ("Müller".encode("utf-16-le"), "Müller"),
        (MAIL, f"xx{MAIL.hex()}xx"),
        (MAIL, "to:ada%40example.com!"),
    ],
)
def test_a_key_is_recognised(key: bytes, text: str) -> None:
    """A long key is recognised anywhere, a short one as a separate word; in any case, and in the encodings in which keys are
    given.
    """
    assert names_sought(text, [key])


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"42", "ticket 4211"),
        (b"42", "ticket A42"),
        (b"42", "ticket 3432, NDI"),
        (b"customer-42", "ticket customer-421"),
        (b"", "GDPR Art. 17"),
        (b" ", "GDPR Art. 17"),
        ("\u200b".encode(), "GDPR Art. 17"),
        (b"r", "GDPR: right to erasure"),
        ((42).to_bytes(8, "big"), "ticket 142"),
        (b"\x00\x01", "ticket 4711"),
    ],
)
def test_case_numbers_are_accepted_whatever_the_key(key: bytes, text: str) -> None:
    """Case numbers are accepted, whatever the key."""
    assert not names_sought(text, [key])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (MAIL, "mail of ada@example.com, 3 May"),
        (MAIL, "ada%2540example.com"),
        (MAIL, "ada=40example.com"),
        (MAIL, "mfsgcqdfpbqw24dmmuxgg33n"),
        (b"Anna Schmidt, Bern", "Anna%20Schmidt,%20Bern"),
        (b"Anna Schmidt, Bern", f"see {b'Anna Schmidt, Bern'.hex()}"),
        (b"Anna Schmidt, Bern", "QW5uYSBTY2htaWR0LCBCZXJu is hers"),
    ],
)
def test_a_value_is_recognised_by_its_digest(value: bytes, text: str) -> None:
    """A value is recognised byte by byte, plain or encoded."""
    needles = Needles(b"s" * 32)
    needles.add(VALUE, value)
    assert holds_value(text, needles)
    assert not holds_value("ticket 4711", needles)


def test_a_long_key_is_looked_for_without_asking_about_each_of_its_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of a million characters does not block the loop."""
    asked: list[str] = []

    def category(letter: str) -> str:
        asked.append(letter)
        return unicodedata.category(letter)

    monkeypatch.setattr(
        reason_check, "unicodedata", SimpleNamespace(category=category, normalize=unicodedata.normalize)
    )
    for key in (b"customer-42 " * 10_000, "Müller\u200b ".encode() * 10_000):
        assert not names_sought("ticket 4711", [key])
        assert names_sought(f"of {key.decode()}", [key])
    assert len(asked) < 1000


def test_a_short_key_is_not_kept_in_a_pattern() -> None:
    """`re` keeps patterns that it has compiled, so an erased key would stay in memory, and a new pattern for each erasure."""
    assert not names_sought("case 5102", [b"k-5103"])
    assert names_sought("case k-5103", [b"k-5103"])
    kept = [str(one.pattern) for one in gc.get_objects() if isinstance(one, re.Pattern)]
    assert not [one for one in kept if "k-5103" in one.replace("\\", "")]
