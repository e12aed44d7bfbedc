"""Principals in Kafka's form: a type and a name, `User:alice`.

Source: KafkaPrincipal, SecurityUtils.parseKafkaPrincipal.
"""

from __future__ import annotations

from typing import NamedTuple

USER = "User"
"""The type of every principal that Kafka's own mechanisms assign."""


class Principal(NamedTuple):
    """One principal. The name may contain any characters, including colons and commas."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")
"""The principal of clients on listeners without authentication."""
