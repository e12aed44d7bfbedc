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
