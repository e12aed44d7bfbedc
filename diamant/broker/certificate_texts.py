"""Checks of a caller's texts for a certificate, its reason and reference."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from diamant.broker.operation_errors import BadArgument
from diamant.cleaner.evidence.certificates.reason_check import holds_value, names_sought
from diamant.cleaner.evidence.search.needles import Needles

MAX_TEXT = 1_000
"""The most characters of a reason or reference."""
_NOT_TEXT = ("Cc", "Cs", "Zl", "Zp")
"""Unicode categories: control characters, surrogates, line and paragraph separators."""


def check_reason(reason: str, reference: str = "") -> None:
    """Refuse texts that a certificate cannot hold. Raises BadArgument."""
    if not reason.strip():
        raise BadArgument("reason is missing: the certificate records it, for example 'GDPR Art. 17'")
    if max(len(reason), len(reference)) > MAX_TEXT:
        raise BadArgument(f"reason and reference are limited to {MAX_TEXT} characters each")
    if any(unicodedata.category(letter) in _NOT_TEXT for letter in reason + reference):
        raise BadArgument(
            "reason and reference must be one line each, without line breaks or control characters: they are shown on "
            "terminals"
        )


def check_unsaid(what: str, texts: Sequence[str], sought: Sequence[bytes], needles: Needles | None = None) -> None:
    """Refuse texts that contain the data to be removed. `sought`: keys and texts; `needles`: values. Raises BadArgument."""
    for text in texts:
        if names_sought(text, sought) or (needles and holds_value(text, needles)):
            raise BadArgument(
                f"{what} must not contain the data to be removed, neither a key nor a value, in any spelling: the "
                "certificate keeps them. Refer to the request by a case number, as in 'ticket 4711'"
            )
