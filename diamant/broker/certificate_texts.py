"""Checks the strings that a caller wants in a certificate: its reason and reference."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from diamant.broker.operation_errors import BadArgument
from diamant.cleaner.evidence.certificates.reason_check import holds_value, names_sought
from diamant.cleaner.evidence.search.needles import Needles

MAX_TEXT = 1_000
"""The maximum length of a reason or reference, in characters."""
_NOT_TEXT = ("Cc", "Cs", "Zl", "Zp")
"""The forbidden Unicode categories: control characters, surrogates, line and paragraph separators."""


def check_reason(reason: str, reference: str = "") -> None:
    """Raise BadArgument if a certificate cannot contain this reason or reference."""
    if not reason.strip():
        raise BadArgument("reason is missing: the certificate records it, for example 'GDPR Art. 17'")
    if max(len(reason), len(reference)) > MAX_TEXT:
        raise BadArgument(f"reason and reference are limited to {MAX_TEXT} characters each")
    if any(unicodedata.category(letter) in _NOT_TEXT for letter in reason + reference):
        raise BadArgument(
            "reason and reference must be one line each, without line breaks or control characters, because terminals show them"
        )


def check_unsaid(what: str, texts: Sequence[str], sought: Sequence[bytes], needles: Needles | None = None) -> None:
    """Raise BadArgument if one of `texts` contains data to be removed: one of `sought`, or a value in `needles`."""
    for text in texts:
        if names_sought(text, sought) or (needles and holds_value(text, needles)):
            raise BadArgument(
                f"{what} must not contain the data to be removed (a key or a value, in any spelling), because certificates "
                "are kept. Refer to the request by a case number, such as 'ticket 4711'"
            )
