"""Principals, as Kafka names them: a type and a name, `User:alice`.

Source: KafkaPrincipal, SecurityUtils.parseKafkaPrincipal.
"""

from __future__ import annotations

from typing import NamedTuple

USER = "User"
"""The type of every principal that Kafka's own mechanisms give."""


class Principal(NamedTuple):
    """One principal. The name may hold colons, commas and any letter."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")
"""Clients of listeners without authentication."""


def parse_principal(text: str) -> Principal:
    """`TYPE:NAME` as a principal, parted at the first colon; ValueError if either is empty."""
    type_name, _, name = text.partition(":")
    if not (type_name and name):
        raise ValueError(f"{text!r} is no principal: expected TYPE:NAME, for instance User:alice")
    return Principal(type_name, name)
