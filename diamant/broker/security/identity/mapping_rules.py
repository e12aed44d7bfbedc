r"""The rules of `ssl.principal.mapping.rules`, which map the subject of a client's certificate to the name of its principal.

    rules = rule { "," rule }
    rule  = "DEFAULT" | "RULE:" pattern "/" replacement "/" [ "L" | "U" ]

The first rule whose pattern matches the whole name applies. `$1` in the replacement stands for the first group of the pattern; L
and U convert to lower and upper case. DEFAULT returns the name unchanged. A slash in a pattern is written `\/`.

Source: SslPrincipalMapper (KIP-371).
"""

from __future__ import annotations

import re
from functools import partial
from typing import NamedTuple

_RULE = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_RULES = re.compile(rf"\s*({_RULE})\s*(?:,\s*|$)")
_WHOLE_RULE = re.compile(_RULE)
_REFERENCE = re.compile(r"\\(.)|\$(\d)(\d*)|\$\{([A-Za-z][A-Za-z0-9]*)\}")
_JAVAS_NAMED_GROUP = re.compile(r"\(\?<(?![=!])")


class NoRuleApplies(Exception):
    """Raised if no rule matches a name."""


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    replacement: str
    case: str


class MappingRules:
    """Parsed mapping rules. The constructor raises ValueError for an invalid rule."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._rules = [rule for part in _RULES.finditer(text.strip()) for rule in _parsed(part[1])]

    def name_of(self, distinguished_name: str) -> str:
        """Map a certificate's distinguished name to the principal's name. Raises NoRuleApplies."""
        for rule in self._rules:
            if rule is None:
                return distinguished_name
            if rule.pattern.fullmatch(distinguished_name):
                name = rule.pattern.sub(partial(_expanded, rule.replacement), distinguished_name)
                return {"L": name.lower(), "U": name.upper()}.get(rule.case, name)
        raise NoRuleApplies(f"no rule applies to {distinguished_name} (ssl.principal.mapping.rules={self._text})")


def _parsed(text: str) -> list[_Rule | None]:
    """Parse one rule; return [rule], or [None] for DEFAULT, or [] for an empty string."""
    match = _WHOLE_RULE.match(text)
    if match is None or match.end() != len(text) or (text and match[1] is None and match[2] is None):
        raise ValueError(
            f"{text!r} is not a rule: expected DEFAULT or RULE:pattern/replacement/, perhaps with L or U at the end"
        )
    if match[1] is not None:
        return [None]
    if match[2] is None:
        return []
    try:
        return [_Rule(re.compile(_JAVAS_NAMED_GROUP.sub("(?P<", match[2])), match[3], match[4])]
    except re.error as error:
        raise ValueError(f"{match[2]!r} is not a regular expression: {error}") from error


def _expanded(replacement: str, match: re.Match[str]) -> str:
    def value(reference: re.Match[str]) -> str:
        escaped, digit, more, name = reference.groups()
        if escaped is not None:
            return escaped
        if name is not None:
            return match[name] or ""
        groups = len(match.groups())
        if int(digit) > groups:
            return reference[0]  # as in Kafka, a reference to a missing group stays as it is
        number = int(digit)
        for position, further in enumerate(more):  # as in Java, take more digits while such a group exists
            if number * 10 + int(further) > groups:
                return (match[number] or "") + more[position:]
            number = number * 10 + int(further)
        return match[number] or ""

    return _REFERENCE.sub(value, replacement)
